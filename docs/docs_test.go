package docs_test

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/ingotmetal/ingot/internal/config"
)

func read(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestConfigurationNamesEveryKey holds configuration.md against the struct
// that reads the file, and its table of ports against the defaults.
func TestConfigurationNamesEveryKey(t *testing.T) {
	keys, ports, ok := strings.Cut(read(t, "configuration.md"), "## Ports")
	if !ok {
		t.Fatal("configuration.md has no section of ports")
	}
	for _, k := range keysOf(reflect.TypeFor[config.Config](), "") {
		// Keys that share a row are written without what they have in common.
		short := k[strings.LastIndexByte(k, '.')+1:]
		if !strings.Contains(keys, "`"+k+"`") && !strings.Contains(keys, "`, `"+short+"`") && !strings.Contains(keys, ", `"+short+"`") {
			t.Errorf("configuration.md does not name %s", k)
		}
	}
	ports, _, _ = strings.Cut(ports, "## Environment")
	c := config.Default()
	want := append(
		append(
			[]int{
				c.Netboot.TFTP,
				c.Netboot.Agent,
				c.Temporal.Port,
				c.Temporal.Port + 1,
				c.Temporal.Port + 2,
				c.Temporal.Port + 3,
				c.Temporal.UIPort,
			},
			c.Netboot.HTTP...),
		c.Netboot.Metadata...)
	_, listen, _ := strings.Cut(c.Listen, ":")
	n, err := strconv.Atoi(listen)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range append(want, n) {
		if !regexp.MustCompile(fmt.Sprintf(`(?m)^\|[^|]*\b%d\b`, p)).MatchString(ports) {
			t.Errorf("the table of ports lacks %d", p)
		}
	}
}

// TestConfigurationNamesWhatTheServerConnectsTo: a firewall has to let these through.
func TestConfigurationNamesWhatTheServerConnectsTo(t *testing.T) {
	_, table, ok := strings.Cut(read(t, "configuration.md"), "The server itself connects to:\n")
	if !ok {
		t.Fatal("configuration.md does not say what the server connects to")
	}
	table, _, _ = strings.Cut(table, "\nThe agent connects to")
	for _, port := range []string{"623/udp", "16992", "16993", "9/udp", "67/udp", "7444", "50000", "6443", "443"} {
		if !regexp.MustCompile(`(?m)^\|[^|]*\|.*\b` + port + `\b`).MatchString(table) {
			t.Errorf("configuration.md does not say that the server connects to port %s", port)
		}
	}
	own := map[string]bool{"netboot.address": true, "site.url": true}
	for _, k := range keysOf(reflect.TypeFor[config.Config](), "") {
		isRemote := strings.HasSuffix(k, ".address") || strings.HasSuffix(k, ".endpoint") || strings.HasSuffix(k, ".url")
		if isRemote && !own[k] && !strings.Contains(table, "`"+k+"`") {
			t.Errorf("configuration.md does not say that the server connects to %s", k)
		}
	}
}

// TestBackupNamesFilesThatItLeavesOut: backup.md names every file of the configuration that no backup holds.
func TestBackupNamesFilesThatItLeavesOut(t *testing.T) {
	inIt := map[string]bool{"key_file": true, "token_file": true}
	text := read(t, "backup.md")
	for _, k := range keysOf(reflect.TypeFor[config.Config](), "") {
		isFile := k == "images.catalog" || strings.HasSuffix(k, "_file") || strings.HasSuffix(k, "_cert") ||
			strings.HasSuffix(k, "_key") || strings.HasSuffix(k, "_ca")
		if isFile && !inIt[k] && !strings.Contains(text, "`"+k+"`") {
			t.Errorf("backup.md does not say that the file of %s is in no backup", k)
		}
	}
}

// keysOf lists the keys of a struct as the file spells them.
func keysOf(s reflect.Type, prefix string) []string {
	var out []string
	for i := range s.NumField() {
		f := s.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Type.Kind() == reflect.Struct {
			out = append(out, keysOf(f.Type, prefix+name+".")...)
			continue
		}
		out = append(out, prefix+name)
	}
	return out
}

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ (.+)$`)
	fence   = regexp.MustCompile("(?s)```.*?```")
)

// TestDecisionsNameEveryLibrary: decisions.md says what each direct dependency is for.
func TestDecisionsNameEveryLibrary(t *testing.T) {
	words := map[string]bool{}
	for _, w := range regexp.MustCompile(`[A-Za-z0-9_-]+`).FindAllString(read(t, "decisions.md"), -1) {
		words[w] = true
	}
	for _, m := range regexp.MustCompile(`(?m)^\t(\S+) v\S+$`).FindAllStringSubmatch(read(t, "../go.mod"), -1) {
		name := path.Base(regexp.MustCompile(`/v\d+$`).ReplaceAllString(m[1], ""))
		if name, _, _ = strings.Cut(name, "."); !words[name] {
			t.Errorf("decisions.md does not say what %s is for", m[1])
		}
	}
}

// TestLinksResolve follows every link between the documents, to its heading.
func TestLinksResolve(t *testing.T) {
	files, err := filepath.Glob("*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range append(files, "../README.md", "../CONTRIBUTING.md") {
		for _, m := range link.FindAllStringSubmatch(fence.ReplaceAllString(read(t, file), ""), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			to, anchor, _ := strings.Cut(m[1], "#")
			target := file
			if to != "" {
				target = filepath.Join(filepath.Dir(file), to)
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s links to %s: %v", file, m[1], err)
				continue
			}
			if anchor != "" && !anchors(read(t, target))[anchor] {
				t.Errorf("%s links to %s, which has no such heading", file, m[1])
			}
		}
	}
}

// TestIndexHasEveryPage: a page that the index does not name is not found.
func TestIndexHasEveryPage(t *testing.T) {
	files, err := filepath.Glob("*.md")
	if err != nil {
		t.Fatal(err)
	}
	index := read(t, "README.md")
	for _, file := range files {
		if file != "README.md" && !strings.Contains(index, "]("+file+")") {
			t.Errorf("docs/README.md does not list %s", file)
		}
	}
}

// anchors are the headings of a document as links name them.
func anchors(text string) map[string]bool {
	out := map[string]bool{}
	for _, m := range heading.FindAllStringSubmatch(fence.ReplaceAllString(text, ""), -1) {
		name := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-' || r == '_' || r >= 'a' && r <= 'z' || r >= '0' && r <= '9':
				return r
			}
			return -1
		}, strings.ToLower(m[1]))
		out[name] = true
	}
	return out
}
