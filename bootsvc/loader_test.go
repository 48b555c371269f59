package bootsvc

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ingotmetal/ingot/bootsvc/tftp/tftptest"

	"github.com/ingotmetal/ingot/internal/images/sbat"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/lab/fakeloader"
)

// TestS36OldLoadersAreNotServed: what is below the operator's minimum is neither named by DHCP nor served, and
// "ingot why" says why. A shim whose GRUB is below it is not named either. Without a minimum all are served.
func TestS36OldLoadersAreNotServed(t *testing.T) {
	oldGRUB := "loader shimx64.efi is not served: grubx64.efi: grub 4 is below the minimum 5 (netboot.minimum_sbat)"
	oldShim := "loader shimx64.efi is not served: shimx64.efi: shim 3 is below the minimum 4 (netboot.minimum_sbat)"
	for name, c := range map[string]struct {
		shim, grub string // lines of their sections .sbat; "": malformed
		minimum    sbat.Minimum
		why        string
	}{
		"both new":     {"shim,4", "grub,5", sbat.Minimum{"shim": 4, "grub": 5}, ""},
		"old GRUB":     {"shim,4", "grub,4", sbat.Minimum{"shim": 4, "grub": 5}, oldGRUB},
		"old shim":     {"shim,3", "grub,5", sbat.Minimum{"shim": 4, "grub": 5}, oldShim},
		"not compared": {"shim,3", "grub,4", sbat.Minimum{"shim": 3}, ""},
		"no minimum":   {"shim,3", "grub,4", nil, ""},
		"malformed":    {"shim", "grub,5", sbat.Minimum{"shim": 4}, "2 fields"},
		"none at all":  {"", "grub,5", sbat.Minimum{"shim": 4}, "the component shim is missing; its minimum generation is 4"},
	} {
		f := &fakeMachines{machines: []inventory.Machine{machine(withShim)}}
		s, _ := newServer(t, f, func(cfg *Config) {
			cfg.MinimumSBAT = c.minimum
			for file, line := range map[string]string{"shimx64.efi": c.shim, "grubx64.efi": c.grub} {
				text := fakeloader.Format + fakeloader.Line(line)
				switch line {
				case "":
					text = ""
				case "shim":
					text = fakeloader.Format + "shim,4\n"
				}
				write(t, filepath.Join(cfg.LoaderDir, file), string(fakeloader.Program(text, true)))
			}
		})
		f.setGrant(armed("node1"))
		e, err := s.Why(t.Context(), testMAC)
		if err != nil {
			t.Fatal(err)
		}
		uefi := e.Answers[1]
		if served := uefi.BootFile == "shimx64.efi"; served != (c.why == "") || !strings.Contains(uefi.Reason, c.why) {
			t.Errorf("%s: DHCP names %q: %s", name, uefi.BootFile, uefi.Reason)
		}

		addr := startTFTP(t, s)
		for file, refused := range map[string]bool{
			"shimx64.efi": c.why != "" && c.why != oldGRUB, "grubx64.efi": c.why == oldGRUB, "snponly.efi": false,
		} {
			got, err := tftptest.Get(t, addr, testMAC+"/"+file)
			want, _ := os.ReadFile(filepath.Join(s.cfg.LoaderDir, file))
			if (err != nil) != refused || err == nil && got != string(want) {
				t.Errorf("%s: %s by TFTP: %d bytes, %v", name, file, len(got), err)
			}
		}
	}
}

// TestMissingStages: DHCP does not name a loader whose second stage is missing or refused, and each such file is named.
func TestMissingStages(t *testing.T) {
	for _, c := range []struct {
		loader, first string
		have          []string
		minimum       sbat.Minimum
		want          []string // in the reason; none: the loader is served
	}{
		{inventory.LoaderShim, loaderShim, []string{loaderShim}, nil, []string{"grubx64.efi is missing in "}},
		{inventory.LoaderShim, loaderShim, nil, nil, []string{"shimx64.efi is missing in ", "; grubx64.efi is missing in "}},
		{inventory.LoaderShim, loaderShim, []string{loaderShim, "grubx64.efi"}, nil, nil},
		{inventory.LoaderIPXEShim, loaderIPXEShim, []string{loaderIPXEShim}, nil, []string{"snponly.efi is missing in "}},
		{inventory.LoaderIPXEShim, loaderIPXEShim, []string{loaderIPXEShim, loaderUEFI}, nil, nil},
		{
			inventory.LoaderIPXEShim, loaderIPXEShim,
			[]string{loaderIPXEShim, loaderUEFI},
			sbat.Minimum{"ipxe": 2},
			[]string{"snponly-shim.efi: ipxe 1 is below the minimum 2", "; snponly.efi: ipxe 1 is below the minimum 2"},
		},
	} {
		f := &fakeMachines{machines: []inventory.Machine{machine(func(m *inventory.Machine) { m.Interfaces[0].Loader = c.loader })}}
		s, _ := newServer(t, f, func(cfg *Config) {
			cfg.LoaderDir, cfg.MinimumSBAT = t.TempDir(), c.minimum
			for _, file := range c.have {
				write(t, filepath.Join(cfg.LoaderDir, file), string(fakeloader.Program(fakeloader.Format+fakeloader.Line("ipxe,1"), true)))
			}
		})
		f.setGrant(armed("node1"))
		e, err := s.Why(t.Context(), testMAC)
		if err != nil {
			t.Fatal(err)
		}
		uefi := e.Answers[1]
		if served := uefi.BootFile == c.first; served != (len(c.want) == 0) {
			t.Errorf("%s with %v: DHCP names %q: %s", c.loader, c.have, uefi.BootFile, uefi.Reason)
		}
		for _, want := range c.want {
			if !strings.Contains(uefi.Reason, want) {
				t.Errorf("%s with %v: the reason is %q, without %q", c.loader, c.have, uefi.Reason, want)
			}
		}
	}
}
