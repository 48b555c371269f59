package httpserve

import (
	"encoding/binary"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// yield lets goroutines run whose connections can be read. Go's scheduler looks at the network when it has nothing else to
// run, and otherwise every 10 ms. Without yield, a connection whose client asks again at once is served for that long
// while the requests of others wait. runtime.Gosched is not enough: it leaves the caller to run. So the caller waits for
// the network, too: for an eventfd, which can be read at once.
func yield() {
	c, ok := eventfds.Get().(syscall.RawConn)
	if !ok {
		return
	}
	defer eventfds.Put(c)
	waited := false
	// It cannot fail: nothing closes the eventfd, and it has no deadline.
	_ = c.Read(func(fd uintptr) (done bool) {
		if waited {
			return true
		}
		waited = true
		_, err := unix.Write(int(fd), one)
		return err != nil
	})
}

// one is what is added to the counter of an eventfd.
var one = binary.NativeEndian.AppendUint64(nil, 1)

// eventfds are those that no yield uses, each as a syscall.RawConn, or nil if none can be opened.
var eventfds = sync.Pool{New: func() any {
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
