package genesis

import (
	"bytes"
	"encoding/json"
	"slices"

	"github.com/ingotmetal/ingot/inventory"
)

// Differs returns the names of the fields in which a stored machine differs from the
// lab file's, without secrets.
func Differs(stored, lab inventory.Machine) []string {
	stored, lab = inventory.Canonical(stored), inventory.Canonical(lab)
	var out []string
	for _, x := range []struct {
		field string
		same  bool
	}{
		{"labels", equal(stored.Labels, lab.Labels)},
		{"interfaces", equal(stored.Interfaces, lab.Interfaces)},
		{"disks", equal(stored.Disks, lab.Disks)},
		{"protectedDisks", equal(stored.ProtectedDisks, lab.ProtectedDisks)},
		{"storage", equal(stored.Storage, lab.Storage)},
		{"diskSelector", equal(stored.DiskSelector, lab.DiskSelector)},
		{"bmc", equal(bare(stored.BMC), bare(lab.BMC))},
		{"template", stored.Template == lab.Template},
		{"image", stored.Image == lab.Image},
		{"sshKeys", slices.Equal(stored.SSHKeys, lab.SSHKeys)},
		{"bootFromDisk", stored.BootFromDisk == lab.BootFromDisk},
		{"kernelArgs", slices.Equal(stored.KernelArgs, lab.KernelArgs)},
	} {
		if !x.same {
			out = append(out, x.field)
		}
	}
	return out
}

// equal compares two values as the inventory would store them.
func equal(a, b any) bool {
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return errX == nil && errY == nil && (bytes.Equal(x, y) || empty(x) && empty(y))
}

func empty(b []byte) bool { return slices.Contains([]string{"null", "{}", "[]", `""`}, string(b)) }

// bare returns b without its secret. A nil BMC becomes a manual one.
func bare(b *inventory.BMC) *inventory.BMC {
	if b == nil {
		return &inventory.BMC{Driver: inventory.DriverManual}
	}
	c := *b
	c.Password, c.HasPassword = inventory.Secret{}, false
	return &c
}
