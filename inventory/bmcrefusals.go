package inventory

import (
	"fmt"
	"time"
)

// ErrResting means that a BMC has refused these credentials and does not get them again yet: it could lock the user.
var ErrResting = fmt.Errorf("credentials not tried again yet: %w", ErrRefused)

// BMCRefusals are the log-ins that a BMC has refused since it accepted one.
type BMCRefusals struct {
	Count int
	Last  time.Time
	// Credentials are keyed digests of the credentials that the BMC refused last.
	Credentials []string
}
