package tftp

import (
	"bytes"
	"strconv"
	"strings"
	"time"
)

const (
	maxBlock = 1468 // an MTU of 1500 less the headers of IP (20), UDP (8) and TFTP (4)
	// Timeout is how long a packet waits for an answer before it is sent again.
	Timeout = 2 * time.Second
	// Retries is how often it is sent again.
	Retries = 5

	// Windows in blocks (RFC 7440). ACKs are as easily forged as requests, and a window is
	// many times longer than its ACK: only an armed machine's own address gets long ones.
	ownWindow    = 64
	othersWindow = 8
)

// Operation codes (RFC 1350, 2347).
const (
	opRRQ   = 1
	opWRQ   = 2
	opData  = 3
	opACK   = 4
	opError = 5
	opOACK  = 6
)

const (
	maxRequest = 512 // bytes (RFC 2347)
	maxName    = 255
)

// request is a read request (RFC 1350) with the options that this server knows
// (RFC 2347). An option that the client did not ask for, or with an invalid value, is
// zero.
type request struct {
	name      string
	netascii  bool
	tsize     bool          // RFC 2349
	timeout   time.Duration // RFC 2349
	blockSize int           // RFC 2348, at most maxBlock
	window    int           // RFC 7440, at most ownWindow blocks
}

// readRequest parses a read request.
func readRequest(b []byte) (r request, ok bool) {
	if len(b) < 4 || len(b) > maxRequest {
		return r, false
	}
	fields := bytes.Split(b[2:], []byte{0})
	if len(fields) < 2 || len(fields[0]) == 0 || len(fields[0]) > maxName {
		return r, false
	}
	r.name = string(fields[0])
	switch strings.ToLower(string(fields[1])) {
	case "octet":
	case "netascii":
		r.netascii = true
	default:
		return r, false
	}

	for i := 2; i+1 < len(fields); i += 2 {
		value := string(fields[i+1])
		switch strings.ToLower(string(fields[i])) { // RFC 2347: names have no case
		case "blksize":
			r.blockSize = min(optionValue(value, 8, 65464), maxBlock)
		case "windowsize":
			r.window = min(optionValue(value, 1, 65535), ownWindow)
		case "timeout":
			r.timeout = time.Duration(optionValue(value, 1, 255)) * time.Second
		case "tsize":
			r.tsize = !r.netascii // the length of netascii is not known before it is sent
		}
	}
	return r, true
}

// optionValue returns the value of an option, or 0 if it is not from least to most.
func optionValue(s string, least, most uint64) int {
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil || n < least || n > most {
		return 0
	}
	return int(n)
}

// oack returns the OACK for the options of r, or nil if r has none. size is the file's,
// in bytes.
func (r request) oack(size int64) []byte {
	b := []byte{0, opOACK}
	add := func(asked bool, name string, value int64) {
		if asked {
			b = append(b, name+"\x00"+strconv.FormatInt(value, 10)+"\x00"...)
		}
	}
	add(r.blockSize > 0, "blksize", int64(r.blockSize))
	add(r.window > 0, "windowsize", int64(r.window))
	add(r.timeout > 0, "timeout", int64(r.timeout/time.Second))
	add(r.tsize, "tsize", size)
	if len(b) == 2 {
		return nil
	}
	return b
}
