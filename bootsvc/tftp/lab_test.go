package tftp

import (
	"flag"
	"net/netip"
	"os/exec"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

var inLab = flag.Bool("lab", false, "run the tests that need root and make network namespaces")

// TestLabS34SendingDoesNotWait: a socket whose buffer is full of packets that wait for ARP refuses more, and does not keep its
// server waiting.
func TestLabS34SendingDoesNotWait(t *testing.T) {
	if !*inLab {
		t.Skip("needs root and network namespaces: go test -lab")
	}
	runtime.LockOSThread() // the thread ends with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"link", "add", "srv0", "type", "veth", "peer", "name", "cli0"},
		{"addr", "add", "10.10.20.2/24", "dev", "srv0"},
		{"link", "set", "srv0", "up"},
		{"link", "set", "cli0", "up"},
	} {
		if out, err := exec.CommandContext(t.Context(), "ip", args...).CombinedOutput(); err != nil {
			t.Fatalf("ip %s: %v %s", args, err, out)
		}
	}

	at, err := Listen(t.Context(), "10.10.20.2:69")
	if err != nil {
		t.Fatal(err)
	}
	defer at.Close()
	if err := unix.SetsockoptInt(at.packets.(*socket).fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 1); err != nil {
		t.Fatal(err)
	}
	var blocks []datagram
	for n := range maxBatch {
		peer := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 10, 20, byte(100 + n)}), 1069)
		blocks = append(blocks, datagram{peer: peer, local: ownHost, head: [4]byte{0, opData, 0, 1}, content: make([]byte, 512)})
	}
	sent, err := at.Send(blocks)
	if err != nil || sent == 0 || sent == len(blocks) {
		t.Errorf("%d of %d blocks were sent: %v", sent, len(blocks), err)
	}
	if sent, err = at.Send(blocks[sent:]); sent != 0 || err == nil {
		t.Errorf("%d more blocks were sent: %v", sent, err)
	}
}
