package main

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/handover"
	"github.com/ingotmetal/ingot/inventory"
)

// standbyToken is the file of the token that is made for the source.
func standbyToken(cfg config.Config) string {
	return filepath.Join(filepath.Dir(cfg.KeyFile), "standby.token")
}

func standbyCmd(o *options) *cobra.Command {
	var name string
	c := &cobra.Command{
		Use: "standby", Short: "Make this host one to which a site can be moved", Args: cobra.NoArgs,
		Long: `Make this host one to which a site can be moved: in an empty data directory it
makes the key by which the source knows this server, the admin token, and a
token that is good for one source. "ingot serve" then stands by: no DHCP, no
workflows, no power; it answers its source alone (site.listen, TLS).

Where a standby was made already, it says so and changes nothing, so that it may
be run before each start; one with another token in its place awaits another
source, once "ingot serve" is stopped. A token or key that lies in its place is taken:
"ingot standby files" makes them elsewhere, for a Kubernetes Secret.`,
		Example: "  ingot standby && ingot serve\n  ingot peer add um760 https://10.10.20.5:7444 --fingerprint sha256:… --peer-token-file standby.token   # at the source",
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := config.Load(o.config, cmd.Flags().Changed("config"))
			if err != nil {
				return err
			}
			return makeStandby(cmd, cfg, name)
		},
	}
	c.Flags().StringVar(&name, "name", "", "this server among its peers (default: site.name, then the host's name)")
	c.AddCommand(&cobra.Command{
		Use: "files DIR", Short: "Make the key and the token of a standby elsewhere", Args: cobra.ExactArgs(1),
		Long: `Make site.pem (the key by which the source knows the standby) and standby.token
in DIR. Put them beside the key_file of the standby, from a Kubernetes Secret for
example, before "ingot standby" is run there.`,
		Example: "  ingot standby files ./secret",
		RunE: func(cmd *cobra.Command, args []string) error {
			cert, err := loadOrMakeCert(filepath.Join(args[0], "site.pem"))
			if err != nil {
				return err
			}
			if _, err := loadOrMakeToken(filepath.Join(args[0], "standby.token")); err != nil {
				return err
			}
			print, err := pin(cert)
			if err != nil {
				return err
			}
			cmd.Printf("wrote %s and %s\nfingerprint: %s\n", filepath.Join(args[0], "site.pem"), filepath.Join(args[0], "standby.token"), print)
			return nil
		},
	})
	return c
}

// loadOrMakeToken returns the token in a file, which is made when it is missing.
func loadOrMakeToken(file string) (string, error) {
	var raw [32]byte
	_, _ = rand.Read(raw[:]) // never returns an error: it ends the program instead
	err := writePrivate(file, []byte(hex.EncodeToString(raw[:])+"\n"))
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	token := strings.TrimSpace(string(b))
	if len(token) < 32 {
		return "", fmt.Errorf("the token in %q is shorter than 32 characters: %w", file, inventory.ErrInvalid)
	}
	return token, nil
}

func makeStandby(cmd *cobra.Command, cfg config.Config, name string) error {
	f, err := handover.Open(cfg.DataDir)
	if err != nil {
		return err
	}
	if s := f.Site(); s.Source != nil {
		given, err := another(cfg, s)
		if err != nil {
			return err
		}
		if given != "" {
			// It has read the file of before, and would write it over this change.
			if ctx := cmd.Context(); answers(ctx, cfg) {
				return fmt.Errorf("the token in its place is another, and a server answers at %s: stop ingot serve first: %w", cfg.Listen, inventory.ErrConflict)
			}
			if s, err = awaitSource(f, given); err != nil {
				return err
			}
			cmd.Printf("this server was made a standby already; it has another token now, for another source\n")
			return printStandby(cmd, cfg, s)
		}
		cmd.Printf("this server was made a standby already, and is %s now; nothing was changed\n", s.Role)
		if s.Role != handover.Standby {
			return nil
		}
		return printStandby(cmd, cfg, s)
	}
	for _, file := range []string{filepath.Join(cfg.DataDir, "ingot.db"), filepath.Join(cfg.DataDir, "temporal"), filepath.Join(cfg.DataDir, handover.FileName), cfg.KeyFile} {
		if there, err := exists(file); err != nil {
			return err
		} else if there {
			return fmt.Errorf("%s is there: this host is a site, or was one; move it away, or name another data_dir and key_file: %w", file, inventory.ErrConflict)
		}
	}
	if err := os.MkdirAll(cfg.ImageDir(), 0o750); err != nil {
		return err
	}
	if _, err := loadOrMakeCert(sitePEM(cfg)); err != nil {
		return err
	}
	if err := makeAdminToken(cfg); err != nil {
		return err
	}
	token, err := loadOrMakeToken(standbyToken(cfg))
	if err != nil {
		return err
	}
	h := host{cfg: cfg}
	s, err := f.Change(func(s *handover.Site) error {
		s.Name = name
		s.Name = h.name(*s)
		s.Role, s.Source = handover.Standby, &handover.Giver{TokenSHA256: hexSum(token)}
		s.Why = "made a standby on " + time.Now().UTC().Format(time.RFC3339)
		return nil
	})
	if err != nil {
		return err
	}
	return printStandby(cmd, cfg, s)
}

// another returns the token that lies in the place of a standby's, if it is
// another than that by which the standby knows its source: who takes a standby
// away and makes it anew, as a Genesis whose migration was undone does, leaves
// its data directory there.
func another(cfg config.Config, s handover.Site) (string, error) {
	if s.Role != handover.Standby {
		return "", nil
	}
	there, err := exists(standbyToken(cfg))
	if err != nil || !there {
		return "", err
	}
	token, err := loadOrMakeToken(standbyToken(cfg))
	if err != nil || hexSum(token) == s.Source.TokenSHA256 {
		return "", err
	}
	return token, nil
}

// awaitSource makes a standby one of whoever comes with the token first. One
// that holds a site that is ready belongs to who has sent it.
func awaitSource(f *handover.File, token string) (handover.Site, error) {
	return f.Change(func(s *handover.Site) error {
		if s.Role != handover.Standby || s.Prepared != nil {
			return fmt.Errorf("the token in its place is another, and this standby holds the site of %q ready: put the token back, or let that hand-over end: %w", s.Source.Name, inventory.ErrConflict)
		}
		s.Source = &handover.Giver{TokenSHA256: hexSum(token)}
		return nil
	})
}

func printStandby(cmd *cobra.Command, cfg config.Config, s handover.Site) error {
	cert, err := loadOrMakeCert(sitePEM(cfg))
	if err != nil {
		return err
	}
	print, err := pin(cert)
	if err != nil {
		return err
	}
	cmd.Printf("name:        %s\nURL:         %s\nfingerprint: %s\ntoken:       in %s\n", s.Name, peerURL(cfg), print, standbyToken(cfg))
	cmd.Printf("next: ingot serve; and at the source, with a copy of the token: ingot peer add %s %s --fingerprint %s --peer-token-file FILE\n", s.Name, peerURL(cfg), print)
	return nil
}
