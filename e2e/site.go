// Package e2e runs Ingot in the virtual lab: real firmware, real BMC protocol, a real
// Temporal server. Its tests and "make demo" share Site, which is an installation of Ingot
// as an operator would have it.
package e2e

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/lab"
	"github.com/ingotmetal/ingot/lab/manager"
	"github.com/ingotmetal/ingot/workflows/contract"
)

// Ports of the server inside the lab.
const (
	apiPort      = 8080
	temporalPort = 7233
	uiPort       = 8233
	sessionPort  = 8234 // Temporal's UI, with a session
	// guestPort forwards connections to a guest's Temporal.
	guestPort = 17233
)

// Site is one installation of Ingot in a lab.
type Site struct {
	*lab.Lab
	// API, Temporal, UI and SessionUI are addresses on the host's loopback. SessionUI is Temporal's UI with a session.
	API, Temporal, UI, SessionUI string

	// Namespace is where the server runs, and Address is its address for machines.
	Namespace lab.Namespace
	Address   string

	shared bool   // the lab belongs to another site
	root   string // of the repository
	bin    string // directory of ingot
	image  string // root filesystem in which the server runs, if set
	// temporalEnv is what the temporal command needs to reach another Temporal than the embedded one.
	temporalEnv []string
	extraEnv    []string // of ingot's processes
	user        int      // who runs the server in image
	format      string   // of the server's log
	level       string   // of the server's log
	dir         string   // config, state, logs
	out         io.Writer
	mu          sync.Mutex
	server      *lab.Cmd
	sockets     *manager.Manager // if set, keeps the server's sockets
	notifyDir   string           // of the socket where the server notifies it
	guest       *lab.Guest       // where the server runs, if set; see Options.Guest
	log         *os.File
}

// Options of a site.
type Options struct {
	// Root is the repository with bin/ and .tools/.
	Root string
	// Programs is the directory of the programs, Root/bin by default; see Upgrade.
	Programs string
	// Dir keeps everything needed to examine a failed test; empty means a directory that is
	// removed with the lab.
	Dir string
	// Out receives the output of the server and the lab; nil discards it.
	Out io.Writer
	// Guest runs the server in a virtual machine with a separate clock.
	Guest bool
	// Disk gives the data directory a separate filesystem of this many bytes, so that a test
	// can fill it.
	Disk int64
	// Lab places the site in an existing lab, which Close leaves running. Name is then the
	// site's directory in the lab's directory.
	Lab  *lab.Lab
	Name string
	// Home creates a lab with the home network of lab.Options.Home.
	Home bool
	// Namespace is where the server runs: lab.Server (the same as lab.Target)
	// by default, or lab.Seed.
	Namespace lab.Namespace
	// RelayOnly lets the server answer only the router's relay.
	RelayOnly bool
	// Relays are listed in addition to those of the lab's networks.
	Relays []string
	// Image is the root filesystem of the container image, unpacked by lab.UnpackImage.
	// The server runs in it with the restrictions of deploy/compose.yaml (with RelayOnly) or
	// deploy/genesis/ingot.yaml: read-only, and with the capabilities listed there.
	Image string
	// AgentOS is the directory of the agent's kernel and initramfs, Root/bin/agentos by default.
	AgentOS string
	// Loaders is the directory of the loaders, Root/bin/ipxe by default.
	Loaders string
	// KeepSockets keeps the server's listening sockets when it is killed, as systemd does for the service of the package. Not with
	// Guest or Image.
	KeepSockets bool
	// NoStart only prepares the site; Start or Launch starts it.
	NoStart bool
	// LogFormat is the format of the server's log; "" = text. LogLevel is its level; "" = debug.
	LogFormat, LogLevel string
	// Config is added to the server's configuration, under "netboot:" and at
	// the top level.
	Netboot, Top string
}

// NewSite creates a lab and starts Ingot in it; Close ends both. With Options.Lab it only
// adds an installation to that lab.
func NewSite(ctx context.Context, o Options) (_ *Site, err error) {
	for _, f := range []string{"bin/ingot", "bin/worker-agent", "bin/agentos/vmlinuz", "bin/agentos/initramfs"} {
		if _, err := os.Stat(filepath.Join(o.Root, f)); err != nil {
			return nil, fmt.Errorf("the lab needs %s: run make build: %w", f, err)
		}
	}
	l := o.Lab
	if l == nil {
		if l, err = lab.New(ctx, lab.Options{Dir: o.Dir, Home: o.Home}); err != nil {
			return nil, err
		}
	}
	s := &Site{
		Lab:       l,
		shared:    o.Lab != nil,
		root:      o.Root,
		bin:       o.Programs,
		dir:       filepath.Join(l.Dir(), o.Name),
		out:       o.Out,
		Namespace: o.Namespace,
		Address:   lab.ServerAddress,
		image:     o.Image,
		format:    o.LogFormat,
		level:     cmp.Or(o.LogLevel, "debug"),
	}
	switch s.Namespace {
	case "":
		s.Namespace = lab.Server
	case lab.Seed:
		s.Address = lab.SeedAddress
	}
	if s.bin == "" {
		s.bin = filepath.Join(o.Root, "bin")
	}
	if s.out == nil {
		s.out = io.Discard
	}
	defer func() {
		if err != nil {
			_ = s.Close() // the first error is more useful
		}
	}()
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		return nil, err
	}
	if s.log, err = os.Create(filepath.Join(s.dir, "ingot.log")); err != nil {
		return nil, err
	}
	if o.KeepSockets {
		dir, err := os.MkdirTemp("", "ingot-") // the path of a socket has at most 107 bytes
		if err != nil {
			return nil, err
		}
		s.notifyDir = dir
		if s.sockets, err = manager.New(filepath.Join(dir, "notify")); err != nil {
			return nil, err
		}
	}
	if o.Guest {
		o.Top += fmt.Sprintf("listen: %s:%d\n", lab.ServerAddress, apiPort)
	}
	if o.Disk > 0 {
		disk, err := l.SmallDisk(o.Disk)
		if err != nil {
			return nil, err
		}
		if err := os.Symlink(disk, filepath.Join(s.dir, "state")); err != nil {
			return nil, err
		}
	}
	where := fmt.Sprintf("interfaces: [%s]", lab.ServerInterface)
	if o.RelayOnly {
		relays := append([]string{lab.DirectGateway, lab.RelayedGateway}, o.Relays...)
		where = fmt.Sprintf("relay_only: true\n  address: %s\n  relays: [%s]", s.Address, strings.Join(relays, ", "))
	}
	loaders, agentOS := cmp.Or(o.Loaders, filepath.Join(o.Root, "bin/ipxe")), cmp.Or(o.AgentOS, filepath.Join(o.Root, "bin/agentos"))
	if o.Image != "" {
		loaders, agentOS = "/usr/lib/ipxe", "/usr/share/ingot"
		s.user = 0 // of deploy/genesis/ingot.yaml
		if o.RelayOnly {
			s.user = imageUser
		}
		for _, d := range []string{"etc/ingot", "state/ingot"} {
			if err := os.MkdirAll(filepath.Join(s.dir, d), 0o750); err != nil {
				return nil, err
			}
		}
	}
	cfg := fmt.Sprintf("netboot:\n  %s\n  loaders: %s\n  agent_os: %s\n%s\nmin_free_mib: 64\n%s\n", where, loaders,
		agentOS, o.Netboot, o.Top)
	if err := os.MkdirAll(filepath.Join(s.dir, "etc/ingot"), 0o750); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(s.dir, "etc/ingot/ingot.yaml"), []byte(cfg), 0o600); err != nil {
		return nil, err
	}
	if o.Guest {
		if s.API, err = l.Forward(ctx, lab.Host, "127.0.0.1:0", lab.Router, fmt.Sprintf("%s:%d", lab.ServerAddress, apiPort)); err != nil {
			return nil, err
		}
		if s.Temporal, err = l.Forward(ctx, lab.Host, "127.0.0.1:0", lab.Router, fmt.Sprintf("%s:%d", lab.ServerAddress, guestPort)); err != nil {
			return nil, err
		}
		return s, s.startGuest(ctx)
	}
	for port, addr := range map[int]*string{apiPort: &s.API, temporalPort: &s.Temporal, uiPort: &s.UI, sessionPort: &s.SessionUI} {
		if *addr, err = l.Forward(ctx, lab.Host, "127.0.0.1:0", s.Namespace, fmt.Sprintf("127.0.0.1:%d", port)); err != nil {
			return nil, err
		}
	}
	if o.NoStart {
		return s, nil
	}
	return s, s.Start(ctx)
}

// Close ends the server, and the lab if this site created it.
func (s *Site) Close() error {
	s.Stop()
	if s.sockets != nil {
		_ = s.sockets.Close()
	}
	if s.notifyDir != "" {
		_ = os.RemoveAll(s.notifyDir)
	}
	if s.log != nil {
		_ = s.log.Close() // the processes that wrote to it are gone
	}
	if s.shared {
		return nil
	}
	return s.Lab.Close()
}

// env returns the environment of ingot's processes: config and state of this site.
func (s *Site) env() []string {
	return append(slices.Concat(os.Environ(), s.temporalEnv, s.extraEnv),
		"XDG_CONFIG_HOME="+filepath.Join(s.dir, "etc"), "XDG_STATE_HOME="+filepath.Join(s.dir, "state"))
}

// Upgrade stops the server and starts the one in programs on the same data.
func (s *Site) Upgrade(ctx context.Context, programs string) error {
	s.Stop()
	s.bin = programs
	return s.Start(ctx)
}

// Start starts "ingot serve" and waits until it and its Temporal answer.
func (s *Site) Start(ctx context.Context) error {
	if err := s.Launch(ctx); err != nil {
		return err
	}
	return s.WaitReady(ctx)
}

// Launch starts "ingot serve" and does not wait, because a standby server never has a
// Temporal that answers.
func (s *Site) Launch(ctx context.Context) error {
	args := []string{filepath.Join(s.bin, "ingot")}
	if s.image != "" {
		args = s.contained()
	}
	args = append(args, "serve", "--log-level", s.level)
	if s.format != "" {
		args = append(args, "--log-format", s.format)
	}
	env := s.env()
	var kept []*os.File
	if s.sockets != nil {
		command, more, files, err := s.sockets.Service()
		if err != nil {
			return err
		}
		args, env, kept = append(command, args...), append(env, more...), files
	}
	c := s.Command(context.WithoutCancel(ctx), s.Namespace, args[0], args[1:]...)
	c.Env, c.Files = env, kept
	c.Stdout, c.Stderr = io.MultiWriter(s.log, s.out), s.log
	err := c.Start()
	for _, f := range kept {
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.server = c
	s.mu.Unlock()
	return nil
}

// imageUser is the user of the container image.
const imageUser = 65532

// contained returns a command that runs ingot of the image as a container engine would: a
// read-only root with two volumes, the image's environment, two capabilities. A user other than
// root has none until the program starts, which carries them.
func (s *Site) contained() []string {
	const script = `set -e; root=$1 etc=$2 data=$3 user=$4; shift 4
chown -R "$user:$user" "$etc" "$data"
mount --bind "$root" "$root"
mount --rbind /proc "$root/proc"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
for d in null zero random urandom; do : > "$root/dev/$d"; mount --bind "/dev/$d" "$root/dev/$d"; done
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
mount --bind "$etc" "$root/etc/ingot"
mount --bind "$data" "$root/var/lib/ingot"
mount -o remount,bind,ro "$root"
exec env -i PATH=/usr/bin HOME=/tmp XDG_CONFIG_HOME=/etc XDG_STATE_HOME=/var/lib "$(command -v setpriv)" \
  --bounding-set -all,+sys_chroot,+setuid,+setgid,+net_bind_service,+net_raw --inh-caps -all \
  "$(command -v chroot)" --userspec="$user:$user" --groups="$user" "$root" /usr/bin/ingot "$@"`
	return []string{
		"unshare", "--mount", "--propagation", "private", "sh", "-c", script, "contained",
		s.image, filepath.Join(s.dir, "etc/ingot"), filepath.Join(s.dir, "state/ingot"), strconv.Itoa(s.user),
	}
}

// WaitReady waits until the server that was launched and its Temporal answer.
func (s *Site) WaitReady(ctx context.Context) error {
	s.mu.Lock()
	c := s.server
	s.mu.Unlock()
	if c == nil {
		return errors.New("waiting for ingot serve: it was not started")
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute) // with a cluster it may wait for another server
	defer cancel()
	for {
		out, err := s.CLI(ctx, "status", "-o", "json")
		if err == nil && ready(out) {
			return nil
		}
		select {
		case <-c.Done():
			return fmt.Errorf("ingot serve ended: %w; see %s", c.Wait(), s.log.Name())
		case <-ctx.Done():
			return fmt.Errorf("waiting for ingot serve: %w: %w; see %s", ctx.Err(), err, s.log.Name())
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// startGuest starts "ingot serve" in a virtual machine and waits until it and
// its Temporal answer.
func (s *Site) startGuest(ctx context.Context) error {
	here, err := os.Getwd() // the configuration's paths are relative to it
	if err != nil {
		return err
	}
	state := filepath.Join(s.dir, "state")
	if err := os.MkdirAll(state, 0o750); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute) // emulated: 30 times slower
	defer cancel()
	s.guest, err = s.ServerGuest(ctx, lab.GuestSpec{
		Writable: s.dir,
		Volatile: state,
		Command: fmt.Sprintf(
			"cd %s && XDG_CONFIG_HOME=%s XDG_STATE_HOME=%s TMPDIR=%s HOME=%s PATH=/usr/sbin:/usr/bin:/sbin:/bin exec %s "+
				"serve --log-level debug > %s 2>&1",
			here,
			filepath.Join(s.dir, "etc"),
			state,
			state,
			os.Getenv("HOME"),
			filepath.Join(s.bin, "ingot"),
			s.log.Name(),
		),
	})
	if err != nil {
		return err
	}
	for {
		var st json.RawMessage
		err := s.REST(ctx, http.MethodGet, "/v1/status", nil, &st)
		if err == nil && ready(string(st)) {
			// Temporal listens only on the guest's loopback.
			_, err := s.guest.Shell(ctx,
				fmt.Sprintf("/bin/busybox nc -ll -p %d -e /bin/busybox nc 127.0.0.1 %d < /dev/null > /dev/null 2>&1 &", guestPort, temporalPort))
			return err
		}
		select {
		case <-s.guest.Done():
			return fmt.Errorf("the server's guest ended; see %s", s.dir)
		case <-ctx.Done():
			return fmt.Errorf("waiting for ingot serve: %w: %w; see %s", ctx.Err(), err, s.log.Name())
		case <-time.After(time.Second):
		}
	}
}

func ready(status string) bool {
	var st struct{ Temporal struct{ Ready bool } }
	return json.Unmarshal([]byte(status), &st) == nil && st.Temporal.Ready
}

// Stop ends the server as an operator would.
func (s *Site) Stop() { s.end(syscall.SIGTERM) }

// Kill ends the server with SIGKILL; its Temporal child ends automatically.
func (s *Site) Kill() { s.end(syscall.SIGKILL) }

func (s *Site) end(sig syscall.Signal) {
	s.mu.Lock()
	c := s.server
	s.server = nil
	s.mu.Unlock()
	if c == nil {
		return
	}
	// A process that has already ended cannot be signaled; waiting is enough.
	_ = c.Signal(sig)
	select {
	case <-c.Done():
	case <-time.After(30 * time.Second):
		c.Kill()
		<-c.Done()
	}
}

// Pid returns the server's process id, 0 while it is stopped.
func (s *Site) Pid() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.server == nil {
		return 0
	}
	return s.server.Pid()
}

// serves reports whether the server runs.
func (s *Site) serves() bool {
	s.mu.Lock()
	c := s.server
	s.mu.Unlock()
	var done <-chan struct{}
	switch {
	case s.guest != nil:
		done = s.guest.Done()
	case c != nil:
		done = c.Done()
	default:
		return false
	}
	select {
	case <-done:
		return false
	default:
		return true
	}
}

// CLI runs an ingot command on the server's host and returns its output.
func (s *Site) CLI(ctx context.Context, args ...string) (string, error) {
	return s.run(ctx, filepath.Join(s.bin, "ingot"), args...)
}

// TemporalCLI runs the unmodified temporal command against the site's server. The address is
// the command's default as a number: without a name server it would wait for the TXT record
// of "localhost".
func (s *Site) TemporalCLI(ctx context.Context, args ...string) (string, error) {
	address := fmt.Sprintf("127.0.0.1:%d", temporalPort)
	if s.guest != nil {
		address = fmt.Sprintf("%s:%d", lab.ServerAddress, guestPort)
	}
	return s.run(ctx, filepath.Join(s.root, ".tools/temporal"), append(args, "--address", address)...)
}

func (s *Site) run(ctx context.Context, name string, args ...string) (string, error) {
	ns := s.Namespace
	if s.guest != nil {
		ns = lab.Router // the guest is in the place of Server
	}
	c := s.Command(ctx, ns, name, args...)
	c.Env = s.env()
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	err := c.Run()
	if err != nil {
		err = fmt.Errorf("%s %s: %w: %s", filepath.Base(name), strings.Join(args, " "), err, strings.TrimSpace(errs.String()+" "+out.String()))
	}
	return out.String(), err
}

// REST sends a request with the admin token and decodes the answer into into, unless that is
// nil. A status of 400 or more is an error with the body.
func (s *Site) REST(ctx context.Context, method, path string, body, into any) error {
	return s.RESTWith(ctx, http.Header{}, method, path, body, into)
}

// RESTWith is REST with further headers.
func (s *Site) RESTWith(ctx context.Context, header http.Header, method, path string, body, into any) error {
	var r io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return err
		}
		r = bytes.NewReader(b)
	}
	client, scheme := http.DefaultClient, "http://"
	if s.guest != nil {
		// The server created its certificate, and no other host is on this link.
		client, scheme = &http.Client{
			Transport: &http.Transport{
				DisableKeepAlives: true,
				TLSClientConfig:   &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12},
			},
		}, "https://"
	}
	req, err := http.NewRequestWithContext(ctx, method, scheme+s.API+path, r)
	if err != nil {
		return err
	}
	req.Header = header.Clone()
	if s.guest != nil {
		req.Host = fmt.Sprintf("%s:%d", lab.ServerAddress, apiPort)
	}
	token, err := os.ReadFile(filepath.Join(s.dir, "etc/ingot/token"))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		return err
	}
	if res.StatusCode >= http.StatusBadRequest {
		return fmt.Errorf("%s %s: %s: %s", method, path, res.Status, b)
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal(b, into)
}

// Add adds a machine to the lab and to Ingot's inventory. edit changes the document before
// it is pushed.
func (s *Site) Add(ctx context.Context, spec lab.Spec, edit func(doc map[string]any)) (*lab.Machine, error) {
	m, err := s.Machine(ctx, spec)
	if err != nil {
		return nil, err
	}
	spec = m.Spec()
	net, gateway := "10.10.20.%d", lab.DirectGateway
	switch spec.VLAN {
	case lab.RelayedVLAN:
		net, gateway = "10.10.30.%d", lab.RelayedGateway
	case lab.HomeVLAN: // its router uses the addresses above 100
		net, gateway = "192.168.1.%d", lab.RouterHomeAddress
	}
	mac := strings.Split(spec.MAC, ":")
	var last int
	if _, err := fmt.Sscanf(mac[len(mac)-1], "%x", &last); err != nil {
		return nil, err
	}
	if spec.VLAN != lab.HomeVLAN {
		last += 100
	} else {
		last += 20
	}
	doc := map[string]any{
		"name": spec.Name,
		"interfaces": []any{map[string]any{
			"mac": spec.MAC, "address": fmt.Sprintf(net, last), "netmask": "255.255.255.0", "gateway": gateway,
			"hostname": spec.Name, "nameservers": []string{gateway}, "uefi": spec.Firmware != lab.BIOS,
		}},
	}
	if b := m.BMC(); b != nil {
		doc["bmc"] = map[string]any{
			"driver":      "ipmi",
			"host":        b.Address,
			"user":        b.User,
			"password":    b.Password,
			"cipherSuite": fmt.Sprint(lab.BMCCipher),
		}
	}
	if a := m.AMT(); a != nil {
		doc["bmc"] = map[string]any{"driver": "amt", "host": a.Address, "user": a.User, "password": a.Password}
	}
	if r := m.Redfish(); r != nil {
		doc["bmc"] = map[string]any{"driver": "redfish", "host": r.Address, "user": r.User, "password": r.Password}
	}
	if spec.WakeOnLAN {
		doc["bmc"] = map[string]any{"driver": "wol"}
	}
	if edit != nil {
		edit(doc)
	}
	return m, s.REST(ctx, http.MethodPost, "/v1/machines", map[string]any{"machines": []any{doc}}, nil)
}

// Workflow returns the record of a run, or of a machine's latest run.
func (s *Site) Workflow(ctx context.Context, name string) (inventory.Workflow, error) {
	var w inventory.Workflow
	out, err := s.CLI(ctx, "workflow", "get", name, "-o", "json")
	if err != nil {
		return w, err
	}
	return w, json.Unmarshal([]byte(out), &w)
}

// Follow calls see with the record of the machine's latest run at each change until see
// returns true. If the run ends first, Follow returns an error.
func (s *Site) Follow(ctx context.Context, machine string, see func(w inventory.Workflow) bool) (inventory.Workflow, error) {
	for {
		var w inventory.Workflow
		err := s.REST(ctx, http.MethodGet, "/v1/machines/"+machine+"/workflow", nil, &w)
		if err == nil {
			if see(w) {
				return w, nil
			}
			if inventory.Final(w.State) {
				return w, fmt.Errorf("run %s of %s ended as %s: %s", w.Run, machine, w.State, w.Message)
			}
		}
		select {
		case <-ctx.Done():
			return w, fmt.Errorf("following %s: %w (last seen: %s %s %s)", machine, errors.Join(ctx.Err(), err), w.State, w.Phase, w.Message)
		case <-time.After(250 * time.Millisecond):
		}
	}
}

// FollowUntilButton follows the run of a machine without a BMC until it asks the operator to
// switch the machine on.
func (s *Site) FollowUntilButton(ctx context.Context, machine string) (inventory.Workflow, error) {
	return s.Follow(ctx, machine, func(w inventory.Workflow) bool { return strings.HasPrefix(w.Message, "power the machine on now") })
}

// Provision starts a run over REST and returns its id.
func (s *Site) Provision(ctx context.Context, in contract.ProvisionInput) (string, error) {
	var started struct{ Run string }
	err := s.REST(ctx, http.MethodPost, "/v1/workflows", map[string]any{"type": inventory.TypeProvision, "input": in}, &started)
	return started.Run, err
}
