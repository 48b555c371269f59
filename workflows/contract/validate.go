package contract

import (
	"fmt"
	"net/url"
	"slices"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
)

// Limits of requests.
const (
	maxRetries     = 10
	maxConcurrency = 200 // machines at a time; limits the damage that a mistyped number does
	maxTasks       = 32  // tasks in a BMC job
)

// DefaultConcurrency is how many machines a recovery installs at the same time by default.
const DefaultConcurrency = 2

// Values of Retries.From, where a retry begins.
const (
	FromFailedStep = "failed-step"
	FromStart      = "start"
)

// Power actions and boot devices, with their names in bmc.tinkerbell.org.
var (
	powerActions = []string{"on", "off", "soft", "cycle", "reset", "status"}
	bootDevices  = []string{"pxe", "http", "disk", "cdrom", "bios", "none"}
)

// Validate returns the problems of the request itself, independent of the inventory. Both the API and the workflow call it, because
// a client other than the API may have started the workflow.
func (in ProvisionInput) Validate() (ps inventory.Problems) {
	if n := in.Retries.Count; n < 0 || n > maxRetries {
		ps.Add("retries.count", fmt.Sprintf("0 to %d", maxRetries), "invalid number of retries %d", n)
	}
	requireOneOf(&ps, "retries.from", in.Retries.From, "", FromFailedStep, FromStart)
	requireOneOf(&ps, "policy", in.Policy, "", Fail, Pause)
	return ps
}

// Validate returns the problems of the request itself, see ProvisionInput.Validate.
func (in TogetherInput) Validate() inventory.Problems {
	ps := ProvisionInput{Retries: in.Retries, Policy: in.Policy}.Validate()
	if in.Template == "" {
		ps.Add("template", "ingot template list", "name a template")
	}
	return ps
}

// Validate returns the problems of the request itself, see ProvisionInput.Validate.
func (in DecommissionInput) Validate() (ps inventory.Problems) {
	requireOneOf(&ps, "wipe", in.Wipe, append([]string{""}, action.WipeModes[:]...)...)
	return ps
}

// Validate returns the problems of the request itself, see ProvisionInput.Validate.
func (in RecoverInput) Validate() (ps inventory.Problems) {
	if n := in.Concurrency; n < 0 || n > maxConcurrency {
		ps.Add("concurrency", fmt.Sprintf("0 means %d; the maximum is %d", DefaultConcurrency, maxConcurrency),
			"invalid concurrency %d", n)
	}
	if in.AbortAfter < 0 {
		ps.Add("abortAfter", "0 means never", "invalid number of machines %d", in.AbortAfter)
	}
	if in.Canary < 0 {
		ps.Add("canary", "0 means none", "invalid number of machines %d", in.Canary)
	}
	if in.Canary > 0 && len(in.Order) > 0 {
		ps.Add("canary", "leave canary out: the first group of order is installed before the other groups, too", "cannot be combined with order")
	}
	return ps
}

// Validate returns the problems of the request itself, see ProvisionInput.Validate.
func (in MigrateInput) Validate() (ps inventory.Problems) {
	if in.Target == "" {
		ps.Add("target", "ingot peer list", "name a peer")
	}
	return ps
}

// Validate returns the problems of the request itself, see ProvisionInput.Validate.
func (in BMCJobInput) Validate() (ps inventory.Problems) {
	if n := len(in.Tasks); n == 0 || n > maxTasks {
		ps.Add("tasks", "", "a job must have 1 to %d tasks, but has %d", maxTasks, n)
	}

	for i, t := range in.Tasks {
		field := fmt.Sprintf("tasks[%d]", i)
		switch {
		case countGiven(t.Power != "", t.BootDevice != nil, t.Media != nil, t.RotatePassword) != 1:
			ps.Add(field, "", "exactly one of powerAction, bootDevice, virtualMedia and rotatePassword is needed")
		case t.RotatePassword:
		case t.Media != nil:
			if u, err := url.Parse(t.Media.MediaURL); err != nil || u.User != nil ||
				t.Media.MediaURL != "" && (u.Scheme != "http" && u.Scheme != "https" || u.Host == "") {
				ps.Add(field+".virtualMedia.mediaURL", "give a URL without user and password, or leave it empty to eject",
					"must be an http or https URL")
			}
		case t.Power != "":
			requireOneOf(&ps, field+".powerAction", t.Power, powerActions...)
		default:
			requireOneOf(&ps, field+".bootDevice.device", t.BootDevice.Device, bootDevices...)
		}
	}
	return ps
}

func countGiven(has ...bool) (n int) {
	for _, h := range has {
		if h {
			n++
		}
	}
	return n
}

func requireOneOf(ps *inventory.Problems, field, value string, allowed ...string) {
	if !slices.Contains(allowed, value) {
		allowed = slices.DeleteFunc(allowed, func(a string) bool { return a == "" })
		ps.Add(field, "", "invalid value %q; must be one of %v", value, allowed)
	}
}
