package metadatasvc

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
)

// panicking is an inventory whose look-ups panic.
type panicking struct{ Machines }

func (panicking) MachineByAddress(context.Context, netip.Addr) (inventory.Machine, inventory.Grant, error) {
	panic("a test's")
}

// TestNoRequestEndsTheProcess: a panic ends only the connection of its request, and is
// counted (security S35).
func TestNoRequestEndsTheProcess(t *testing.T) {
	s, _, _ := newServer(t)
	s.machines = panicking{s.machines}
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.serve(ctx, l) }()
	for n := range 3 {
		res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Get("http://" + l.Addr().String() + "/latest/meta-data/")
		if err == nil {
			_ = res.Body.Close()
		}
		require.Error(t, err)
		require.EqualValues(t, n+1, s.cfg.Guard.Panics())
	}
	require.False(t, s.isAwaited(t.Context(), netip.MustParseAddr("127.0.0.1")), "asked while a connection is accepted")
	require.EqualValues(t, 4, s.cfg.Guard.Panics())
	cancel()
	require.NoError(t, <-done)
}
