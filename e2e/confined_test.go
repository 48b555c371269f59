package e2e

import (
	"bytes"
	"cmp"
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/worker-agent/disk/blockdev"
	"github.com/ingotmetal/ingot/worker-agent/disk/disktest"
	"github.com/ingotmetal/ingot/worker-agent/disk/parttable"
)

// agentMachine is a machine that has booted the agent's system, and the server from which its agent gets actions.
type agentMachine struct {
	t       *testing.T
	http    *httptest.Server
	signer  ed25519.PrivateKey
	bound   action.Disk
	image   action.Container
	files   map[string][]byte // by path
	offers  chan action.Assignment
	reports chan action.Result
	next    int
	serial  string // file with the console's output
}

// newAgentMachine boots the agent's system with the disks. The second one is bound to the run.
func newAgentMachine(t *testing.T, files map[string][]byte, disks []string) *agentMachine {
	dir := t.TempDir()
	m := &agentMachine{
		t:       t,
		files:   files,
		offers:  make(chan action.Assignment, 1),
		reports: make(chan action.Result, 1),
		serial:  filepath.Join(dir, "serial.log"),
		signer:  ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize)),
		bound:   action.Disk{Path: "/dev/nvme0n1", Serial: "BOUND", Size: diskSize},
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /agent/v1/claim", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, action.Welcome{Protocol: action.Protocol, Token: "token", Run: "run", Epoch: 1, Boot: 1, Heartbeat: 5, Time: time.Now()})
	})
	mux.HandleFunc("POST /agent/v1/heartbeat", func(w http.ResponseWriter, _ *http.Request) { answer(w, action.Orders{}) })
	mux.HandleFunc("GET /agent/v1/next", func(w http.ResponseWriter, r *http.Request) {
		select {
		case as := <-m.offers:
			answer(w, as)
		case <-r.Context().Done():
		case <-time.After(20 * time.Second):
			w.WriteHeader(http.StatusNoContent)
		}
	})
	mux.HandleFunc("POST /agent/v1/report", func(w http.ResponseWriter, r *http.Request) {
		var res action.Result
		if err := json.NewDecoder(r.Body).Decode(&res); err != nil {
			t.Error(err)
		}
		w.WriteHeader(http.StatusNoContent)
		m.reports <- res
	})
	mux.HandleFunc("GET /", func(w http.ResponseWriter, r *http.Request) {
		b, ok := m.files[r.URL.Path]
		if !ok || r.Header.Get("Authorization") != "Bearer token" {
			http.NotFound(w, r)
			return
		}
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(b))
	})
	m.http = httptest.NewTLSServer(mux)
	t.Cleanup(m.http.Close)

	_, port, _ := strings.Cut(m.http.Listener.Addr().String(), ":")
	args := []string{
		"-accel",
		"tcg,thread=multi",
		"-cpu",
		"max,-avx,-avx2",
		"-smp",
		"1",
		"-m",
		"640",
		"-nodefaults",
		"-display",
		"none",
		"-M",
		"pc,graphics=off",
		"-no-reboot",
		"-chardev",
		"file,id=serial,path=" + m.serial,
		"-serial",
		"chardev:serial",
		"-device",
		"virtio-rng-pci",
		"-netdev",
		"user,id=n0",
		"-device",
		"virtio-net-pci,netdev=n0,mac=52:54:00:00:00:01,romfile=",
		"-device",
		"ipmi-bmc-sim,id=bmc0",
		"-device",
		"isa-ipmi-kcs,bmc=bmc0",
		"-device",
		"i6300esb",
		"-device",
		"virtio-scsi-pci",
		"-kernel",
		"../bin/agentos/vmlinuz",
		"-initrd",
		"../bin/agentos/initramfs",
		"-append",
		"console=ttyS0 quiet panic=-1 ingot.machine=m1 ingot.claim=00 ingot.mac=52:54:00:00:00:01 ingot.server=https://10.0.2.2:" + port +
			fmt.Sprintf(" ingot.pin=sha256:%x", sha256.Sum256(m.http.Certificate().RawSubjectPublicKeyInfo)) +
			" ingot.plan=" + action.FormatPlanKey(m.signer.Public().(ed25519.PublicKey)),
	}
	for i, device := range []string{"virtio-blk-pci,serial=OTHER", "nvme,serial=BOUND", "virtio-blk-pci,serial=THIRD", "scsi-hd,serial=SCSI"} {
		args = append(
			args,
			"-drive",
			fmt.Sprintf("if=none,format=raw,id=d%d,file=%s", i, disks[i]),
			"-device",
			fmt.Sprintf("%s,drive=d%d", device, i),
		)
	}
	guest := exec.CommandContext(t.Context(), "qemu-system-x86_64", args...)
	var out bytes.Buffer
	guest.Stdout, guest.Stderr = &out, &out
	require.NoError(t, guest.Start())
	t.Cleanup(func() {
		_ = guest.Process.Kill() // it does not end by itself
		_ = guest.Wait()
		if t.Failed() {
			console, _ := os.ReadFile(m.serial)
			t.Logf("%s\n%s", out.String(), console[max(0, len(console)-20000):])
		}
	})
	return m
}

func answer(w http.ResponseWriter, v any) {
	_ = json.NewEncoder(w).Encode(v) // the agent asks again
}

// run carries out an action with the container, and returns its result.
func (m *agentMachine) run(a action.Action, change func(*action.Container)) action.Result {
	m.t.Helper()
	c := m.image
	c.URL, c.Disk, c.HostNetwork = m.http.URL+"/image", true, true
	c.URL = strings.Replace(c.URL, "127.0.0.1", "10.0.2.2", 1)
	if change != nil {
		change(&c)
	}
	a.Container, a.Image, a.Timeout = &c, "lab/confined", cmp.Or(a.Timeout, 120)
	a.Name = cmp.Or(a.Name, "container")
	as := action.Assignment{
		Key: action.Key{Epoch: 1, Action: m.next, Attempt: 1}, Run: "run", Disk: &m.bound, DiskAlias: "/dev/sda", Action: a,
	}
	m.next++
	signed, err := action.Sign(m.signer, action.Order{Machine: "m1", Boot: 1, Plan: "plan", Assignment: as})
	require.NoError(m.t, err)
	as.Signed = signed
	m.offers <- as
	ctx, cancel := context.WithTimeout(m.t.Context(), 5*time.Minute)
	defer cancel()
	select {
	case r := <-m.reports:
		m.t.Logf("%s %v: %s, exit code %d, %.1f s: %s", a.Name, a.Command, r.State, r.ExitCode, r.Ended.Sub(r.Started).Seconds(), r.Message)
		return r
	case <-ctx.Done():
		require.FailNow(m.t, "no report")
		return action.Result{}
	}
}

const diskSize = 64 << 20

// TestContainerIsConfined: what a root process in a container must not do is refused by the agent's system, and what it may do works
// (security S66, S67).
func TestContainerIsConfined(t *testing.T) {
	if !*inLab {
		t.Skip("needs -args -lab")
	}
	runInTurn(t, 80, core)
	runtime, err := os.ReadFile("../bin/agentos/" + action.RuntimeFile)
	require.NoError(t, err, "run make build")
	program := filepath.Join(t.TempDir(), "confined")
	build := exec.Command("go", "build", "-o", program, "./confined")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	require.NoError(t, err, string(out))
	binary, err := os.ReadFile(program)
	require.NoError(t, err)

	disks := make([]string, 4)
	for i := range disks {
		disks[i] = filepath.Join(t.TempDir(), "disk")
		disktest.NewFile(t, disks[i], diskSize)
	}
	first := parttable.Span{Start: blockdev.MiB, Size: 16 * blockdev.MiB, Name: "root"}
	disktest.NewGPT(t, disks[1], first, parttable.Span{Start: 32 * blockdev.MiB, Size: 16 * blockdev.MiB, Name: "data"})
	changed, err := os.ReadFile(disks[1])
	require.NoError(t, err)
	disktest.NewGPT(t, disks[1], first)
	mke2fs := exec.Command("mke2fs", "-q", "-t", "ext4", "-F", "-E", "offset=1048576", disks[1], "16M")
	out, err = mke2fs.CombinedOutput()
	require.NoError(t, err, string(out))

	lower := disktest.ProgramArchive(t, []disktest.ImageFile{
		{Name: "confined", Content: binary},
		{Name: "gone", Content: []byte("x")},
		{Name: "etc/passwd", Content: []byte("root:x:0:0::/:\nweb:x:33:44::/:\n")},
		{Name: "etc/group", Content: []byte("web:x:44:\ndata:x:55:web\n")},
		{Name: "head", Content: changed[:34*512]},
		{Name: "tail", Content: changed[diskSize-33*512:]},
	})
	upper := disktest.ProgramArchive(t, []disktest.ImageFile{{Name: ".wh.gone"}})
	files := map[string][]byte{"/agent/v1/runtime": runtime}
	m := newAgentMachine(t, files, disks)
	image := v1.ImageConfig{Entrypoint: []string{"/confined"}, Cmd: []string{"exit"}, Env: []string{"FROM=image", "OWN=image"}}
	m.use(image, runtime, lower, upper)

	m.requireConfined()
	m.requireEnded()
	m.requireVolumes()
	m.use(
		v1.ImageConfig{Entrypoint: []string{"/confined"}, Cmd: []string{"user"}, User: "web", WorkingDir: "/new/place", Env: image.Env},
		runtime,
		lower,
	)
	r := m.run(action.Action{Environment: action.Environment{"OWN": "action"}}, nil)
	require.Contains(t, r.Log, `USER 33:44 [55] HOST m1 DIR /new/place FROM "image" OWN "action"`)
	require.Contains(t, r.Log, `127.0.1.1 m1\n`)

	m.image.SHA256 = strings.Repeat("0", 64)
	r = m.run(action.Action{}, nil)
	require.Contains(t, r.Message, "but the plan has 0000")
	m.image.Size = 1 << 30
	r = m.run(action.Action{}, nil)
	require.Contains(t, r.Message, "it needs 1.0 GiB of memory")

	for _, n := range []int{0, 2, 3} { // the last one is the kernel's /dev/sda, which is the template's name of the bound disk
		other, err := os.ReadFile(disks[n])
		require.NoError(t, err)
		require.True(t, blockdev.AllZero(other), "another disk was written")
	}
}

// requireConfined tries each way out.
func (m *agentMachine) requireConfined() {
	env := action.Environment{"DISK": "/dev/nvme0n1 /dev/nvme0n1p1 /dev/sda /dev/sda1", "OWN": "nvme0n1 nvme0n1p1"}
	for _, x := range []struct {
		mode     string
		attempts int
		change   func(*action.Container)
	}{
		{"escape", 120, nil},
		{"hostpid", 20, func(c *action.Container) { c.HostPID = true }},
		{"privileged", 80, func(c *action.Container) { c.Privileged = true }},
	} {
		from := m.consoleSize()
		r := m.run(action.Action{Command: []string{x.mode}, Environment: env}, x.change)
		require.Equal(m.t, action.Success, r.State, r.Log)
		m.requireRefused(from, x.attempts)
	}
	from := m.consoleSize()
	r := m.run(action.Action{Command: []string{"escape"}}, func(c *action.Container) { c.Disk = false })
	require.Equal(m.t, action.Success, r.State, r.Log)
	m.requireRefused(from, 120)

	// The first table has one partition. The container writes another one with two, which has no node before.
	r = m.run(action.Action{Command: []string{"disk"}, Environment: env}, nil)
	require.Equal(m.t, 4, strings.Count(r.Log, "WRITTEN"), r.Log)
	r = m.run(action.Action{Command: []string{"table", "/dev/sda", "/dev/sda2"}}, nil)
	require.Contains(m.t, r.Log, "WRITTEN /dev/sda2", r.Message)
	r = m.run(action.Action{Command: []string{"disk"}, Environment: action.Environment{"DISK": "/dev/sda2 /dev/nvme0n1p2"}}, nil)
	require.Equal(m.t, 2, strings.Count(r.Log, "WRITTEN"), r.Log)
}

// requireEnded shows how containers end.
func (m *agentMachine) requireEnded() {
	r := m.run(action.Action{}, nil) // the image's CMD
	require.Equal(m.t, 7, r.ExitCode, r.Log)
	r = m.run(action.Action{Command: []string{"memory"}}, nil)
	require.Contains(m.t, r.Message, "needed more memory", r.Log)
	r = m.run(action.Action{Command: []string{"ignore"}, Timeout: 4, OnTimeout: []string{"say", "after", "the", "timeout"}}, nil)
	require.Equal(m.t, action.Timeout, r.State)
	require.Contains(m.t, r.Log, "after the timeout")
	r = m.run(action.Action{Command: []string{"ignore", "daemon"}}, func(c *action.Container) { c.HostPID = true })
	require.Equal(m.t, action.Success, r.State, r.Log)
	r = m.run(action.Action{Command: []string{"fork"}, Timeout: 5}, nil)
	require.Contains(m.t, []action.State{action.Timeout, action.Failed}, r.State) // it fails if it fills the memory before
	r = m.run(action.Action{Command: []string{"output"}}, nil)
	require.Contains(m.t, r.Log, "END OF OUTPUT")
	r = m.run(action.Action{Command: []string{"network"}}, func(c *action.Container) { c.HostNetwork = false })
	require.Equal(m.t, 1, strings.Count(r.Log, "INTERFACE"), r.Log)
	require.Equal(m.t, action.Success, r.State, r.Log)
	r = m.run(action.Action{Command: []string{"network"}}, nil)
	require.Equal(m.t, 2, strings.Count(r.Log, "INTERFACE"), r.Log)
}

// requireVolumes shows what containers share.
func (m *agentMachine) requireVolumes() {
	r := m.run(action.Action{
		Command: []string{"volumes", "=/shared", "=/mnt", "-/lib/modules", "-/readonly"},
		Volumes: []string{
			"/worker:/shared",
			"PARTLABEL=root:/mnt",
			"/lib/modules:/lib/modules",
			"data:/readonly:ro",
			"/dev:/dev",
			"/dev/console:/dev/console",
		},
	}, nil)
	require.Equal(m.t, action.Success, r.State, r.Log)
	require.Equal(m.t, 2, strings.Count(r.Log, "REFUSED"), r.Log)
	r = m.run(
		action.Action{Command: []string{"volumes", "+/other", "+/partition"}, Volumes: []string{"/worker:/other", "/dev/sda1:/partition:ro"}},
		nil,
	)
	require.Equal(m.t, 2, strings.Count(r.Log, "READ"), r.Log)
}

// use makes the container of the next actions.
func (m *agentMachine) use(config v1.ImageConfig, runtime []byte, layers ...[]byte) {
	archive, c := disktest.ContainerArchive(m.t, disktest.ContainerFiles(m.t, v1.Image{Config: config}, layers...))
	sum := sha256.Sum256(runtime)
	c.Runtime = hex.EncodeToString(sum[:])
	m.files["/image"], m.image = archive, c
}

var attempts = regexp.MustCompile(`line="?(REFUSED|ALLOWED|FAILED) ([^"\n]*)`)

func (m *agentMachine) consoleSize() int {
	console, err := os.ReadFile(m.serial)
	require.NoError(m.t, err)
	return len(console)
}

// requireRefused fails the test if the console shows, from a byte on, fewer attempts than there must be, or one that was not refused.
func (m *agentMachine) requireRefused(from, least int) {
	m.t.Helper()
	console, err := os.ReadFile(m.serial)
	require.NoError(m.t, err)
	found := attempts.FindAllSubmatch(console[from:], -1)
	require.Greater(m.t, len(found), least)
	for _, f := range found {
		if string(f[1]) != "REFUSED" {
			m.t.Errorf("%s %s", f[1], f[2])
		}
	}
}
