package activities

import (
	"context"

	"go.temporal.io/sdk/interceptor"
)

// Interceptors of the worker see each attempt of each activity, local ones included,
// so that none can be forgotten.

// around makes what is next for an activity an attempt that a function carries out.
func around(next interceptor.ActivityInboundInterceptor,
	attempt func(ctx context.Context, do func() (any, error)) (any, error),
) interceptor.ActivityInboundInterceptor {
	return &inbound{interceptor.ActivityInboundInterceptorBase{Next: next}, attempt}
}

type inbound struct {
	interceptor.ActivityInboundInterceptorBase
	attempt func(ctx context.Context, do func() (any, error)) (any, error)
}

// ExecuteActivity carries out an attempt.
func (i *inbound) ExecuteActivity(ctx context.Context, in *interceptor.ExecuteActivityInput) (any, error) {
	return i.attempt(ctx, func() (any, error) { return i.Next.ExecuteActivity(ctx, in) })
}

// Errors gives the errors of activities the types that workflows tell apart. It is the
// innermost interceptor: the others see these types.
type Errors struct {
	interceptor.WorkerInterceptorBase
}

// InterceptActivity is called by the worker for each attempt.
func (*Errors) InterceptActivity(_ context.Context,
	next interceptor.ActivityInboundInterceptor,
) interceptor.ActivityInboundInterceptor {
	return around(next, func(_ context.Context, do func() (any, error)) (any, error) {
		out, err := do()
		return out, fail(err)
	})
}
