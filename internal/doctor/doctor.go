// Package doctor checks the host of a server and, through the server's API, the
// server itself. Each check returns findings with a remedy.
package doctor

import (
	"context"
	"errors"
	"os"

	"github.com/ingotmetal/ingot/internal/client"
	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/host/hostnet"
	"github.com/ingotmetal/ingot/internal/siterole"
)

// siteChecks run first. If this server is not the active server among its peers, the other checks of this host are skipped.
var siteChecks = []check{
	{"configuration", "ingot init", checkConfigFile},
	{"site", "run this as the user of ingot serve", checkSite},
}

var fileChecks = []check{
	{"key", "chmod 600 the key file, or restore it from a copy", checkKey},
	{"token", "ingot init", checkToken},
	{"inventory", "run this as the user of ingot serve", checkInventory},
	{"space", "run ingot image prune, or use a bigger disk", checkSpace},
	{"reserve", "set reserve_mib: 64 in the configuration", checkReserve},
	{"power command", "correct power.commands in the configuration", checkPowerCommands},
	{"Temporal", "set temporal.mutual_tls: true in the configuration", checkTemporalAccess},
	{"backup", "see docs/backup.md", checkBackup},
	{"catalog", "correct the file that images.catalog names", checkCatalog},
	{"notify", "correct notify in the configuration, then run ingot notify test", checkNotify},
	{"clock", "apt install chrony", checkClock},
	{"ports", "correct the configuration", checkPorts},
	{"netboot", "run ingot init, or set netboot.interfaces in the configuration", checkNetboot},
}

// networkChecks run only if the configuration has netboot on.
var networkChecks = []check{
	{"interface", "correct netboot.address; ip address shows this host's addresses", checkAddress},
	{"capabilities", "run as root", checkCapabilities},
	{"interface", "correct netboot.interfaces; ip link shows this host's interfaces", checkInterfaces},
	{"discovery", "correct netboot.discovery.ranges", checkDiscoveryRanges},
	{"foreign DHCP", "run this as root", checkForeignDHCP},
	{"relay", "correct netboot.address; in a container with published ports, set netboot.listen: 0.0.0.0", checkRelayAddress},
	{"relay", "add a route: ip route add NETWORK/BITS via ROUTER", checkRelayRoutes},
	{"boot files", "set netboot.loaders and netboot.agent_os in the configuration", checkBootFiles},
	{"loaders", "install newer packages of the loaders", checkLoaders},
	{"reachability", "check this host's firewall (nft list ruleset) and the log of ingot serve", checkReachability},
}

// connectionChecks read the status of the running server.
var connectionChecks = []check{
	{
		"server",
		"start it (systemctl start ingot) and run ingot doctor again: Temporal, secrets, images and BMCs are unchecked", checkServer,
	},
}

var serverChecks = []check{
	{"clock", "install chrony on both hosts: apt install chrony", checkServerClock},
	{
		"Temporal",
		"see the log of ingot serve; if a port is in use, change temporal.port; for a cluster, run ingot temporal setup --check",
		checkTemporal,
	},
	{"notices", "check the receiver, and notify in the configuration; then run ingot notify test", checkNotices},
	{"secrets", "see the log of ingot serve", checkSecrets},
	{"images", "see the log of ingot serve", checkImages},
	{"machines", "see the log of ingot serve", checkMachines},
	{"reservation", "correct the addresses or netboot.interfaces, or add the relay to netboot.relays", checkReservations},
	{"foreign DHCP", "exclude the machines' addresses from the other server's range", checkOffers},
	{"BMC", "run ingot bmc check NAME", checkBMCs},
}

// Run runs all checks that apply to this host and to the server that l finds, and returns their findings. If
// named is true, the operator has named the configuration file, so it must exist.
func Run(ctx context.Context, l client.Lookup, named bool) []Finding {
	d := &host{lookup: l, routes: hostnet.Routes()}
	var err error
	if d.cfg, err = config.Load(l.ConfigFile, named); err != nil {
		f := fail("%v", err).remedy("ingot config check " + l.ConfigFile)
		f.What = "configuration"
		return []Finding{f}
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

	return d.findings
}

func checkConfigFile(_ context.Context, d *host) []Finding {
	if _, err := os.Stat(d.lookup.ConfigFile); err != nil {
		return []Finding{warn("%s does not exist: the defaults apply, and DHCP is off", d.lookup.ConfigFile)}
	}
	return []Finding{ok("%s is valid", d.lookup.ConfigFile)}
}

// isSite reports whether this host's server is the active server among its peers: the only one that answers machines.
func isSite(cfg config.Config) bool {
	role, err := siteRole(cfg)
	return err == nil && role == siterole.Active
}

// siteRole returns the role of this host's server among its peers: siterole.Active, siterole.Retired, or the role in the
// role file. If the role file is damaged, the error is an errSiteFile.
func siteRole(cfg config.Config) (string, error) {
	f, err := siterole.Open(cfg.DataDir)
	if err != nil {
		return "", errors.Join(errSiteFile, err)
	}

	_, retired, err := siterole.ReadMark(cfg.KeyFile)
	if retired {
		return siterole.Retired, err
	}

	return f.Site().Role, err
}

// errSiteFile means that the file with the server's role could not be read.
var errSiteFile = errors.New("reading the role of this server")

// checkSite warns if this server is not the active one among its peers, because it then answers no machine. checkSite
// fails if the role cannot be read. It returns nil for an active server.
func checkSite(_ context.Context, d *host) []Finding {
	role, err := siteRole(d.cfg)
	switch {
	case errors.Is(err, errSiteFile):
		return []Finding{fail("%v", err).remedy(
			"restore the file from a copy, or move it away if you are sure that no other server runs this site")}
	case err != nil:
		return []Finding{fail("%v", err)}
	case role != siterole.Active:
		return []Finding{warn("this server is %s, so it answers no machine", role).remedy("ingot handover status")}
	}

	return nil
}
