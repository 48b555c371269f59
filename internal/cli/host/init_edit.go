package host

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/ingotmetal/ingot/internal/cli"
	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/host/durablefile"
	"github.com/ingotmetal/ingot/internal/text/human"
	"github.com/ingotmetal/ingot/inventory"
)

// A setting is a key below netboot: in the configuration, with its value as one line of YAML.
type setting struct{ key, value string }

// settings returns the settings that the flags require.
func (f initFlags) settings() []setting {
	if f.relayOnly {
		return []setting{{"relay_only", "true"}, {"address", f.address}, {"relays", "[" + strings.Join(f.relays, ", ") + "]"}}
	}
	return []setting{{"interfaces", "[" + strings.Join(f.interfaces, ", ") + "]"}}
}

// bootFileSettings returns settings for the directories of boot files that n does not name and that are found on this host.
func bootFileSettings(c *cli.Call, n config.Netboot) (out []setting) {
	if n.Loaders != "" && n.AgentOS != "" {
		return nil
	}
	loaders, agentOS := findBootFiles(c)
	if n.Loaders == "" && loaders != "" {
		out = append(out, setting{"loaders", strconv.Quote(loaders)})
	}
	if n.AgentOS == "" && agentOS != "" {
		out = append(out, setting{"agent_os", strconv.Quote(agentOS)})
	}
	return out
}

// editConfig adds the settings that the flags require to the existing configuration. First it shows the difference, and
// the operator must confirm it. It keeps comments and all other settings.
func editConfig(c *cli.Call, f initFlags, before config.Config) error {
	if f.agree(before.Netboot) {
		c.Printf("kept  %s\n", c.ConfigFile)
		return nil
	}
	if n := before.Netboot; n.RelayOnly != f.relayOnly && n.On() {
		return human.Advise(
			fmt.Errorf("%s and these flags differ: one uses relay_only, the other interfaces: %w", c.ConfigFile, inventory.ErrConflict),
			"remove relay_only or interfaces below netboot: in that file, then run ingot init again")
	}

	settings := append(f.settings(), bootFileSettings(c, before.Netboot)...)
	old, err := os.ReadFile(c.ConfigFile)
	if err != nil {
		return err
	}
	text, changed, err := setNetboot(string(old), settings)
	if err != nil {
		return human.Advise(fmt.Errorf("changing %s: %w: %w", c.ConfigFile, err, inventory.ErrConflict),
			fmt.Sprintf("write %q below netboot: in that file, then restart ingot serve", lines(settings)))
	}
	for _, line := range changed {
		c.Printf("%s\n", line)
	}
	if err := c.Confirm(f.yes, "changes "+c.ConfigFile+" as shown", "yes"); err != nil {
		return err
	}
	if err := replaceConfig(c.ConfigFile, text); err != nil {
		return err
	}
	c.Printf("changed %s; restart ingot serve to apply it\n", c.ConfigFile)
	return nil
}

func lines(settings []setting) string {
	var out []string
	for _, s := range settings {
		out = append(out, s.key+": "+s.value)
	}
	return strings.Join(out, "; ")
}

// replaceConfig replaces the content of file by text, if text is a valid configuration. It keeps the file's mode and
// owner.
func replaceConfig(file, text string) (err error) {
	if file, err = filepath.EvalSymlinks(file); err != nil {
		return err
	}
	st, err := os.Stat(file)
	if err != nil {
		return err
	}
	next := file + ".new"
	defer func() {
		if err != nil {
			_ = os.Remove(next) // it may not be there
		}
	}()
	if err := durablefile.Replace(next, []byte(text)); err != nil {
		return err
	}
	if _, err := config.Load(next, true); err != nil {
		return err
	}
	if err := os.Chmod(next, st.Mode().Perm()); err != nil { // needed because the umask may have removed bits
		return err
	}
	if err := keepOwner(next, st); err != nil {
		return err
	}
	if err := os.Rename(next, file); err != nil {
		return err
	}
	return durablefile.SyncDir(filepath.Dir(file))
}

var (
	netbootLine = regexp.MustCompile(`^netboot:[ \t]*(#.*)?$`)
	anyKeyLine  = regexp.MustCompile(`^[^\s#]`)
	// nestedKeyLine matches the line of a key below another key.
	nestedKeyLine = regexp.MustCompile(`^( +)[^\s#]`)
)

// setNetboot returns the text of a configuration after it has put the settings into its section netboot. A line that
// sets the key of a setting, or is commented out, is replaced. Without such a line, the setting becomes the first line
// of the section. changed holds the removed lines, prefixed with -, and the added ones, prefixed with +.
func setNetboot(text string, settings []setting) (out string, changed []string, err error) {
	list := strings.Split(strings.TrimRight(text, "\n"), "\n")
	at := slices.IndexFunc(list, netbootLine.MatchString)
	if at < 0 {
		if slices.ContainsFunc(list, func(l string) bool { return strings.HasPrefix(l, "netboot:") }) {
			return "", nil, errors.New("the value of netboot: is on the same line")
		}
		list = append(list, "netboot:")
		at, changed = len(list)-1, []string{"+netboot:"}
	}

	for _, s := range settings {
		end, indent, found := at+1, "  ", false // use the indent of the first key below netboot:
		for ; end < len(list) && !anyKeyLine.MatchString(list[end]); end++ {
			if m := nestedKeyLine.FindStringSubmatch(list[end]); m != nil && !found {
				indent, found = m[1], true
			}
		}
		line := indent + s.key + ": " + s.value
		key := regexp.MustCompile(`^[ \t]+` + s.key + `:(.*)$`)
		comment := regexp.MustCompile(`^[ \t]+#[ \t]?` + s.key + `:`)
		find := func(r *regexp.Regexp) int {
			for n := at + 1; n < end; n++ {
				if r.MatchString(list[n]) {
					return n
				}
			}
			return -1
		}
		switch n := find(key); {
		case n >= 0 && strings.TrimSpace(key.FindStringSubmatch(list[n])[1]) == "":
			return "", nil, fmt.Errorf("the value of %s: is on several lines", s.key)
		case n >= 0:
			changed = append(changed, "-"+list[n], "+"+line)
			list[n] = line
		default:
			if n := find(comment); n >= 0 {
				changed = append(changed, "-"+list[n], "+"+line)
				list[n] = line
				continue
			}
			changed = append(changed, "+"+line)
			list = slices.Insert(list, at+1, line)
		}
	}
	return strings.Join(list, "\n") + "\n", changed, nil
}

// keepOwner gives file the owner and the group in the file info called of.
func keepOwner(file string, of os.FileInfo) error {
	st, ok := of.Sys().(*syscall.Stat_t)
	if !ok {
		return nil
	}
	return os.Chown(file, int(st.Uid), int(st.Gid))
}
