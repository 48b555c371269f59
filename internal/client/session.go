package client

import (
	"cmp"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/ingotmetal/ingot/internal/secrets/keypin"

	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/documents/strictyaml"
	"github.com/ingotmetal/ingot/internal/host/durablefile"
	"github.com/ingotmetal/ingot/internal/host/hostnet"
	"github.com/ingotmetal/ingot/internal/text/human"
)

// Lookup holds the flags of a command that select the server and the token. All but ConfigFile may
// be empty.
type Lookup struct {
	ServerURL, TokenFile string
	ConfigFile           string // the configuration of this host's server; the session file is in the same directory
}

// SessionFile returns the path of the session file, next to ConfigFile.
func (l *Lookup) SessionFile() string {
	return filepath.Join(filepath.Dir(l.ConfigFile), "login.json")
}

// readSession reads the session file. If there is none, it returns the zero Session.
func (l *Lookup) readSession() (Session, error) {
	var s Session
	b, err := durablefile.ReadPrivate(l.SessionFile())
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err == nil {
		err = strictyaml.Decode(l.SessionFile(), b, &s)
	}
	if err != nil {
		return s, fmt.Errorf("reading the stored log-in: %w", err)
	}

	return s, nil
}

// WriteSession writes s to the session file, which only its owner can read.
func (l *Lookup) WriteSession(s Session) error {
	if err := os.MkdirAll(filepath.Dir(l.SessionFile()), 0o750); err != nil {
		return err
	}
	return durablefile.ReplaceJSON(l.SessionFile(), s)
}

// FindServer returns a client for a server. It looks for the server's URL in the flags, in
// INGOT_SERVER, in the session and in this host's configuration, in this order. A stored token is sent
// only to the server that it belongs to; a token from a flag or from INGOT_TOKEN is sent to any server.
func (l *Lookup) FindServer() (*Client, error) {
	login, err := l.readSession()
	if err != nil {
		return nil, err
	}

	given := cmp.Or(l.ServerURL, os.Getenv("INGOT_SERVER"))
	var local config.Config
	var isLocal bool
	s := Session{Server: given}
	switch {
	case given == "" && login.Server == "":
		if local, err = config.Load(l.ConfigFile, false); err != nil {
			return nil, err
		}
		isLocal, s = true, Session{Server: hostnet.LocalURL(local)}
	case given == "" || given == login.Server:
		s = login
	default:
		// The given URL may be the address of this host's own server.
		local, err = config.Load(l.ConfigFile, false)
		isLocal = err == nil && strings.TrimSuffix(given, "/") == hostnet.LocalURL(local)
	}

	if s.Token, err = l.findToken(s.Token, isLocal, local.TokenFile); err != nil {
		return nil, err
	}
	if isLocal && !config.Loopback(local.Listen) && local.TLSCert == "" {
		if s.Fingerprint, err = localFingerprint(local); err != nil {
			return nil, err
		}
	}

	return New(s)
}

// findToken returns the token from the first of these sources that exists: --token-file, INGOT_TOKEN, stored (the token
// of the session) and, if the server is this host's own, localFile.
func (l *Lookup) findToken(stored string, isLocal bool, localFile string) (string, error) {
	file := l.TokenFile
	switch {
	case file != "":
	case os.Getenv("INGOT_TOKEN") != "":
		return os.Getenv("INGOT_TOKEN"), nil
	case stored != "":
		return stored, nil
	case isLocal:
		file = localFile
	default:
		return "", invalid("no token for this server: give --token-file or INGOT_TOKEN, or run ingot login URL once")
	}

	b, err := durablefile.ReadPrivate(file)
	switch {
	case errors.Is(err, fs.ErrNotExist) && l.TokenFile == "":
		return "", human.Advise(
			fmt.Errorf("no token in %s, and no stored log-in: %w", file, ErrUnavailable),
			"ingot init (on the server), or: ingot login URL")
	case errors.Is(err, fs.ErrPermission):
		return "", human.Advise(
			fmt.Errorf("reading the admin token: %w", err),
			"run as the user of ingot serve, or give --token-file")
	case err != nil:
		return "", fmt.Errorf("reading the admin token: %w", err)
	}

	return strings.TrimSpace(string(b)), nil
}

// localFingerprint returns the fingerprint of the certificate that this host's server created.
func localFingerprint(c config.Config) (string, error) {
	file := filepath.Join(filepath.Dir(c.KeyFile), "operator.pem")
	b, err := os.ReadFile(file)
	if err != nil {
		return "", human.Advise(
			fmt.Errorf("reading this server's certificate: %w", err),
			"ingot login "+hostnet.LocalURL(c)+" --fingerprint sha256:…")
	}

	for block, rest := pem.Decode(b); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return "", fmt.Errorf("reading this server's certificate %q: %w", file, err)
		}
		return keypin.Of(cert), nil
	}

	return "", fmt.Errorf("reading this server's certificate %q: the file holds no certificate", file)
}
