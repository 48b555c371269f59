package config

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/ingotmetal/ingot/internal/documents/strictyaml"
	"github.com/ingotmetal/ingot/inventory"
)

// Paths returns the directories of configuration and state: /etc/ingot and /var/lib/ingot for
// root without XDG_CONFIG_HOME, otherwise ingot below the user's directories. Those are the XDG directories, except that
// macOS and Windows, where only clients run, have other places for configuration.
func Paths() (etc, state string) {
	if os.Geteuid() == 0 && os.Getenv("XDG_CONFIG_HOME") == "" {
		return "/etc/ingot", "/var/lib/ingot"
	}

	etc, err := os.UserConfigDir()
	if err != nil {
		etc = ".config"
	}
	state = cmp.Or(os.Getenv("XDG_STATE_HOME"), filepath.Join(os.Getenv("HOME"), ".local/state"))
	return filepath.Join(etc, "ingot"), filepath.Join(state, "ingot")
}

// DefaultFile returns the default path of the configuration file.
func DefaultFile() string { etc, _ := Paths(); return filepath.Join(etc, "ingot.yaml") }

// Default returns the configuration of a server without a configuration file.
func Default() Config {
	etc, state := Paths()
	return Config{
		DataDir: state, KeyFile: filepath.Join(etc, "keys.json"), TokenFile: filepath.Join(etc, "token"),
		Listen:   "127.0.0.1:8080",
		Netboot:  Netboot{HTTP: []int{80, 7080}, TFTP: 69, Syslog: 514, Agent: 7443, Metadata: []int{7172}},
		Temporal: Temporal{Port: 7233, UIPort: 8233, Namespace: "default", Retention: 30 * 24 * time.Hour},
		MinFree:  1024,
		Reserve:  64,
		Records:  Records{Retention: 90 * 24 * time.Hour, Keep: 10},
		Backup:   Backup{KeepDays: 14},
		Site:     Site{Listen: ":7444"},
		Notify:   Notify{Format: inventory.NoticeStandard},
	}
}

// Schema returns the JSON Schema of the configuration file.
func Schema() strictyaml.Schema {
	port := strictyaml.Between(1, 65535)
	return strictyaml.SchemaOf[Config]("The configuration of ingot serve", strictyaml.Rules{
		"notify.format":      strictyaml.OneOf(inventory.NoticeFormats()...),
		"notify.events[]":    strictyaml.OneOf(inventory.NoticeEvents()...),
		"netboot.dhcp.*":     strictyaml.OneOf(inventory.DHCPModes()...),
		"netboot.loader":     strictyaml.OneOf(inventory.SecureLoaders()...),
		"netboot.http[]":     port,
		"netboot.tftp":       port,
		"netboot.agent":      port,
		"netboot.syslog":     strictyaml.Between(0, 65535),
		"min_free_mib":       {"minimum": 0},
		"reserve_mib":        {"minimum": 0},
		"records.keep":       {"minimum": 1},
		"backup.keep_days":   {"minimum": 1},
		"temporal.port":      port,
		"temporal.ui_port":   port,
		"netboot.metadata[]": port,

		"netboot.minimum_sbat.*": strictyaml.Between(0, 65535),
	})
}

// Load returns the defaults with the settings of file. If the file does not exist, Load returns the defaults; but if named is true, because
// the operator has named the file, Load returns an error. For an invalid file the error is an inventory.Problems with all problems.
func Load(file string, named bool) (Config, error) {
	c := Default()
	b, err := os.ReadFile(file)
	switch {
	case errors.Is(err, fs.ErrNotExist) && !named:
		return c, nil
	case err != nil:
		return c, fmt.Errorf("reading the configuration: %w", err)
	}

	var unread inventory.Problems
	if err := strictyaml.Decode(file, b, &c); err != nil && !errors.As(err, &unread) {
		return c, err
	}

	// A field that could not be read still has its default value. Leave out problems of such a field: they concern only the default.
	for _, u := range unread {
		if u.Field == "" {
			return c, unread.Err()
		}
	}

	for _, x := range strictyaml.Locate(file, b, c.check()) {
		if !slices.ContainsFunc(unread, func(u inventory.Problem) bool { return strings.HasPrefix(x.Field, u.Field) }) {
			unread = append(unread, x)
		}
	}

	slices.SortStableFunc(unread, func(a, b inventory.Problem) int { return a.Line - b.Line })
	return c, unread.Err()
}
