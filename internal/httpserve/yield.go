package httpserve

import (
	"encoding/binary"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// yield gives way to goroutines whose connections have data to read. Go's scheduler polls the network only when a
// processor has nothing to run, and otherwise every 10 ms: without yield, a client that sends its next request at once
// keeps its goroutine running for that long, and the requests of others wait. runtime.Gosched is not enough, because the
// caller then remains to be run.
//
// So the caller waits in the poller, too: it writes to an eventfd, and waits until that is reported. The counter is never
// read, because the poller is edge-triggered and reports each write. If no eventfd can be opened, yield does nothing.
func yield() {
	c, ok := idleEventfds.Get().(syscall.RawConn)
	if !ok {
		return
	}
	written := false
	err := c.Read(func(fd uintptr) (done bool) {
		if written {
			return true
		}
		_, err := unix.Write(int(fd), increment)
		written = true
		return err != nil
	})
	if err == nil { // otherwise the poller cannot watch this eventfd
		idleEventfds.Put(c)
	}
}

// increment adds 1 to the counter of an eventfd.
var increment = binary.NativeEndian.AppendUint64(nil, 1)

// idleEventfds has an eventfd (syscall.RawConn) for each yield that was under way at the same time, at most one for each
// connection. Get returns nil if none can be opened. Those that the pool drops are closed by the finalizer of os.File.
var idleEventfds = sync.Pool{New: func() any {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil
	}
	c, err := os.NewFile(uintptr(fd), "eventfd").SyscallConn()
	if err != nil {
		return nil
	}
	return c
}}
