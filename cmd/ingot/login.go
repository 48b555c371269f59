package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"net/url"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/api"
	"github.com/ingotmetal/ingot/internal/identity"
	"github.com/ingotmetal/ingot/inventory"
)

var fingerprintForm = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)

func loginCmd(o *options) *cobra.Command {
	var fingerprint string
	var remove bool
	c := &cobra.Command{
		Use: "login [URL]", Short: "Remember a server for this user's commands", Args: cobra.MaximumNArgs(1),
		Long: `Remember a server, its key and its admin token for this user's commands. The
token is read from --token-file or INGOT_TOKEN, or asked for.

A server with a certificate of its own making is pinned by the fingerprint that
it logs when it starts. Without a URL: print a one-time link to the page, like
"ingot login-link".`,
		Example: "  ingot login https://ingot.example.com:8443 --fingerprint sha256:9f86d08…\n  ingot login --remove",
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case remove:
				if err := os.Remove(o.sessionFile()); err != nil && !errors.Is(err, fs.ErrNotExist) {
					return err
				}
				say(cmd, "no server is remembered any more")
				return nil
			case len(args) == 0:
				return o.loginLink(cmd)
			}
			fingerprint = strings.ToLower(fingerprint)
			if fingerprint != "" && !fingerprintForm.MatchString(fingerprint) {
				return usage("--fingerprint %q is not sha256: and 64 hex digits", fingerprint)
			}
			s := session{Server: strings.TrimSuffix(args[0], "/"), Fingerprint: fingerprint}
			c, err := dial(s)
			if err != nil {
				return err
			}
			// The server proves itself before it is told the token.
			resp, err := c.request(cmd.Context(), "GET", "/healthz", nil, 0)
			if err != nil {
				return err
			}
			if err := resp.Body.Close(); err != nil {
				return err
			}
			token, err := o.askToken(cmd)
			if err != nil {
				return err
			}
			s.Token, c.token = token.Reveal(), token.Reveal()
			st, err := ask[api.Status](cmd.Context(), c, "GET", path("status"), nil)
			if err != nil {
				return err
			}
			if err := o.remember(s); err != nil {
				return err
			}
			say(cmd, "%s, version %s, is remembered in %s", s.Server, st.v.Version, o.sessionFile())
			return nil
		},
	}
	c.Flags().StringVar(&fingerprint, "fingerprint", "", "sha256:… of the server's key, as ingot serve logs it")
	c.Flags().BoolVar(&remove, "remove", false, "forget the server")
	return c
}

func (o *options) askToken(cmd *cobra.Command) (inventory.Secret, error) {
	if v := os.Getenv("INGOT_TOKEN"); o.tokenFile == "" && v != "" {
		return inventory.NewSecret(v), nil
	}
	if o.tokenFile != "" {
		b, err := os.ReadFile(o.tokenFile)
		return inventory.NewSecret(strings.TrimSpace(string(b))), err
	}
	s, err := promptSecret(cmd, "Admin token: ")
	if errors.Is(err, inventory.ErrInvalid) {
		return s, usage("the admin token is missing: give --token-file or INGOT_TOKEN")
	}
	return s, err
}

// remember stores s where only its user reads it.
func (o *options) remember(s session) error {
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	file := o.sessionFile()
	if err := identity.WritePrivate(file+".new", append(b, '\n')); err != nil {
		if !errors.Is(err, fs.ErrExist) {
			return err
		}
		// Left behind by a log-in that was killed.
		if err := errors.Join(os.Remove(file+".new"), identity.WritePrivate(file+".new", append(b, '\n'))); err != nil {
			return err
		}
	}
	return os.Rename(file+".new", file)
}

func loginLinkCmd(o *options) *cobra.Command {
	return &cobra.Command{
		Use: "login-link", Short: "Print a one-time link to the page", Args: cobra.NoArgs,
		Long:    "Print a link that opens the page in a browser, once and within five minutes.",
		Example: "  xdg-open \"$(ingot login-link)\"",
		RunE:    func(cmd *cobra.Command, _ []string) error { return o.loginLink(cmd) },
	}
}

func (o *options) loginLink(cmd *cobra.Command) error {
	c, err := o.client()
	if err != nil {
		return err
	}
	a, err := ask[struct {
		URL     string    `json:"url"`
		Expires time.Time `json:"expires"`
	}](cmd.Context(), c, "POST", path("login-links"), nil)
	if err != nil {
		return err
	}
	link, err := url.Parse(a.v.URL)
	if err != nil {
		return fmt.Errorf("reading the answer: %w", err)
	}
	// A server that listens everywhere does not know by which name it is
	// reached; this program has just reached it.
	if ip, err := netip.ParseAddr(link.Hostname()); err == nil && ip.IsUnspecified() {
		link.Host = c.base.Host
	}
	return o.print(cmd.OutOrStdout(), a.raw, func(w io.Writer) error {
		_, err := fmt.Fprintln(w, link)
		return err
	})
}
