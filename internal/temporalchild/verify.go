package temporalchild

import (
	"context"
	"errors"
	"fmt"

	"go.temporal.io/api/workflowservice/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// probe asks a server for its cluster. Any answer will do, a refusal too: what counts is that somebody is there who
// answers. Only silence and a connection that cannot be made are errors.
func probe(ctx context.Context, srv Server) (err error) {
	creds, err := Credentials(srv.Identity)
	if err != nil {
		return err
	}
	conn, err := grpc.NewClient("passthrough:///"+srv.Frontend, grpc.WithTransportCredentials(creds))
	if err != nil {
		return fmt.Errorf("connecting to the Temporal server: %w", err)
	}
	defer func() { _ = conn.Close() }() // it has served its purpose
	_, err = workflowservice.NewWorkflowServiceClient(conn).GetClusterInfo(ctx, &workflowservice.GetClusterInfoRequest{})
	switch status.Code(err) {
	case codes.DeadlineExceeded, codes.Canceled, codes.Unavailable:
		return fmt.Errorf("asking the Temporal server for its cluster: %w", err)
	}
	return nil
}

// StrangerError is a Temporal server that is not the one that was expected, such as somebody's
// development server on the same port.
type StrangerError struct {
	WantID            string
	ID, Name, Version string // of the server that answered
}

// Error names both clusters.
func (e *StrangerError) Error() string {
	return fmt.Sprintf("this Temporal server is not ours: cluster id %s (name %q, version %s), want %s; "+
		"is another Temporal server on this address? Stop it, or change temporal.port", e.ID, e.Name, e.Version, e.WantID)
}

// Verify asks the Temporal server behind client for its identity and returns a *[StrangerError] when
// its cluster id is not wantClusterID. No worker may poll a server that has not been verified. With an
// SDK client c, client is c.WorkflowService().
func Verify(ctx context.Context, client workflowservice.WorkflowServiceClient, wantClusterID string) error {
	if wantClusterID == "" {
		return errors.New("verifying the Temporal server: no cluster id to compare with")
	}
	info, err := client.GetClusterInfo(ctx, &workflowservice.GetClusterInfoRequest{})
	if err != nil {
		return fmt.Errorf("asking the Temporal server for its cluster id: %w", err)
	}
	if info.GetClusterId() != wantClusterID {
		return &StrangerError{WantID: wantClusterID, ID: info.GetClusterId(), Name: info.GetClusterName(), Version: info.GetServerVersion()}
	}
	return nil
}
