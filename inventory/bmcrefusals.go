package inventory

import (
	"fmt"
	"time"
)

// ErrResting means that these credentials are not sent yet, because the BMC has refused them: after more refusals, it could lock the user.
var ErrResting = fmt.Errorf("credentials not tried again yet: %w", ErrRefused)

// BMCRefusals are the log-ins that a BMC has refused after the last log-in that it accepted.
type BMCRefusals struct {
	Count int
	Last  time.Time
	// Credentials are keyed digests of the credentials that the BMC refused last.
	Credentials []string
}
