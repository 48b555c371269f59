package e2e

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/lab"
	"github.com/ingotmetal/ingot/workflows/contract"
)

var (
	sizing       = flag.String("sizing", "", "comma-separated numbers of machines that TestSizing installs at once (make sizing)")
	sizingReport = flag.String("sizing-report", "", "the file that TestSizing writes")
)

// fleetActions is how many actions a machine of a fleet carries out before its reboot.
const fleetActions = 3

// sized is what a number of machines cost.
type sized struct {
	machines       int
	accepted, wall time.Duration // until every run was accepted, and until the last one had ended
	cpu            map[string]float64
	peak           map[string]float64 // resident, in MB
	written        map[string]float64 // growth of the databases, in MB
	waits          []time.Duration    // from an agent's report to its next assignment
	calls          int64              // of the controllers
	early, late    time.Duration      // from the acceptance of a run to its machine's power-on: median and slowest
	moved          moved
}

// moved is what it takes to continue on another host: to make the backup, to restore it, and until the restored server and its
// Temporal answer.
type moved struct {
	backup, restore, start time.Duration
	archive                float64 // in MB
}

// TestSizing installs whole fleets at once, each on a fresh site with the embedded Temporal: every machine has a controller
// that speaks Redfish, boots by DHCP, TFTP and HTTP, and has an agent. No run may be lost, and none repeated.
func TestSizing(t *testing.T) {
	if *sizing == "" {
		t.Skip("measures: make sizing")
	}
	var all []sized
	for n := range strings.SplitSeq(*sizing, ",") {
		var machines int
		_, err := fmt.Sscan(n, &machines)
		require.NoError(t, err, "-sizing=%q: numbers with commas between them", *sizing)
		t.Run(n, func(t *testing.T) { all = append(all, sizeOf(t, machines)) })
	}
	if *sizingReport != "" && !t.Failed() {
		require.NoError(t, os.WriteFile(*sizingReport, []byte(sizingText(all)), 0o644))
	}
}

// sizeOf installs n machines at once.
func sizeOf(t *testing.T, n int) sized {
	t.Helper()
	if !*inLab {
		t.Skip("needs root and QEMU: make sizing")
	}
	require.NoError(t, lab.Requirements())
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute+time.Duration(n)*time.Second/2)
	defer cancel()
	s := measured(ctx, t)
	s.StopRelay()
	_, machines, err := s.Fleet(ctx, n)
	require.NoError(t, err)
	s.template(ctx, t, "sizing", noops("sizing", fleetActions))
	docs := make([]map[string]any, n)
	for i, m := range machines {
		docs[i] = map[string]any{
			"name": m.Name,
			"interfaces": []any{map[string]any{
				"mac": m.MAC, "address": m.Address.String(), "netmask": "255.255.0.0", "gateway": lab.FleetGateway.String(),
			}},
			"bmc": map[string]any{"driver": "redfish", "host": m.BMCAddress.String(), "user": m.BMC.User, "password": m.BMC.Password},
		}
	}
	for some := range slices.Chunk(docs, 500) {
		require.NoError(t, s.REST(ctx, http.MethodPost, "/v1/machines", map[string]any{"machines": some}, nil))
	}

	out := sized{machines: n, cpu: map[string]float64{}, written: map[string]float64{}}
	before := s.databases(t)
	spent, repaired := s.cpu(t), s.repaired(ctx, t)
	began := time.Now()
	g, gctx := errgroup.WithContext(ctx)
	var mu sync.Mutex
	runs, ons := make([]string, n), make([]time.Duration, n)
	for i, m := range machines {
		g.Go(func() error {
			waits, err := s.installFleetMachine(gctx, m, func() { ons[i] = time.Since(began) })
			if err != nil {
				return fmt.Errorf("%s: %w", m.Name, err)
			}
			mu.Lock()
			defer mu.Unlock()
			out.waits = append(out.waits, waits...)
			return nil
		})
	}
	var asking errgroup.Group
	asking.SetLimit(16)
	for i, m := range machines {
		asking.Go(func() (err error) {
			runs[i], err = s.Provision(gctx, contract.ProvisionInput{Machine: m.Name, Template: "sizing"})
			return err
		})
	}
	require.NoError(t, asking.Wait())
	out.accepted = time.Since(began)
	require.NoError(t, g.Wait())
	s.list(ctx, t, "?open=true", func(ws []inventory.Workflow) bool { return len(ws) == 0 })
	out.wall = time.Since(began)
	for name, v := range s.cpu(t) {
		out.cpu[name] = v - spent[name]
	}
	out.peak = s.peakMemory(t)
	for name, size := range s.databases(t) {
		out.written[name] = (size - before[name]) / 1e6
	}
	slices.Sort(ons)
	out.early, out.late = ons[n/2], ons[n-1]

	require.Equal(t, repaired, s.repaired(ctx, t), "the reconcile loop has meddled with runs that were right")
	for i, m := range machines {
		var w inventory.Workflow
		require.NoError(t, s.REST(ctx, http.MethodGet, "/v1/workflows/"+runs[i], nil, &w))
		require.Equal(t, inventory.StateSuccess, w.State, "%s: %s", m.Name, w.Message)
		for _, a := range w.Actions {
			require.Equal(t, 1, a.Attempt, m.Name)
		}
		require.Equal(t, 1, m.PowerOns(), m.Name)
		out.calls += int64(len(m.BMC.Calls()))
	}
	out.moved = s.moveByBackup(ctx, t)
	t.Log(out.row())
	t.Log(out.movedRow())
	return out
}

// moveByBackup backs the site up, stops it and continues on another host.
func (s *Site) moveByBackup(ctx context.Context, t *testing.T) (out moved) {
	t.Helper()
	other, err := NewSite(ctx, Options{Root: "..", Lab: s.Lab, Name: "another-host", NoStart: true})
	require.NoError(t, err)
	other.keep(t)
	archive, passphrase := filepath.Join(s.dir, "site.tar"), filepath.Join(s.dir, "passphrase")
	require.NoError(t, os.WriteFile(passphrase, []byte("correct horse battery\n"), 0o600))

	began := time.Now()
	s.must(ctx, t, "backup", "--to", archive, "--passphrase-file", passphrase)
	out.backup = time.Since(began)
	st, err := os.Stat(archive)
	require.NoError(t, err)
	out.archive = float64(st.Size()) / 1e6
	s.Stop()

	began = time.Now()
	other.must(ctx, t, "restore", archive, "--yes", "--passphrase-file", passphrase)
	out.restore = time.Since(began)
	began = time.Now()
	require.NoError(t, other.Start(ctx))
	out.start = time.Since(began)
	return out
}

// installFleetMachine is the machine's part: it waits for its power, boots, lets the agent work, and reboots into its disk.
func (s *Site) installFleetMachine(ctx context.Context, m *lab.FleetMachine, isOn func()) (waits []time.Duration, err error) {
	if err := m.WaitPower(ctx); err != nil {
		return nil, err
	}
	isOn()
	cmdline, err := m.Boot(ctx)
	if err != nil {
		return nil, err
	}
	args := map[string]string{}
	for _, a := range argument.FindAllStringSubmatch(cmdline, -1) {
		args[a[1]] = a[2]
	}
	if args["claim"] == "" {
		return nil, fmt.Errorf("it was switched on and booted its disk: %w", ErrNotArmed)
	}
	agent := &Simulated{Name: m.Name, MAC: m.MAC, server: s.Address, plain: m.HTTP(), agent: m.HTTP(), patient: true}
	defer agent.agent.CloseIdleConnections()
	if _, err := agent.claim(ctx, args); err != nil {
		return nil, err
	}
	if waits, err = agent.workThrough(ctx, fleetActions+1); err != nil {
		return nil, err
	}
	if cmdline, err = m.Boot(ctx); err == nil && cmdline != "" {
		err = errors.New("it booted the network again after its installation")
	}
	return waits, err
}

// databases returns the sizes of the databases in bytes, with what is not yet in the main files.
func (s *Site) databases(t *testing.T) map[string]float64 {
	t.Helper()
	out := map[string]float64{}
	for name, file := range map[string]string{"ingot.db": "ingot.db", "temporal.db": "temporal/temporal.db"} {
		for _, suffix := range []string{"", "-wal"} {
			st, err := os.Stat(filepath.Join(s.dir, "state/ingot", file+suffix))
			if suffix != "" && errors.Is(err, fs.ErrNotExist) {
				continue
			}
			require.NoError(t, err)
			out[name] += float64(st.Size())
		}
	}
	return out
}

// peakMemory returns the most that each process of the server had since its start, in MB (VmHWM of proc(5)).
func (s *Site) peakMemory(t *testing.T) map[string]float64 {
	t.Helper()
	out := map[string]float64{}
	for name, pid := range s.processes(t) {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		require.NoError(t, err)
		m := peakKB.FindSubmatch(b)
		require.NotNil(t, m, name)
		kB, err := strconv.ParseFloat(string(m[1]), 64)
		require.NoError(t, err)
		out[name] = kB / 1024
	}
	return out
}

var peakKB = regexp.MustCompile(`(?m)^VmHWM:\s+(\d+) kB`)

// The processes of a server, as s.processes names them.
const (
	serveProcess    = "ingot serve"
	temporalProcess = "its Temporal child"
)

func (s sized) row() string {
	p50, p99 := percentiles(s.waits)
	n := float64(s.machines)
	return fmt.Sprintf("| %d | %.0f s | %.0f s | %.0f s, %.0f s | %.2f + %.2f s | %.0f + %.0f MB | %.0f ms, %.0f ms | %.1f | %.0f + %.0f kB |",
		s.machines, s.accepted.Seconds(), s.wall.Seconds(), s.early.Seconds(), s.late.Seconds(),
		s.cpu[serveProcess]/n, s.cpu[temporalProcess]/n, s.peak[serveProcess], s.peak[temporalProcess], p50, p99,
		float64(s.calls)/n, s.written["ingot.db"]*1000/n, s.written["temporal.db"]*1000/n)
}

func (s sized) movedRow() string {
	m := s.moved
	return fmt.Sprintf("| %d | %.1f s | %.0f MB | %.1f s | %.1f s |",
		s.machines, m.backup.Seconds(), m.archive, m.restore.Seconds(), m.start.Seconds())
}

// bends says which figure grows more than the number of machines does, worst first.
func bends(from, to sized) string {
	scale := float64(to.machines) / float64(from.machines)
	wait := func(s sized) float64 { p50, _ := percentiles(s.waits); return p50 }
	type figure struct {
		name   string
		growth float64 // beyond what the number of machines explains
	}
	figures := []figure{
		{"time per machine", to.wall.Seconds() / from.wall.Seconds() / scale},
		{"processor time of serve per machine", to.cpu[serveProcess] / from.cpu[serveProcess] / scale},
		{"processor time of Temporal per machine", to.cpu[temporalProcess] / from.cpu[temporalProcess] / scale},
		{"memory of serve", to.peak[serveProcess] / from.peak[serveProcess]},
		{"memory of Temporal", to.peak[temporalProcess] / from.peak[temporalProcess]},
		{"database of the inventory per run", to.written["ingot.db"] / from.written["ingot.db"] / scale},
		{"database of Temporal per run", to.written["temporal.db"] / from.written["temporal.db"] / scale},
		{"report → next assignment", wait(to) / wait(from)},
	}
	slices.SortFunc(figures, func(a, b figure) int { return cmp.Compare(b.growth, a.growth) })
	var b strings.Builder
	for _, f := range figures {
		fmt.Fprintf(&b, "| %s | %.1f |\n", f.name, f.growth)
	}
	return b.String()
}

// sizingText is docs/sizing.md.
func sizingText(all []sized) string {
	var b strings.Builder
	fmt.Fprintf(&b, `# Sizing

Written by `+"`make sizing`"+` (commit %s, %s); do not edit.

All machines of a row are ordered at the same moment, on a fresh site with the embedded Temporal. Each has a controller
that speaks Redfish over TLS, boots by DHCP through a relay, TFTP (the loader) and HTTP (script, kernel and initrd, with
the real files), redeems its claim, carries out %d empty actions and a reboot, and asks the network again at its next
boot. None writes an image, which is bound by disks and network. The machines run on the same %d cores.

No run was lost, none was repeated, and each machine was switched on once: otherwise this page is not written.

| machines | all accepted | all installed | powered on: median, last | processor time per machine: serve + Temporal | most memory: serve + Temporal | report → next assignment: p50, p99 | requests to a controller | database per run: inventory + Temporal |
|---|---|---|---|---|---|---|---|---|
`, commit(), time.Now().UTC().Format(time.DateOnly), fleetActions, runtime.NumCPU())
	for _, s := range all {
		fmt.Fprintln(&b, s.row())
	}
	if len(all) > 1 {
		from, to := all[0], all[len(all)-1]
		fmt.Fprintf(&b, `
## What bends first

From %d to %d machines; 1.0 = it grows with the number of machines, or, for memory and waiting, not at all.

| | times |
|---|---|
%s`, from.machines, to.machines, bends(from, to))
	}
	last := all[len(all)-1]
	n := float64(last.machines)
	fmt.Fprintf(&b, `
## Disk space

By the last row, 1,000 runs add %.0f MB to the inventory and %.0f MB to Temporal. Temporal forgets a run `+"`temporal.retention`"+`
(30 days) after its end, the inventory `+"`records.retention`"+` (90 days), but the last `+"`records.keep`"+` (10) runs of each machine stay.
`, last.written["ingot.db"]*1000/n, last.written["temporal.db"]*1000/n)
	b.WriteString(`
## When the host is lost

How long it takes to continue on another host with a [backup](backup.md) without images, after all runs have ended, on
the same disk.

| machines | backup | its size | restore | start: until the server and its Temporal answer |
|---|---|---|---|---|
`)
	for _, s := range all {
		fmt.Fprintln(&b, s.movedRow())
	}
	return b.String()
}
