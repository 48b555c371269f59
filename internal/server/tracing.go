package server

import (
	"context"

	"go.temporal.io/sdk/client"

	"github.com/ingotmetal/ingot/internal/observe/tracing"
)

// newTracing makes what sends the traces of runs; nil without a collector.
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

// traced adds what hands traces on to the options of a client, if there is a collector.
func (t *temporal) traced(o client.Options) (client.Options, error) {
	if t.tracing == nil {
		return o, nil
	}
	i, err := t.tracing.Interceptor()
	if err != nil {
		return o, err
	}
	o.Interceptors = append(o.Interceptors, i) // the workers use it, too
	return o, nil
}
