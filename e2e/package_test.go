package e2e

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/lab"
)

// host is a Debian with systemd in a virtual machine, in the place of the server. An emulated processor is about 30
// times slower than this one.
type host struct {
	*lab.Guest
	t *testing.T
}

// run runs a line in the host's shell.
func (h host) run(ctx context.Context, line string) (string, error) {
	began := time.Now()
	out, err := h.Shell(ctx, line)
	h.t.Logf("%5.1f s  %s\n%s", time.Since(began).Seconds(), line, out)
	return out, err
}

// must runs a line that has to succeed.
func (h host) must(ctx context.Context, line string) string {
	h.t.Helper()
	out, err := h.run(ctx, line)
	require.NoError(h.t, err)
	return strings.TrimSpace(out)
}

// until repeats a line until it succeeds.
func (h host) until(ctx context.Context, line string) string {
	h.t.Helper()
	for {
		out, err := h.Shell(ctx, line)
		if err == nil {
			return out
		}
		select {
		case <-ctx.Done():
			_, _ = h.run(context.WithoutCancel(ctx), "journalctl -u ingot --no-pager | tail -n 50") // only for the log of the test
			require.NoError(h.t, err, line)
		case <-time.After(time.Second):
		}
	}
}

// workflow returns the latest run of a machine.
func (h host) workflow(ctx context.Context, machine string) (w inventory.Workflow) {
	h.t.Helper()
	out := h.until(ctx, "ingot workflow get "+machine+" -o json")
	require.NoError(h.t, json.Unmarshal([]byte(out), &w), out)
	return w
}

// follow waits until see accepts the latest run of a machine.
func (h host) follow(ctx context.Context, machine string, see func(w inventory.Workflow) bool) {
	h.t.Helper()
	for {
		w := h.workflow(ctx, machine)
		if see(w) {
			return
		}
		require.False(h.t, inventory.Final(w.State), "%s ended as %s: %s", machine, w.State, w.Message)
		require.NoError(h.t, ctx.Err(), "%s is %s in %s: %s", machine, w.State, w.Phase, w.Message)
	}
}

// pack makes the Debian package of the programs in bin, by the packaging of this commit. suffix is added to the version of
// the commit.
func pack(t *testing.T, dir, bin, commit, suffix string) string {
	t.Helper()
	version, seconds, _ := strings.Cut(command(t, "deploy/release/version.sh", commit), " ")
	return filepath.Base(command(t, "deploy/release/package.sh", bin, version+suffix, seconds, dir))
}

// command runs a command in the repository and returns its output.
func command(t *testing.T, name string, args ...string) string {
	t.Helper()
	c := exec.CommandContext(t.Context(), name, args...)
	c.Dir = ".."
	c.Stderr = testWriter{t}
	out, err := c.Output()
	require.NoError(t, err, "%s %v: %s", name, args, out)
	return strings.TrimSpace(string(out))
}

// packages makes the Debian packages of the baseline's programs and of this build's.
func packages(t *testing.T, dir string) (older, newer string) {
	t.Helper()
	baseline := filepath.Join(t.TempDir(), "bin")
	require.NoError(t, os.Mkdir(baseline, 0o755))
	for _, name := range []string{"ingot", "worker-agent"} {
		copyFile(t, filepath.Join("../bin/previous", name), filepath.Join(baseline, name))
	}
	loaders, err := filepath.Abs("../bin/ipxe")
	require.NoError(t, err)
	require.NoError(t, os.Symlink(loaders, filepath.Join(baseline, "ipxe")))
	command(t, "deploy/agentos/build.sh", filepath.Join(baseline, "agentos"), filepath.Join(baseline, "worker-agent"))

	commit, err := os.ReadFile("baseline")
	require.NoError(t, err)
	// The suffix makes this build newer where the baseline is the same commit.
	return pack(t, dir, baseline, strings.TrimSpace(string(commit)), ""), pack(t, dir, "bin", "HEAD", "-next")
}

// The baseline's programs do not report that they are ready, as its own unit knows: dropIn has its type.
const (
	dropIn       = "/etc/systemd/system/ingot.service.d"
	baselineUnit = "mkdir " + dropIn + " && printf '[Service]\\nType=exec\\n' > " + dropIn + "/baseline.conf && systemctl daemon-reload"
)

// packageLab makes a lab and the image of a host in it, and adds the image of simulated machines to the host's files.
func packageLab(ctx context.Context, t *testing.T, files string) (l *lab.Lab, host lab.Image) {
	t.Helper()
	sim, err := lab.SimImage(ctx, testWriter{t})
	require.NoError(t, err)
	copyFile(t, sim.Zst, filepath.Join(files, "sim.raw.zst"))
	host, err = lab.HostImage(ctx, testWriter{t})
	require.NoError(t, err)
	l, err = lab.New(ctx, lab.Options{Dir: keepDir(t)})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	return l, host
}

// TestPackage installs the Debian package of the baseline on a Debian with systemd, and upgrades it while machines are being installed.
// The installations end right, an older package is refused over the data, the recipe of install.md leads back to it, and nothing stays
// after a purge (security S13).
func TestPackage(t *testing.T) {
	if !*full {
		t.Skip("the long form: make e2e FULL=1")
	}
	needLab(t)
	ctx, cancel := context.WithTimeout(t.Context(), 40*time.Minute)
	defer cancel()
	files := t.TempDir()
	older, newer := packages(t, files)
	require.NoError(t, os.WriteFile(filepath.Join(files, "slow.yaml"), []byte(slowTemplate), 0o644))
	l, image := packageLab(ctx, t, files)

	gate := lab.NewGate(lab.StageAgent)
	machines := []*lab.Machine{
		newMachine(ctx, t, l, files, lab.Spec{Name: "acting"}),
		newMachine(ctx, t, l, files, lab.Spec{Name: "booting", Stage: gate.Stage}),
	}
	guest, err := l.ServerHost(ctx, image, files)
	require.NoError(t, err)
	h := host{guest, t}

	// The first contact.
	h.must(ctx, "dpkg -i /media/"+older)
	require.Equal(t, "inactive", h.until(ctx, "systemctl is-active ingot || true")[:8])
	h.must(ctx, "ingot init --interface eth0")
	h.must(ctx, "sed -i 's,  loaders: .*,,; s,^netboot:,&\\n  loaders: /usr/share/ingot/ipxe,' /etc/ingot/ingot.yaml && ingot config check")
	h.must(ctx, "echo 'INGOT_OPTIONS=\"--log-level debug\"' > /etc/default/ingot")
	h.must(ctx, baselineUnit)
	h.must(ctx, "systemctl start ingot")
	h.ready(ctx)
	checkProcess(ctx, h)
	h.must(ctx, "ingot image add sim /media/sim.raw.zst")
	h.must(ctx, "ingot template create --file /media/slow.yaml")
	for _, m := range machines {
		h.must(ctx, "ingot machine push --file /media/"+m.Name()+".yaml")
	}
	h.backUp(ctx)
	for _, m := range machines {
		h.must(ctx, "ingot machine provision "+m.Name())
	}
	require.NoError(t, gate.Reached(ctx))
	acting := func(w inventory.Workflow) bool { return len(w.Actions) > 0 && w.Actions[0].State == action.Running }
	h.follow(ctx, "acting", acting)

	// The upgrade.
	before := h.must(ctx, "ingot version")
	h.must(ctx, "rm -r "+dropIn)
	h.must(ctx, "dpkg -i /media/"+newer)
	require.NotEqual(t, before, h.must(ctx, "ingot version"))
	require.Contains(t, h.must(ctx, "cat /etc/default/ingot"), "debug", "a changed configuration file stays")
	gate.Open()
	h.ready(ctx)
	checkProcess(ctx, h)
	for _, m := range machines {
		h.follow(ctx, m.Name(), func(w inventory.Workflow) bool { return w.State == inventory.StateSuccess })
		require.Equal(t, []int{1, 1, 1}, []int{m.PowerOns(), m.Writers(), m.Resets()}, "power-ons, writers, reboots of %s", m.Name())
	}

	// An older package is refused, and the server does not notice.
	pid := h.must(ctx, "systemctl show -p MainPID --value ingot")
	out, err := h.run(ctx, "dpkg -i /media/"+older)
	require.Error(t, err)
	require.Contains(t, out, "is older than")
	require.Contains(t, out, "ingot restore")
	require.Equal(t, pid, h.must(ctx, "systemctl show -p MainPID --value ingot"))
	require.Contains(t, newer, h.must(ctx, "dpkg-query -W -f '${db:Status-Status}_${Version}' ingot | sed s/installed//"))

	// After a crash, a connection waits for the next process.
	out = h.must(ctx, `systemctl kill --signal=KILL ingot && timeout 600 bash -c 'exec 3<>/dev/tcp/127.0.0.1/8080; `+
		`printf "GET / HTTP/1.0\r\n\r\n" >&3; head -n 1 <&3'`)
	require.Contains(t, out, "HTTP/1.")
	require.NotEqual(t, pid, h.must(ctx, "systemctl show -p MainPID --value ingot"))
	h.ready(ctx)

	h.goBack(ctx, older, before)

	// A removal keeps the data, a purge does not.
	h.must(ctx, "dpkg -r ingot")
	h.must(ctx, "test -e /var/lib/ingot/ingot.db && test -e /etc/ingot/keys.json && ! pgrep -u ingot && ! test -e /usr/bin/ingot")
	h.must(ctx, "dpkg -P ingot")
	h.must(ctx, "! ls -d /var/lib/ingot /etc/ingot /etc/default/ingot /usr/share/ingot && ! systemctl cat ingot")
}

// TestNewcomer follows install.md from the package to the first machine: init by Enter, then its commands with an image from a
// file. A rack is installed by the command line, and another one by the page.
func TestNewcomer(t *testing.T) {
	if !*full {
		t.Skip("the long form: make e2e FULL=1")
	}
	needLab(t)
	ctx, cancel := context.WithTimeout(t.Context(), 35*time.Minute)
	defer cancel()
	files := t.TempDir()
	deb := pack(t, files, "bin", "HEAD", "")
	l, image := packageLab(ctx, t, files)
	m, err := l.Machine(ctx, lab.Spec{Name: "node-1", Firmware: lab.Simulated, Agent: "../bin/worker-agent"})
	require.NoError(t, err)
	first, second := newRack(ctx, t, l, files, "rack", 150), newRack(ctx, t, l, files, "shelf", 180)
	guest, err := l.ServerHost(ctx, image, files)
	require.NoError(t, err)
	h := host{guest, t}

	// As docs/first-machine.md shows it.
	require.Contains(t, h.must(ctx, "dpkg -i /media/"+deb), "ingot: next: ingot init && systemctl start ingot")
	h.must(ctx, "ip link set eth1 down") // the BMCs' network: a newcomer's host has one interface
	out := h.must(ctx, "printf '\\n' | script -qec 'ingot init' /dev/null")
	require.Contains(t, out, "Enter for eth0")
	h.must(ctx, "ip link set eth1 up")
	h.must(ctx, "ingot doctor && systemctl start ingot")
	h.ready(ctx)
	b := m.BMC()
	h.must(ctx, "umask 077; echo "+b.Password+" > /root/bmc && echo 'ssh-ed25519 AAAA newcomer' > /root/key.pub")
	h.must(ctx, fmt.Sprintf("ingot machine add node-1 --mac %s --address 10.10.20.111/24 --gateway %s --nameserver %s "+
		"--ssh-key /root/key.pub --bmc ipmi://%s@%s --cipher %d --bmc-password-file /root/bmc",
		m.Spec().MAC, lab.DirectGateway, lab.DirectGateway, b.User, b.Address, lab.BMCCipher))
	h.must(ctx, "ingot image add sim /media/sim.raw.zst")
	h.must(ctx, "ingot machine provision node-1 --image sim --wait --require-evidence")
	require.Equal(t, inventory.StateSuccess, h.workflow(ctx, "node-1").State)
	require.Equal(t, []int{1, 1, 1}, []int{m.PowerOns(), m.Writers(), m.Resets()}, "power-ons, writers, reboots")
	h.installRack(ctx, first)
	h.installRackByPage(ctx, l, second)
	h.backUpByTimer(ctx)
}

// backUpByTimer follows backup.md: a timer makes a backup with a token of the role backup, and an empty host is restored from it.
func (h host) backUpByTimer(ctx context.Context) {
	h.t.Helper()
	page, err := os.ReadFile("../docs/backup.md")
	require.NoError(h.t, err)
	_, section, _ := strings.Cut(string(page), "\n## By itself\n")
	_, section, _ = strings.Cut(section, "```\n")
	commands, _, _ := strings.Cut(section, "```\n")
	script := base64.StdEncoding.EncodeToString([]byte("set -ex\n" + commands)) // the shell takes one line
	h.must(ctx, "echo "+script+" | base64 -d > /root/backup.sh && bash /root/backup.sh")
	require.Regexp(h.t, `backup: +the newest verified one is of`, h.must(ctx, "ingot status"))
	h.must(ctx, "systemctl list-timers --all | grep ingot-backup.timer")
	h.must(ctx, "systemctl stop ingot && mv /var/lib/ingot /var/lib/ingot.lost && ls -l /var/backups/ingot")
	h.must(ctx, "ingot restore /var/backups/ingot/ingot-*.tar --yes --passphrase-file /etc/ingot/backup.passphrase && systemctl start ingot")
	h.ready(ctx)
	require.Contains(h.t, h.must(ctx, "ingot machine list -o json"), `"node-1"`)
	_, err = h.run(ctx, "systemctl start ingot-backup")
	require.Error(h.t, err, "the token is off since the restore")
	h.must(ctx, "ingot token enable backup && systemctl start ingot-backup && ls /var/backups/ingot")
}

// rack is twenty machines. The first eight are installed.
type rack struct {
	name, file string
	machines   map[string]*lab.Machine
}

// machine returns the name of a machine of the rack, from 1.
func (r *rack) machine(n int) string { return fmt.Sprintf("%s-%02d", r.name, n) }

// wrong returns the name of the machine whose document names a disk that it does not have.
func (r *rack) wrong() string { return r.machine(5) }

// newRack adds twenty machines to the lab, and one file NAME.yaml with all of their documents to the files of the host.
func newRack(ctx context.Context, t *testing.T, l *lab.Lab, files, name string, address int) *rack {
	t.Helper()
	r := &rack{name: name, file: filepath.Join(files, name+".yaml"), machines: map[string]*lab.Machine{}}
	var docs strings.Builder
	for n := 1; n <= 20; n++ {
		name := r.machine(n)
		m, err := l.Machine(ctx, lab.Spec{Name: name, Firmware: lab.Simulated, Agent: "../bin/worker-agent"})
		require.NoError(t, err)
		r.machines[name] = m
		serial := m.Spec().DiskSerial
		if name == r.wrong() {
			serial = "NOT-THERE"
		}
		b := m.BMC()
		fmt.Fprintf(&docs, "---\nname: %s\nimage: sim\nlabels: {rack: %s}\ndiskSelector: {serial: %s}\n"+
			"interfaces:\n- {mac: \"%s\", address: 10.10.20.%d/24, gateway: %s}\n"+
			"bmc: {driver: ipmi, host: %s, user: %s, password: %s, cipherSuite: \"%d\"}\n",
			name, r.name, serial, m.Spec().MAC, address+n, lab.DirectGateway, b.Address, b.User, b.Password, lab.BMCCipher)
	}
	require.NoError(t, os.WriteFile(r.file, []byte(docs.String()), 0o644))
	return r
}

// installRack does what many-machines.md and day-2.md show: twenty machines from one file, one edited, some labelled, eight installed by
// their label after a canary; one of these fails, is corrected and tried again.
func (h host) installRack(ctx context.Context, r *rack) {
	h.t.Helper()
	h.must(
		ctx,
		"cp /media/rack.yaml rack.yaml && ingot apply --file rack.yaml --set rack-a1 --dry-run && ingot apply --file rack.yaml --set rack-a1",
	)
	require.Equal(h.t, "20", h.must(ctx, "ingot machine list --selector rack=rack -o name | wc -l"))
	h.must(ctx, `EDITOR='sed -i s/^image:/template:\x20image\n&/' script -qec 'ingot machine edit rack-02' /dev/null`)
	require.Equal(h.t, "image", h.must(ctx, "ingot machine get rack-02 -o jsonpath='{.template}'"))
	h.must(ctx, "for n in 1 2 3 4 5 6 7 8; do ingot machine label rack-0$n batch=first || exit; done")
	h.must(ctx, "ingot machine provision --selector batch=first --name first --canary 1 --concurrency 4 --yes")

	first := h.must(ctx, "ingot machine list --selector batch=first -o name")
	require.Len(h.t, strings.Fields(first), 8)
	wrong := r.wrong()
	h.until(ctx, "ingot workflow get "+wrong+` -o json | grep -q '"question"'`)
	h.must(ctx, "ingot workflow decide "+wrong+" --choice abort")
	h.until(ctx, "ingot workflow get "+wrong+` -o json | grep -q '"state": "FAILED"'`)
	right := r.machines[wrong].Spec().DiskSerial
	h.must(ctx, "ingot machine set "+wrong+" diskSelector.serial="+right)
	h.must(ctx, "ingot workflow retry "+wrong+" --from start --yes")
	h.checkEight(ctx, r)

	// The file is stale now, which its next use says; corrected, it changes nothing, and what was added by hand stays.
	out, err := h.run(ctx, "ingot apply --file rack.yaml --set rack-a1")
	require.Error(h.t, err)
	require.Contains(h.t, out, wrong+`": another client has set diskSelector.serial`)
	h.must(ctx, "sed -i s/NOT-THERE/"+right+"/ rack.yaml && ingot diff --file rack.yaml --set rack-a1")
	require.Equal(h.t, first, h.must(ctx, "ingot machine list --selector batch=first -o name"))
}

// checkEight waits until the first eight machines of a rack are installed. The others were never switched on.
func (h host) checkEight(ctx context.Context, r *rack) {
	h.t.Helper()
	for n := 1; n <= 20; n++ {
		m := r.machines[r.machine(n)]
		if n > 8 {
			require.Equal(h.t, []int{0, 0}, []int{m.PowerOns(), m.Writers()}, "%s was not asked for", m.Name())
			continue
		}
		h.follow(ctx, m.Name(), func(w inventory.Workflow) bool { return w.State == inventory.StateSuccess })
		require.Equal(h.t, 1, m.Writers(), "%s was written once", m.Name())
	}
}

// The backup that install.md makes before an upgrade.
const (
	backupFile     = "/backup/before-NEW.tar"
	passphraseFile = "/etc/ingot/passphrase"
)

// backUp makes the backup as install.md does.
func (h host) backUp(ctx context.Context) {
	h.t.Helper()
	h.must(ctx, "install -d -m 700 /backup")
	h.must(ctx, "[ -e "+passphraseFile+" ] || (umask 077; head -c 24 /dev/urandom | base64 > "+passphraseFile+")")
	h.must(ctx, "ingot backup --to "+backupFile+" --passphrase-file "+passphraseFile)
}

// goBack installs the older package and restores its backup, as install.md does: machines and images are there again.
func (h host) goBack(ctx context.Context, older, version string) {
	h.t.Helper()
	h.must(ctx, "systemctl stop ingot && mv /var/lib/ingot /var/lib/ingot.newer")
	h.must(ctx, "dpkg -i --force-downgrade /media/"+older)
	require.Equal(h.t, version, h.must(ctx, "ingot version"))
	h.must(ctx, "mv /var/lib/ingot.newer/images /var/lib/ingot/")
	out := h.must(ctx, "ingot restore "+backupFile+" --yes --passphrase-file "+passphraseFile)
	require.Contains(h.t, out, "restored backup")
	require.NotContains(h.t, out, "image without its file")

	h.must(ctx, baselineUnit)
	h.must(ctx, "systemctl start ingot")
	h.ready(ctx)
	h.must(ctx, "! find /var/lib/ingot ! -user ingot | grep .")
	for _, name := range []string{"acting", "booting"} {
		require.Contains(h.t, h.must(ctx, "ingot machine list -o json"), `"`+name+`"`)
	}
	require.Contains(h.t, h.must(ctx, "ingot image list -o json"), `"sim"`)
	h.must(ctx, "rm -r "+dropIn)
}

const slowTemplate = `version: "0.1"
name: slow
tasks:
- name: install
  worker: "{{.device_1}}"
  actions:
  - {name: wait, image: noop, timeout: 1800, environment: {SLEEP: "240"}}
  - {name: write, image: image2disk, timeout: 600, environment: {IMG_URL: "{{.image.url}}", DEST_DISK: /dev/vda}}
  - {name: seed, image: configdrive, timeout: 60}
`

// newMachine adds a simulated machine to the lab, and its document to the files of the host.
func newMachine(ctx context.Context, t *testing.T, l *lab.Lab, files string, spec lab.Spec) *lab.Machine {
	t.Helper()
	spec.Firmware, spec.Agent = lab.Simulated, "../bin/worker-agent"
	m, err := l.Machine(ctx, spec)
	require.NoError(t, err)
	b, mac := m.BMC(), m.Spec().MAC
	var last int
	_, err = fmt.Sscanf(mac[len(mac)-2:], "%x", &last)
	require.NoError(t, err)
	doc := fmt.Sprintf(`name: %s
image: sim
template: slow
interfaces:
- {mac: "%s", address: 10.10.20.%d, netmask: 255.255.255.0, gateway: %s, hostname: %[1]s}
bmc: {driver: ipmi, host: %[5]s, user: %[6]s, password: %[7]s, cipherSuite: "%[8]d"}
`, spec.Name, mac, last+100, lab.DirectGateway, b.Address, b.User, b.Password, lab.BMCCipher)
	require.NoError(t, os.WriteFile(filepath.Join(files, spec.Name+".yaml"), []byte(doc), 0o644))
	return m
}

// ready waits until the server and its Temporal answer.
func (h host) ready(ctx context.Context) {
	h.t.Helper()
	began := time.Now()
	for !ready(h.until(ctx, "ingot status -o json")) {
		require.NoError(h.t, ctx.Err())
	}
	h.t.Logf("the server is ready after %.1f s", time.Since(began).Seconds())
}

// checkProcess requires that the service's processes run as its user, with two capabilities that nothing can add to.
func checkProcess(ctx context.Context, h host) {
	h.t.Helper()
	out := h.must(
		ctx,
		"for p in $(systemctl show -p MainPID --value ingot) $(pgrep -u ingot -f temporal-child); do grep -hE '^(Uid|CapEff|CapBnd|NoNewPrivs|Seccomp):' /proc/$p/status; done; id -u ingot",
	)
	lines := strings.Split(out, "\n")
	uid := lines[len(lines)-1]
	seen := map[string]int{}
	for _, line := range lines[:len(lines)-1] {
		f := strings.Fields(line)
		seen[f[0]]++
		require.Equal(h.t, map[string]string{
			"Uid:": uid, "CapEff:": "0000000000002400", "CapBnd:": "0000000000002400", "NoNewPrivs:": "1", "Seccomp:": "2",
		}[f[0]], f[1], out)
	}
	require.Equal(h.t, 2, seen["Uid:"], "the server and its Temporal: %s", out)
}
