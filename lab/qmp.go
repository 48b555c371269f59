package lab

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"
)

// The ids of the two devices that a machine boots from.
const (
	netDevice  = "net0"
	diskDevice = "blk0"
	cdDevice   = "cd0" // exists only while an image is in the virtual drive
)

// bootIndexes are the boot indexes of network card and disk for the firmware. With CDFirst, the virtual
// drive comes before both.
func bootIndexes(first BootOrder) (network, disk int) {
	if first == NetworkFirst {
		return 1, 2
	}
	return 2, 1
}

// qmp is a connection to QEMU's monitor. It stays open until the process ends.
type qmp struct {
	conn    net.Conn
	mu      sync.Mutex // serializes commands
	answers chan qmpAnswer
	closed  chan struct{}
}

type qmpAnswer struct {
	Return json.RawMessage
	Error  *struct{ Desc string }
	Event  string
}

// dialQMP connects to the monitor socket as soon as QEMU listens. It gives up when QEMU ends
// (exited is closed). onEvent is called from a single goroutine, in order.
func dialQMP(ctx context.Context, socket string, exited <-chan struct{}, onEvent func(string)) (*qmp, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	q := &qmp{answers: make(chan qmpAnswer), closed: make(chan struct{})}
	err := poll(ctx, func() (bool, error) {
		select {
		case <-exited:
			return false, errors.New("QEMU ended at once")
		default:
		}
		var d net.Dialer
		c, err := d.DialContext(ctx, "unix", socket)
		if err != nil {
			return false, nil //nolint:nilerr // the socket does not exist yet
		}
		q.conn = c
		return true, nil
	})
	if err != nil {
		return nil, err
	}
	go q.read(onEvent)
	go func() {
		<-exited
		_ = q.conn.Close()
	}()
	_, err = q.call(ctx, "qmp_capabilities", nil)
	return q, err
}

// read passes answers to call and events to onEvent until the connection ends.
func (q *qmp) read(onEvent func(string)) {
	defer close(q.closed)
	r := bufio.NewReader(q.conn)
	for {
		line, err := r.ReadBytes('\n')
		if err != nil {
			return
		}
		var a qmpAnswer
		if json.Unmarshal(line, &a) != nil {
			continue // the monitor sends no other messages
		}
		switch {
		case a.Event != "":
			onEvent(a.Event)
		case a.Return != nil || a.Error != nil:
			select {
			case q.answers <- a:
			case <-time.After(5 * time.Second): // the caller no longer waits
			}
		}
	}
}

// call runs one command.
func (q *qmp) call(ctx context.Context, cmd string, args map[string]any) (json.RawMessage, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	q.mu.Lock()
	defer q.mu.Unlock()
	m := map[string]any{"execute": cmd}
	if args != nil {
		m["arguments"] = args
	}
	b, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	if _, err := q.conn.Write(append(b, '\n')); err != nil {
		return nil, fmt.Errorf("asking QEMU to %s: %w", cmd, err)
	}
	select {
	case a := <-q.answers:
		if a.Error != nil {
			return nil, fmt.Errorf("asking QEMU to %s: %s", cmd, a.Error.Desc)
		}
		return a.Return, nil
	case <-q.closed:
		return nil, fmt.Errorf("asking QEMU to %s: it ended", cmd)
	case <-ctx.Done():
		return nil, fmt.Errorf("asking QEMU to %s: %w", cmd, ctx.Err())
	}
}

// setBootOrder sets the boot order that the firmware receives at the next reset. Two devices can
// never have the same index, not even between two commands, and setting a device's present index
// again is refused.
func (q *qmp) setBootOrder(ctx context.Context, first BootOrder) error {
	n, d := bootIndexes(first)
	if first != CDFirst {
		// Fails if the machine has no virtual drive now.
		_, _ = q.call(ctx, "qom-set", map[string]any{"path": "/machine/peripheral/" + cdDevice, "property": "bootindex", "value": -1})
	}
	for _, s := range []struct {
		device string
		index  int
	}{{netDevice, 9}, {diskDevice, d}, {netDevice, n}} {
		arg := map[string]any{"path": "/machine/peripheral/" + s.device, "property": "bootindex"}
		cur, err := q.call(ctx, "qom-get", arg)
		if err != nil {
			return err
		}
		if string(cur) == strconv.Itoa(s.index) {
			continue
		}
		arg["value"] = s.index
		if _, err := q.call(ctx, "qom-set", arg); err != nil {
			return err
		}
	}
	return nil
}
