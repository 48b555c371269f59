package temporalserver

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/ingotmetal/ingot/internal/temporal/temporalchild"
)

// portGrace is how long waitForPorts waits for an occupied port. The kernel closes the files of an ending process one after another, so an
// orphan may have released its lock but not yet its ports.
const portGrace = 2 * time.Second

// waitForPorts waits until the server's ports are free, because the server would end the process if one is occupied. The UI's
// port is not included: see awaitUIPort.
func waitForPorts(ctx context.Context, cfg temporalchild.Config) error {
	expired := time.After(portGrace)
	for _, port := range []int{cfg.Ports.Frontend, cfg.Ports.History, cfg.Ports.Matching, cfg.Ports.Worker} {
		for {
			failure := portOccupied(cfg.Host, port, "temporal.port")
			if failure == nil {
				break
			}
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-expired:
				return failure
			case <-time.After(50 * time.Millisecond):
			}
		}
	}
	return nil
}

// portOccupied listens on the port briefly. If that succeeds, it returns nil, otherwise the failure.
func portOccupied(host string, port int, key string) *temporalchild.Failure {
	addr := hostPort(host, port)
	l, err := net.Listen("tcp", addr)
	if err == nil {
		err = l.Close()
	}
	if err == nil {
		return nil
	}

	f := &temporalchild.Failure{Key: key, Address: addr}
	if !errors.Is(err, syscall.EADDRINUSE) {
		f.Message = fmt.Sprintf("listening on %s: %v", addr, err)
		f.Remedy = "choose another " + key
		return f
	}

	f.Holder = portHolder(port)
	f.Message = fmt.Sprintf("%s is occupied", addr)
	if f.Holder != "" {
		f.Message += " by " + f.Holder
	}

	f.Remedy = fmt.Sprintf("if another Temporal server uses port %d, stop it, or set another %s in the configuration", port, key)
	return f
}

// portHolder returns the name of the process that listens on the TCP port. It returns "" if the process belongs to another user
// or network namespace.
func portHolder(port int) string {
	inodes := map[string]bool{}
	for _, table := range []string{"/proc/self/net/tcp", "/proc/self/net/tcp6"} {
		listeners(table, port, inodes)
	}

	if len(inodes) == 0 {
		return ""
	}
	fds, err := filepath.Glob("/proc/[0-9]*/fd/*")
	if err != nil {
		return ""
	}

	for _, fd := range fds {
		// Readlink fails if the process has ended, or if this user may not inspect it.
		target, err := os.Readlink(fd)
		if err != nil || !inodes[target] {
			continue
		}
		if pid, err := strconv.Atoi(strings.Split(fd, "/")[2]); err == nil {
			return processName(pid)
		}
	}

	return ""
}

// listeners adds "socket:[inode]" to inodes for every listener on port in one of the kernel's TCP tables. The columns of a table are
// sl, local address, remote address, state (0A = LISTEN), …; the tenth is the inode.
func listeners(table string, port int, inodes map[string]bool) {
	data, err := os.ReadFile(table)
	if err != nil {
		return // there is no IPv6, or no /proc
	}

	suffix := fmt.Sprintf(":%04X", port)
	for lines := bufio.NewScanner(bytes.NewReader(data)); lines.Scan(); {
		f := strings.Fields(lines.Text())
		if len(f) > 9 && strings.HasSuffix(f[1], suffix) && f[3] == "0A" {
			inodes["socket:["+f[9]+"]"] = true
		}
	}
}
