package bootsvc

import (
	"context"
	"fmt"
	"io"
	"net"
	"strconv"

	"github.com/ingotmetal/ingot/bootsvc/wire"
)

// Capture captures the packets of a machine on this server's interfaces and writes them to w; see wire.Capture.Run.
func (s *Server) Capture(ctx context.Context, w io.Writer, c wire.Capture) error {
	names, err := s.captureInterfaces()
	if err != nil {
		return err
	}
	return c.Run(ctx, w, names, s.bootPorts(), s.cfg.Guard)
}

// captureInterfaces returns the interfaces on which this server answers machines. For a RelayOnly server, it returns
// all Ethernet interfaces that are up.
func (s *Server) captureInterfaces() ([]string, error) {
	if !s.cfg.RelayOnly {
		return s.cfg.Interfaces, nil
	}
	all, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("listing the interfaces of this host: %w", err)
	}
	var out []string
	for _, i := range all {
		if i.Flags&net.FlagUp != 0 && i.Flags&net.FlagLoopback == 0 && len(i.HardwareAddr) == 6 {
			out = append(out, i.Name)
		}
	}
	return out, nil
}

// bootPorts returns the UDP ports of DHCP, TFTP and syslog.
func (s *Server) bootPorts() []uint16 {
	out := []uint16{67, 68, wire.ProxyPort}
	for _, addr := range []string{s.cfg.TFTPAddr, s.cfg.SyslogAddr} {
		_, port, err := net.SplitHostPort(addr)
		if n, numberErr := strconv.ParseUint(port, 10, 16); err == nil && numberErr == nil {
			out = append(out, uint16(n))
		}
	}
	return out
}
