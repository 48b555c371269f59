package doctor

import (
	"context"
	"fmt"

	"github.com/ingotmetal/ingot/bootsvc/neighbours"
	"github.com/ingotmetal/ingot/internal/apitypes"
	"github.com/ingotmetal/ingot/internal/client"
	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/host/hostnet"
)

// A check is a function that returns findings, with two texts for them. name becomes the What of each finding. remedy
// becomes the Remedy of each finding that is not ok and has no remedy of its own.
type check struct {
	name, remedy string
	run          func(ctx context.Context, d *host) []Finding
}

// A Finding is one line in the report of "ingot doctor".
type Finding struct {
	State  string `json:"state"` // ok | warn | fail
	What   string `json:"what"`
	Text   string `json:"text"`
	Remedy string `json:"remedy,omitempty"`
}

// States of a finding. Only StateFail makes "ingot doctor" fail.
const (
	StateOK   = "ok"
	StateWarn = "warn"
	StateFail = "fail"
)

func ok(format string, args ...any) Finding {
	return Finding{State: StateOK, Text: fmt.Sprintf(format, args...)}
}

func warn(format string, args ...any) Finding {
	return Finding{State: StateWarn, Text: fmt.Sprintf(format, args...)}
}

func fail(format string, args ...any) Finding {
	return Finding{State: StateFail, Text: fmt.Sprintf(format, args...)}
}

// remedy returns f with text as the remedy.
func (f Finding) remedy(text string) Finding {
	f.Remedy = text
	return f
}

// host holds what is known about the host under check, and the findings so far.
type host struct {
	lookup  client.Lookup
	cfg     config.Config
	routes  string // the kernel's routes, see hostnet.Routes
	running bool   // a server answers on this host
	offers  []foreignOffer

	remote   *client.Client
	status   *apitypes.Status
	machines []apitypes.MachineView
	findings []Finding
}

// runAll runs checks and appends their findings to d.findings.
func (d *host) runAll(ctx context.Context, checks []check) {
	for _, c := range checks {
		for _, f := range c.run(ctx, d) {
			f.What = c.name
			if f.State != StateOK && f.Remedy == "" {
				f.Remedy = c.remedy
			}
			d.findings = append(d.findings, f)
		}
	}
}

// asksThisHost reports whether d.remote sends its requests to this host's own server.
func (d *host) asksThisHost() bool {
	return d.remote.URL().String() == hostnet.LocalURL(d.cfg)
}

// A foreignOffer is an offer that another DHCP server made on the interface iface.
type foreignOffer struct {
	iface string
	neighbours.ForeignServer
}
