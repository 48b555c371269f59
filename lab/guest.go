package lab

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// GuestSpec configures a Guest.
type GuestSpec struct {
	// Command is run by /bin/sh; the guest's file system is this machine's.
	Command string
	// Writable is a folder of this machine that the guest may write. Volatile is a folder whose
	// content belongs to the guest and is deleted with it: it is for databases, which do not work
	// in a shared folder.
	Writable, Volatile string
	MemoryMB           int // default 2048
}

// Guest is a small Linux system in place of the namespace Server: it has Server's addresses on both
// networks and runs one program. It is needed for tests of the wall clock, because a namespace
// cannot have its own (time namespaces do not change CLOCK_REALTIME).
type Guest struct {
	lab  *Lab
	cmd  *Cmd
	mu   sync.Mutex
	conn net.Conn
	in   *bufio.Reader
}

// ServerGuest starts the guest and removes Server's addresses from the namespace. It returns when
// the guest runs its command. Stop or closing the lab ends the guest.
func (l *Lab) ServerGuest(ctx context.Context, spec GuestSpec) (*Guest, error) {
	if spec.MemoryMB == 0 {
		spec.MemoryMB = 2048
	}
	dir := filepath.Join(l.dir, "guest")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	initrd, err := l.guestInitrd(ctx, dir, spec)
	if err != nil {
		return nil, fmt.Errorf("making the guest's initramfs: %w", err)
	}
	kernel, err := filepath.Glob(filepath.Join(PackageDir("kernel"), "boot/vmlinuz-*"))
	if err != nil || len(kernel) != 1 {
		return nil, fmt.Errorf("finding the guest's kernel: %v; %s", kernel, remedy)
	}
	if err := l.replaceServer(ctx); err != nil {
		return nil, err
	}
	return l.startGuest(ctx, dir, "LAB-GUEST-UP", spec.MemoryMB, "-kernel", kernel[0], "-initrd", initrd, "-append",
		"console=ttyS0 quiet panic=-1", "-virtfs", "local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap",
		"-virtfs", "local,path="+spec.Writable+",mount_tag=writable,security_model=none,multidevs=remap")
}

// replaceServer removes Server's addresses from the namespace and creates the guest's network cards.
func (l *Lab) replaceServer(ctx context.Context) error {
	if err := l.ipBatch(ctx, Server, "addr flush dev eth0", "addr flush dev eth10"); err != nil {
		return err
	}
	var ports []string
	for i, vlan := range []int{DirectVLAN, BMCVLAN} {
		ports = append(ports, fmt.Sprintf("tuntap add guest%d mode tap", i), fmt.Sprintf("link set guest%d master br%d up", i, vlan))
	}
	return l.ipBatch(ctx, Switch, ports...)
}

// startGuest starts a guest with the network cards of replaceServer, and returns when its first serial port shows the line up.
func (l *Lab) startGuest(ctx context.Context, dir, up string, memoryMB int, args ...string) (*Guest, error) {
	socket := filepath.Join(l.run, "guest.sock")
	serial := filepath.Join(dir, "serial.log")
	c := l.Command(l.ctx, Switch, "qemu-system-x86_64", append([]string{
		"-name", l.name + "-guest", "-M", "pc,graphics=off", "-accel",
		"tcg,thread=multi", "-cpu", processor, "-smp", "2", "-m", fmt.Sprint(memoryMB), "-nodefaults", "-display", "none",
		"-no-reboot", "-device", "virtio-rng-pci", "-chardev", "file,id=serial,append=on,path=" + serial, "-serial", "chardev:serial",
		"-chardev", "socket,id=shell,server=on,wait=off,path=" + socket, "-serial", "chardev:shell", "-netdev",
		"tap,id=n0,ifname=guest0,script=no,downscript=no", "-device",
		"virtio-net-pci,netdev=n0,mac=52:54:00:99:00:00,romfile=", "-netdev",
		"tap,id=n1,ifname=guest1,script=no,downscript=no", "-device",
		"virtio-net-pci,netdev=n1,mac=52:54:00:99:00:01,romfile=",
	}, args...)...)
	log, err := os.Create(filepath.Join(dir, "qemu.log"))
	if err != nil {
		return nil, err
	}
	defer log.Close() // the process has its own descriptor
	c.Stdout, c.Stderr = log, log
	if err := c.Start(); err != nil {
		return nil, err
	}
	g := &Guest{lab: l, cmd: c}
	err = poll(ctx, func() (bool, error) {
		b, err := os.ReadFile(serial)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return false, err
		}
		select {
		case <-c.Done():
			return false, fmt.Errorf("the guest ended; see %s", dir)
		default:
		}
		if i := bytes.Index(b, []byte("LAB-GUEST-FAILED")); i >= 0 {
			return false, errors.New(cleanLine(string(b[i:])))
		}
		return bytes.Contains(b, []byte(up)), nil
	})
	if err == nil {
		g.conn, err = (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}
	if err != nil {
		g.Stop()
		return nil, fmt.Errorf("starting the guest: %w", err)
	}
	g.in = bufio.NewReader(g.conn)
	return g, nil
}

// guestInitrd builds the initramfs: the standard one and a second archive with the command of this
// guest.
func (l *Lab) guestInitrd(ctx context.Context, dir string, spec GuestSpec) (string, error) {
	recipe, err := recipes.ReadFile("images/guest.sh")
	if err != nil {
		return "", err
	}
	script, out := filepath.Join(dir, "guest.sh"), filepath.Join(dir, "initramfs")
	vars := fmt.Sprintf("WRITABLE=%q\nVOLATILE=%q\nADDRESSES0=%q\nADDRESSES1=%q\nGATEWAY=%q\nCOMMAND=%q\n", spec.Writable, spec.Volatile,
		ServerAddress+"/24 "+MetadataAddress+"/32", ServerBMCAddr+"/24", DirectGateway, spec.Command)
	if err := errors.Join(os.WriteFile(script, recipe, 0o755), os.WriteFile(filepath.Join(dir, "guest"), []byte(vars), 0o644)); err != nil {
		return "", err
	}
	c := exec.CommandContext(ctx, script, out, filepath.Dir(PackageDir("kernel")))
	if b, err := c.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, b)
	}
	c = exec.CommandContext(ctx, "sh", "-c", "echo guest | cpio -o -H newc --owner=0:0 --quiet | gzip -1 >> initramfs")
	c.Dir = dir
	if b, err := c.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, b)
	}
	return out, nil
}

// Stop cuts the guest's power.
func (g *Guest) Stop() {
	g.cmd.Kill()
	<-g.cmd.Done()
	if g.conn != nil {
		_ = g.conn.Close() // its other end is gone
	}
}

// Done is closed when the guest has ended.
func (g *Guest) Done() <-chan struct{} { return g.cmd.Done() }

// Shell runs one line in the guest's own shell (busybox, outside the program's root) and returns
// its output. A status other than 0 is an error.
func (g *Guest) Shell(ctx context.Context, line string) (string, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if d, ok := ctx.Deadline(); ok {
		if err := g.conn.SetDeadline(d); err != nil {
			return "", err
		}
	}
	if _, err := fmt.Fprintf(g.conn, "%s\n", line); err != nil {
		return "", fmt.Errorf("asking the guest: %w", err)
	}
	var out strings.Builder
	for {
		s, err := g.in.ReadString('\n')
		if err != nil {
			return out.String(), fmt.Errorf("asking the guest: %w", err)
		}
		s = strings.ReplaceAll(s, "\r", "")
		s, status, done := strings.Cut(s, "guest-done ") // an output need not end with a line break
		out.WriteString(s)
		if done {
			if strings.TrimSpace(status) != "0" {
				return out.String(), fmt.Errorf("guest: %s: status %s: %s", line, strings.TrimSpace(status), out.String())
			}
			return out.String(), nil
		}
	}
}

// SetClock sets the guest's wall clock; its monotonic clock does not change.
func (g *Guest) SetClock(ctx context.Context, t time.Time) error {
	_, err := g.Shell(ctx, fmt.Sprintf("/bin/busybox date -s @%d", t.Unix()))
	return err
}
