// Package tftptest provides TFTP clients for the tests of several packages.
package tftptest

import (
	"bytes"
	"net"
	"testing"
	"time"

	"github.com/pin/tftp/v3"
)

// Dial returns a UDP socket to addr. Its reads and writes fail after 10 s, and the end of the test closes it.
func Dial(t *testing.T, addr string) net.Conn {
	t.Helper()
	var d net.Dialer
	c, err := d.DialContext(t.Context(), "udp4", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if err := c.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return c
}

// Send sends packet.
func Send(t *testing.T, c net.Conn, packet string) {
	t.Helper()
	if _, err := c.Write([]byte(packet)); err != nil {
		t.Fatal(err)
	}
}

// Receive returns the next packet.
func Receive(t *testing.T, c net.Conn) string {
	t.Helper()
	b := make([]byte, 2048)
	n, err := c.Read(b)
	if err != nil {
		t.Fatal(err)
	}
	return string(b[:n])
}

// Get fetches a file with a TFTP client that is not Ingot's own code.
func Get(t *testing.T, addr, name string) (string, error) {
	t.Helper()
	c, err := tftp.NewClient(addr)
	if err != nil {
		t.Fatal(err)
	}
	c.SetTimeout(time.Second)
	c.SetBlockSize(1428)
	w, err := c.Receive(name, "octet")
	if err != nil {
		return "", err
	}
	var b bytes.Buffer
	_, err = w.WriteTo(&b)
	return b.String(), err
}
