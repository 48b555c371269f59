package agent

import (
	"errors"
	"fmt"
	"hash"
	"io"
)

// readAhead reads a stream in one goroutine and hashes it in another, in parallel with the caller's
// work. The pieces arrive in order. Either take them from ready and release their buffers, or use
// Read, not both. The caller ends it with close.
type readAhead struct {
	free  chan []byte // empty buffers; closed by close
	ready chan piece

	// current and rest are used only by Read.
	current, rest []byte
	err           error
}

// piece is the data in one buffer. err, if not nil, ended the stream after data.
type piece struct {
	data []byte
	err  error
}

// startReadAhead starts to read r into n buffers of size bytes. sum, if not nil, hashes the data.
// The hash is complete when the caller has received the last piece.
func startReadAhead(r io.Reader, sum hash.Hash, n, size int) *readAhead {
	a := &readAhead{free: make(chan []byte, n), ready: make(chan piece, n)}
	for range n {
		a.free <- aligned(size)
	}

	if sum == nil {
		go a.read(r, a.ready)
		return a
	}

	read := make(chan piece, n)
	go a.read(r, read)
	go func() {
		defer close(a.ready)
		for p := range read {
			sum.Write(p.data)
			a.ready <- p
		}
	}()
	return a
}

// read sends a piece for each Read of r, until r ends or free is closed.
func (a *readAhead) read(r io.Reader, out chan<- piece) {
	defer close(out)
	defer func() {
		if p := recover(); p != nil {
			out <- piece{err: fmt.Errorf("reading the stream: panic: %v", p)}
		}
	}()

	for buf := range a.free {
		n, err := r.Read(buf)
		out <- piece{buf[:n], err}
		if err != nil {
			return
		}
	}
}

// release returns the buffer of a piece.
func (a *readAhead) release(data []byte) { a.free <- data[:cap(data)] }

// Read implements io.Reader.
func (a *readAhead) Read(p []byte) (int, error) {
	for len(a.rest) == 0 {
		if a.err != nil {
			return 0, a.err
		}
		if a.current != nil {
			a.release(a.current)
		}

		next, ok := <-a.ready
		if !ok {
			return 0, errors.New("reading a stream after its end")
		}
		a.current, a.rest, a.err = next.data, next.data, next.err
	}

	n := copy(p, a.rest)
	a.rest = a.rest[n:]
	return n, nil
}

// close waits until the stream is no longer read. A read that may block has to be ended first.
func (a *readAhead) close() {
	close(a.free)
	for range a.free { // take all buffers, so that no more data is read
	}
	for range a.ready { // closed after both goroutines have ended
	}
}
