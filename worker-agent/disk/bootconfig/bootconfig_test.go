package bootconfig

import (
	"strings"
	"testing"

	"github.com/ingotmetal/ingot/worker-agent/disk/disktest"
)

func TestCompareVersions(t *testing.T) {
	t.Parallel()
	ordered := []string{"", "5.10", "6.1.0-9", "6.1.0-13", "6.9.1", "6.10.1", "6.10.1-rc"}
	for i, a := range ordered {
		for j, b := range ordered {
			if got := compareVersions(a, b); (got < 0) != (i < j) || (got > 0) != (i > j) {
				t.Errorf("%q, %q: %d", a, b, got)
			}
		}
	}
}

func FuzzReadBootConfig(f *testing.F) {
	f.Add(disktest.DebianGrub, "saved_entry=x")
	f.Add("submenu a {\nmenuentry b {\nlinux /x ${y\n", "")
	f.Add("}\n}\nlinux /x\nset default='\nblscfg", "default=3")
	f.Fuzz(func(t *testing.T, cfg, env string) {
		read := func(name string) ([]byte, error) {
			switch {
			case strings.HasSuffix(name, "grub.cfg"):
				return []byte(cfg), nil
			case strings.HasSuffix(name, "grubenv"):
				return []byte(env), nil
			}
			return []byte(cfg), nil
		}
		list := func(string) []string { return []string{"a.conf", "b.conf"} }
		e, _, err := Read(read, list, "")
		if err == nil && (e.Kernel == "" || e.Kernel[0] != '/') {
			t.Errorf("%q was found", e.Kernel)
		}
	})
}
