package genesis

import (
	"time"
)

// Kinds of steps, in the order in which they come. A step's name is its kind;
// that of a join is JoinStep and the machine's name.
const (
	StepPreflight  = "preflight"
	StepRouter     = "router"
	StepRelay      = "relay"
	StepPlatform   = "platform"
	StepKubernetes = "kubernetes"
	StepMigrate    = "migrate"
	StepCreate     = "create"
	StepVIP        = "vip"
	StepJoin       = "join"
	StepProven     = "proven"
)

// A Step is one row of the table: what is done, to what, and when it is done.
// All of it can be read aloud.
type Step struct {
	Name string `json:"name"`
	Kind string `json:"kind"`
	// Machine that is worked on, "" when it is the server itself.
	Machine string `json:"machine,omitempty"`
	Does    string `json:"does"` // one sentence
	// Disk that is overwritten, as a selector; "" when none is.
	Disk     string      `json:"disk,omitempty"`
	Images   []StepImage `json:"images,omitempty"`
	Template string      `json:"template,omitempty"`
	// Waits says whom the step may wait for: a person, or the BMC.
	Waits  string        `json:"waits,omitempty"`
	Ready  string        `json:"ready"` // the probe that ends it
	Budget time.Duration `json:"budget"`
	// Undo says how its effect is taken back, or "none: " and why there is no way.
	Undo string `json:"undo"`
}

// A StepImage is an image with the digest that it must have.
type StepImage struct {
	Name   string `json:"name"`
	SHA256 string `json:"sha256"`
}

// Writes tells whether the step overwrites a disk.
func (s Step) Writes() bool { return s.Disk != "" }
