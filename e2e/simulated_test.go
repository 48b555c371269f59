package e2e

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/lab"
	"github.com/ingotmetal/ingot/workflows/contract"
)

var simulatedMachines = flag.Int("machines", 4, "how many machines TestSimulatedMachine installs at once")

// TestSimulatedMachine installs machines without QEMU, half of them behind the relay, with both
// ways of configuring the system. Everything else is real, from IPMI to the phone-home of the
// installed system.
func TestSimulatedMachine(t *testing.T) {
	runInTurn(t, 5, 8)
	ctx := needLab(t)
	image, err := lab.SimImage(ctx, testWriter{t})
	require.NoError(t, err)
	s := site(ctx, t)
	s.must(ctx, t, "image", "add", "sim", image.Zst)
	machines := make([]*lab.Machine, *simulatedMachines)
	for i := range machines {
		spec := lab.Spec{Name: fmt.Sprintf("sim-%d", i), Firmware: lab.Simulated, Agent: filepath.Join(s.bin, "worker-agent")}
		if i%2 == 1 {
			spec.VLAN = lab.RelayedVLAN
		}
		template := "image"
		if i/2%2 == 1 {
			template = "image-metadata"
		}
		machines[i], err = s.Add(ctx, spec, func(doc map[string]any) { doc["image"], doc["template"] = "sim", template })
		require.NoError(t, err)
	}
	before := s.cpuTime(t)
	began := time.Now()
	g, gctx := errgroup.WithContext(ctx)
	for i, m := range machines {
		g.Go(func() error {
			began := time.Now()
			if _, err := s.Provision(gctx, contract.ProvisionInput{Machine: m.Name()}); err != nil {
				return err
			}
			w, err := s.Follow(gctx, m.Name(), func(w inventory.Workflow) bool { return w.State == inventory.StateSuccess })
			if err != nil {
				return err
			}
			t.Logf("%s: %.1f s", m.Name(), time.Since(began).Seconds())
			from := int64(1 << 20) // both partitions are the same as in the image
			if i/2%2 == 1 {
				from = 3 << 20 // the first partition contains the metadata's URL now
			}
			return s.installed(gctx, m, w, image, from)
		})
	}
	require.NoError(t, g.Wait())
	t.Logf("%d machines in %.1f s with %.1f s of CPU", len(machines), time.Since(began).Seconds(), (s.cpuTime(t) - before).Seconds())
	for _, m := range machines {
		s.closed(ctx, t, m.Name())
	}
}

// installed compares a simulated machine with its run. From byte from on, its disk must equal the
// image up to the place where the second partition table begins.
func (s *Site) installed(ctx context.Context, m *lab.Machine, w inventory.Workflow, image lab.Image, from int64) error {
	if _, err := m.WaitSerial(ctx, "LAB-MINI-PHONED-HOME"); err != nil {
		return err
	}
	if m.Writers() != 1 || m.PowerOns() != 1 || m.Resets() != 1 {
		return fmt.Errorf("%s: %d writers at one time, %d power-ons, %d reboots: want one of each", m.Name(), m.Writers(),
			m.PowerOns(), m.Resets())
	}
	if w.Disk == nil || w.Disk.Serial != m.Spec().DiskSerial {
		return fmt.Errorf("%s: the run wrote to %+v", m.Name(), w.Disk)
	}
	var sums []string
	for _, file := range []string{image.Raw, m.DiskPath()} {
		f, err := os.Open(file)
		if err != nil {
			return err
		}
		h := sha256.New()
		_, err = io.Copy(h, io.NewSectionReader(f, from, image.Size-1<<20-from))
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
		sums = append(sums, hex.EncodeToString(h.Sum(nil)))
	}
	if sums[0] != sums[1] {
		return fmt.Errorf("%s: the disk does not hold the image", m.Name())
	}
	// The boot services write events in batches, up to half a second later.
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for {
		missing, err := s.missingEvents(ctx, w.Run)
		if err == nil && len(missing) == 0 {
			return nil
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("%s: no events %q: %w", m.Name(), missing, errors.Join(ctx.Err(), err))
		}
	}
}

// missingEvents returns the kinds of boot events that a run has not recorded.
func (s *Site) missingEvents(ctx context.Context, run string) (missing []string, err error) {
	var events struct{ Items []inventory.Event }
	if err := s.REST(ctx, http.MethodGet, fmt.Sprintf("/v1/workflows/%s/events", run), nil, &events); err != nil {
		return nil, err
	}
	for _, kind := range []string{
		inventory.EventDHCP, inventory.EventLoader, inventory.EventScript, inventory.EventKernel, inventory.EventInitrd,
		inventory.EventOS,
	} {
		if !slices.ContainsFunc(events.Items, func(e inventory.Event) bool { return e.Kind == kind }) {
			missing = append(missing, kind)
		}
	}
	return missing, nil
}

// cpuTime returns the processor time of the server, its Temporal, and this program with all
// processes that it has started.
func (s *Site) cpuTime(t *testing.T) time.Duration {
	t.Helper()
	var own, children syscall.Rusage
	require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &own))
	require.NoError(t, syscall.Getrusage(syscall.RUSAGE_CHILDREN, &children))
	sum := time.Duration(own.Utime.Nano() + own.Stime.Nano() + children.Utime.Nano() + children.Stime.Nano())
	for _, pid := range s.processes(t) {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		require.NoError(t, err)
		f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
		for _, ticks := range f[11:13] { // utime, stime
			n, err := strconv.ParseInt(ticks, 10, 64)
			require.NoError(t, err)
			sum += time.Duration(n) * (time.Second / 100)
		}
	}
	return sum
}
