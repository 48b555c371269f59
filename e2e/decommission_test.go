package e2e

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/lab"
	"github.com/ingotmetal/ingot/workflows"
	"github.com/ingotmetal/ingot/workflows/contract"
)

// TestDecommission installs two machines and decommissions them. On the first machine's disk, no
// tool recognizes anything any more, and its protected disk is unchanged. The second machine's disk
// refuses writes at one sector: the machine is quarantined, and can be installed again only after
// an operator has released it. The short form installs only the first machine, and ends with the
// release.
func TestDecommission(t *testing.T) {
	runInTurn(t, 120, 9)
	ctx := needLab(t)
	image := mini(ctx, t)
	s := site(ctx, t)
	s.must(ctx, t, "image", "add", "mini", image.Zst)
	const secret = "e2e-secret-of-user-data"
	machines := map[string]*lab.Machine{}
	for name, spec := range map[string]lab.Spec{
		"whole": {Firmware: lab.UEFI, Decoys: []string{"KEEP-1"}, DiskSize: 1 << 30},
		"worn":  {DiskSize: 1 << 30, VLAN: lab.RelayedVLAN},
	} {
		spec.Name = name
		m, err := s.Add(ctx, spec, func(doc map[string]any) {
			doc["image"], doc["userData"] = "mini", "#cloud-config\n# "+secret+"\n"
			if len(spec.Decoys) > 0 {
				doc["protectedDisks"] = []map[string]string{{"serial": "KEEP-1"}}
			}
		})
		require.NoError(t, err)
		machines[name] = m
	}
	whole, worn := machines["whole"], machines["worn"]
	// The protected disk contains data that must not change.
	mkfs(ctx, t, whole.DiskPathOf("KEEP-1"))
	kept := sum(t, whole.DiskPathOf("KEEP-1"))
	g, gctx := errgroup.WithContext(ctx)
	for name := range machines {
		if name == "worn" && !*full {
			continue
		}
		g.Go(func() error {
			if _, err := s.Provision(gctx, contract.ProvisionInput{Machine: name}); err != nil {
				return err
			}
			_, err := s.Follow(gctx, name, func(w inventory.Workflow) bool { return w.State == inventory.StateSuccess })
			return err
		})
	}
	require.NoError(t, g.Wait())
	require.NotEmpty(t, recognised(ctx, t, whole.DiskPath()), "there must be something to forget")
	parts := partitions(t, whole.DiskPath())
	require.NotEmpty(t, parts)

	// A boot entry like the one of an operating system's installer.
	require.NoError(t, whole.PowerOff(ctx))
	stale, err := whole.AddBootEntry("Lab OS")
	require.NoError(t, err)
	entries, err := whole.BootEntries()
	require.NoError(t, err)
	require.Equal(t, "Lab OS", entries[stale])

	undo, err := worn.RefuseWrites(worn.Spec().DiskSerial, 4096)
	require.NoError(t, err)
	require.NoError(t, worn.PowerOff(ctx)) // the fault begins with the next power-on
	for name := range machines {
		s.must(ctx, t, "machine", "decommission", name, "--yes")
	}
	w := s.ended(ctx, t, "whole", inventory.StateSuccess)
	t.Logf("whole: %s", w.Message)
	for _, a := range w.Actions {
		require.Equal(t, action.Success, a.State, "%s: %s", a.Name, a.Message)
	}
	require.Contains(t, w.Message, "not wiped, because it is protected: serial:KEEP-1")
	require.Equal(t, lab.Off, whole.PowerState())
	left, err := whole.BootEntries()
	require.NoError(t, err)
	require.NotContains(t, slices.Collect(maps.Values(left)), "Lab OS", "the firmware still has the entry of the system that was wiped")
	delete(entries, stale)
	require.NotEmpty(t, entries)
	for name, label := range entries {
		require.Equal(t, label, left[name], "the firmware's own entry %s", name)
	}
	require.Contains(
		t,
		s.must(ctx, t, "workflow", "logs", w.Run),
		"deleted "+stale+` "Lab OS"`,
		"it was the agent, not the firmware alone",
	)
	require.Empty(t, recognised(ctx, t, whole.DiskPath()), "wipefs and blkid find something")
	for _, at := range parts {
		require.Empty(t, recognisedAt(ctx, t, whole.DiskPath(), at), "blkid finds something where a partition was, at byte %d", at)
	}
	require.Equal(t, kept, sum(t, whole.DiskPathOf("KEEP-1")), "the protected disk was touched")
	m := s.machine(ctx, t, "whole")
	require.Equal(t, inventory.StandingAvailable, m.Standing.State)
	require.False(t, m.HasUserData)
	require.False(t, m.Interfaces[0].Address.IsValid(), "its address is released")
	s.closed(ctx, t, "whole")
	w = s.ended(ctx, t, "worn", inventory.StateFailed)
	t.Logf("worn: %s", w.Message)
	require.Contains(t, w.Message, "quarantined")
	require.Contains(t, w.Message, "sector 4096 cannot be written")
	m = s.machine(ctx, t, "worn")
	require.True(t, m.Quarantined())
	require.False(t, m.HasUserData, "its secrets are purged all the same")
	require.Equal(t, lab.Off, worn.PowerState())
	_, err = s.CLI(ctx, "machine", "provision", "worn", "--yes")
	require.ErrorContains(t, err, "is quarantined")
	out, err := s.TemporalCLI(ctx, "workflow", "execute", "--type", inventory.TypeProvision, "--task-queue", workflows.TaskQueue,
		"--workflow-id", workflows.MachineID("worn"), "--input", `{"machine":"worn"}`)
	require.Error(t, err, "Temporal's own command goes around the API, and not around this")
	require.Contains(t, out+err.Error(), "quarantined")

	s.walkPage(
		ctx,
		t,
		see(`[data-machine="worn"]`),
		click(`[data-machine="worn"] a`),
		see(`[data-panel="worn"] [data-choice="release"]`),
		see(`[data-panel="worn"] [data-choice="decommission"]`),
	)

	// An operator has changed the disk.
	require.NoError(t, undo())
	s.must(ctx, t, "machine", "release", "worn", "--yes")
	doc := s.machine(ctx, t, "worn")
	require.Nil(t, doc.Standing)
	require.Contains(t, s.must(ctx, t, "machine", "list"), inventory.StandingAvailable)
	if *full {
		s.must(ctx, t, "machine", "decommission", "worn", "--yes")
		s.ended(ctx, t, "worn", inventory.StateSuccess)
		require.Empty(t, recognised(ctx, t, worn.DiskPath()))
	}
	s.silent(ctx, t, secret)
}

// silent requires that the run's secrets never left the sealed columns.
func (s *Site) silent(ctx context.Context, t *testing.T, secret string) {
	t.Helper()
	for _, name := range []string{"whole", "worn"} {
		out, err := s.TemporalCLI(ctx, "workflow", "show", "--workflow-id", workflows.MachineID(name), "-o", "json")
		require.NoError(t, err)
		require.NotContains(t, out, secret)
	}
}

func (s *Site) machine(ctx context.Context, t *testing.T, name string) inventory.Machine {
	t.Helper()
	var m inventory.Machine
	require.NoError(t, s.REST(ctx, http.MethodGet, "/v1/machines/"+name, nil, &m))
	return m
}

// recognised returns what wipefs(8) and blkid(8) find on a disk.
func recognised(ctx context.Context, t *testing.T, disk string) string {
	t.Helper()
	out, err := exec.CommandContext(ctx, "wipefs", "--no-act", disk).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return string(out) + recognisedAt(ctx, t, disk, 0)
}

// recognisedAt returns what blkid finds at a byte of a disk.
func recognisedAt(ctx context.Context, t *testing.T, disk string, at int64) string {
	t.Helper()
	out, err := exec.CommandContext(ctx, "blkid", "--probe", "--offset", strconv.FormatInt(at, 10), disk).CombinedOutput()
	var ended *exec.ExitError
	if errors.As(err, &ended) && ended.ExitCode() == 2 { // nothing was found
		return ""
	}
	require.NoError(t, err, "%s", out)
	return string(out)
}

// partitions returns the offsets of the partitions in a disk's GPT, in bytes.
func partitions(t *testing.T, disk string) (starts []int64) {
	t.Helper()
	f, err := os.Open(disk)
	require.NoError(t, err)
	defer f.Close()
	table := make([]byte, 33*512)
	_, err = f.ReadAt(table, 512)
	require.NoError(t, err)
	require.Equal(t, "EFI PART", string(table[:8]))
	for e := table[512:]; len(e) >= 128; e = e[128:] {
		if first := binary.LittleEndian.Uint64(e[32:]); first > 0 {
			starts = append(starts, int64(first)*512)
		}
	}
	return starts
}

func mkfs(ctx context.Context, t *testing.T, file string) {
	t.Helper()
	out, err := exec.CommandContext(ctx, "mke2fs", "-q", "-F", "-t", "ext4", "-L", "kept", file).CombinedOutput()
	require.NoError(t, err, "%s", out)
}

func sum(t *testing.T, file string) [sha256.Size]byte {
	t.Helper()
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	return sha256.Sum256(b)
}
