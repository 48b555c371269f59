package activities

import (
	"context"

	"go.temporal.io/sdk/interceptor"
)

// The worker's interceptors see each attempt of each activity, also of local activities.

// around returns an interceptor that calls attempt for each attempt of an activity. attempt gets a function do,
// which executes the activity by calling next.
func around(next interceptor.ActivityInboundInterceptor,
	attempt func(ctx context.Context, do func() (any, error)) (any, error),
) interceptor.ActivityInboundInterceptor {
	return &inbound{interceptor.ActivityInboundInterceptorBase{Next: next}, attempt}
}

type inbound struct {
	interceptor.ActivityInboundInterceptorBase
	attempt func(ctx context.Context, do func() (any, error)) (any, error)
}

// ExecuteActivity calls i.attempt.
func (i *inbound) ExecuteActivity(ctx context.Context, in *interceptor.ExecuteActivityInput) (any, error) {
	return i.attempt(ctx, func() (any, error) { return i.Next.ExecuteActivity(ctx, in) })
}

// Errors is an interceptor that converts the errors of activities to the types that workflows distinguish. It must
// be the innermost interceptor, so that the other interceptors see these types.
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
