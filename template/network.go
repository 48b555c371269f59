package template

import (
	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/documents/cloudinit"
	"github.com/ingotmetal/ingot/inventory"
)

// setNetwork sets the contents of a file that gets the machine's network: a netplan file (STATIC_NETPLAN), or Bottlerocket's net.toml
// (STATIC_BOTTLEROCKET). EKS Anywhere's writefile asks the DHCP server for the network of the card that booted. Here it comes from the
// machine's document, from which this server's DHCP answers come, too. setNetwork does nothing if a variable of the action is invalid,
// which makeAction reports.
func (p *planner) setNetwork(path string, env environment) {
	if action.Check(action.WriteFile, env.values) != nil {
		return
	}
	m := p.data.Machine
	if nic, ok := m.Netboot(); ok && m.Network == nil {
		m.Interfaces = []inventory.Interface{nic} // as there: the system need not wait for a card about which nothing is known
	}
	take := func(variable string) bool {
		on, _ := action.Bool(env.values, variable, false)
		if on {
			delete(env.values, variable)
			delete(env.from, variable)
		}
		return on
	}
	set := func(variable, value string) {
		env.values[variable], env.from[variable] = value, "the network of machine "+m.Name
	}

	switch {
	case take(action.NetplanVariable):
		set(action.ContentsVariable, string(cloudinit.Netplan(m)))
	case take(action.BottlerocketVariable):
		network, settings, err := cloudinit.Bottlerocket(m)
		if err != nil {
			p.check.add(path+".environment."+action.BottlerocketVariable, "write net.toml into "+action.ContentsVariable, "%v", err)
		}
		set(action.ContentsVariable, network)
		if settings != "" {
			set(action.SettingsVariable, settings)
		}
	}
}
