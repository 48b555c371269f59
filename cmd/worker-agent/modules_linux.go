package main

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ingotmetal/ingot/worker-agent/facts"
	"golang.org/x/sys/unix"
)

// baseModules are the modules that are always loaded. No device requests them, or the kernel requests them when it cannot
// run modprobe.
var baseModules = []string{
	"crc32c_intel", "crc32c_generic", "virtio_pci", "virtio_rng", "sd_mod", "efivarfs",
	"nls_cp437", "nls_iso8859_1", "nls_utf8", "nls_ascii",
}

// ipmiModules returns the modules for a BMC with IPMI if the firmware's SMBIOS tables list such a BMC, otherwise nil. Without
// this, only the ACPI device IPI0001 would request these modules, and not every firmware has that device.
func ipmiModules() []string {
	tables, err := os.ReadFile("/sys/firmware/dmi/tables/DMI")
	if err != nil {
		return nil // no SMBIOS
	}
	if bmc := facts.ReadSMBIOS(tables); bmc == nil || bmc.IPMI == "" {
		return nil
	}
	return []string{"ipmi_si", "ipmi_devintf"}
}

// moduleIndex holds the modules of a kernel, as read from depmod's tables.
type moduleIndex struct {
	dir     string
	depends map[string][]string // path → paths of the modules that it needs, in depmod's order: the last one is loaded first
	paths   map[string]string   // name → path
	soft    map[string][]string // name → names of modules to load before it, if possible
	aliases map[string][]alias  // by bus, which is the part of an alias before the first ':'
	mu      sync.Mutex
	loaded  map[string]bool // by path
}

type alias struct{ pattern, name string }

func moduleDir() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "/lib/modules"
	}
	return filepath.Join("/lib/modules", unix.ByteSliceToString(u.Release[:]))
}

// loadModuleIndex reads modules.dep, modules.alias and modules.softdep in dir. If there is an error, the
// index can still be used, but modules may be missing in it.
func loadModuleIndex(dir string) (*moduleIndex, error) {
	m := &moduleIndex{
		dir: dir, depends: map[string][]string{}, paths: map[string]string{}, soft: map[string][]string{},
		aliases: map[string][]alias{}, loaded: map[string]bool{},
	}
	err := eachLine(filepath.Join(dir, "modules.dep"), func(line string) {
		file, deps, _ := strings.Cut(line, ":")
		m.depends[file] = strings.Fields(deps)
		m.paths[moduleName(file)] = file
	})
	return m, errors.Join(err,
		eachLine(filepath.Join(dir, "modules.alias"), func(line string) {
			if f := strings.Fields(line); len(f) == 3 && f[0] == "alias" {
				bus, _, _ := strings.Cut(f[1], ":")
				m.aliases[bus] = append(m.aliases[bus], alias{f[1], underscored(f[2])})
			}
		}),
		eachLine(filepath.Join(dir, "modules.softdep"), func(line string) {
			f := strings.Fields(line)
			if len(f) < 3 || f[0] != "softdep" {
				return
			}

			for i, pre := 2, false; i < len(f); i++ {
				switch {
				case strings.HasSuffix(f[i], ":"):
					pre = f[i] == "pre:"
				case pre:
					m.soft[underscored(f[1])] = append(m.soft[underscored(f[1])], underscored(f[i]))
				}
			}
		}))
}

func eachLine(file string, do func(string)) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	// Ignore the error: the file was only read.
	defer func() { _ = f.Close() }()
	s := bufio.NewScanner(f)
	s.Buffer(nil, 1<<20)

	for s.Scan() {
		if line := strings.TrimSpace(s.Text()); line != "" && line[0] != '#' {
			do(line)
		}
	}
	return s.Err()
}

func underscored(s string) string { return strings.ReplaceAll(s, "-", "_") }

// moduleName returns the name of the module in a file: kernel/fs/x-y.ko → x_y.
func moduleName(file string) string {
	name, _, _ := strings.Cut(path.Base(file), ".ko")
	return underscored(name)
}

func (m *moduleIndex) count() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.loaded)
}

// load loads the module called name, and the modules that it needs. If the index has no such module, load returns nil:
// the module may be built into the kernel.
func (m *moduleIndex) load(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.loadLocked(underscored(name), 0)
}

func (m *moduleIndex) loadLocked(name string, depth int) error {
	file, ok := m.paths[name]
	if !ok || depth > 8 {
		return nil
	}

	var errs []error
	for _, pre := range m.soft[name] {
		// Ignore the error: one of several modules may be enough (crc32c). If all are missing, loading
		// the module itself fails.
		_ = m.loadLocked(pre, depth+1)
	}

	deps := m.depends[file]
	for i := len(deps) - 1; i >= 0; i-- {
		errs = append(errs, m.insert(deps[i]))
	}
	return errors.Join(append(errs, m.insert(file))...)
}

func (m *moduleIndex) insert(file string) error {
	if m.loaded[file] {
		return nil
	}

	f, err := os.Open(filepath.Join(m.dir, file))
	if err != nil {
		return err
	}
	// Ignore the error: the file was only read.
	defer func() { _ = f.Close() }()
	m.loaded[file] = true
	err = unix.FinitModule(int(f.Fd()), "", 0)

	// EEXIST: the module is loaded already. ENODEV: the machine has no hardware for it.
	if err != nil && !errors.Is(err, unix.EEXIST) && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("loading %s: %w", path.Base(file), err)
	}
	return nil
}

// loadAlias loads every module with an alias that matches modalias.
func (m *moduleIndex) loadAlias(modalias string) error {
	bus, _, _ := strings.Cut(modalias, ":")
	var errs []error
	for _, a := range m.aliases[bus] {
		if ok, err := path.Match(a.pattern, modalias); ok && err == nil {
			errs = append(errs, m.load(a.name))
		}
	}
	return errors.Join(errs...)
}

// modprobe handles the kernel's request for a module, "modprobe -q -- NAME", and returns the exit code. NAME is the name or an
// alias of a module.
func modprobe(args []string) int {
	if len(args) == 0 {
		return 1
	}
	m, err := loadModuleIndex(moduleDir())
	if err != nil {
		return 1
	}
	name := args[len(args)-1]
	if m.load(name) != nil || m.loadAlias(name) != nil {
		return 1
	}
	return 0
}

// hotplug loads modules for the devices that exist at the start, and for those that appear later.
type hotplug struct {
	log  *slog.Logger
	mods *moduleIndex

	mu   sync.Mutex
	seen map[string]bool
	last time.Time // when the last device appeared
	sock int
}

func newHotplug(log *slog.Logger, mods *moduleIndex) *hotplug {
	h := &hotplug{log: log, mods: mods, seen: map[string]bool{}, last: time.Now(), sock: -1}
	// Open the socket before coldplug scans the devices, so that no device is missed between the scan and the first
	// message.
	s, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_KOBJECT_UEVENT)
	if err == nil {
		_ = unix.SetsockoptInt(s, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 4<<20) // ignore the error: the default size works, too
		err = unix.Bind(s, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1})
	}
	if err != nil {
		log.Warn("listening for devices", "error", err)
		return h
	}
	h.sock = s
	return h
}

// listen loads modules for each device that the kernel announces, until the socket fails.
func (h *hotplug) listen() {
	buf := make([]byte, 64<<10)
	for h.sock >= 0 {
		n, _, err := unix.Recvfrom(h.sock, buf, 0)
		if err != nil {
			if errors.Is(err, unix.EINTR) || errors.Is(err, unix.ENOBUFS) {
				continue
			}
			h.log.Warn("listening for devices", "error", err)
			return
		}

		words := strings.Split(string(buf[:n]), "\x00")
		if !strings.HasPrefix(words[0], "add@") {
			continue
		}

		h.mu.Lock()
		h.last = time.Now()
		h.mu.Unlock()

		for _, w := range words {
			if a, ok := strings.CutPrefix(w, "MODALIAS="); ok {
				h.want(a)
			}
		}
	}
}

func (h *hotplug) want(modalias string) {
	h.mu.Lock()
	known := h.seen[modalias]
	h.seen[modalias] = true
	h.mu.Unlock()
	if known || modalias == "" {
		return
	}
	if err := h.mods.loadAlias(modalias); err != nil {
		h.log.Warn("loading modules", "device", modalias, "error", err)
	}
}

// coldplug loads the base modules, and the modules for the devices that exist already.
func (h *hotplug) coldplug() {
	for _, name := range slices.Concat(baseModules, ipmiModules()) {
		if err := h.mods.load(name); err != nil {
			h.log.Warn("loading modules", "module", name, "error", err)
		}
	}

	for range 4 { // repeat: the module of a bus may make a further bus appear
		before := h.mods.count()
		// Skip a device whose modalias cannot be read.
		_ = filepath.WalkDir("/sys/devices", func(p string, d fs.DirEntry, err error) error {
			if err == nil && d.Name() == "modalias" {
				if b, err := os.ReadFile(p); err == nil {
					h.want(strings.TrimSpace(string(b)))
				}
			}
			return nil
		})
		if h.mods.count() == before {
			break
		}
	}
}

// settle waits until no device has appeared for one second, because the server's decisions need the complete list of
// disks. It waits at most 15 s for the first disk, and at most 30 s altogether.
func (h *hotplug) settle() {
	began := time.Now()
	for time.Since(began) < 30*time.Second {
		h.mu.Lock()
		quiet := time.Since(h.last)
		h.mu.Unlock()
		if quiet > time.Second && (anyDisk("/sys/block") || time.Since(began) > 15*time.Second) {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// anyDisk reports whether dir, the directory of block devices in sysfs, has a disk on which a system can be
// installed. Optical and floppy drives do not count: they appear long before a storage controller has found its
// disks.
func anyDisk(dir string) bool {
	found, err := filepath.Glob(filepath.Join(dir, "*", "device"))
	return err == nil && slices.ContainsFunc(found, func(p string) bool {
		name := filepath.Base(filepath.Dir(p))
		return !strings.HasPrefix(name, "sr") && !strings.HasPrefix(name, "fd")
	})
}
