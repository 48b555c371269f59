package e2e

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/lab"
)

// DemoMachine is a machine of the demo and its result.
type DemoMachine struct {
	*lab.Machine
	Name     string
	Template string // built-in template that configures it
	What     string
	Run      inventory.Workflow
	Booted   string // what the installed system printed on its console
	Took     time.Duration
}

// Demo installs Debian 12 on two machines at once, from power-on to a system configured by
// cloud-init: a BIOS machine on the server's own network by a CIDATA partition, and a UEFI
// machine behind a DHCP relay by the metadata server. It prints events on out as they
// happen.
func Demo(ctx context.Context, s *Site, image lab.Image, out io.Writer) ([]*DemoMachine, error) {
	say := &teller{out: out, start: time.Now()}
	say.line("", "lab %s: 2 machines, a relay, BMCs that speak IPMI", s.Name())
	if _, err := s.CLI(ctx, "image", "add", "debian-12", image.Zst); err != nil {
		return nil, err
	}
	say.line("", "image debian-12 added: %d MB, sha256 known", size(image.Zst)>>20)
	machines := []*DemoMachine{
		{Name: "bios", Template: "image", What: "SeaBIOS + iPXE, same network, configured by a CIDATA partition"},
		{Name: "uefi", Template: "image-metadata", What: "OVMF UEFI, behind a DHCP relay, configured by the metadata server"},
	}
	for _, m := range machines {
		spec := lab.Spec{Name: m.Name, MemoryMB: 1024, DiskSize: 4 << 30}
		if m.Name == "uefi" {
			spec.Firmware, spec.VLAN = lab.UEFI, lab.RelayedVLAN
		}
		var err error
		if m.Machine, err = s.Add(ctx, spec, func(doc map[string]any) {
			doc["image"], doc["template"] = "debian-12", m.Template
			doc["userData"] = "#cloud-config\nwrite_files:\n- path: /etc/motd\n  content: \"installed by ingot\\n\"\n"
		}); err != nil {
			return nil, err
		}
		say.line(m.Name, "%s", m.What)
	}
	g, gctx := errgroup.WithContext(ctx)
	for _, m := range machines {
		g.Go(func() error {
			began := time.Now()
			if _, err := s.CLI(gctx, "machine", "provision", m.Name); err != nil {
				return err
			}
			told := int64(0)
			w, err := s.Follow(gctx, m.Name, func(w inventory.Workflow) bool {
				told = s.tell(gctx, say, w, told)
				return inventory.Final(w.State)
			})
			m.Run, m.Took = w, time.Since(began)
			if err != nil {
				return err
			}
			if w.State != inventory.StateSuccess {
				return fmt.Errorf("%s ended as %s: %s", m.Name, w.State, w.Message)
			}
			m.Booted, err = m.WaitSerial(gctx, `LAB-DEBIAN-BOOTED`)
			say.line(m.Name, "ready after %s: %s", m.Took.Round(time.Second), strings.TrimSpace(m.Booted))
			return err
		})
	}
	return machines, g.Wait()
}

// tell prints the new events of a run, and its progress.
func (s *Site) tell(ctx context.Context, say *teller, w inventory.Workflow, told int64) int64 {
	var events struct{ Items []inventory.Event }
	if err := s.REST(ctx, http.MethodGet, fmt.Sprintf("/v1/workflows/%s/events?after=%d", w.Run, told), nil, &events); err != nil {
		return told // printed at the next change
	}
	for _, e := range events.Items {
		told = e.Seq
		text := e.Kind
		if e.Message != "" {
			text += ": " + e.Message
		}
		say.line(w.Machine, "%s", text)
	}
	for _, a := range w.Actions {
		if a.Total > 0 && a.State == "RUNNING" {
			say.progress(w.Machine, strings.TrimSpace(a.Name+" "+a.Message), a.Done, a.Total)
		}
	}
	return told
}

// teller prints lines with the time since the start.
type teller struct {
	mu    sync.Mutex
	out   io.Writer
	start time.Time
	last  map[string]int64
}

func (t *teller) line(machine, format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	// Without an output there is nothing to print.
	_, _ = fmt.Fprintf(t.out, "%6.1f s  %-5s %s\n", time.Since(t.start).Seconds(), machine, fmt.Sprintf(format, args...))
}

func (t *teller) progress(machine, action string, done, total int64) {
	step := done * 10 / total
	t.mu.Lock()
	if t.last == nil {
		t.last = map[string]int64{}
	}
	told := t.last[machine+action] == step
	t.last[machine+action] = step
	t.mu.Unlock()
	if !told {
		t.line(machine, "%s %d %%", action, done*100/total)
	}
}

func size(file string) int64 {
	if i, err := os.Stat(file); err == nil {
		return i.Size()
	}
	return 0
}

// DigestOf returns the SHA-256 of the first n bytes of a file, in hex.
func DigestOf(file string, n int64) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.CopyN(h, f, n); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
