package temporalserver

import (
	"context"
	"errors"
	"fmt"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	namespacepb "go.temporal.io/api/namespace/v1"
	"go.temporal.io/api/operatorservice/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/api/workflowservice/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ingotmetal/ingot/internal/host/clock"
	"github.com/ingotmetal/ingot/internal/temporal/temporalchild"
)

// settleTime is the time limit of settle.
const settleTime = 30 * time.Second

// settle waits until the frontend answers with the identity of this cluster. It then updates the namespace, because
// createNamespace does not change an existing one.
func (e *embedded) settle(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, settleTime)
	defer cancel()
	creds, err := temporalchild.Credentials(e.cfg.Identity)
	if err != nil {
		return err
	}

	conn, err := grpc.NewClient(hostPort(e.cfg.Host, e.cfg.Ports.Frontend),
		grpc.WithTransportCredentials(creds),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)),
		grpc.WithUnaryInterceptor(typedErrors))
	if err != nil {
		return fmt.Errorf("connecting to the frontend: %w", err)
	}
	defer func() { _ = conn.Close() }() // an error does not matter
	frontend, operator := workflowservice.NewWorkflowServiceClient(conn), operatorservice.NewOperatorServiceClient(conn)
	for _, step := range []func(context.Context) error{
		func(ctx context.Context) error { return temporalchild.Verify(ctx, frontend, e.id.ClusterID) },
		func(ctx context.Context) error { return e.setRetention(ctx, frontend) },
		func(ctx context.Context) error { return e.addSearchAttributes(ctx, operator) },
	} {
		if err := untilAvailable(ctx, step); err != nil {
			return err
		}
	}
	return nil
}

// typedErrors makes the client return the error types of the Temporal API instead of gRPC statuses.
func typedErrors(
	ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker,
	opts ...grpc.CallOption,
) error {
	return serviceerror.FromStatus(serviceerror.ToStatus(invoke(ctx, method, req, reply, cc, opts...)))
}

// untilAvailable repeats step as long as isUnavailable is true for its error, because the parts of the server are still connecting to each
// other.
func untilAvailable(ctx context.Context, step func(context.Context) error) error {
	for {
		err := step(ctx)
		if err == nil || !isUnavailable(err) {
			return err
		}
		if clock.Sleep(ctx, 20*time.Millisecond) != nil {
			return err
		}
	}
}

func (e *embedded) setRetention(ctx context.Context, frontend workflowservice.WorkflowServiceClient) error {
	cfg := e.cfg
	ns, err := frontend.DescribeNamespace(ctx, &workflowservice.DescribeNamespaceRequest{Namespace: cfg.Namespace})
	if err != nil {
		return fmt.Errorf("describing namespace %q: %w", cfg.Namespace, err)
	}

	if ns.GetConfig().GetWorkflowExecutionRetentionTtl().AsDuration() == cfg.Retention {
		return nil
	}
	_, err = frontend.UpdateNamespace(ctx, &workflowservice.UpdateNamespaceRequest{
		Namespace: cfg.Namespace,
		Config:    &namespacepb.NamespaceConfig{WorkflowExecutionRetentionTtl: durationpb.New(cfg.Retention)},
	})
	if err != nil {
		return fmt.Errorf("setting the retention of namespace %q: %w", cfg.Namespace, err)
	}
	return nil
}

func (e *embedded) addSearchAttributes(ctx context.Context, operator operatorservice.OperatorServiceClient) error {
	cfg := e.cfg
	have, err := operator.ListSearchAttributes(ctx, &operatorservice.ListSearchAttributesRequest{Namespace: cfg.Namespace})
	if err != nil {
		return fmt.Errorf("listing the search attributes of namespace %q: %w", cfg.Namespace, err)
	}

	missing := map[string]enumspb.IndexedValueType{}
	for _, name := range cfg.SearchAttributes {
		switch t, ok := have.GetCustomAttributes()[name]; {
		case !ok:
			missing[name] = enumspb.INDEXED_VALUE_TYPE_KEYWORD
		case t != enumspb.INDEXED_VALUE_TYPE_KEYWORD:
			return &temporalchild.Failure{
				Message: fmt.Sprintf("search attribute %q of namespace %q is of type %s, not Keyword", name, cfg.Namespace, t),
				Remedy: fmt.Sprintf("remove the search attribute: temporal operator search-attribute remove --namespace %s --name %s",
					cfg.Namespace, name),
			}
		}
	}

	if len(missing) == 0 {
		return nil
	}
	// The setting stays while this server runs, because all its parts have cached the namespace without these attributes.
	e.settings.OverrideValue(refreshAttributes, true)
	_, err = operator.AddSearchAttributes(ctx,
		&operatorservice.AddSearchAttributesRequest{Namespace: cfg.Namespace, SearchAttributes: missing})
	if err != nil {
		return fmt.Errorf("adding search attributes to namespace %q: %w", cfg.Namespace, err)
	}
	return nil
}

// isUnavailable reports whether an error means that the server is still starting.
func isUnavailable(err error) bool {
	var unavailable *serviceerror.Unavailable
	var notFound *serviceerror.NamespaceNotFound
	return errors.As(err, &unavailable) || errors.As(err, &notFound)
}
