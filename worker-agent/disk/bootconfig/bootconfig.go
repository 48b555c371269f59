// Package bootconfig determines which kernel an installed system boots, from the configuration of GRUB or of the Boot Loader
// Specification.
package bootconfig

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Entry is one entry of a boot loader's menu.
type Entry struct {
	id, Title string
	version   string
	Kernel    string // absolute path in the file system that contains the configuration
	Initrds   []string
	Options   string
	sub       []Entry // the entries of a submenu
}

// grubDirs are the directories of GRUB's configuration: in the root file system, and in a separate /boot.
var grubDirs = []string{"/boot/grub", "/boot/grub2", "/grub", "/grub2"}

// loaderDirs are the directories of the Boot Loader Specification, type 1.
var loaderDirs = []string{"/boot/loader", "/loader", "/boot/efi/loader", "/efi/loader"}

// maxEntries is the maximum number of boot entries that are read.
const maxEntries = 256

// maxLine is the size limit of a line in GRUB's configuration, in bytes.
const maxLine = 4 << 20

// Read returns the boot loader's default entry, and the file or directory in which it was found. read and list access the file
// system in which Read looks for a configuration. grubCfg is the value of GRUBCFG_PATH; if it is "", Read looks in the usual
// places. Read returns ErrNoConfig if it finds no configuration.
func Read(read func(name string) ([]byte, error), list func(dir string) []string, grubCfg string) (Entry,
	string, error,
) {
	files := []string{grubCfg}
	if grubCfg == "" {
		files = nil
		for _, d := range grubDirs {
			files = append(files, d+"/grub.cfg")
		}
	}

	for _, name := range files {
		name = path.Join("/", name)
		b, err := read(name)
		if err != nil {
			continue
		}

		vars := map[string]string{}
		if env, err := read(path.Join(path.Dir(name), "grubenv")); err == nil {
			vars = parseGrubEnv(env)
		}

		entries, fallback, bls := parseGrub(string(b), vars)
		if bls {
			if e, where, err := readLoaderEntries(read, list, vars); err == nil {
				return e, where, nil
			}
		}

		e, err := defaultEntry(entries, fallback)
		if err != nil {
			return e, name, fmt.Errorf("reading %s: %w", name, err)
		}
		return e, name, nil
	}

	return readLoaderEntries(read, list, map[string]string{})
}

// ErrNoConfig means that the file system contains no boot loader's configuration.
var ErrNoConfig = errors.New("the file system contains neither grub.cfg nor loader/entries")

// parseGrubEnv reads GRUB's environment block.
func parseGrubEnv(b []byte) map[string]string {
	vars := map[string]string{}
	for _, line := range strings.Split(string(b), "\n") {
		if k, v, ok := strings.Cut(line, "="); ok && !strings.HasPrefix(line, "#") {
			vars[k] = v
		}
	}
	return vars
}

// parseGrub parses the part of GRUB's language that generated configurations use: menu entries and submenus in their order, variables
// that are set outside of entries, and both branches of an if. fallback is the value of the variable "default". bls is true if the
// command blscfg adds the entries of the Boot Loader Specification.
func parseGrub(text string, vars map[string]string) (entries []Entry, fallback string, bls bool) {
	depth, in, sub := 0, -1, -1 // depth: open braces; in, sub: depths at which the current entry and submenu began, -1 = none
	s := bufio.NewScanner(strings.NewReader(text))
	s.Buffer(nil, maxLine)

	for s.Scan() && len(entries) < maxEntries {
		words := grubWords(s.Text(), vars)
		if len(words) == 0 {
			continue
		}

		opens, closes := count(words, "{"), count(words, "}")
		list := &entries
		if sub >= 0 {
			list = &entries[len(entries)-1].sub
		}

		current := func() *Entry {
			if in < 0 || len(*list) == 0 {
				return &Entry{}
			}
			return &(*list)[len(*list)-1]
		}

		switch words[0] {
		case "menuentry", "submenu":
			e := grubEntry(words)
			switch {
			case words[0] == "menuentry":
				*list = append(*list, e)
				in = depth
			case sub < 0: // a submenu within a submenu is added to the outer one
				entries = append(entries, e)
				sub = depth
			}

		case "linux", "linuxefi", "linux16":
			if e := current(); len(words) > 1 && e.Kernel == "" {
				e.Kernel, e.Options = grubPath(words[1]), kernelLine(words[2:])
			}
		case "initrd", "initrdefi", "initrd16":
			if e := current(); e.Initrds == nil {
				for _, w := range words[1:] {
					e.Initrds = append(e.Initrds, grubPath(w))
				}
			}

		case "set":
			if in < 0 && len(words) > 1 {
				if k, v, ok := strings.Cut(words[1], "="); ok {
					// Both branches of "if saved … else 0" are read: keep the first non-empty value of "default".
					if k != "default" || vars["default"] == "" {
						vars[k] = v
					}
				}
			}

		case "blscfg":
			bls = true
		}

		depth += opens - closes
		if in >= 0 && depth <= in && closes > 0 {
			in = -1
		}
		if sub >= 0 && depth <= sub && closes > 0 {
			sub = -1
		}
	}

	return entries, vars["default"], bls
}

// grubEntry returns an entry with the title and the id in words, which is the menuentry or submenu command.
func grubEntry(words []string) (e Entry) {
	if len(words) > 1 {
		e.Title, e.id = words[1], words[1]
	}
	for i, w := range words {
		if (w == "--id" || w == "$menuentry_id_option") && i+1 < len(words) {
			e.id = words[i+1]
		}
	}
	return e
}

// count returns how often word occurs in words.
func count(words []string, word string) (n int) {
	for _, w := range words {
		if w == word {
			n++
		}
	}
	return n
}

// kernelLine returns the command line that GRUB makes from words for the kernel: GRUB quotes each word that contains a blank
// (grub_create_loader_cmdline).
func kernelLine(words []string) string {
	quoted := slices.Clone(words)
	for n, w := range words {
		if strings.Contains(w, " ") {
			quoted[n] = `"` + w + `"`
		}
	}
	return strings.Join(quoted, " ")
}

// grubWords splits a line as GRUB does. It handles quotes, backslashes, variables (empty if unset) and comments.
func grubWords(line string, vars map[string]string) []string {
	var words []string
	var w strings.Builder
	started := false
	quote := byte(0)

	end := func() {
		if started {
			words = append(words, w.String())
		}
		w.Reset()
		started = false
	}

	for i := 0; i < len(line); i++ {
		c := line[i]
		switch {
		case quote == '\'' && c != '\'', c == '\\' && quote == '"' && i+1 < len(line) &&
			!strings.ContainsRune(`$"\`, rune(line[i+1])):
			w.WriteByte(c)
		case c == '\\' && i+1 < len(line):
			i++
			started = true
			w.WriteByte(line[i])
		case quote != 0 && c == quote:
			quote = 0
		case quote == 0 && (c == '"' || c == '\''):
			quote, started = c, true
		case c == '$':
			name := ""
			if rest := line[i+1:]; strings.HasPrefix(rest, "{") {
				inner, _, ok := strings.Cut(rest[1:], "}")
				if ok {
					name, i = inner, i+len(inner)+2
				}
			} else {
				n := 0
				for n < len(rest) && (rest[n] == '_' || rest[n] >= '0' && rest[n] <= '9' ||
					rest[n]|0x20 >= 'a' && rest[n]|0x20 <= 'z') {
					n++
				}
				name, i = rest[:n], i+n
			}

			if v, known := vars[name]; known {
				started = true
				w.WriteString(v)
			} else if name == "menuentry_id_option" {
				started = true
				w.WriteString("--id")
			}

		case quote != 0:
			w.WriteByte(c)
		case c == ' ' || c == '\t' || c == '\r' || c == ';':
			end()
			if c == ';' && len(words) > 0 {
				return words // ignore the rest of the line, which is rarely more than "then"
			}
		case c == '#' && !started:
			end()
			return words
		default:
			started = true
			w.WriteByte(c)
		}
	}

	end()
	return words
}

// grubPath returns the path p without its device: /vmlinuz for ($root)/vmlinuz.
func grubPath(p string) string {
	if strings.HasPrefix(p, "(") {
		if _, rest, ok := strings.Cut(p, ")"); ok {
			p = rest
		}
	}
	return path.Join("/", p)
}

// defaultEntry returns the entry that boots without an operator. want is a number, an id, a title, or "a>b" for an entry of a
// submenu. If want matches no entry, defaultEntry returns the first one.
func defaultEntry(entries []Entry, want string) (Entry, error) {
	if len(entries) == 0 {
		return Entry{}, errors.New("the boot loader's configuration has no menu entry")
	}

	want, inside, _ := strings.Cut(want, ">")
	e := entries[0]
	if n, err := strconv.Atoi(want); err == nil && n >= 0 && n < len(entries) {
		e = entries[n]
	} else if i := slices.IndexFunc(entries,
		func(e Entry) bool { return want != "" && (e.id == want || e.Title == want) }); i >= 0 {
		e = entries[i]
	}
	if len(e.sub) > 0 {
		return defaultEntry(e.sub, inside)
	}
	if e.Kernel == "" {
		return e, fmt.Errorf("the entry %q does not start a Linux kernel", e.Title)
	}
	return e, nil
}

// readLoaderEntries reads the type 1 entries of the Boot Loader Specification. It returns the entry that loader.conf or GRUB's
// environment names, or the newest entry if neither names one. It also returns the directory of the entries.
func readLoaderEntries(read func(string) ([]byte, error), list func(string) []string,
	vars map[string]string,
) (Entry, string, error) {
	for _, dir := range loaderDirs {
		var entries []Entry
		for _, name := range list(dir + "/entries") {
			if !strings.HasSuffix(name, ".conf") || len(entries) >= maxEntries {
				continue
			}
			b, err := read(path.Join(dir, "entries", name))
			if err != nil {
				continue
			}

			if e := parseLoaderEntry(b, vars); e.Kernel != "" {
				e.id = strings.TrimSuffix(name, ".conf")
				entries = append(entries, e)
			}
		}
		if len(entries) == 0 {
			continue
		}

		slices.SortStableFunc(entries, func(a, b Entry) int {
			return cmp.Or(compareVersions(b.version, a.version), compareVersions(b.id, a.id))
		})
		want := vars["saved_entry"]
		if b, err := read(dir + "/loader.conf"); err == nil {
			for _, line := range strings.Split(string(b), "\n") {
				if f := strings.Fields(line); len(f) == 2 && f[0] == "default" {
					want = strings.TrimSuffix(f[1], ".conf")
				}
			}
		}

		for _, e := range entries {
			if ok, err := path.Match(want, e.id); ok && err == nil && want != "" {
				return e, dir, nil
			}
		}
		return entries[0], dir, nil
	}
	return Entry{}, "", ErrNoConfig
}

func parseLoaderEntry(b []byte, vars map[string]string) Entry {
	var e Entry
	var options []string
	for _, line := range bytes.Split(b, []byte("\n")) {
		key, value, _ := strings.Cut(strings.TrimSpace(strings.ReplaceAll(string(line), "\t", " ")), " ")
		value = strings.TrimSpace(value)
		switch key {
		case "title":
			e.Title = value
		case "version":
			e.version = value
		case "linux":
			e.Kernel = grubPath(value)
		case "initrd":
			for _, w := range grubWords(value, vars) {
				e.Initrds = append(e.Initrds, grubPath(w))
			}
		case "options":
			// Fedora's entries contain $kernelopts, a variable of GRUB's environment.
			for _, w := range strings.Fields(value) {
				if name, ok := strings.CutPrefix(w, "$"); ok {
					w = vars[name]
				}
				options = append(options, w)
			}
		}
	}

	e.Options = strings.TrimSpace(strings.Join(options, " "))
	return e
}

// compareVersions compares a and b: sequences of digits as numbers, and all other text byte by byte.
func compareVersions(a, b string) int {
	digits := func(s string) int {
		n := 0
		for n < len(s) && s[n] >= '0' && s[n] <= '9' {
			n++
		}
		return n
	}

	for a != "" && b != "" {
		n, m := digits(a), digits(b)
		if n > 0 && m > 0 {
			x, y := strings.TrimLeft(a[:n], "0"), strings.TrimLeft(b[:m], "0")
			if c := cmp.Or(cmp.Compare(len(x), len(y)), cmp.Compare(x, y)); c != 0 {
				return c
			}
			a, b = a[n:], b[m:]
			continue
		}
		if a[0] != b[0] {
			return cmp.Compare(a[0], b[0])
		}
		a, b = a[1:], b[1:]
	}
	return cmp.Compare(len(a), len(b))
}
