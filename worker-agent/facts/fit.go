package facts

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/text/plaintext"
)

// Fit returns f, shortened step by step until size returns at most limit. The field Truncated lists what was removed. The fields
// that identify disks and network interfaces are removed last, because an agent with a hundred disks must also be able to start.
func Fit(f action.Facts, size func(action.Facts) int, limit int) action.Facts {
	if size(f) <= limit {
		return f
	}

	f.Disks = append([]action.Disk(nil), f.Disks...)
	f.NICs = append([]action.NIC(nil), f.NICs...)
	var left []string

	each := func(what string, cut func(*action.Disk)) func() {
		return func() {
			for i := range f.Disks {
				cut(&f.Disks[i])
			}
			left = append(left, what)
		}
	}

	for _, step := range []func(){
		each("long texts", func(d *action.Disk) {
			d.Model, d.ByID = short(d.Model), clipAll(d.ByID, 4)
			d.Signatures = clipAll(d.Signatures, 4)
		}),
		each("all but one by-id name of each disk", func(d *action.Disk) { d.ByID = clipAll(d.ByID, 1) }),
		each("by-id names", func(d *action.Disk) { d.ByID = nil }),
		each("signatures on the disks", func(d *action.Disk) { d.Signatures = clipAll(d.Signatures, 1) }),
		func() {
			for i := range f.NICs {
				f.NICs[i].Neighbour = nil
			}
			left = append(left, "neighbours")
		},
		each("models", func(d *action.Disk) { d.Model, d.Signatures = "", nil }),
		func() {
			var up []action.NIC
			for _, n := range f.NICs {
				if n.Up {
					up = append(up, n)
				}
			}

			left = append(left, fmt.Sprintf("%d interfaces without a link", len(f.NICs)-len(up)))
			f.NICs = up
		},
		func() {
			f.NICs = f.NICs[:min(len(f.NICs), 64)]
			for _, s := range []*string{&f.Manufacturer, &f.Product, &f.Serial, &f.UUID, &f.Firmware, &f.Arch, &f.CPU, &f.BIOS} {
				*s = short(*s)
			}
			for i := range f.Disks {
				d := &f.Disks[i]
				d.Path, d.Serial, d.WWN, d.Transport = short(d.Path), short(d.Serial), short(d.WWN), short(d.Transport)
			}
		},
	} {
		step()
		f.Truncated = strings.Join(left, ", ")
		if size(f) <= limit {
			return f
		}
	}

	for n := len(f.Disks); len(f.Disks) > 0; {
		// Remove an eighth of the disks at a time: the result need not be as large as possible.
		f.Disks = f.Disks[:len(f.Disks)-max(1, len(f.Disks)/8)]
		f.DisksOmitted = n - len(f.Disks)
		f.Truncated = strings.Join(append(left, fmt.Sprintf("%d disks", f.DisksOmitted)), ", ")
		if size(f) <= limit {
			break
		}
	}
	return f
}

// JSONSize returns the size of v as JSON, in bytes.
func JSONSize(v any) int {
	b, err := json.Marshal(v)
	if err != nil {
		return 0 // cannot fail for the types of package action
	}
	return len(b)
}

// short returns at most the first 64 bytes of s.
func short(s string) string { return plaintext.Head(s, 64) }

// clipAll returns the first n words, each shortened.
func clipAll(words []string, n int) []string {
	var out []string
	for _, w := range words[:min(n, len(words))] {
		out = append(out, short(w))
	}
	return out
}

// Finder reads the machine's facts.
type Finder interface {
	Facts(ctx context.Context) (action.Facts, error)
}
