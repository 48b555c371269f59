package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/internal/httpapi"
	"github.com/ingotmetal/ingot/inventory"
)

func TestSyslogOfAMachine(t *testing.T) {
	s := newSite(t)
	s.do(http.MethodPost, "/v1/machines", map[string]any{"machines": []any{map[string]any{
		"name": "n7", "interfaces": []any{map[string]any{"mac": "52:54:00:00:07:01"}},
	}}})
	var lines []inventory.SyslogLine
	for n := range 3 {
		lines = append(lines, inventory.SyslogLine{
			Machine: "n7", At: s.Clock.Now(), Severity: "info", Program: "kernel", Text: fmt.Sprint("line ", n),
		})
	}
	require.NoError(t, s.Store.Syslog.PutSyslog(t.Context(), lines))

	list := func(query string) httpapi.List[inventory.SyslogLine] {
		t.Helper()
		return decode[httpapi.List[inventory.SyslogLine]](t, s.do(http.MethodGet, "/v1/machines/n7/syslog"+query, nil), http.StatusOK)
	}
	first := list("?limit=2")
	require.Len(t, first.Items, 2)
	require.Equal(t, "line 0", first.Items[0].Text)
	rest := list("?after=" + first.Next)
	require.Len(t, rest.Items, 1)
	require.Empty(t, rest.Next)
	require.Equal(t, rest.Items, list("?sort=-seq&limit=1").Items)
	require.Equal(t, http.StatusBadRequest, s.do(http.MethodGet, "/v1/machines/n7/syslog?after=x", nil).Code)
	require.Equal(t, http.StatusNotFound, s.do(http.MethodGet, "/v1/machines/other/syslog", nil).Code)
}

func TestCaptureOfAMachine(t *testing.T) {
	s := newSite(t)
	s.do(http.MethodPost, "/v1/machines", map[string]any{"machines": []any{map[string]any{
		"name": "n7", "interfaces": []any{map[string]any{"mac": "52:54:00:00:07:01"}},
	}}})
	const path = "/v1/machines/n7/capture"
	require.Equal(t, http.StatusServiceUnavailable, s.do(http.MethodGet, path, nil).Code, "no machine is answered")

	var fail error
	var until time.Time
	s.api.machines.netboot.Capture = func(ctx context.Context, w io.Writer, m inventory.Machine, all bool) error {
		until, _ = ctx.Deadline()
		if fail != nil {
			return fail
		}
		_, err := fmt.Fprintf(w, "packets of %s, all %v", m.Name, all)
		return err
	}
	w := s.do(http.MethodGet, path+"?for=90s&all=true", nil)
	require.Equal(t, http.StatusOK, w.Code)
	require.Equal(t, "packets of n7, all true", w.Body.String())
	require.Equal(t, "application/vnd.tcpdump.pcap", w.Header().Get("Content-Type"))
	require.LessOrEqual(t, time.Until(until), 90*time.Second)
	require.Equal(t, http.StatusBadRequest, s.do(http.MethodGet, path+"?for=2h", nil).Code)
	require.Equal(t, http.StatusNotFound, s.do(http.MethodGet, "/v1/machines/other/capture", nil).Code)

	fail = fmt.Errorf("no CAP_NET_RAW: %w", inventory.ErrUnavailable)
	a := decode[answer](t, s.do(http.MethodGet, path, nil), http.StatusServiceUnavailable)
	require.Contains(t, a.Error, "CAP_NET_RAW")
	fail = nil
	for range maxCaptures {
		s.api.machines.captures <- struct{}{}
	}
	a = decode[answer](t, s.do(http.MethodGet, path, nil), http.StatusServiceUnavailable)
	require.Contains(t, a.Error, "4 captures are already running")
	<-s.api.machines.captures

	// After the first packet, an error breaks the answer off.
	s.api.machines.netboot.Capture = func(_ context.Context, w io.Writer, _ inventory.Machine, _ bool) error {
		_, err := w.Write([]byte("packets"))
		return errors.Join(err, io.ErrUnexpectedEOF)
	}
	require.PanicsWithError(t, http.ErrAbortHandler.Error(), func() { s.do(http.MethodGet, path, nil) })

	// A server that stops ends the capture.
	s.api.machines.netboot.Capture = func(ctx context.Context, _ io.Writer, _ inventory.Machine, _ bool) error {
		close(s.engine.Stopping)
		<-ctx.Done()
		return nil
	}
	require.Equal(t, http.StatusOK, s.do(http.MethodGet, path+"?for=1h", nil).Code)
}
