package e2e

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	enumspb "go.temporal.io/api/enums/v1"

	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/lab"
	"github.com/ingotmetal/ingot/workflows"
)

// check checks the state that is required after each cell. Nothing in it relies on what the server says of itself
// where the machine, its disks or the network can be asked.
func (x *cell) check(ctx context.Context) error {
	w := x.final
	if w.State != inventory.StateSuccess || w.Evidence != "phone-home" {
		// The other checks would fail, too.
		return fmt.Errorf("%s: the run ended as %s (evidence %q): %s", x, w.State, w.Evidence, w.Message)
	}
	return x.checkAll(
		ctx,
		x.checkSystem,
		x.checkDisk,
		x.checkDecoy,
		x.checkStarts,
		x.checkSessions,
		x.checkNetboot,
		x.checkRecord,
		x.checkQuestions,
		x.checkTemporal,
	)
}

// checkAll runs checks.
func (x *cell) checkAll(ctx context.Context, checks ...func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	var errs []error
	for _, check := range checks {
		if err := check(ctx); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", x, err))
		}
	}
	return errors.Join(errs...)
}

// checkSystem: the installed system has started. It calls before the run ends; its output on the machine's console
// may come a moment later.
func (x *cell) checkSystem(ctx context.Context) error {
	if s := x.m.PowerState(); s != lab.On {
		return fmt.Errorf("the machine is %s", s)
	}
	return waitFor(ctx, "the installed system's call", func() (bool, error) {
		text, err := x.m.Serial()
		return strings.Count(text, "LAB-MINI-PHONED-HOME") >= x.runs-x.unfinished, err
	})
}

// checkDisk: the bound disk holds the image and, outside of the image and its partitions, nothing.
func (x *cell) checkDisk(context.Context) error {
	if d := x.final.Disk; d == nil || d.Serial != x.m.Spec().DiskSerial {
		return fmt.Errorf("the run wrote to %+v", d)
	}
	if x.qemu == "" && x.m.Writers() != 1 {
		return fmt.Errorf("%d processes had the disk open for writing at one time", x.m.Writers())
	}
	// Exclude the first and the last MiB of the image, which contain the partition tables: the
	// configuration's partition is added to them, and the second table moves to the end of the
	// disk.
	want, err := section(x.image.Raw, 1<<20, x.image.Size-2<<20)
	if err != nil {
		return err
	}
	if got, err := section(x.m.DiskPath(), 1<<20, x.image.Size-2<<20); err != nil || got != want {
		return fmt.Errorf("the disk does not hold the image (%w)", err)
	}
	stray, err := x.m.StrayBytes(x.image.Size)
	if err == nil && stray >= 0 {
		err = fmt.Errorf("byte %d of the disk is written, outside of the image and of every partition", stray)
	}
	return err
}

// checkDecoy: the other disk was not written, and not even opened for writing.
func (x *cell) checkDecoy(context.Context) error {
	if x.qemu == "" {
		if n := x.m.Openings(x.decoy()) - x.openings; n != 0 {
			return fmt.Errorf("disk %s was opened for writing %d times", x.decoy(), n)
		}
	}
	f, err := os.Open(x.m.DiskPathOf(x.decoy()))
	if err != nil {
		return err
	}
	defer f.Close() // opened only for reading
	want := decoyContent(x.m.Spec().DiskSize)
	got := make([]byte, len(want))
	if _, err := io.ReadFull(f, got); err != nil {
		return err
	}
	rest, err := lab.FirstNonZero(f)
	if err == nil && (rest >= 0 || !bytes.Equal(got, want)) {
		err = fmt.Errorf("disk %s was written", x.decoy())
	}
	return err
}

// checkStarts: the machine was switched on and reset no more often than the fault makes necessary.
func (x *cell) checkStarts(context.Context) error {
	now := x.starts()
	x.made = started{now.powerOns - x.before.powerOns, now.resets - x.before.resets}
	if x.made.powerOns > x.want.powerOns ||
		x.qemu == "" && x.made.powerOns+x.made.resets > x.want.starts { // emulated firmware also resets its machine
		return fmt.Errorf("the machine was switched on %d times and reset %d times; at most %d power-ons and %d starts were expected",
			x.made.powerOns, x.made.resets, x.want.powerOns, x.want.starts)
	}
	return nil
}

// checkSessions: no session of the Redfish service is left. One that could not be deleted is deleted by the next
// operation.
func (x *cell) checkSessions(ctx context.Context) error {
	r := x.m.Redfish()
	if r == nil {
		return nil
	}
	now, _ := r.Sessions()
	if now > 0 {
		if _, err := x.c.CLI(ctx, "bmc", "check", x.m.Name()); err != nil {
			return err
		}
		now, _ = r.Sessions()
	}
	if now > 0 {
		return fmt.Errorf("%d sessions of the Redfish service are open", now)
	}
	return nil
}

// checkNetboot: the machine's network boot is closed: for the server's record, for a DISCOVER of its firmware, and for a
// client that asks for its boot script.
func (x *cell) checkNetboot(ctx context.Context) error {
	var m struct{ Netboot inventory.Netboot }
	if err := x.c.REST(ctx, http.MethodGet, "/v1/machines/"+x.m.Name(), nil, &m); err != nil {
		return err
	}
	if m.Netboot.AllowPXE || m.Netboot.AllowWorkflow {
		return fmt.Errorf("after the run: network boot open: %t, owned by a run: %t", m.Netboot.AllowPXE, m.Netboot.AllowWorkflow)
	}
	if err := x.checkScript(ctx); err != nil || x.qemu != "" {
		return err
	}
	file, err := x.m.OfferedBootFile(ctx)
	if err == nil && file != "" {
		err = fmt.Errorf("after the run, DHCP offers the boot file %q", file)
	}
	return err
}

// checkScript: the machine's boot script starts no agent.
func (x *cell) checkScript(ctx context.Context) error {
	client := x.c.Simulate(x.m.Name(), x.m.Spec().MAC)
	if x.c.guest != nil { // the site's namespace is not the server's
		client.plain = &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			return x.c.DialContext(ctx, x.m.Namespace(), network, addr)
		}}}
	}
	_, err := client.Arguments(ctx)
	switch {
	case err == nil:
		return errors.New("after the run, the boot script starts an agent")
	case !errors.Is(err, ErrNotArmed):
		return fmt.Errorf("asking for the boot script: %w", err)
	}
	return nil
}

// checkRecord: there is one run in the inventory for each that was started.
func (x *cell) checkRecord(ctx context.Context) error {
	var list struct{ Items []inventory.Workflow }
	err := x.c.REST(ctx, http.MethodGet, "/v1/workflows?machine="+x.m.Name(), nil, &list)
	if err == nil && len(list.Items) != x.runs {
		err = fmt.Errorf("%d runs were recorded, %d were started", len(list.Items), x.runs)
	}
	return err
}

// checkQuestions: the operator was asked only what the table expects. A question that was withdrawn again counts.
func (x *cell) checkQuestions(ctx context.Context) error {
	var events struct{ Items []inventory.Event }
	if err := x.c.REST(ctx, http.MethodGet, "/v1/workflows/"+x.run+"/events?limit=1000", nil, &events); err != nil {
		return err
	}
	asked := 0
	for _, e := range events.Items {
		var p inventory.PhaseChange
		if e.Kind == inventory.EventPhase && json.Unmarshal(e.Detail, &p) == nil && p.Phase == inventory.PhaseWaiting {
			asked++
		}
	}
	want := 0
	if x.want.answer != "" {
		want = 1
	}
	if asked != want {
		return fmt.Errorf("%d questions were asked, %d expected", asked, want)
	}
	return nil
}

// checkTemporal: Temporal's latest run of the machine is this one, and has completed.
func (x *cell) checkTemporal(ctx context.Context) error {
	d, err := x.c.ask.DescribeWorkflowExecution(ctx, workflows.MachineID(x.m.Name()), "")
	if err != nil {
		return fmt.Errorf("asking Temporal: %w", err)
	}
	info := d.GetWorkflowExecutionInfo()
	switch {
	case info.GetExecution().GetRunId() != x.run:
		return fmt.Errorf("Temporal's latest run is %s, not %s", info.GetExecution().GetRunId(), x.run)
	case info.GetStatus() != enumspb.WORKFLOW_EXECUTION_STATUS_COMPLETED:
		return fmt.Errorf("Temporal calls the run %s", info.GetStatus())
	}
	return nil
}

// section is the SHA-256 of a part of a file.
func section(path string, from, size int64) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	h := sha256.New()
	_, err = io.Copy(h, io.NewSectionReader(f, from, size))
	return hex.EncodeToString(h.Sum(nil)), errors.Join(err, f.Close())
}
