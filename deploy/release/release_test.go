package main

import (
	"bytes"
	"crypto/rand"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"aead.dev/minisign"
	"github.com/CycloneDX/cyclonedx-go"
	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/internal/cli"
	"github.com/ingotmetal/ingot/internal/cli/host"
	"github.com/ingotmetal/ingot/internal/images/provenance"
)

const version = "1.2.3"

var made = time.Unix(1700000000, 0).UTC()

// TestUnit judges the service as systemd does: at most 3.0 of 10, with two capabilities and no way to more.
func TestUnit(t *testing.T) {
	out, err := exec.Command("systemd-analyze", "security", "--no-pager", "--offline=true", "--threshold=30", "debian/ingot.service").
		CombinedOutput()
	require.NoError(t, err, "%s", out)
	t.Log(lastLine(out))

	unit, err := os.ReadFile("debian/ingot.service")
	require.NoError(t, err)
	for _, line := range []string{
		"User=ingot", "NoNewPrivileges=yes", "CapabilityBoundingSet=CAP_NET_BIND_SERVICE CAP_NET_RAW",
		"AmbientCapabilities=CAP_NET_BIND_SERVICE CAP_NET_RAW",
		"RestartPreventExitStatus=6",                                                      // exitSecondServer of internal/cli
		"Type=notify", "TimeoutStartSec=infinity", "NotifyAccess=main", "WatchdogSec=120", // internal/netserve/keptsocket: the next command is not refused
	} {
		require.Contains(t, string(unit), "\n"+line+"\n")
	}
}

// TestBackupUnit: the timer's service has no capability, and sees neither the keys nor the admin token.
func TestBackupUnit(t *testing.T) {
	out, err := exec.Command("systemd-analyze", "security", "--no-pager", "--offline=true", "--threshold=20", "debian/ingot-backup.service").
		CombinedOutput()
	require.NoError(t, err, "%s", out)
	t.Log(lastLine(out))

	unit, err := os.ReadFile("debian/ingot-backup.service")
	require.NoError(t, err)
	hidden := regexp.MustCompile(`(?m)^InaccessiblePaths=(.*)$`).FindStringSubmatch(string(unit))
	require.NotNil(t, hidden)
	for _, path := range []string{"/etc/ingot/token", "/etc/ingot/keys.json", "/var/lib/ingot", "/var/backups"} {
		require.Contains(t, strings.Fields(hidden[1]), "-"+path)
	}
	page, err := os.ReadFile("../../docs/backup.md")
	require.NoError(t, err)
	for _, path := range regexp.MustCompile(`/etc/ingot/[\w.]+`).FindAllString(string(unit), -1) {
		if strings.HasPrefix(path, "/etc/ingot/backup.") {
			require.Contains(t, string(page), path)
		}
	}
	timer, err := os.ReadFile("debian/ingot-backup.timer")
	require.NoError(t, err)
	at := regexp.MustCompile(`(?m)^OnCalendar=(.*)$`).FindStringSubmatch(string(timer))
	out, err = exec.Command("systemd-analyze", "calendar", at[1]).CombinedOutput()
	require.NoError(t, err, "%s", out)
}

func lastLine(out []byte) string {
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return lines[len(lines)-1]
}

// TestScripts: what dpkg runs is correct shell, and fits what package.sh fills in.
func TestScripts(t *testing.T) {
	placeholder := regexp.MustCompile(`@[A-Z]+@`)
	for _, name := range []string{"preinst", "postinst", "prerm", "postrm", "nfpm.yaml"} {
		file := filepath.Join("debian", name)
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, p := range placeholder.FindAllString(string(text), -1) {
			require.Contains(t, []string{"@VERSION@", "@LIBC@"}, p, file)
		}
		if name == "nfpm.yaml" {
			continue
		}
		out, err := exec.Command("dash", "-n", file).CombinedOutput()
		require.NoError(t, err, "%s: %s", file, out)
	}
}

// TestS13Preinst: an older package is refused over data in data_dir, and the recipe names that folder.
func TestS13Preinst(t *testing.T) {
	text, err := os.ReadFile("debian/preinst")
	require.NoError(t, err)
	for name, c := range map[string]struct {
		config  string // DATA is another folder than the default
		data    string // the folder that has a database
		args    []string
		refused bool
	}{
		"default":         {"listen: 127.0.0.1:8080\n", "var", []string{"upgrade", "2.0", "1.0"}, true},
		"no file":         {"", "var", []string{"upgrade", "2.0", "1.0"}, true},
		"plain":           {"data_dir: DATA\n", "srv", []string{"upgrade", "2.0", "1.0"}, true},
		"comment":         {"netboot: {}\ndata_dir:  DATA   # a disk\n", "srv", []string{"upgrade", "2.0", "1.0"}, true},
		"double quotes":   {"data_dir: \"DATA\"\n", "srv", []string{"upgrade", "2.0", "1.0"}, true},
		"single quotes":   {"data_dir: 'DATA' # a disk\r\n", "srv", []string{"upgrade", "2.0", "1.0"}, true},
		"slash":           {"data_dir: DATA/\n", "srv", []string{"upgrade", "2.0", "1.0"}, true},
		"other key":       {"netboot:\n  data_dir: DATA\n# data_dir: DATA\n", "var", []string{"upgrade", "2.0", "1.0"}, true},
		"after a removal": {"data_dir: DATA\n", "srv", []string{"install", "2.0", "1.0"}, true},
		"data elsewhere":  {"data_dir: DATA\n", "var", []string{"upgrade", "2.0", "1.0"}, false},
		"data moved away": {"", "var.newer", []string{"upgrade", "2.0", "1.0"}, false},
		"newer":           {"", "var", []string{"upgrade", "0.9", "1.0"}, false},
		"first":           {"", "var", []string{"install"}, false},
	} {
		dir := t.TempDir()
		data := filepath.Join(dir, c.data)
		require.NoError(t, os.Mkdir(data, 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(data, "ingot.db"), nil, 0o600))
		if c.config != "" {
			config := strings.ReplaceAll(c.config, "DATA", filepath.Join(dir, "srv"))
			require.NoError(t, os.WriteFile(filepath.Join(dir, "ingot.yaml"), []byte(config), 0o600))
		}
		script := strings.NewReplacer("/etc/ingot", dir, "/var/lib/ingot", filepath.Join(dir, "var"), "@VERSION@", "1.0").Replace(string(text))

		out, err := exec.Command("sh", append([]string{"-c", script, "preinst"}, c.args...)...).CombinedOutput()
		if !c.refused {
			require.NoError(t, err, "%s: %s", name, out)
			require.Empty(t, string(out), name)
			continue
		}
		require.Error(t, err, name)
		require.Contains(t, string(out), "1.0 is older than 2.0", name)
		require.Contains(t, string(out), "mv "+data+" "+data+".newer\n", name)
		require.Contains(t, string(out), "mv "+data+".newer/images "+data+"/\n", name)
	}
}

// TestManifests: what runs the image of a release needs no build: it names the release's files and this version of the image.
func TestManifests(t *testing.T) {
	script, err := os.ReadFile("release.sh")
	require.NoError(t, err)
	require.Contains(t, string(script), "\n  deploy/release/manifests.sh ")
	dir := t.TempDir()
	out, err := exec.Command("./manifests.sh", "1.2.3", dir).CombinedOutput()
	require.NoError(t, err, "%s", out)
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		return string(text)
	}

	compose := read("ingot-1.2.3.compose.yaml")
	require.Contains(t, compose, "\n    image: ingot:1.2.3\n")
	require.Contains(t, compose, "docker load < ingot-1.2.3.oci.tar\n")
	require.NotContains(t, compose, "latest")
	require.NotContains(t, compose, "make image")
	own, err := os.ReadFile("../compose.yaml")
	require.NoError(t, err)
	_, ownServices, _ := strings.Cut(string(own), "image: ingot:latest")
	_, services, _ := strings.Cut(compose, "image: ingot:1.2.3")
	require.Equal(t, ownServices, services)

	const kubernetes = "ingot-1.2.3-kubernetes/"
	require.Contains(t, read(kubernetes+"chart/Chart.yaml"), "\nversion: 1.2.3\nappVersion: \"1.2.3\"\n")
	require.Contains(t, read(kubernetes+"base/kustomization.yaml"), "\n    newTag: \"1.2.3\"\n")
	for _, name := range []string{"ingot.rules.yml", "ingot-board.json"} {
		require.NotEmpty(t, read(kubernetes+"monitoring/"+name))
	}
	tests, err := filepath.Glob(filepath.Join(dir, kubernetes, "*.go"))
	require.NoError(t, err)
	require.Empty(t, tests)
}

// TestVersion: a tag is the version, and every other commit has Go's pseudo-version after the tag before it.
func TestVersion(t *testing.T) {
	script, err := filepath.Abs("version.sh")
	require.NoError(t, err)
	dir := t.TempDir()
	command := func(name string, args ...string) string {
		c := exec.Command(name, args...)
		c.Dir = dir
		c.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1", "GIT_COMMITTER_DATE=@1700000000 +0100",
			"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.com", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.com")
		out, err := c.CombinedOutput()
		require.NoError(t, err, "%s %v: %s", name, args, out)
		return strings.TrimSpace(string(out))
	}
	command("git", "init", "-q")
	for _, step := range []struct {
		tags []string
		want string // COMMIT: time and id of the commit
	}{
		{nil, "0.0.0-COMMIT"},
		{[]string{"v1.0.0-rc.1"}, "1.0.0-rc.1"},
		{nil, "1.0.0-rc.1.0.COMMIT"},
		{[]string{"v1.0.0-rc.2", "v1.0.0"}, "1.0.0"},
		{nil, "1.0.1-0.COMMIT"},
		{[]string{"v1.9.9"}, "1.9.9"},
		{nil, "1.9.10-0.COMMIT"},
		{[]string{"v2.0.0-gamma-g1"}, "2.0.0-gamma-g1"},
		{nil, "2.0.0-gamma-g1.0.COMMIT"},
	} {
		command("git", "commit", "-q", "--allow-empty", "-m", step.want)
		for _, tag := range step.tags {
			command("git", "tag", tag)
		}
		commit := "20231114221320-" + command("git", "rev-parse", "HEAD")[:12]
		require.Equal(t, strings.ReplaceAll(step.want, "COMMIT", commit)+" 1700000000", command(script))
	}
}

// TestDocs: the package and the tarball have the documentation, and every file to which its links lead.
func TestDocs(t *testing.T) {
	for _, script := range []string{"package.sh", "release.sh"} {
		text, err := os.ReadFile(script)
		require.NoError(t, err)
		require.Regexp(t, `(?m)^ *deploy/release/docs\.sh "`, string(text), script)
	}

	dir := filepath.Join(t.TempDir(), "doc")
	out, err := exec.Command("./docs.sh", dir).CombinedOutput()
	require.NoError(t, err, "%s", out)
	own, err := filepath.Glob("../../docs/*.md")
	require.NoError(t, err)
	pages, err := filepath.Glob(filepath.Join(dir, "docs/*.md"))
	require.NoError(t, err)
	require.Len(t, pages, len(own))

	link := regexp.MustCompile(`\]\(([^)\s#]+)[^)]*\)`)
	fence := regexp.MustCompile("(?s)```.*?```")
	outside := 0
	for _, page := range pages {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		for _, l := range link.FindAllStringSubmatch(fence.ReplaceAllString(string(text), ""), -1) {
			if strings.Contains(l[1], "://") {
				continue
			}
			_, err := os.Stat(filepath.Join(dir, "docs", l[1]))
			require.NoError(t, err, filepath.Base(page))
			if strings.HasPrefix(l[1], "../") {
				outside++
			}
		}
	}
	require.Greater(t, outside, 5)

	monitoring, err := os.ReadFile(filepath.Join(dir, "docs/monitoring.md"))
	require.NoError(t, err)
	copied := regexp.MustCompile(`(?m)^cp (\S+)`).FindStringSubmatch(string(monitoring))
	require.NotNil(t, copied)
	require.FileExists(t, filepath.Join(dir, copied[1]))
	require.NoFileExists(t, filepath.Join(dir, "deploy/kubernetes/kubernetes_test.go"))
}

// TestS45Manual: every command has a page, and no file says when or by whom it was made.
func TestS45Manual(t *testing.T) {
	one, two := filepath.Join(t.TempDir(), "one"), filepath.Join(t.TempDir(), "two")
	require.NoError(t, run([]string{"manual", "-version", "1.2.3", "-seconds", "1700000000", one}))
	t.Setenv("HOME", "/home/other")
	t.Setenv("TZ", "Asia/Tokyo")
	require.NoError(t, run([]string{"manual", "-version", "1.2.3", "-seconds", "1700000000", two}))

	var pages int
	var visit func(cmd *cobra.Command)
	visit = func(cmd *cobra.Command) {
		require.FileExists(t, filepath.Join(one, strings.ReplaceAll(cmd.CommandPath(), " ", "-")+".1"))
		pages++
		for _, c := range cmd.Commands() {
			if c.IsAvailableCommand() {
				visit(c)
			}
		}
	}
	visit(cli.Root("1.2.3", host.AddCommands))

	files, err := os.ReadDir(one)
	require.NoError(t, err)
	require.Len(t, files, pages+len([]string{"bash", "zsh", "fish"}))
	for _, f := range files {
		a, err := os.ReadFile(filepath.Join(one, f.Name()))
		require.NoError(t, err)
		b, err := os.ReadFile(filepath.Join(two, f.Name()))
		require.NoError(t, err)
		require.True(t, bytes.Equal(a, b), f.Name())
	}
}

// TestS43SBOM reads the modules of this test, whose build information is like the programs'.
func TestS43SBOM(t *testing.T) {
	program, err := os.Executable()
	require.NoError(t, err)
	list := filepath.Join(t.TempDir(), ".packages")
	require.NoError(t, os.WriteFile(list, []byte("lvm2_2%3a2.03.16-2_amd64.deb\n"), 0o600))
	out := filepath.Join(t.TempDir(), "sbom.json")
	require.NoError(t, writeSBOM(version, made, []string{program}, []string{list}, out))

	f, err := os.Open(out)
	require.NoError(t, err)
	defer f.Close() // ignore the error: the file was only read
	var bom cyclonedx.BOM
	require.NoError(t, cyclonedx.NewBOMDecoder(f, cyclonedx.BOMFileFormatJSON).Decode(&bom))
	find := func(name string) cyclonedx.Component {
		i := slices.IndexFunc(*bom.Components, func(c cyclonedx.Component) bool { return c.Name == name })
		require.GreaterOrEqual(t, i, 0, name)
		return (*bom.Components)[i]
	}
	require.Equal(t, "2:2.03.16-2", find("lvm2").Version)
	require.Regexp(t, `^1\.`, find("std").Version)
	require.Regexp(t, `^pkg:golang/github\.com/spf13/cobra@v`, find("github.com/spf13/cobra").PackageURL)
	require.Len(t, *find(filepath.Base(program)).Hashes, 1)
	require.Equal(t, "2023-11-14T22:13:20Z", bom.Metadata.Timestamp)

	for range 50 { // the order of a map differs between calls
		again, err := newSBOM(version, made, []string{program}, []string{list, list})
		require.NoError(t, err)
		require.Equal(t, *bom.Dependencies, *again.Dependencies)
	}
	require.Equal(t, "ingot", (*bom.Dependencies)[0].Ref)
	require.Equal(
		t,
		[]string{"pkg:deb/debian/lvm2@2:2.03.16-2?arch=amd64", "program:" + filepath.Base(program)},
		*(*bom.Dependencies)[0].Dependencies,
	)

	require.NoError(t, os.WriteFile(list, []byte("lvm2.deb\n"), 0o600))
	_, err = newSBOM(version, made, nil, []string{list})
	require.ErrorContains(t, err, `"lvm2.deb"`)
}

// TestS45Signature: the signature of the checksums is one that Ingot and minisign verify, with and without a password.
func TestS45Signature(t *testing.T) {
	public, private, err := minisign.GenerateKey(rand.Reader)
	require.NoError(t, err)
	plain, err := private.MarshalText()
	require.NoError(t, err)
	sealed, err := minisign.EncryptKey("secret", private)
	require.NoError(t, err)
	publicText, err := public.MarshalText()
	require.NoError(t, err)

	for name, key := range map[string][]byte{"plain": plain, "sealed": sealed} {
		dir := t.TempDir()
		keyFile, sums := filepath.Join(dir, "key"), filepath.Join(dir, "SHA256SUMS")
		require.NoError(t, os.WriteFile(keyFile, key, 0o600))
		require.NoError(t, os.WriteFile(sums, []byte("00  ingot.deb\n"), 0o600))
		t.Setenv("INGOT_SIGN_PASSWORD", "secret")
		require.NoError(t, run([]string{"sign", "-key", keyFile, "-version", "1.2.3", sums}), name)
		signature, err := os.ReadFile(sums + ".minisig")
		require.NoError(t, err)
		require.NoError(t, provenance.VerifyMinisign(strings.NewReader("00  ingot.deb\n"), signature, publicText), name)
		require.Error(t, provenance.VerifyMinisign(strings.NewReader("01  ingot.deb\n"), signature, publicText), name)
	}
	require.Error(t, sign(version, filepath.Join(t.TempDir(), "none"), "", "debian/default"))
}
