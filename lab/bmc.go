package lab

import (
	"bytes"
	"context"
	"crypto/md5"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"text/template"
	"time"
)

// BMCCipher is the only cipher suite of IPMI 2.0 that ipmi_sim offers. Pass it to ipmitool with -C:
// otherwise each command takes 10 s.
const BMCCipher = 3

// BMC is a machine's management controller: OpenIPMI's ipmi_sim with IPMI 2.0 (RMCP+) on UDP port
// 623 of Address, in the BMC network. It stores the boot device, but neither its EFI flag nor its
// persistent flag.
type BMC struct {
	Address  string
	User     string
	Password string

	machine *Machine
	mu      sync.Mutex
	sim     *Cmd
	told    []string
}

// Told returns all orders about power and boot device that the BMC has received, in ipmi_sim's
// notation ("power 1", "boot pxe"). It includes orders without an effect, such as power-on while
// the machine is on.
func (b *BMC) Told() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.told)
}

// chassisScript is called by ipmi_sim for everything about power and boot device. ipmi_sim waits
// until it ends.
const chassisScript = `#!/bin/sh
# $1 is the address of the management controller, then: get|set NAME [VALUE]...
shift
exec curl -s --fail-with-body --noproxy '*' --max-time 60 --unix-socket '{{.Socket}}' --data-binary "$*" 'http://lab/{{.Name}}'
`

const lanConf = `name "{{.Name}}"
set_working_mc 0x20
  startlan 1
    addr {{.Address}} 623
    priv_limit admin
    allowed_auths_callback none md2 md5 straight
    allowed_auths_user none md2 md5 straight
    allowed_auths_operator none md2 md5 straight
    allowed_auths_admin none md2 md5 straight
    guid {{.GUID}}
  endlan
  chassis_control "{{.Dir}}/chassis 0x20"
  user 1 true  ""            "test"            user  10 none md2 md5 straight
  user 2 true  "{{.User}}" "{{.Password}}" admin 10 none md2 md5 straight
`

const emulation = `mc_setbmc 0x20
mc_add 0x20 0 no-device-sdrs 0x23 9 8 0x9f 0x1291 0xf02 persist_sdr
sel_enable 0x20 1000 0x0a
sensor_add 0x20 0 0 35 0x6f event-only
sensor_set_event_support 0x20 0 0 enable scanning per-state 000000000001111 000000000000000 000000000001111 000000000000000
mc_enable 0x20
`

func (b *BMC) dir() string { return b.machine.path("bmc") }

// install writes the simulator's files, adds the BMC's address to the network, and starts the
// simulator.
func (b *BMC) install(ctx context.Context) error {
	if err := os.MkdirAll(filepath.Join(b.dir(), "state"), 0o755); err != nil {
		return err
	}
	data := map[string]any{
		"Name": b.machine.spec.Name, "Address": b.Address, "User": b.User, "Password": b.Password, "Dir": b.dir(),
		"Socket": b.machine.lab.chassisSocket(), "GUID": fmt.Sprintf("%x", md5.Sum([]byte("lab-"+b.machine.spec.Name))),
	}
	for _, f := range []struct {
		name, text string
		mode       os.FileMode
	}{{"chassis", chassisScript, 0o755}, {"lan.conf", lanConf, 0o600}, {"bmc.emu", emulation, 0o644}} {
		var out bytes.Buffer
		t, err := template.New(f.name).Parse(f.text)
		if err == nil {
			err = t.Execute(&out, data)
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(b.dir(), f.name), out.Bytes(), f.mode)
		}
		if err != nil {
			return err
		}
	}
	if err := b.Plug(ctx); err != nil {
		return err
	}
	return b.Start(ctx)
}

// Start starts the BMC and waits until it answers. It does nothing if the BMC is running.
func (b *BMC) Start(ctx context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.sim != nil {
		select {
		case <-b.sim.Done():
		default:
			return nil
		}
	}
	log, err := os.OpenFile(filepath.Join(b.dir(), "ipmi_sim.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer log.Close() // the process has its own descriptor
	pkg := PackageDir("openipmi")
	c := b.machine.lab.Command(b.machine.lab.ctx, BMCs, filepath.Join(pkg, "usr/bin/ipmi_sim"),
		"-c", filepath.Join(b.dir(), "lan.conf"), "-f", filepath.Join(b.dir(), "bmc.emu"), "-s", filepath.Join(b.dir(), "state"), "-n")
	c.Env = append(os.Environ(), "LD_LIBRARY_PATH="+filepath.Join(pkg, "usr/lib/x86_64-linux-gnu"))
	c.Stdout, c.Stderr = log, log
	if err := c.Start(); err != nil {
		return err
	}
	b.sim = c
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	err = poll(ctx, func() (bool, error) {
		select {
		case <-c.Done():
			return false, fmt.Errorf("ipmi_sim ended (see %s)", log.Name())
		default:
			return b.answers(ctx), nil
		}
	})
	if err != nil {
		return fmt.Errorf("waiting for BMC %s: %w", b.Address, err)
	}
	return nil
}

// authCapabilities is IPMI's "get channel authentication capabilities", which needs no session.
const authCapabilities = "\x06\x00\xff\x07" + "\x00\x00\x00\x00\x00\x00\x00\x00\x00\x09" + "\x20\x18\xc8\x81\x00\x38\x8e\x04\xb5"

// answers reports whether the BMC speaks IPMI.
func (b *BMC) answers(ctx context.Context) bool {
	c, err := b.machine.lab.DialContext(ctx, BMCs, "udp", net.JoinHostPort(b.Address, "623"))
	if err != nil {
		return false
	}
	defer c.Close() // a UDP socket
	buf := make([]byte, 256)
	_ = c.SetDeadline(time.Now().Add(200 * time.Millisecond)) // cannot fail on a new socket
	if _, err := c.Write([]byte(authCapabilities)); err != nil {
		return false
	}
	n, err := c.Read(buf)
	return err == nil && n > 4
}

// Stop kills the BMC: it refuses connections until Start. The machine's power does not change.
func (b *BMC) Stop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.sim != nil {
		b.sim.Kill()
		<-b.sim.Done()
	}
}

// Unplug removes the BMC's address from the network: requests get no answer until Plug.
func (b *BMC) Unplug(ctx context.Context) error {
	return b.machine.lab.ipBatch(ctx, BMCs, "addr del "+b.Address+"/24 dev eth0")
}

// Plug puts the BMC's address on the network again.
func (b *BMC) Plug(ctx context.Context) error {
	return b.machine.lab.ipBatch(ctx, BMCs, "addr replace "+b.Address+"/24 dev eth0")
}

// IPMITool returns ipmitool with the arguments for this BMC, to be run in namespace Server.
func (b *BMC) IPMITool(ctx context.Context, args ...string) *Cmd {
	a := append([]string{"-I", "lanplus", "-C", fmt.Sprint(BMCCipher), "-H", b.Address, "-U", b.User, "-E"}, args...)
	c := b.machine.lab.Command(ctx, Server, "ipmitool", a...)
	c.Env = append(os.Environ(), "IPMITOOL_PASSWORD="+b.Password)
	return c
}

func (l *Lab) chassisSocket() string { return filepath.Join(l.run, "chassis.sock") }

// serveChassis answers the chassis scripts of all BMCs of the lab.
func (l *Lab) serveChassis() error {
	var lc net.ListenConfig
	s, err := lc.Listen(l.ctx, "unix", l.chassisSocket())
	if err != nil {
		return fmt.Errorf("listening for the BMCs: %w", err)
	}
	l.chassis = &http.Server{
		ReadHeaderTimeout: 10 * time.Second,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(io.LimitReader(r.Body, 1<<16))
			l.mu.Lock()
			m := l.machines[strings.TrimPrefix(r.URL.Path, "/")]
			l.mu.Unlock()
			if err != nil || m == nil {
				http.Error(w, "no such machine", http.StatusNotFound)
				return
			}
			out, err := m.chassis(r.Context(), strings.Fields(string(body)))
			if err != nil {
				l.log.Warn("chassis control", "machine", m.spec.Name, "request", string(body), "error", err)
				http.Error(w, err.Error(), http.StatusUnprocessableEntity)
				return
			}
			_, _ = io.WriteString(w, out) // a script that has ended needs no answer
		}),
	}
	l.onClose(l.chassis.Close)
	go func() {
		if err := l.chassis.Serve(s); !errors.Is(err, http.ErrServerClosed) {
			l.log.Error("serving the BMCs", "error", err)
		}
	}()
	return nil
}

// chassis carries out a command of ipmi_sim such as "get power boot", "set power 1" or "set boot
// pxe". The answer to get has one line "name:value" for each name.
func (m *Machine) chassis(ctx context.Context, args []string) (string, error) {
	if len(args) < 2 {
		return "", fmt.Errorf("unknown operation %q", args)
	}
	var out strings.Builder
	switch args[0] {
	case "get":
		for _, name := range args[1:] {
			switch name {
			case "power":
				n := 0
				if m.PowerState() == On {
					n = 1
				}
				fmt.Fprintf(&out, "power:%d\n", n)
			case "boot":
				fmt.Fprintf(&out, "boot:%s\n", m.NextBoot())
			default:
				return "", fmt.Errorf("unknown parameter %q", name)
			}
		}
		return out.String(), nil
	case "set":
		for i := 1; i+1 < len(args); i += 2 {
			if m.bmc != nil {
				m.bmc.mu.Lock()
				m.bmc.told = append(m.bmc.told, args[i]+" "+args[i+1])
				m.bmc.mu.Unlock()
			}
			if err := m.chassisSet(ctx, args[i], args[i+1]); err != nil {
				return "", err
			}
			if args[i] == "identify" {
				i++ // boot has two values
			}
		}
		return "", nil
	}
	return "", fmt.Errorf("unknown operation %q", args)
}

func (m *Machine) chassisSet(ctx context.Context, name, value string) error {
	switch {
	case name == "power" && value == "1":
		return m.PowerOn(ctx)
	case name == "power":
		return m.PowerOff(ctx)
	case name == "reset":
		return m.Reset(ctx)
	case name == "shutdown":
		return m.PressPower(ctx)
	case name == "boot":
		switch n := NextBoot(value); n {
		case NextDefault, NextNetwork, NextDisk:
			m.SetNextBoot(n)
			return nil
		}
		return fmt.Errorf("this machine cannot boot from %q", value)
	case name == "identify":
		return nil
	}
	return fmt.Errorf("unknown parameter %q", name)
}
