package bootsvc

import (
	"bytes"
	"strconv"
	"strings"
)

const (
	maxTFTPRequest = 512 // bytes (RFC 2347)
	maxTFTPName    = 255
	minTFTPBlock   = 512 // the library's minimum; RFC 2348 allows 8
)

// readRequest parses a read request and returns a new one for the library: file name,
// mode, and at most one blksize and one tsize option, with numbers that Ingot wrote.
// Option texts of the client could overflow the library's buffer.
func readRequest(b []byte) (request []byte, ok bool) {
	if len(b) < 4 || len(b) > maxTFTPRequest {
		return nil, false
	}
	fields := bytes.Split(b[2:], []byte{0})
	if len(fields) < 2 || len(fields[0]) == 0 || len(fields[0]) > maxTFTPName {
		return nil, false
	}
	mode := strings.ToLower(string(fields[1]))
	if mode != "octet" && mode != "netascii" {
		return nil, false
	}

	var size uint64
	var tsize bool
	for i := 2; i+1 < len(fields); i += 2 {
		switch strings.ToLower(string(fields[i])) { // RFC 2347: names have no case
		case "blksize":
			if n, err := strconv.ParseUint(string(fields[i+1]), 10, 16); err == nil && n >= minTFTPBlock {
				size = min(n, tftpBlock)
			}
		case "tsize":
			tsize = true
		}
	}

	request = append([]byte{0, opRRQ}, fields[0]...)
	request = append(request, "\x00"+mode+"\x00"...)
	if size > 0 {
		request = append(request, "blksize\x00"+strconv.FormatUint(size, 10)+"\x00"...)
	}
	if tsize {
		request = append(request, "tsize\x000\x00"...)
	}
	return request, true
}
