package cloudinit

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
)

const (
	config  = "#cloud-config\npackages: [htop]\n"
	message = "Content-Type: multipart/mixed; boundary=\"b\"\nMIME-Version: 1.0\n\n--b\nContent-Type: text/cloud-config\n\n" + config +
		"--b\nContent-Type: text/x-shellscript\n\n#!/bin/sh\ntrue\n--b--\n"
	jinja   = "## template: jinja\n#cloud-config\npackages: [{{ 'htop' }}]\n"
	archive = "#cloud-config-archive\n- type: text/cloud-config\n  content: |\n    packages: [htop]\n- \"#!/bin/sh\\ntrue\\n\"\n"

	isConfig  = "text/cloud-config"
	isScript  = "text/x-shellscript"
	isBoth    = isConfig + " " + isScript
	isJinja   = "text/jinja2"
	notTaken  = "-text/x-not-multipart"
	notInMIME = "-text/plain" // of a message
	givesUp   = "error"
	isEmpty   = ""
)

// judged are documents, and what cloud-init 22.4.2 (JudgedBy) makes of each where it is alone: the kinds of its parts, "-"
// before one that it does not take. TestCloudInitJudges asks cloud-init itself.
var judged = []struct {
	name, document, alone string
	joined                bool // the phone-home is added
}{
	{"cloud-config", config, isConfig, true},
	{"blank lines before", "\n\n" + config, isConfig, true},
	{"spaces before", "  " + config, isConfig, true},
	{"tab before", "\t" + config, isConfig, true},
	{"carriage returns", strings.ReplaceAll("\n"+config, "\n", "\r\n"), isConfig, true},
	{"no-break space before", "\u00a0" + config, isConfig, true},
	{"line separator before", "\u2028" + config, isConfig, true},
	{"next line (C1) before", "\u0085" + config, isConfig, true},
	{"file separator before", "\x1c" + config, isConfig, true},
	{"zero width space before", "\u200b" + config, notTaken, false},
	{"null byte before", "\x00" + config, notTaken, false},
	{"capitals", "#Cloud-Config\npackages: [htop]\n", isConfig, true},
	{"byte order mark", "\ufeff" + config, notTaken, false},
	{"byte order mark and blank line", "\ufeff\n" + config, notTaken, false},
	{"UTF-16", "\xff\xfe#\x00c\x00l\x00o\x00u\x00d\x00", notTaken, false},
	{"Latin-1 in a comment", config + "# \xe9\n", isConfig, true},
	{"first line alone", "#cloud-config", isConfig, true},
	{"longer word", "#cloud-configuration\na: 1\n", isConfig, true},
	{"comment before", "# mine\n" + config, notTaken, false},
	{"cloud-config that is no mapping", "#cloud-config\n- a\n", isConfig, true},
	{"cloud-config that is not YAML", "#cloud-config\na: [\n", isConfig, true},
	{"JSON patch", "#cloud-config-jsonp\n[{\"op\":\"add\",\"path\":\"/x\",\"value\":1}]\n", "text/cloud-config-jsonp", true},

	{"gzip", packed(config), isConfig, true},
	{"gzip, blank line", packed("\n" + config), isConfig, true},
	{"gzip, letters beyond ASCII", packed(config + "x: é☃\n"), isConfig, true},
	{"gzip of a message", packed(message), isBoth, true},
	{"gzip of a script", packed("#!/bin/sh\ntrue\n"), isScript, true},
	{"gzip in two members", packed(config) + packed("b: 1\n"), isConfig, true},
	{"gzip twice", packed(packed(config)), notTaken, false},
	{"gzip cut off", packed(config)[:20], notTaken, false},
	{"gzip, text after it", packed(config) + "x", notTaken, false},
	{"gzip of Ignition", packed(`{"ignition":{"version":"3.3.0"}}`), notTaken, false},

	{"message", message, isBoth, true},
	{"message, carriage returns", strings.ReplaceAll(message, "\n", "\r\n"), isBoth, true},
	{"message, other header first", "Subject: x\n folded\n" + message, isBoth, true},
	{"message of a mailbox", "From nobody Tue Dec  9 1980\n" + message, isBoth, true},
	{"message, small letters", strings.Replace(message, "Content-Type: multi", "content-type: multi", 1), isBoth, true},
	{"message, version first", "MIME-Version: 1.0\nContent-Type: text/cloud-config\n\n" + config, isConfig, true},
	{"message, version in its parts alone", "Content-Type: multipart/mixed; boundary=\"b\"\n\n--b\nContent-Type: text/cloud-config\n" +
		"MIME-Version: 1.0\n\n" + config + "--b--\n", isConfig, true},
	{"message, blank line first", "\n" + message, notInMIME, false},
	{"message, byte order mark", "\ufeff" + message, notInMIME, false},
	{"message without a version", strings.Replace(message, "MIME-Version: 1.0\n", "", 1), notTaken, false},
	{"message in Latin-1", strings.Replace(message, "htop", "\xe9", 1), givesUp, false},
	{"cloud-config that quotes a message", config + "# MIME-Version: 1.0\n", isConfig, true},

	{"script", "#!/bin/sh\ntrue\n", isScript, true},
	{"script, blank line", "\n#!/bin/sh\ntrue\n", isScript, true},
	{"script, bytes after it", "#!/bin/sh\nexit\n\xff\x00\xfe", isScript, true},
	{"jinja", jinja, isJinja, true},
	{"jinja, capitals", strings.Replace(jinja, "template: jinja", "Template: Jinja", 1), isJinja, true},
	{"jinja, blank line", "\n" + jinja, isJinja, true},
	{"jinja, carriage returns", strings.ReplaceAll(jinja, "\n", "\r\n"), isJinja, true},
	{"jinja, no space", strings.Replace(jinja, "## template", "##template", 1), notTaken, false},
	{"include", "#include\nfile://INCLUDED\n", isConfig, true},
	{"include, blank line", "\n#include\nfile://INCLUDED\n", isConfig, true},
	{"include, capitals", "#Include\nfile://INCLUDED\n", isConfig, true},
	{"include on one line", "#include file://INCLUDED\n", isConfig, true},
	{"include-once", "#include-once\nfile://INCLUDED\n", isConfig, true},
	{"include, space before", " #include\nfile://INCLUDED\n", givesUp, false},
	{"archive", archive, isBoth, true},
	{"archive, blank line and capitals", "\n#Cloud-Config-Archive" + strings.TrimPrefix(archive, "#cloud-config-archive"), isBoth, true},
	{"archive that is no list", "#cloud-config-archive\na: 1\n", isEmpty, true},
	{"boothook", "#cloud-boothook\n#!/bin/sh\n", "text/cloud-boothook", true},
	{"boothook, capitals", "#Cloud-Boothook\n#!/bin/sh\n", "text/cloud-boothook", true},
	{"part-handler", "#part-handler\ndef list_types(): return []\n", "text/part-handler", true},

	{"Ignition", `{"ignition":{"version":"3.3.0"}}`, notTaken, false},
	{"Talos", "version: v1alpha1\nmachine:\n  files:\n    - content: |\n        MIME-Version: 1.0\n", isEmpty, false},
	{"text", "hello\n", notTaken, false},
	{"bytes", "\x80\x00\xff", notTaken, false},
	{"base64", "I2Nsb3VkLWNvbmZpZwo=", notTaken, false},
}

// packed returns text in the form of gzip.
func packed(text string) string {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = z.Write([]byte(text)) // a buffer takes everything
	_ = z.Close()
	return b.String()
}

// byAddress returns a machine whose image knows EC2 only.
func byAddress(userData string) inventory.Machine {
	return inventory.Machine{Name: "node1", UserDataByAddress: true, UserData: inventory.NewSecret(userData)}
}

// TestCombinedAsJudged: the phone-home is added to what cloud-init takes, and everything else is left as it is, with a warning.
func TestCombinedAsJudged(t *testing.T) {
	for _, c := range judged {
		m := byAddress(c.document)
		require.Equal(t, c.joined, Joinable(m.UserData), c.name)
		require.Equal(t, c.joined, PhoneHomeWarning(m) == "", c.name)
		require.Equal(t, c.document, string(UserData(m)), c.name)
		require.Equal(t, c.document, string(Combined(m, "")), "%s: there is nothing to add", c.name)
		combined := string(Combined(m, home))
		if !c.joined {
			require.Equal(t, c.document, combined, c.name)
			continue
		}
		if !strings.Contains(c.document, "From ") { // package net/mail reads no mailbox
			_, contents := partsOf(t, []byte(combined))
			require.Contains(t, contents[0], home, c.name)
		}
	}
	m := byAddress("hello\n")
	m.UserDataByAddress = false
	require.Empty(t, PhoneHomeWarning(m), "NoCloud has the phone-home in a document of its own")
	require.Empty(t, PhoneHomeWarning(byAddress("")))
}

// TestUnpackedHasALimit: what compressed user-data becomes does not fill the memory.
func TestUnpackedHasALimit(t *testing.T) {
	bomb := packed(config + strings.Repeat("#", maxUnpacked))
	require.Less(t, len(bomb), 64<<10)
	require.False(t, Joinable(inventory.NewSecret(bomb)))
	require.Equal(t, bomb, string(Combined(byAddress(bomb), home)))
	require.True(t, Joinable(inventory.NewSecret(packed(config+strings.Repeat("#", maxUnpacked-len(config))))))
}

// A verdict is what judge.py says of a document.
type verdict struct {
	Parts  []string
	Config map[string]any
	Error  string
}

// kinds returns the verdict as the table writes it.
func (v verdict) kinds() string {
	if v.Error != "" {
		return givesUp
	}
	var kinds []string
	for _, p := range v.Parts {
		kind, _, _ := strings.Cut(p, " ")
		kinds = append(kinds, kind)
	}
	return strings.Join(kinds, " ")
}

// askCloudInit runs a script of testdata with cloud-init's own code, and returns what it prints.
func askCloudInit(t *testing.T, script string, input []byte) []byte {
	t.Helper()
	cache := cmp.Or(os.Getenv("XDG_CACHE_HOME"), filepath.Join(os.Getenv("HOME"), ".cache"))
	clients := filepath.Join(cache, "ingot-lab", "pkg", "clients")
	if _, err := os.Stat(filepath.Join(clients, ".stamp")); err != nil { // written when all is unpacked (deploy/deps.sh)
		t.Skip("needs cloud-init: make deps-e2e")
	}
	cmd := exec.CommandContext(t.Context(), "/usr/bin/python3", filepath.Join("testdata", script))
	cmd.Env = append(os.Environ(), "PYTHONPATH="+filepath.Join(clients, "usr/lib/python3/dist-packages"))
	cmd.Stdin, cmd.Stderr = bytes.NewReader(input), os.Stderr
	output, err := cmd.Output()
	require.NoError(t, err)
	return output
}

// TestCloudInitJudges: cloud-init's own code makes of each document what the table says, and of the joined one the same and the
// phone-home.
func TestCloudInitJudges(t *testing.T) {
	included := filepath.Join(t.TempDir(), "included")
	require.NoError(t, os.WriteFile(included, []byte(config), 0o600))

	var documents [][]byte
	for _, c := range judged {
		document := strings.ReplaceAll(c.document, "INCLUDED", included)
		documents = append(documents, []byte(document), Combined(byAddress(document), home))
	}
	input, err := json.Marshal(documents)
	require.NoError(t, err)
	output := askCloudInit(t, "judge.py", input)
	var answer struct {
		Version  string
		Verdicts []verdict
	}
	require.NoError(t, json.Unmarshal(output, &answer))
	require.True(t, strings.HasPrefix(answer.Version, JudgedBy), "judged by %s", answer.Version)
	require.Len(t, answer.Verdicts, len(documents))

	for i, c := range judged {
		alone, joined := answer.Verdicts[2*i], answer.Verdicts[2*i+1]
		require.Equal(t, c.alone, alone.kinds(), "%s: %s", c.name, alone.Error)
		if !c.joined {
			continue
		}
		require.NotEmpty(t, joined.Parts, "%s: %s", c.name, joined.Error)
		require.Equal(t, alone.Parts, joined.Parts[1:], c.name)
		require.Equal(t, home, joined.Config["phone_home"].(map[string]any)["url"], c.name)
		delete(joined.Config, "phone_home")
		require.Equal(t, alone.Config, joined.Config, c.name)
	}
}
