package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/api"
	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/hostnet"
	"github.com/ingotmetal/ingot/internal/human"
	"github.com/ingotmetal/ingot/internal/site"
)

// A check is one row of doctor: its name, the remedy of those findings that have
// none of their own, and what finds them.
type check struct {
	name, remedy string
	run          func(ctx context.Context, d *doctor) []finding
}

// A finding is one line of doctor.
type finding struct {
	State  string `json:"state"` // ok | warn | fail
	What   string `json:"what"`
	Text   string `json:"text"`
	Remedy string `json:"remedy,omitempty"`
}

const (
	stateOK   = "ok"
	stateWarn = "warn"
	stateFail = "fail"
)

func ok(format string, args ...any) finding {
	return finding{State: stateOK, Text: fmt.Sprintf(format, args...)}
}

func warn(format string, args ...any) finding {
	return finding{State: stateWarn, Text: fmt.Sprintf(format, args...)}
}

func fail(format string, args ...any) finding {
	return finding{State: stateFail, Text: fmt.Sprintf(format, args...)}
}

// remedy returns f with a remedy of its own.
func (f finding) remedy(text string) finding {
	f.Remedy = text
	return f
}

// siteChecks come first: a server that is not the site is asked nothing more.
var siteChecks = []check{
	{"configuration", "ingot init", checkConfigFile},
	{"site", "run this as the user of ingot serve", checkSite},
}

var fileChecks = []check{
	{"key", "give its owner alone access, or put it back from its copy", checkKey},
	{"token", "ingot init", checkToken},
	{"inventory", "run this as the user of ingot serve", checkInventory},
	{"space", "ingot image prune, or a bigger disk", checkSpace},
	{"reserve", "reserve_mib: 64", checkReserve},
	{"power command", "correct power.commands in the configuration", checkPowerCommands},
	{"Temporal", "temporal.mutual_tls: true", checkTemporalAccess},
	{"notify", "correct notify in the configuration; then: ingot notify test", checkNotify},
	{"clock", "apt install chrony", checkClock},
	{"ports", "correct the configuration", checkPorts},
	{"netboot", "ingot init, or netboot.interfaces in the configuration", checkNetboot},
}

// networkChecks are those of a server that answers machines.
var networkChecks = []check{
	{"interface", "ip address shows those that exist; correct netboot.address", checkAddress},
	{"capabilities", "run as root", checkCapabilities},
	{"interface", "ip link shows those that exist; correct netboot.interfaces", checkInterfaces},
	{"foreign DHCP", "run this as root", checkForeignDHCP},
	{"relay", "correct netboot.address; in a container with published ports: netboot.listen: 0.0.0.0", checkRelayAddress},
	{"relay", "ip route add NETWORK/BITS via ROUTER, or a default route", checkRelayRoutes},
	{"boot files", "make build; apt install ipxe", checkBootFiles},
	{"reachability", "a firewall on this host? nft list ruleset; the log of ingot serve", checkReachability},
}

// connectionChecks ask the server that runs for its status.
var connectionChecks = []check{
	{"server", "ingot serve; then run this again: Temporal, secrets, images and BMCs were not checked", checkServer},
}

var serverChecks = []check{
	{"clock", "apt install chrony, on both", checkServerClock},
	{"Temporal", "the log of ingot serve; an occupied port: temporal.port in the configuration", checkTemporal},
	{"notices", "ingot notify test; the receiver, and notify in the configuration", checkNotices},
	{"secrets", "the log of ingot serve", checkSecrets},
	{"images", "the log of ingot serve", checkImages},
	{"machines", "the log of ingot serve", checkMachines},
	{"reservation", "correct the addresses or netboot.interfaces, or add the relay to netboot.relays", checkReservations},
	{"BMC", "ingot bmc check NAME", checkBMCs},
}

// doctor runs checks and collects their findings.
type doctor struct {
	cfg        config.Config
	configFile string
	routes     string // of the kernel, see hostnet.Routes
	running    bool   // a server answers on this host

	call     *call // to the server
	status   *api.Status
	machines []api.MachineView
	findings []finding
}

// runAll runs checks and adds what they find.
func (d *doctor) runAll(ctx context.Context, checks []check) {
	for _, c := range checks {
		for _, f := range c.run(ctx, d) {
			f.What = c.name
			if f.State != stateOK && f.Remedy == "" {
				f.Remedy = c.remedy
			}
			d.findings = append(d.findings, f)
		}
	}
}

func doctorCommand(o *options) *cobra.Command {
	return o.command(&cobra.Command{
		Use: "doctor", Short: "Check this host and its server, with a remedy for each problem", Args: cobra.NoArgs,
		Long: `Check this host's server: configuration, keys, the inventory's file, space, clock,
capabilities, ports, interfaces, other DHCP servers, boot files, notices; and,
through the server when it runs, Temporal, notices, secrets, images, their URLs
and the log-in of every BMC.
One line each, with a remedy. Exits 1 if any check fails.`,
		Example: "  ingot doctor\n  ingot doctor --output json",
	}, func(c *call) error {
		d := diagnose(c)
		err := showValue(c, list[finding]{Items: d.findings}, func(w io.Writer) error {
			t := newTable(w)
			for _, f := range d.findings {
				text := f.Text
				if f.Remedy != "" {
					text += "  → " + f.Remedy
				}
				t.row(f.State, f.What, text)
			}
			return t.flush()
		})
		if err != nil {
			return err
		}

		failed := 0
		for _, f := range d.findings {
			if f.State == stateFail {
				failed++
			}
		}
		if failed > 0 {
			return fmt.Errorf("%s of %d failed", human.Count(failed, "check"), len(d.findings))
		}
		return nil
	})
}

// diagnose runs all checks that apply to this host.
func diagnose(c *call) *doctor {
	ctx := c.Context()
	d := &doctor{call: c, configFile: c.configFile, routes: hostnet.Routes()}
	var err error
	if d.cfg, err = c.loadConfig(); err != nil {
		f := fail("%v", err).remedy("ingot config check " + c.configFile)
		f.What = "configuration"
		d.findings = []finding{f}
		return d
	}

	d.runAll(ctx, siteChecks)
	if isSite(d.cfg) {
		d.running = hostnet.ServerAnswers(ctx, d.cfg)
		d.runAll(ctx, fileChecks)
		if d.cfg.Netboot.On() {
			d.runAll(ctx, networkChecks)
		}
	}

	d.runAll(ctx, connectionChecks)
	if d.status != nil {
		d.runAll(ctx, serverChecks)
	}

	return d
}

func checkConfigFile(_ context.Context, d *doctor) []finding {
	if _, err := os.Stat(d.configFile); err != nil {
		return []finding{warn("%s does not exist: the defaults hold, DHCP is off", d.configFile)}
	}
	return []finding{ok("%s is right", d.configFile)}
}

// isSite reports whether the server of this host is the site among its peers.
func isSite(cfg config.Config) bool {
	role, err := siteRole(cfg)
	return err == nil && role == site.Active
}

// siteRole is the role of this host's server among its peers.
func siteRole(cfg config.Config) (string, error) {
	f, err := site.Open(cfg.DataDir)
	if err != nil {
		return "", errors.Join(errSiteFile, err)
	}

	_, retired, err := site.ReadMark(cfg.KeyFile)
	if retired {
		return site.Retired, err
	}

	return f.Site().Role, err
}

// errSiteFile: the file that holds the role is damaged.
var errSiteFile = errors.New("reading the role of this server")

// checkSite warns of a server that answers no machine, because it is not the
// site.
func checkSite(_ context.Context, d *doctor) []finding {
	role, err := siteRole(d.cfg)
	switch {
	case errors.Is(err, errSiteFile):
		return []finding{fail("%v", err).remedy(
			"put the file back, or move it away if you are sure that no other server is this site")}
	case err != nil:
		return []finding{fail("%v", err)}
	case role != site.Active:
		return []finding{warn("this server is %s: it answers no machine", role).remedy("ingot handover status")}
	}

	return nil
}
