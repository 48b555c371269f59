package e2e

import (
	"bytes"
	"context"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/lab"
)

var writeOutputs = flag.Bool("write", false, "write the outputs of its commands into docs/first-machine.md")

const (
	firstMachinePage = "../docs/first-machine.md"
	foreignDHCP      = "\n## Beside another DHCP server\n" // the section of the page that has a host of its own
)

var (
	consoleBlock = regexp.MustCompile("(?s)```console\n.*?```\n")
	promptLine   = regexp.MustCompile(`(?m)^\$ (?:.*\\\n)*.*\n`) // a command continues after a backslash
	// What differs between two runs or hosts: the state of clock and disk, which of a run's phases were seen and how often, and
	// identifiers, digests, numbers and the width of columns.
	varyingLine = regexp.MustCompile(
		`(?m)^((ok|warn) +(clock|space)|[0-9:]{8}  (plan|arm|power|dhcp|loader|agent|bind|action|disarm|reboot|ready)) .*\n`,
	)
	varyingText = regexp.MustCompile(`([0-9a-f]{2}:){5}[0-9a-f]{2}|[0-9a-f-]{36}|[0-9a-f]{12,}|version \S+|[0-9][0-9A-Za-z.:+~-]*| {2,}`)
)

// TestFirstMachine runs each command of docs/first-machine.md in the lab, and compares the output with the
// page. With -write it writes the outputs into the page.
func TestFirstMachine(t *testing.T) {
	runInTurn(t, 80, 6)
	ctx := needLab(t)
	text, err := os.ReadFile(firstMachinePage)
	require.NoError(t, err)
	own, foreign, found := strings.Cut(string(text), foreignDHCP)
	require.True(t, found, "the page has no section %q", foreignDHCP)

	sim, err := lab.SimImage(ctx, testWriter{t})
	require.NoError(t, err)
	host := newFirstHost(ctx, t, sim, simulated(lab.Spec{Name: "node-1"}), simulated(lab.Spec{Name: "node-2", NoBMC: true}))
	own = host.runBlocks(ctx, own)
	host = newFirstHost(ctx, t, mini(ctx, t), lab.Spec{Name: "node-3"}) // simulated machines know no ProxyDHCP
	require.NoError(t, host.StartDHCP(ctx, lab.Dnsmasq, ""))
	foreign = host.runBlocks(ctx, foreign)

	page := own + foreignDHCP + foreign
	if *writeOutputs {
		require.NoError(t, os.WriteFile(firstMachinePage, []byte(page), 0o644))
		return
	}
	require.Equal(t, maskVarying(string(text)), maskVarying(page), "make first-machine writes the outputs")
}

// maskVarying replaces what differs between two runs in the console blocks of a page.
func maskVarying(page string) string {
	return consoleBlock.ReplaceAllStringFunc(page, func(block string) string {
		return varyingText.ReplaceAllString(varyingLine.ReplaceAllString(block, ""), "…")
	})
}

// A firstHost is the host of a server that nothing has configured, and its machines.
type firstHost struct {
	*Site
	t        *testing.T
	dir      string // the working directory of commands
	machines map[string]*lab.Machine
	console  console
}

func simulated(spec lab.Spec) lab.Spec {
	spec.Firmware, spec.Agent = lab.Simulated, "../bin/worker-agent"
	return spec
}

func newFirstHost(ctx context.Context, t *testing.T, image lab.Image, specs ...lab.Spec) *firstHost {
	t.Helper()
	s := siteWith(ctx, t, Options{NoStart: true, LogLevel: "info"})
	require.NoError(t, os.Remove(filepath.Join(s.dir, "etc/ingot", filepath.Base(config.DefaultFile()))))
	h := &firstHost{Site: s, t: t, dir: t.TempDir(), machines: map[string]*lab.Machine{}}
	copyFile(t, image.Zst, filepath.Join(h.dir, "debian-12.raw.zst"))
	require.NoError(t, os.WriteFile(filepath.Join(h.dir, "id_ed25519.pub"), []byte("ssh-ed25519 AAAA root@server\n"), 0o600))
	for _, spec := range specs {
		// A machine waits until the command that follows its run has shown the phase that ends with the stage.
		phases := map[lab.Stage]string{lab.StageDHCP: "dhcp", lab.StageLoader: "loader", lab.StageAgent: "agent", lab.StagePhoneHome: "ready"}
		if spec.NoBMC { // packets that could be forged move nothing
			phases = map[lab.Stage]string{lab.StagePhoneHome: "ready"}
		}
		stage := func(ctx context.Context, next lab.Stage) {
			if phase := phases[next]; phase != "" {
				h.console.waitFor(ctx, "  "+phase+" ")
			}
		}
		if spec.Firmware == lab.Simulated {
			spec.Stage = stage
		}
		m, err := s.Machine(ctx, spec)
		require.NoError(t, err)
		h.machines[spec.Name] = m
	}
	return h
}

// runBlocks runs the commands of a page's console blocks, and returns the page with their outputs.
func (h *firstHost) runBlocks(ctx context.Context, page string) string {
	h.t.Helper()
	return consoleBlock.ReplaceAllStringFunc(page, func(block string) string {
		var b strings.Builder
		b.WriteString("```console\n")
		for _, command := range promptLine.FindAllString(block, -1) {
			b.WriteString(command + h.shell(ctx, strings.TrimPrefix(command, "$ ")))
		}
		b.WriteString("```\n")
		return b.String()
	})
}

// shell runs a command of the page, which must succeed, and returns its output with the paths of the Debian package.
func (h *firstHost) shell(ctx context.Context, command string) string {
	h.t.Helper()
	if strings.HasPrefix(command, "systemctl start ingot") {
		require.NoError(h.t, h.Start(ctx))
		return ""
	}
	bin, err := filepath.Abs(h.bin)
	require.NoError(h.t, err)
	etc, state := filepath.Join(h.Site.dir, "etc"), filepath.Join(h.Site.dir, "state")
	c := h.Command(ctx, h.Namespace, "bash", "-c", strings.ReplaceAll(command, "/etc/ingot", etc+"/ingot"))
	c.Env, c.Dir = append(h.env(), "PATH="+bin+":"+os.Getenv("PATH")), h.dir
	h.console.reset()
	c.Stdout, c.Stderr = &h.console, &h.console
	require.NoError(h.t, c.Start())
	if strings.Contains(command, "provision node-2") { // it has no BMC
		h.console.waitFor(ctx, "power the machine on now")
		require.NoError(h.t, h.machines["node-2"].PowerOn(ctx))
	}
	err = c.Wait()
	out := h.console.text()
	require.NoError(h.t, err, "%s%s", command, out)
	return strings.NewReplacer(etc, "/etc", state, "/var/lib", bin+"/agentos", "/usr/share/ingot", bin, "/usr/share/ingot",
		"&& ingot serve", "&& systemctl start ingot").Replace(out)
}

// A console keeps the output of a command, for those who wait for a part of it.
type console struct {
	mu  sync.Mutex
	out bytes.Buffer
}

func (c *console) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.out.Write(p)
}

func (c *console) reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.out.Reset()
}

func (c *console) text() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.out.String()
}

// waitFor returns when the output has part, or ctx has ended.
func (c *console) waitFor(ctx context.Context, part string) {
	for !strings.Contains(c.text(), part) {
		select {
		case <-ctx.Done():
			return
		case <-time.After(50 * time.Millisecond):
		}
	}
}
