package inventory

import (
	"fmt"
	"time"
)

// ErrResting means that credentials which a BMC has refused are not sent to it again yet, so that it does not lock the user.
var ErrResting = fmt.Errorf("not tried again yet: %w", ErrRefused)

// BMCRefusals are the log-ins that a BMC has refused since it accepted one.
type BMCRefusals struct {
	Count int
	Last  time.Time
	// Credentials are keyed digests of those that it refused last.
	Credentials []string
}
