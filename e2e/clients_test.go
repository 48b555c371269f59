package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/lab"
	"github.com/ingotmetal/ingot/workflows/contract"
)

// needClients returns the folder of the unpacked clients.
func needClients(t *testing.T) string {
	t.Helper()
	dir := lab.PackageDir("clients")
	require.FileExists(t, filepath.Join(dir, ".stamp"), "run make deps-e2e")
	return dir
}

// python runs a program of the unpacked clients that is written in Python.
func (s *Site) python(ctx context.Context, t *testing.T, args ...string) *lab.Cmd {
	t.Helper()
	c := s.Command(ctx, lab.Server, "/usr/bin/python3", args...)
	c.Env = append(os.Environ(), "PYTHONPATH="+filepath.Join(needClients(t), "usr/lib/python3/dist-packages"))
	return c
}

// cloudInit runs all stages of the unpacked cloud-init in a copy of this machine's root file system, which is made in the folder $1
// and disappears with the script. $2 is its configuration, $3 the folder of the clients. It prints what the user-data wrote, and
// cloud-init's result.
const cloudInit = `set -e
top=$1 clients=$3
mount -t tmpfs tmpfs "$top"; mkdir "$top/upper" "$top/work" "$top/root"
cp -a "$clients/usr" "$clients/etc" "$top/upper/"
printf '%s' "$2" > "$top/upper/etc/cloud/cloud.cfg"; rm -f "$top"/upper/etc/cloud/cloud.cfg.d/*
mount -t overlay overlay -o "lowerdir=/,upperdir=$top/upper,workdir=$top/work" "$top/root"
cd "$top/root"; mount -t proc proc proc; mount -t tmpfs tmpfs run; mount -t tmpfs tmpfs tmp; mount --rbind /sys sys; mount --rbind /dev dev
for stage in "init --local" init "modules --mode config" "modules --mode final"; do
  chroot . /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin /usr/bin/python3 /usr/bin/cloud-init $stage >&2
done
cat ran-by-user-data run/cloud-init/result.json`

// modules are the modules of cloud-init that the test needs.
const modules = `
network: {config: disabled}
cloud_init_modules: []
cloud_config_modules: []
cloud_final_modules: [ scripts_user, phone_home ]
`

const ec2Config = `datasource_list: [ Ec2 ]
datasource: { Ec2: { metadata_urls: [ "http://169.254.169.254" ], max_wait: 30, timeout: 5, strict_id: false } }
`

// linkLocal forwards port 80 of the metadata address to the server, as the operator is told to do.
const linkLocal = "table ip linklocal {\n chain c {\n type nat hook prerouting priority -100\n" +
	"ip daddr " + lab.MetadataAddress + " tcp dport 80 dnat to " + lab.ServerAddress + "\n }\n}\n"

// ignite runs the fetch stage of the unpacked Ignition with a kernel command line that names the configuration at the URL $1, and
// writes the fetched configuration to $2. $3 is the folder of the clients.
const ignite = `set -e
echo "ignition.firstboot ignition.platform.id=metal ignition.config.url=$1" > "$2.cmdline"
mount --bind "$2.cmdline" /proc/cmdline
mkdir -p "$2.root"
"$3/usr/lib/dracut/modules.d/30ignition/ignition" -platform metal -stage fetch -root "$2.root" -config-cache "$2" -log-to-stdout`

// TestUnmodifiedClients: clients that others have written, as Debian packages them, get what they need from the server. They run in
// the network of simulated machines that wait for their system's call, so that the calls are cloud-init's own.
func TestUnmodifiedClients(t *testing.T) {
	runInTurn(t, 90, 6)
	ctx := needLab(t)
	clients := needClients(t)
	image, err := lab.SimImage(ctx, testWriter{t})
	require.NoError(t, err)
	s := site(ctx, t)
	s.must(ctx, t, "image", "add", "sim", image.Zst)

	const script = "#!/bin/sh\necho \"user-data of $(hostname) ran\" > /ran-by-user-data\n"
	const ignition = `{"ignition":{"version":"3.3.0"},"storage":{"files":[{"path":"/etc/motd","contents":{"source":"data:,ingot"}}]}}`
	machines, gates := map[string]*lab.Machine{}, map[string]*lab.Gate{}
	for name, userData := range map[string]string{"nocloud": script, "ec2": script, "ignition": ignition} {
		gates[name] = lab.NewGate(lab.StagePhoneHome)
		spec := lab.Spec{Name: name, Firmware: lab.Simulated, Agent: filepath.Join(s.bin, "worker-agent"), Stage: gates[name].Stage}
		machines[name], err = s.Add(ctx, spec, func(doc map[string]any) {
			doc["image"], doc["template"], doc["userData"], doc["userDataByAddress"] = "sim", "image-metadata", userData, name == "ec2"
		})
		require.NoError(t, err)
		_, err = s.Provision(ctx, contract.ProvisionInput{Machine: name})
		require.NoError(t, err)
	}
	for _, gate := range gates {
		require.NoError(t, gate.Reached(ctx))
	}

	for name, line := range map[string]string{
		"dhclient": clients + "/sbin/dhclient -4 -d -1 -cf /dev/null -lf %[1]s/leases -pf %[1]s/pid -sf %[1]s/script eth0",
		"udhcpc":   lab.PackageDir("busybox") + "/bin/busybox udhcpc -f -n -i eth0 -O hostname -s %[1]s/script",
	} {
		t.Run(name, func(t *testing.T) { s.lease(ctx, t, machines["ignition"], line) })
	}
	t.Run("perfdhcp", func(t *testing.T) { s.perfdhcp(ctx, t, machines["ignition"]) })
	t.Run("Ignition", func(t *testing.T) {
		m, out := machines["ignition"], filepath.Join(t.TempDir(), "fetched.json")
		_, seed, ok := strings.Cut(seedConfig(ctx, t, m), "seedfrom: ")
		require.True(t, ok)
		url := strings.TrimSpace(seed) + "user-data"
		run := s.Command(ctx, m.Namespace(), "unshare", "--mount", "--propagation", "private", "sh", "-c", ignite, "ignite", url, out, clients)
		log, err := run.CombinedOutput()
		require.NoError(t, err, "%s", log)
		fetched, err := os.ReadFile(out)
		require.NoError(t, err)
		require.Contains(t, string(fetched), "/etc/motd")
		log, err = s.Command(ctx, lab.Host, filepath.Join(clients, "usr/bin/ignition-validate"), out).CombinedOutput()
		require.NoError(t, err, "%s", log)
	})
	forward := s.Command(ctx, lab.Server, "nft", "-f", "-")
	forward.Stdin = strings.NewReader(linkLocal)
	require.NoError(t, forward.Run())
	for name, config := range map[string]string{"nocloud": seedConfig(ctx, t, machines["nocloud"]), "ec2": ec2Config} {
		t.Run("cloud-init "+name, func(t *testing.T) {
			m := machines[name]
			c := s.Command(ctx, m.Namespace(), "unshare", "--mount", "--uts", "--propagation", "private", "sh", "-c", cloudInit, "cloud-init",
				t.TempDir(), config+modules, clients)
			out, err := c.Output()
			require.NoError(t, err)
			require.Regexp(t, "^user-data of .* ran\n", string(out))
			require.Contains(t, string(out), map[string]string{"nocloud": "DataSourceNoCloudNet", "ec2": "DataSourceEc2"}[name])
			require.Equal(t, "phone-home", s.ended(ctx, t, name, inventory.StateSuccess).Evidence)
			s.closed(ctx, t, name)
		})
	}
	gates["ignition"].Open()
	s.ended(ctx, t, "ignition", inventory.StateSuccess)
}

// seedConfig returns the configuration of cloud-init that the run has written to the machine's disk.
func seedConfig(ctx context.Context, t *testing.T, m *lab.Machine) string {
	t.Helper()
	out, err := exec.CommandContext(ctx, "debugfs", "-R", "cat /etc/cloud/cloud.cfg.d/99-ingot.cfg",
		fmt.Sprintf("%s?offset=%d", m.DiskPath(), startOf(ctx, t, m.DiskPath(), 1))).Output()
	require.NoError(t, err)
	require.Contains(t, string(out), "seedfrom:")
	return string(out)
}

// perfdhcp runs Kea's load generator as a relay on the machine's card: for 2 s, 20 exchanges in a second for the machine's MAC.
func (s *Site) perfdhcp(ctx context.Context, t *testing.T, m *lab.Machine) {
	t.Helper()
	usr := filepath.Join(lab.PackageDir("dhcp"), "usr")
	libs, err := filepath.Glob(filepath.Join(usr, "lib", "*-linux-gnu"))
	require.NoError(t, err)
	c := s.Command(
		ctx,
		m.Namespace(),
		filepath.Join(usr, "sbin/perfdhcp"),
		"-4",
		"-l",
		"eth0",
		"-b",
		"mac="+m.Spec().MAC,
		"-R",
		"1",
		"-r",
		"20",
		"-p",
		"2",
		"-W",
		"300000",
		lab.ServerAddress,
	)
	c.Env = append(os.Environ(), "LD_LIBRARY_PATH="+strings.Join(libs, ":"))
	out, err := c.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Equal(t, 2, strings.Count(string(out), "drops: 0\n"), "%s", out)
	require.Regexp(t, `received packets: [1-9]\d`, string(out))
}

// lease runs a DHCP client on the machine's card. line is its command, with a folder whose script writes what the client got to
// the file lease. The lease must be the machine's reservation.
func (s *Site) lease(ctx context.Context, t *testing.T, m *lab.Machine, line string) {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "script"),
		[]byte("#!/bin/sh\nenv > "+dir+"/new && mv "+dir+"/new "+dir+"/lease-${reason:-$1}\n"), 0o755))
	args := strings.Fields(fmt.Sprintf(line, dir))
	c := s.Command(ctx, m.Namespace(), args[0], args[1:]...)
	c.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	require.NoError(t, c.Start())
	defer func() { c.Kill(); <-c.Done() }()

	var lease string
	require.Eventually(t, func() bool {
		for _, reason := range []string{"BOUND", "bound"} {
			if b, err := os.ReadFile(filepath.Join(dir, "lease-"+reason)); err == nil {
				lease = string(b)
			}
		}
		return lease != ""
	}, time.Minute, 50*time.Millisecond)
	var doc inventory.Machine
	require.NoError(t, s.REST(ctx, "GET", "/v1/machines/"+m.Name(), nil, &doc))
	for _, want := range []string{
		doc.Interfaces[0].Address.String(), lab.DirectGateway, "255.255.255.0", "hostname=" + m.Name(),
	} {
		require.Contains(t, strings.ReplaceAll(lease, "new_host_name=", "hostname="), want)
	}
}
