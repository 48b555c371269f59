package bootsvc

import (
	"errors"
	"io"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ingotmetal/ingot/bootsvc/tftp/tftptest"

	"github.com/ingotmetal/ingot/bootsvc/neighbours"
	"github.com/ingotmetal/ingot/bootsvc/tftp"
	"github.com/ingotmetal/ingot/bootsvc/wire"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/lab/pcap"
)

func symlink(t testing.TB, target, name string) {
	t.Helper()
	if err := os.Symlink(target, name); err != nil {
		t.Fatal(err)
	}
}

// tftpServer serves a machine whose reservation is the loopback address.
func tftpServer(t *testing.T) (*Server, *fakeMachines, *fakeJournal, string) {
	t.Helper()
	f := &fakeMachines{
		machines: []inventory.Machine{machine(func(m *inventory.Machine) { m.Interfaces[0].Address = netip.MustParseAddr("127.0.0.1") })},
	}
	s, j := newServer(t, f, nil)
	return s, f, j, startTFTP(t, s)
}

// UEFI requests the size, aborts, and downloads from the same port.
func TestTFTPSizeProbe(t *testing.T) {
	s, f, j, addr := tftpServer(t)
	f.setGrant(armed("node1"))
	c := tftptest.Dial(t, addr)
	const rrq = "\x00\x01snponly.efi\x00octet\x00tsize\x000\x00blksize\x001468\x00windowsize\x004\x00"
	tftptest.Send(t, c, rrq)
	oack := tftptest.Receive(t, c)
	if !strings.HasPrefix(oack, "\x00\x06") || !strings.Contains(oack, "tsize\x004800\x00") ||
		!strings.Contains(oack, "blksize\x001468\x00") ||
		!strings.Contains(oack, "windowsize\x004\x00") {
		t.Fatalf("OACK %q", oack)
	}
	tftptest.Send(t, c, "\x00\x05\x00\x08User aborted the transfer\x00")
	if body, err := tftptest.Get(t, addr, "snponly.efi"); err != nil || len(body) != 4800 {
		t.Errorf("%d bytes, %v", len(body), err)
	}
	// The client is done before the server has read the last ACK.
	waitFor(t, func() bool { return s.Stats().TFTPServed == 1 && s.Stats().TFTPAborted == 1 })
	if n := s.Stats().TFTPRefused; n != 0 {
		t.Errorf("%d refused", n)
	}
	if kinds := j.kinds(t, s); kinds != inventory.EventLoader {
		t.Errorf("events %q", kinds)
	}
}

// waitFor waits until ok returns true.
func waitFor(t *testing.T, ok func() bool) {
	t.Helper()
	deadline := time.NewTimer(20 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-deadline.C:
			t.Fatal("this did not happen in 20 s")
		case <-tick.C:
		}
	}
}

func TestTFTPRefusals(t *testing.T) {
	_, f, _, addr := tftpServer(t)
	f.setGrant(armed("node1"))
	for _, name := range []string{"../vmlinuz", "/etc/passwd", "nothere.efi", "52:54:00:99:99:99/snponly.efi", "zz/snponly.efi", "a/b/c", ".."} {
		if body, err := tftptest.Get(t, addr, name); err == nil {
			t.Errorf("%q was served: %.20q", name, body)
		}
	}
	for _, name := range []string{"snponly.efi", "/snponly.efi", "\\snponly.efi", "//52-54-00-20-01-01//snponly.efi", "525400200101/autoexec.ipxe"} {
		if _, err := tftptest.Get(t, addr, name); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestTFTPInParallel(t *testing.T) {
	s, f, _, addr := tftpServer(t)
	f.setGrant(armed("node1"))
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 3 {
				if body, err := tftptest.Get(t, addr, "ipxe.efi"); err != nil || len(body) != 3600 {
					t.Errorf("%d bytes, %v", len(body), err)
				}
			}
		})
	}
	wg.Wait()
	waitFor(t, func() bool { return s.Stats().TFTPServed == 12 })
}

// S34: a name never leads out of the folder of loaders.
func FuzzTFTPPath(f *testing.F) {
	for _, p := range []string{"snponly.efi", "/52:54:00:20:01:01/autoexec.ipxe", "\\..\\x", "a//b", "52-54-00-20-01-01/..", "x\x00y"} {
		f.Add(p)
	}
	packets, err := pcap.Read(captures, pcap.UDP, 69)
	if err != nil {
		f.Fatal(err)
	}
	for _, p := range packets {
		name, _, _ := strings.Cut(string(p.Payload[2:]), "\x00")
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, p string) {
		mac, file, ok := tftpPath(p)
		if !ok {
			return
		}
		if !isFileName(file) || strings.ContainsAny(file, "/\\\x00") || file == "." || file == ".." {
			t.Fatalf("%q became file %q", p, file)
		}
		if mac != "" {
			if again, ok := wire.ParseMAC(mac); !ok || again != mac {
				t.Fatalf("%q became MAC %q", p, mac)
			}
		}
	})
}

// TestTFTPSelfTestIsForThisHost: the check's script, the only file without a machine, is
// not sent to a forged source (security S34).
func TestTFTPSelfTestIsForThisHost(t *testing.T) {
	s, _ := newServer(t, &fakeMachines{}, nil)
	for source, own := range map[string]bool{"192.0.2.7": false, testSelf.String(): true} {
		sent := ""
		err := s.files.read(t.Context(), tftp.Request{
			Name: neighbours.CheckMAC + "/" + autoexecName, From: netip.MustParseAddr(source), Local: testSelf,
			Send: func(_ tftp.Rank, _ int64, r io.Reader) error {
				b, err := io.ReadAll(r)
				sent = string(b)
				return err
			},
		})
		if strings.HasPrefix(sent, "#!ipxe\n") != own || errors.Is(err, tftp.ErrNoFile) == own {
			t.Errorf("%s gets %q, %v", source, sent, err)
		}
	}
}

// TestS34RanksOfRequests: a file has the rank own only for the address of an armed machine. What any host can ask for in the name of
// another machine has a lower one, or is refused.
func TestS34RanksOfRequests(t *testing.T) {
	f := &fakeMachines{machines: []inventory.Machine{machine(nil), machine(func(m *inventory.Machine) {
		m.Name, m.Interfaces[0].MAC, m.Interfaces[0].Address = "node2", "52:54:00:20:01:02", netip.MustParseAddr("10.10.20.12")
	})}}
	s, _ := newServer(t, f, nil)
	f.setGrant(armed("node1"))
	const stranger = "192.0.2.7"
	for _, c := range []struct {
		file, from string
		rank       tftp.Rank
		refused    bool
	}{
		{file: neighbours.CheckMAC + "/" + autoexecName, from: stranger, refused: true},
		{file: "52:54:00:99:99:99/snponly.efi", from: stranger, refused: true},
		{file: "snponly.efi", from: stranger, refused: true},
		{file: "52:54:00:20:01:02/" + autoexecName, from: stranger, rank: tftp.RankKnown},
		{file: testMAC + "/snponly.efi", from: stranger, rank: tftp.RankArmed},
		{file: testMAC + "/" + autoexecName, from: stranger, rank: tftp.RankArmed},
		{file: "snponly.efi", from: testAddr, rank: tftp.RankOwn},
		{file: testMAC + "/snponly.efi", from: testAddr, rank: tftp.RankOwn},
	} {
		var rank tftp.Rank
		err := s.files.read(t.Context(), tftp.Request{
			Name: c.file, From: netip.MustParseAddr(c.from), Local: testSelf,
			Send: func(r tftp.Rank, _ int64, _ io.Reader) error { rank = r; return nil },
		})
		if rank != c.rank || errors.Is(err, tftp.ErrNoFile) != c.refused {
			t.Errorf("%s from %s: rank %d, %v", c.file, c.from, rank, err)
		}
	}
}
