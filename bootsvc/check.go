package bootsvc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"syscall"
	"time"

	pin "github.com/pin/tftp/v3"

	"github.com/ingotmetal/ingot/bootsvc/neighbours"
	"github.com/ingotmetal/ingot/bootsvc/tftp"
	"github.com/ingotmetal/ingot/internal/netserve/httpserve"
	"github.com/ingotmetal/ingot/inventory"
)

// CheckClient sends the requests that firmware sends when it boots from the network. It returns an error if this server
// does not answer, if another Ingot server answers too, or if the script that the answer names is not served by HTTP
// and TFTP. notes list the other DHCP servers that have answered, and what could not be checked.
//
// On each interface, CheckClient broadcasts a DISCOVER, which reaches every DHCP server and relay on that network. A
// RelayOnly server has no interface. For such a server, CheckClient sends a DISCOVER only to the server's own port 67,
// as a relay would, and cannot find other servers.
func (s *Server) CheckClient(ctx context.Context) (notes []string, err error) {
	if s.cfg.Listen.IsValid() {
		return []string{"DHCP and boot files not tested as a client: " + s.cfg.Address.String() +
			" is not an address of this host; test from another host"}, nil
	}
	where := s.cfg.Interfaces
	if s.cfg.RelayOnly {
		where = []string{""}
	}
	for _, name := range where {
		if s.cfg.modeOn(name) == inventory.DHCPOff {
			notes = append(notes, "DHCP was not tested on "+name+": another server answers there (netboot.dhcp)")
			continue
		}
		at := "on " + name
		if name == "" {
			at = "as a relay"
		}
		found, err := s.checker.Ask(ctx, name)
		if errors.Is(err, syscall.EADDRINUSE) {
			notes = append(notes, "DHCP was not tested "+at+": another program uses UDP port 68")
			continue
		}
		if err != nil {
			return notes, fmt.Errorf("testing DHCP %s: %w", at, err)
		}
		others, err := found.Judge(at)
		if err != nil {
			return notes, err
		}
		notes = append(append(notes, fmt.Sprintf("a test DISCOVER %s is answered by %s and by no other server of Ingot", at,
			s.cfg.Address)), others...)
	}
	if err := s.fetchCheck(ctx); err != nil {
		return notes, err
	}
	return append(notes, "a client's boot script is served by HTTP and TFTP"), nil
}

// Answer returns nil if this server answers before ctx ends: packets are read on each DHCP port, and the boot script of a
// client is served by HTTP and TFTP.
func (s *Server) Answer(ctx context.Context) error {
	ports := s.ports.Load()
	if ports == nil {
		return fmt.Errorf("the boot services have not started: %w", inventory.ErrUnavailable)
	}
	for _, c := range *ports {
		if err := c.Answer(ctx); err != nil {
			return err
		}
	}
	if s.cfg.Listen.IsValid() {
		return nil // the address at which clients fetch files is not one of this host
	}
	return s.fetchCheck(ctx)
}

// fetchCheck fetches the script for CheckMAC by HTTP and TFTP, as a machine would.
func (s *Server) fetchCheck(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.urls.base()+neighbours.CheckPath, nil)
	if err != nil {
		return err
	}
	t := &http.Transport{DisableKeepAlives: true}
	resp, err := t.RoundTrip(req)
	var script []byte
	if err == nil {
		script, err = io.ReadAll(io.LimitReader(resp.Body, maxHTTPBody))
		err = errors.Join(err, resp.Body.Close())
	}
	if err == nil && string(script) != s.scripts.checkScript() {
		err = fmt.Errorf("the answer (%s) came from another server", resp.Status)
	}
	if err != nil {
		return fmt.Errorf("fetching a client's boot script from %s: %w: %w", req.URL, err, inventory.ErrUnreachable)
	}
	addr := httpserve.WithHost(s.cfg.TFTPAddr, s.cfg.bindAddress())
	var b bytes.Buffer
	c, err := pin.NewClient(addr)
	if err == nil {
		c.SetTimeout(tftp.Timeout)
		c.SetRetries(tftp.Retries)
		var from io.WriterTo
		if from, err = c.Receive(neighbours.CheckMAC+"/"+autoexecName, "octet"); err == nil {
			_, err = from.WriteTo(&b)
		}
	}
	if err == nil && b.String() != s.scripts.checkScript() {
		err = errors.New("the answer came from another server")
	}
	if err != nil {
		return fmt.Errorf("fetching a client's boot script by TFTP from %s: %w: %w", addr, err, inventory.ErrUnreachable)
	}
	return nil
}
