package e2e

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/jmoiron/sqlx"
	_ "github.com/mattn/go-sqlite3" // the driver "sqlite3"
	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/client"
	"golang.org/x/sys/unix"

	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/lab"
	"github.com/ingotmetal/ingot/workflows"
	"github.com/ingotmetal/ingot/workflows/contract"
)

// TestS46S48FloodOfDiscovers sends forged DISCOVERs of an armed machine and of unknown machines
// during its run. A second machine, with one packet in place of thousands, shows the normal cost of
// a run: the flooded run has the same signals, the same rows and the same end.
func TestS46S48FloodOfDiscovers(t *testing.T) {
	const (
		armed     = 20_000 // forged while the run waits for its machine
		spent     = 2_000  // forged during an action, when the boot is spent
		strangers = 3_000  // forged with MACs of unknown machines
	)
	ctx := needLab(t)
	s := site(ctx, t)
	s.template(ctx, t, "two", "version: \"0.1\"\nname: two\ntasks:\n- name: t\n  worker: \"{{.device_1}}\"\n  actions:\n"+
		"  - {name: a0, image: noop, timeout: 600}\n  - {name: a1, image: noop, timeout: 600}\n")
	wire := newForger(ctx, t, s.Lab)

	once := func(mac net.HardwareAddr) { wire.discover(ctx, t, mac, 1) }
	control := s.floodRun(ctx, t, "control", 1, 1, once, 1, once)
	before := s.usage(t)
	flooded := s.floodRun(ctx, t, "flooded", 2, armed, func(mac net.HardwareAddr) {
		began := time.Now()
		wire.discover(ctx, t, mac, armed)
		t.Logf("%d forged DISCOVERs answered in %s", armed, time.Since(began).Round(time.Millisecond))
		wire.strangers(t, strangers)
	}, spent, func(mac net.HardwareAddr) { wire.discover(ctx, t, mac, spent) })
	after := s.usage(t)

	require.GreaterOrEqual(t, flooded.received["dhcp"], int64(armed), "the flood reached the server")
	require.GreaterOrEqual(t, flooded.received["rebooted"], int64(spent))
	require.Equal(t, control.signals, flooded.signals, "one signal per run, boot and kind, however many packets there were")
	// Signals that arrive together share a workflow task and a record, so that the events around them vary by a few.
	require.InDelta(t, control.history, flooded.history, 24)
	require.Equal(t, control.rows, flooded.rows, "events of a kind are one row")
	require.Equal(t, inventory.StateSuccess, flooded.state)

	for table, n := range after.rows {
		limit := before.rows[table] * 2 // for the second machine
		if table == "seen" {
			limit = 256 // security S48: per port and hour
		}
		require.LessOrEqual(t, n, max(limit, 64), "rows of table %s", table)
	}
	t.Logf("history: %d events compared to %d; rows: %v; files: %v, before %v", flooded.history, control.history, after.rows,
		after.bytes, before.bytes)
	require.Less(t, after.bytes["ingot.db"]-before.bytes["ingot.db"], int64(512<<10))
	require.Less(t, after.bytes["ingot.db-wal"], int64(8<<20), "the log before the database is written back at 4 MiB")
	require.Less(t, after.bytes["temporal/temporal.db"]-before.bytes["temporal/temporal.db"], int64(2<<20))
}

// A floodedRun is the recorded cost of a run.
type floodedRun struct {
	state    string
	history  int            // events of the workflow
	signals  int            // of them signals
	rows     map[string]int // of the inventory, by kind of event
	received map[string]int64
}

// floodRun provisions a simulated machine. It calls whileArmed when its boot is allowed, and
// whileBusy during its first action.
func (s *Site) floodRun(
	ctx context.Context,
	t *testing.T,
	name string,
	n int,
	armed int,
	whileArmed func(net.HardwareAddr),
	busy int,
	whileBusy func(net.HardwareAddr),
) floodedRun {
	t.Helper()
	mac := net.HardwareAddr{0x52, 0x54, 0x02, 0, 0, byte(n)}
	m := s.Simulate(name, mac.String())
	doc := map[string]any{"name": name, "interfaces": []any{map[string]any{
		"mac": m.MAC, "address": fmt.Sprintf("10.10.20.%d", 200+n), "netmask": "255.255.255.0",
	}}}
	require.NoError(t, s.REST(ctx, http.MethodPost, "/v1/machines", map[string]any{"machines": []any{doc}}, nil))
	run, err := s.Provision(ctx, contract.ProvisionInput{Machine: name, Template: "two"})
	require.NoError(t, err)
	_, err = m.armed(ctx)
	require.NoError(t, err)
	whileArmed(mac)
	s.waitForEvents(ctx, t, run, inventory.EventDHCP, armed)
	_, err = m.Boot(ctx)
	require.NoError(t, err)
	for done := 0; done < 3; { // two of the template and the one that leaves
		a, err := m.Next(ctx)
		require.NoError(t, err)
		if a == nil {
			continue
		}
		if done == 0 {
			whileBusy(mac)
			s.waitForEvents(ctx, t, run, inventory.EventRebooted, busy)
		}
		require.NoError(t, m.Done(ctx, a))
		done++
	}
	w, err := s.Follow(ctx, name, func(w inventory.Workflow) bool { return inventory.Final(w.State) })
	require.NoError(t, err)
	out := floodedRun{state: w.State}
	out.rows, out.received = s.eventsOf(ctx, t, run)
	// The number of requests for the script before the boot opened depends on timing.
	maps.DeleteFunc(out.rows, func(kind string, _ int) bool { return kind == inventory.EventDisk })

	c, err := client.DialContext(ctx, client.Options{HostPort: s.Temporal})
	require.NoError(t, err)
	defer c.Close()
	for it := c.GetWorkflowHistory(ctx, workflows.MachineID(name), run, false, enumspb.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT); it.HasNext(); {
		e, err := it.Next()
		require.NoError(t, err)
		out.history++
		if e.EventType == enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED {
			out.signals++
		}
	}
	return out
}

// waitForEvents waits until n packets of a kind are stored: packets are stored in batches.
func (s *Site) waitForEvents(ctx context.Context, t *testing.T, run, kind string, n int) {
	t.Helper()
	for {
		rows, received := s.eventsOf(ctx, t, run)
		if received[kind] >= int64(n) {
			return
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			t.Fatalf("waiting for %d of kind %s: %v: %v %v", n, kind, ctx.Err(), rows, received)
		}
	}
}

// eventsOf counts a run's rows by kind, and the events in them.
func (s *Site) eventsOf(ctx context.Context, t *testing.T, run string) (rows map[string]int, received map[string]int64) {
	t.Helper()
	var events struct{ Items []inventory.Event }
	require.NoError(t, s.REST(ctx, http.MethodGet, "/v1/workflows/"+run+"/events", nil, &events))
	rows, received = map[string]int{}, map[string]int64{}
	for _, e := range events.Items {
		rows[e.Kind]++
		received[e.Kind] += e.Count
	}
	return rows, received
}

// usage is the amount of data that a site has written.
type usage struct {
	rows  map[string]int   // of the inventory, by table
	bytes map[string]int64 // by file
}

func (s *Site) usage(t *testing.T) usage {
	t.Helper()
	dir := filepath.Join(s.dir, "state/ingot")
	u := usage{rows: map[string]int{}, bytes: map[string]int64{}}
	for _, name := range []string{"ingot.db", "ingot.db-wal", "temporal/temporal.db", "temporal/temporal.db-wal"} {
		st, err := os.Stat(filepath.Join(dir, name))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		require.NoError(t, err)
		u.bytes[name] = st.Size()
	}
	db, err := sqlx.Open("sqlite3", "file:"+filepath.Join(dir, "ingot.db")+"?mode=ro&_busy_timeout=10000")
	require.NoError(t, err)
	defer db.Close()
	var tables []string
	require.NoError(t, db.Select(&tables, "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"))
	require.Contains(t, tables, "seen")
	for _, name := range tables {
		var n int
		require.NoError(t, db.Get(&n, "SELECT count(*) FROM "+name))
		u.rows[name] = n
	}
	return u
}

// A forger sends Ethernet frames through a port of the machines' network.
type forger struct {
	fd   int
	xid  uint32
	self net.HardwareAddr
}

func newForger(_ context.Context, t *testing.T, l *lab.Lab) *forger {
	t.Helper()
	f := &forger{fd: -1}
	require.NoError(t, l.InNamespace(lab.Client, func() error {
		i, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		f.self = i.HardwareAddr
		// Only IPv4, with a time-out in case replies were dropped.
		f.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(htons(unix.ETH_P_IP)))
		if err != nil {
			return err
		}
		return errors.Join(
			unix.Bind(f.fd, &unix.SockaddrLinklayer{Protocol: htons(unix.ETH_P_IP), Ifindex: i.Index}),
			unix.SetsockoptPacketMreq(f.fd, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP,
				&unix.PacketMreq{Ifindex: int32(i.Index), Type: unix.PACKET_MR_PROMISC}),
			unix.SetsockoptTimeval(f.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 200_000}),
			unix.SetsockoptInt(f.fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 4<<20),
		)
	}))
	t.Cleanup(func() { require.NoError(t, unix.Close(f.fd)) })
	return f
}

func htons(v uint16) uint16 { return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, v)) }

// discover sends forged DISCOVERs of mac until n of them are answered. The answers set its pace:
// after each burst, it waits for them.
func (f *forger) discover(ctx context.Context, t *testing.T, mac net.HardwareAddr, n int) {
	t.Helper()
	buf := make([]byte, 2048)
	for answered := 0; answered < n; {
		require.NoError(t, ctx.Err())
		burst := min(n-answered, 256)
		for range burst {
			f.send(t, mac, mac)
		}
		for got := 0; got < burst; {
			size, _, err := unix.Recvfrom(f.fd, buf, 0)
			if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EWOULDBLOCK) {
				break // some were dropped: the next burst replaces them
			}
			if errors.Is(err, unix.EINTR) {
				continue
			}
			require.NoError(t, err)
			// A reply to that MAC has op 2 after the headers of Ethernet, IP and UDP.
			if size > 42+34 && buf[42] == 2 && string(buf[42+28:42+34]) == string(mac) {
				got++
				answered++
			}
		}
	}
}

// strangers sends n DISCOVERs, each with a new MAC, as fast as possible.
func (f *forger) strangers(t *testing.T, n int) {
	t.Helper()
	for i := range n {
		mac := net.HardwareAddr{0x52, 0x54, 0x03, byte(i >> 16), byte(i >> 8), byte(i)}
		f.send(t, f.self, mac)
	}
}

// send sends one DISCOVER of PXE class. Each has a new id and, in turn, another architecture or the
// class of iPXE.
func (f *forger) send(t *testing.T, from, mac net.HardwareAddr) {
	t.Helper()
	f.xid++
	p, err := dhcpv4.New(dhcpv4.WithMessageType(dhcpv4.MessageTypeDiscover), dhcpv4.WithHwAddr(mac),
		dhcpv4.WithTransactionID(dhcpv4.TransactionID(binary.BigEndian.AppendUint32(nil, f.xid))),
		dhcpv4.WithOption(dhcpv4.OptClassIdentifier(fmt.Sprintf("PXEClient:Arch:00000:UNDI:%06d", f.xid))),
		dhcpv4.WithGeneric(dhcpv4.OptionClientSystemArchitectureType, []byte{0, []byte{0, 7, 9}[f.xid%3]}))
	require.NoError(t, err)
	if f.xid%4 == 3 {
		p.UpdateOption(dhcpv4.OptUserClass("iPXE"))
	}
	b := f.frame([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, netip.MustParseAddrPort("0.0.0.0:68"),
		netip.MustParseAddrPort("255.255.255.255:67"), p.ToBytes())
	copy(b[6:12], from)
	if _, err := unix.Write(f.fd, b); err != nil && !errors.Is(err, unix.ENOBUFS) {
		require.NoError(t, err)
	}
}
