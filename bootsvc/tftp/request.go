package tftp

import (
	"bytes"
	"strconv"
	"strings"
	"time"
)

const (
	maxBlock = 1468 // an MTU of 1500 minus the headers of IP (20), UDP (8) and TFTP (4)
	// Timeout is how long the server waits for an ACK before it repeats a packet, unless the client sets another time.
	Timeout = 2 * time.Second
	// Retries is how often the server repeats a packet.
	Retries = 5

	// Window sizes in blocks (RFC 7440). An ACK is as easily forged as a request, and the server answers it with a
	// whole window, which is many times as large. Therefore only an armed machine's own address gets long windows.
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

// request is a read request (RFC 1350) with the options that this server supports (RFC 2347). The field of an option
// that is missing or invalid is zero.
type request struct {
	name      string
	netascii  bool
	tsize     bool          // RFC 2349
	timeout   time.Duration // RFC 2349
	blockSize int           // RFC 2348, at most maxBlock
	window    int           // RFC 7440, at most ownWindow blocks
}

// readRequest parses a read or write request. ok is false if the request is malformed.
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
		switch strings.ToLower(string(fields[i])) { // RFC 2347: option names are case-insensitive
		case "blksize":
			r.blockSize = min(optionValue(value, 8, 65464), maxBlock)
		case "windowsize":
			r.window = min(optionValue(value, 1, 65535), ownWindow)
		case "timeout":
			r.timeout = time.Duration(optionValue(value, 1, 255)) * time.Second
		case "tsize":
			r.tsize = !r.netascii // the length in netascii is only known once the file is sent
		}
	}
	return r, true
}

// optionValue returns the value of an option, or 0 if s is not a number between least and most.
func optionValue(s string, least, most uint64) int {
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil || n < least || n > most {
		return 0
	}
	return int(n)
}

// oack returns the OACK for the options of r, or nil if r has none. size is the size of the file in bytes.
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
