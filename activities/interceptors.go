package activities

import (
	"context"

	"go.temporal.io/sdk/interceptor"
)

// The interceptors of the worker see each attempt of each activity, local ones included, so
// that no activity can be left out.

// around wraps the next interceptor of an activity with a function.
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

// Errors converts the errors of activities to the types that workflows distinguish. It is
// the innermost interceptor, so the others see these types.
type Errors struct {
	interceptor.WorkerInterceptorBase
}

// InterceptActivity converts the error of each attempt.
func (*Errors) InterceptActivity(_ context.Context,
	next interceptor.ActivityInboundInterceptor,
) interceptor.ActivityInboundInterceptor {
	return around(next, func(_ context.Context, do func() (any, error)) (any, error) {
		out, err := do()
		return out, fail(err)
	})
}
