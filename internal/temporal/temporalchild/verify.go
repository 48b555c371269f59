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

// probe asks a server to describe its cluster. It returns an error only for a time-out or a failed connection: any response, even a
// refusal, shows that the server works.
func probe(ctx context.Context, srv Server) (err error) {
	creds, err := Credentials(srv.Identity)
	if err != nil {
		return err
	}

	conn, err := grpc.NewClient("passthrough:///"+srv.Frontend, grpc.WithTransportCredentials(creds))
	if err != nil {
		return fmt.Errorf("connecting to the Temporal server: %w", err)
	}
	defer func() { _ = conn.Close() }() // an error does not matter
	_, err = workflowservice.NewWorkflowServiceClient(conn).GetClusterInfo(ctx, &workflowservice.GetClusterInfoRequest{})
	switch status.Code(err) {
	case codes.DeadlineExceeded, codes.Canceled, codes.Unavailable:
		return fmt.Errorf("reading the cluster information of the Temporal server: %w", err)
	}
	return nil
}

// Verify returns nil if the Temporal server behind client has the cluster id wantClusterID. Workers may poll only a verified server: a
// development server, for example, may use the same port, but has another id. For an SDK client c, client is c.WorkflowService().
func Verify(ctx context.Context, client workflowservice.WorkflowServiceClient, wantClusterID string) error {
	if wantClusterID == "" {
		return errors.New("verifying the Temporal server: the expected cluster id is empty")
	}

	info, err := client.GetClusterInfo(ctx, &workflowservice.GetClusterInfoRequest{})
	if err != nil {
		return fmt.Errorf("reading the cluster id of the Temporal server: %w", err)
	}

	if info.GetClusterId() != wantClusterID {
		return fmt.Errorf("this is not Ingot's Temporal server: its cluster id is %s (name %q, version %s) instead of %s; "+
			"if another Temporal server uses this address, stop that server or change temporal.port",
			info.GetClusterId(), info.GetClusterName(), info.GetServerVersion(), wantClusterID)
	}
	return nil
}
