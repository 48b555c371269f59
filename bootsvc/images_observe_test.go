package bootsvc

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
)

// TestDeliveriesAreObserved: each answer to a machine that a run owns is reported, and no other.
func TestDeliveriesAreObserved(t *testing.T) {
	content := bytes.Repeat([]byte("0123456789abcdef"), 200_000) // 3.2 MB: more than one piece
	file := filepath.Join(t.TempDir(), "debian.raw")
	write(t, file, string(content))
	f := &fakeMachines{machines: []inventory.Machine{machine(func(m *inventory.Machine) {
		m.Interfaces[0].Address = netip.MustParseAddr("127.0.0.1")
	})}, grants: map[string]inventory.Grant{}}
	var seen []Delivery
	s, _ := newServer(t, f, func(c *Config) {
		c.Images = fakeImages{file, inventory.Image{Name: "debian-12.raw"}}
		c.Delivered = func(d Delivery) { seen = append(seen, d) }
	})
	done := make(chan struct{}, 1)
	h := s.Handler()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { // a real connection: sendfile and deadlines
		h.ServeHTTP(w, r)
		done <- struct{}{}
	}))
	defer srv.Close()
	ask := func(name, ranges string) int {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, srv.URL+"/images/"+name, nil)
		require.NoError(t, err)
		r.Header.Set("Range", ranges)
		res, err := srv.Client().Do(r)
		require.NoError(t, err)
		defer res.Body.Close()
		var body bytes.Buffer
		_, err = body.ReadFrom(res.Body)
		require.NoError(t, err)
		if res.StatusCode == http.StatusOK {
			require.True(t, bytes.Equal(content, body.Bytes()))
		}
		<-done
		return res.StatusCode
	}

	require.Equal(t, http.StatusOK, ask("debian-12.raw", ""))
	require.Empty(t, seen, "no run owns the machine")
	g := armed("node1")
	f.grants["node1"] = g
	require.Equal(t, http.StatusOK, ask("debian-12.raw", ""))
	require.Equal(t, http.StatusPartialContent, ask("debian-12.raw", "bytes=5-9"))
	require.Equal(t, http.StatusNotFound, ask("another", ""))
	require.Len(t, seen, 3)
	require.Equal(t, Delivery{
		Owner: g.Owner, Boot: 1, Method: http.MethodGet, Image: "debian-12.raw", Client: netip.MustParseAddr("127.0.0.1"),
		Status: http.StatusOK, Bytes: int64(len(content)), Began: testNow, Ended: testNow,
	}, seen[0])
	require.EqualValues(t, 5, seen[1].Bytes)
	require.Equal(t, http.StatusNotFound, seen[2].Status)
}

// A client that reads quickly gets pieces of up to 4 MiB, so that they cost little, and a minute for each MiB: it may become slow
// within a piece, because others boot. A slow one gets pieces of 1 MiB, so that it is soon noticed when it stops reading.
func TestPiecesFitTheClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &pieceWriter{took: []time.Duration{5: time.Second, 9: time.Second}}
		stream := newStreamWriter(w)
		require.Same(t, stream, newStreamWriter(stream), "its pieces are not cut again")
		n, err := stream.ReadFrom(io.LimitReader(zeros{}, 32<<20+1))
		require.NoError(t, err)
		require.EqualValues(t, 32<<20+1, n)
		require.Equal(t, []int64{1, 2, 4, 4, 4, 4, 1, 2, 4, 4, 1, 1}, w.pieces)
		require.Equal(t, []float64{1, 2, 4, 4, 4, 4, 1, 2, 4, 4, 1, 2}, w.minutes)
	})
}

// pieceWriter notes the sizes of pieces, in MiB, and their deadlines, and takes a time for each.
type pieceWriter struct {
	http.ResponseWriter
	took    []time.Duration
	pieces  []int64
	minutes []float64
}

func (w *pieceWriter) SetWriteDeadline(t time.Time) error {
	w.minutes = append(w.minutes, time.Until(t).Minutes())
	return nil
}

func (w *pieceWriter) ReadFrom(r io.Reader) (int64, error) {
	n, err := io.Copy(io.Discard, r)
	if w.pieces = append(w.pieces, n>>20); len(w.pieces) <= len(w.took) {
		time.Sleep(w.took[len(w.pieces)-1]) // of the bubble
	}
	return n, err
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { return len(b), nil }
