package server

import (
	"context"

	"go.temporal.io/sdk/client"

	"github.com/ingotmetal/ingot/internal/observe/tracing"
)

// newTracing returns the sender of traces, or nil if no collector is configured.
func (s *server) newTracing(ctx context.Context) (*tracing.Tracing, error) {
	c := s.cfg.Tracing
	if c.Endpoint == "" {
		return nil, nil
	}
	store := s.records.store
	return tracing.New(ctx, tracing.Config{
		Endpoint: c.Endpoint, HeadersFile: c.HeadersFile, CAFile: c.TLSCA, Server: s.host.ServerName(), Version: s.Version,
		Store: tracedStore{store.Traces, store.Changes, store.Workflows}, Log: s.log.With("part", "tracing"),
	})
}

// traced adds to o the interceptor that propagates traces, if a collector is configured.
func (t *temporal) traced(o client.Options) (client.Options, error) {
	if t.tracing == nil {
		return o, nil
	}
	i, err := t.tracing.Interceptor()
	if err != nil {
		return o, err
	}
	o.Interceptors = append(o.Interceptors, i) // the client's workers use the interceptor, too
	return o, nil
}
