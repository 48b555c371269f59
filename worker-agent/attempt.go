package agent

import (
	"context"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/worker-agent/actions"
)

// attempt is the running attempt at an action.
type attempt struct {
	*actions.Report
	key    action.Key
	cancel context.CancelCauseFunc
}
