package cli

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/internal/apitypes"
	"github.com/ingotmetal/ingot/internal/client"
	"github.com/ingotmetal/ingot/internal/host/durablefile"
	"github.com/ingotmetal/ingot/inventory"
)

var fingerprintForm = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)

func loginCommand(o *Options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "login [URL]", Short: "Store a server's URL and token for later commands", Args: cobra.MaximumNArgs(1),
		Long: `Store the URL, the key's fingerprint and a token of a server for this user's later
commands. The token is read from --token-file or INGOT_TOKEN, or asked for.

For a server that uses a certificate of its own making, give --fingerprint: the server
logs the fingerprint when it starts. Without URL, print a one-time link to the web page,
as "ingot login-link" does.`,
		Example: "  ingot login https://ingot.example.com:8443 --fingerprint sha256:9f86d08…\n  ingot login --remove",
	}

	fingerprint := cmd.Flags().String("fingerprint", "", "fingerprint of the server's key, sha256:…; ingot serve logs it")
	forget := cmd.Flags().Bool("remove", false, "delete the stored server and its token")

	return o.NewCommand(cmd, func(c *Call) error {
		switch {
		case *forget:
			if err := os.Remove(c.SessionFile()); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			c.Note("no server is stored any more")
			return nil
		case len(c.Args) == 0:
			return printLoginLink(c)
		}

		return logIn(c, client.Session{
			Server: strings.TrimSuffix(c.Args[0], "/"), Fingerprint: strings.ToLower(*fingerprint),
		})
	})
}

// logIn reads the token and stores the session s, after the server has proven its key and accepted the token.
func logIn(c *Call, s client.Session) error {
	if s.Fingerprint != "" && !fingerprintForm.MatchString(s.Fingerprint) {
		return UsageError("invalid --fingerprint %q; must be sha256: and 64 hex digits", s.Fingerprint)
	}

	server, err := client.New(s)
	if err != nil {
		return err
	}

	// Check the server's key before the token is sent: this request contains no token.
	resp, err := server.Request(c.Context(), http.MethodGet, "/healthz", nil, 0)
	if err != nil {
		return err
	}
	if err := resp.Body.Close(); err != nil {
		return err
	}

	token, err := readToken(c)
	if err != nil {
		return err
	}

	s.Token = token.Reveal()
	if server, err = client.New(s); err != nil {
		return err
	}
	st, err := client.Send[apitypes.Status](c.Context(), server, http.MethodGet, client.Path("status"), nil)
	if err != nil {
		return err
	}

	who, err := client.Send[inventory.Token](c.Context(), server, http.MethodGet, client.Path("whoami"), nil)
	if err != nil {
		return err
	}

	if err := c.WriteSession(s); err != nil {
		return err
	}

	c.Note("server %s, version %s, is stored in %s with token %s (role %s)",
		s.Server, st.Value.Version, c.SessionFile(), who.Value.Name, who.Value.Role)
	return nil
}

// readToken reads the token from --token-file, from INGOT_TOKEN or from the
// terminal.
func readToken(c *Call) (inventory.Secret, error) {
	if v := os.Getenv("INGOT_TOKEN"); c.TokenFile == "" && v != "" {
		return inventory.NewSecret(v), nil
	}
	if c.TokenFile != "" {
		b, err := durablefile.ReadPrivate(c.TokenFile)
		return inventory.NewSecret(strings.TrimSpace(string(b))), err
	}

	s, err := PromptSecret(c.Command, "Token: ")
	if errors.Is(err, inventory.ErrInvalid) {
		return s, UsageError("the token is missing: give --token-file or INGOT_TOKEN")
	}

	return s, err
}

func loginLinkCommand(o *Options) *cobra.Command {
	return o.NewCommand(&cobra.Command{
		Use: "login-link", Short: "Print a one-time link to the web page", Args: cobra.NoArgs,
		Long:    "Print a link that opens Ingot's web page in a browser. The link works once, within five minutes.",
		Example: "  xdg-open \"$(ingot login-link)\"",
	}, printLoginLink)
}

func printLoginLink(c *Call) error { return c.printLink("login-links") }

// printLink makes a one-time link by a POST to this route below /v1, and prints it.
func (c *Call) printLink(route string) error {
	type loginLink struct {
		URL     string    `json:"url"`
		Expires time.Time `json:"expires"`
	}

	a, err := post[loginLink](c, client.Path(route), nil)
	if err != nil {
		return err
	}

	link, err := url.Parse(a.Value.URL)
	if err != nil {
		return fmt.Errorf("reading the link from the server: %w", err)
	}

	// A server that listens on all addresses puts 0.0.0.0 or [::] into the link. Replace it
	// by the host under which this program has just reached the server.
	if ip, err := netip.ParseAddr(link.Hostname()); err == nil && ip.IsUnspecified() {
		link.Host = c.remote.URL().Host
	}

	return c.print(c.OutOrStdout(), a.Raw, func(w io.Writer) error {
		_, err := fmt.Fprintln(w, link)
		return err
	})
}
