package blockdev

import (
	"errors"
	"fmt"
	"hash"
	"io"
)

// ReadAhead reads a stream in one goroutine and hashes it in another, while the caller does other work. The caller gets the pieces
// in order, either from Ready (then it must call Release for each piece) or by Read, but not by both. The caller must call Close.
type ReadAhead struct {
	free  chan []byte // empty buffers; closed by Close
	Ready chan Piece

	// current and rest are used only by Read.
	current, rest []byte
	err           error
}

// Piece is the data in one buffer. If Err is not nil, the stream has ended after Data with this error.
type Piece struct {
	Data []byte
	Err  error
}

// StartReadAhead starts to read r into n buffers of size bytes each. If sum is not nil, it hashes the data into sum; the hash is
// complete when the caller has received the last piece.
func StartReadAhead(r io.Reader, sum hash.Hash, n, size int) *ReadAhead {
	a := &ReadAhead{free: make(chan []byte, n), Ready: make(chan Piece, n)}
	for range n {
		a.free <- Aligned(size)
	}

	if sum == nil {
		go a.read(r, a.Ready)
		return a
	}

	read := make(chan Piece, n)
	go a.read(r, read)
	go func() {
		defer close(a.Ready)
		for p := range read {
			sum.Write(p.Data)
			a.Ready <- p
		}
	}()
	return a
}

// read sends one piece for each Read of r, until r ends or free is closed.
func (a *ReadAhead) read(r io.Reader, out chan<- Piece) {
	defer close(out)
	defer func() {
		if p := recover(); p != nil {
			out <- Piece{Err: fmt.Errorf("reading the stream: panic: %v", p)}
		}
	}()

	for buf := range a.free {
		n, err := r.Read(buf)
		out <- Piece{buf[:n], err}
		if err != nil {
			return
		}
	}
}

// Release gives back the buffer of a piece, so that more data is read into it.
func (a *ReadAhead) Release(data []byte) { a.free <- data[:cap(data)] }

// Read implements io.Reader.
func (a *ReadAhead) Read(p []byte) (int, error) {
	for len(a.rest) == 0 {
		if a.err != nil {
			return 0, a.err
		}
		if a.current != nil {
			a.Release(a.current)
		}

		next, ok := <-a.Ready
		if !ok {
			return 0, errors.New("reading a stream that is already closed")
		}
		a.current, a.rest, a.err = next.Data, next.Data, next.Err
	}

	n := copy(p, a.rest)
	a.rest = a.rest[n:]
	return n, nil
}

// Close stops reading r, and waits until no read of r is in progress. If a read of r may block, the caller must end it first.
func (a *ReadAhead) Close() {
	close(a.free)
	for range a.free { // take all buffers, so that read stops
	}
	for range a.Ready { // closed after both goroutines have ended
	}
}
