package facts

import (
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ingotmetal/ingot/action"
)

// lldpGroup is the multicast address to which switches send LLDP frames (IEEE 802.1AB, 7.1).
var lldpGroup = [8]byte{0x01, 0x80, 0xc2, 0, 0, 0x0e}

// Neighbours stores the sender of the last LLDP frame that each network interface has received. Switches send a frame every 30
// seconds by default.
type Neighbours struct {
	mu   sync.Mutex
	last map[string]action.Neighbour // by interface name
}

// Last returns the last neighbour of each interface, by interface name.
func (n *Neighbours) Last() map[string]action.Neighbour {
	if n == nil {
		return nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return maps.Clone(n.last)
}

// ListenLLDP receives LLDP frames on all interfaces until ctx ends. It never sends.
func ListenLLDP(ctx context.Context, log *slog.Logger) (*Neighbours, error) {
	proto := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_LLDP))
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, int(proto))
	if err != nil {
		return nil, fmt.Errorf("opening a socket for LLDP: %w", err)
	}
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 1}); err != nil {
		_ = unix.Close(fd) // the first error is returned
		return nil, fmt.Errorf("setting a time limit for LLDP: %w", err)
	}
	n := &Neighbours{last: map[string]action.Neighbour{}}
	go func() {
		defer func() { _ = unix.Close(fd) }() // nothing was written
		n.listen(ctx, fd, log)
	}()
	return n, nil
}

func (n *Neighbours) listen(ctx context.Context, fd int, log *slog.Logger) {
	joined := map[int]bool{}
	buf := make([]byte, 2048)
	for ctx.Err() == nil {
		n.join(fd, joined)
		size, from, err := unix.Recvfrom(fd, buf, 0)
		if err != nil { // usually the receive time-out
			continue
		}
		link, ok := from.(*unix.SockaddrLinklayer)
		if !ok || link.Pkttype == unix.PACKET_OUTGOING {
			continue
		}
		neighbour, err := parseLLDP(buf[:size])
		i, nameErr := net.InterfaceByIndex(link.Ifindex)
		if err != nil || nameErr != nil {
			continue
		}
		n.mu.Lock()
		if n.last[i.Name] != neighbour {
			log.Info("neighbour found by LLDP", "interface", i.Name, "system", neighbour.System, "port", neighbour.Port)
		}
		n.last[i.Name] = neighbour
		n.mu.Unlock()
	}
}

// join subscribes to lldpGroup on interfaces that have appeared since the last call.
func (n *Neighbours) join(fd int, joined map[int]bool) {
	all, err := net.Interfaces()
	if err != nil {
		time.Sleep(time.Second)
		return
	}
	for _, i := range all {
		if joined[i.Index] || i.Flags&net.FlagLoopback != 0 || len(i.HardwareAddr) != 6 {
			continue
		}
		m := unix.PacketMreq{Ifindex: int32(i.Index), Type: unix.PACKET_MR_MULTICAST, Alen: 6, Address: lldpGroup}
		joined[i.Index] = unix.SetsockoptPacketMreq(fd, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP, &m) == nil
	}
}
