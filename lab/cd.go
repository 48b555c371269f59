package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
)

var _ Drive = (*Machine)(nil)

// InsertCD fetches an image over the network of the BMCs, like most controllers in parts (Range), and
// puts it into the machine's virtual drive from the next power-on.
func (m *Machine) InsertCD(ctx context.Context, url string) error {
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			return m.lab.DialContext(ctx, BMCs, network, address)
		},
	}}
	f, err := os.Create(m.path("cd.iso"))
	if err != nil {
		return err
	}
	err = fetchParts(ctx, &client, url, f)
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("inserting %s into %q: %w", url, m.spec.Name, err)
	}
	m.state.Lock()
	m.cd = f.Name()
	m.state.Unlock()
	return nil
}

// fetchParts writes the file at url to w, in requests of 1 MiB.
func fetchParts(ctx context.Context, client *http.Client, url string, w io.Writer) error {
	const part = 1 << 20
	for at := int64(0); ; {
		q, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
		if err != nil {
			return err
		}
		q.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", at, at+part-1))
		res, err := client.Do(q)
		if err != nil {
			return err
		}
		n, err := io.Copy(w, io.LimitReader(res.Body, part))
		if err = errors.Join(err, res.Body.Close()); err != nil {
			return err
		}
		switch at += n; {
		case res.StatusCode == http.StatusRequestedRangeNotSatisfiable && at > 0:
			return nil
		case res.StatusCode != http.StatusPartialContent:
			return fmt.Errorf("HTTP %d instead of a part", res.StatusCode)
		case n < part:
			return nil
		}
	}
}

// EjectCD removes the image from the virtual drive.
func (m *Machine) EjectCD(ctx context.Context) error {
	m.state.Lock()
	q, had := m.qmp, m.cd != ""
	m.cd = ""
	m.state.Unlock()
	if had && m.sim == nil && m.running() != nil {
		// Fails if the image was inserted after the power-on.
		_, _ = q.call(ctx, "eject", map[string]any{"id": cdDevice, "force": true})
	}
	return nil
}

// CD returns whether an image is in the virtual drive.
func (m *Machine) CD() bool {
	m.state.Lock()
	defer m.state.Unlock()
	return m.cd != ""
}
