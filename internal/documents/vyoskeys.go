package documents

import (
	"slices"
	"strings"

	"github.com/ingotmetal/ingot/internal/strictyaml"
	"github.com/ingotmetal/ingot/inventory"
)

// A vyosTable has the keys that may stand in a node of config.boot, by the path
// of the node, in which * stands for any name: of an interface, a user, a rule.
// A node whose only key is * has names in it. What a node that is not listed
// holds is not looked at.
type vyosTable map[string][]string

// vyosKnown are the nodes that a Genesis depends on, with all keys that they have
// in VyOS 1.3 to 1.5: what a key was called in an older version is migrated by
// VyOS, so all stand side by side. Source: interface-definitions of vyos-1x.
var vyosKnown = newVyOSKnown()

// vyosPartly are nodes whose keys differ from release to release: one that is
// not here, but nearly, is warned of.
var vyosPartly = vyosTable{
	"protocols": words(`babel bfd bgp eigrp failover igmp igmp-proxy isis mpls multicast nhrp openfabric ospf ospfv3 pim pim6 rip ripng rpki segment-routing static
		traffic-engineering vrf`),
	"service": words(`aws broadcast-relay config-sync conntrack-sync console-server dhcp-relay dhcp-server dhcpv6-relay dhcpv6-server dns event-handler https ids ipoe-server
		lldp mdns monitoring ndp-proxy ntp pppoe-server router-advert salt-minion sla snmp ssh stunnel suricata telnet tftp-server upnp webproxy`),
	"system": words(`acceleration allow-dhcp-nameservers config-management conntrack console disable-dhcp-nameservers domain-name domain-search flow-accounting frr gateway-address
		host-name ip ipv6 lcd login logs name-server name-servers-dhcp nat ntp option options package proxy sflow static-host-mapping sysctl syslog task-scheduler time-zone
		update-check updates watchdog wifi-regulatory-domain wireless`),
}

func newVyOSKnown() vyosTable {
	t := vyosTable{}
	set := func(path, keys string) { t[path] = words(keys) }
	set("", `cluster container firewall high-availability interfaces load-balancing nat nat64 nat66 netns pki policy protocols qos service system traffic-policy vpn vpp vrf
		zone-policy`)
	set("interfaces", `bonding bridge dummy erspan ethernet geneve input l2tpv3 loopback macsec nat64 openvpn pppoe pseudo-ethernet sstpc thunderbolt tinc tunnel virtual-ethernet vpp
		vti vxlan wireguard wireless wirelessmodem wwan zerotier`)
	const card = ` address description dhcp-options dhcpv6-options disable disable-link-detect firewall ip ipv6 mac mirror mtu policy redirect traffic-policy vrf`
	t.names("interfaces ethernet", card+` disable-flow-control duplex eapol evpn hw-id interrupt-coalescing netns offload offload-options ring-buffer smp-affinity speed switchdev
		vif vif-s xdp`)
	t.names("interfaces ethernet * vif", card+` egress-qos ingress-qos`)
	t.names("interfaces ethernet * vif-s", card+` protocol vif-c`)
	t.names("interfaces ethernet * vif-s * vif-c", card)
	for _, path := range []string{"", " vif *", " vif-s *", " vif-s * vif-c *"} {
		path = "interfaces ethernet *" + path
		set(path+" dhcp-options", `client-id default-route-distance host-name mtu no-default-route reject user-class vendor-class-id`)
		set(path+" ip", `adjust-mss arp-cache-timeout disable-arp-filter disable-forwarding enable-arp-accept enable-arp-announce enable-arp-ignore enable-directed-broadcast
			enable-proxy-arp ospf proxy-arp-pvlan rip source-validation`)
	}
	set("interfaces ethernet * offload", `gro gso hw-tc-offload lro rfs rps rx sg tso ufo`)
	set("interfaces ethernet * ring-buffer", `rx tx`)

	set("service dhcp-relay", `disable interface listen-interface relay-options server upstream-interface`)
	set("service dhcp-relay relay-options", `hop-count max-size relay-agents-packets`)

	set("service https", `allow-client api api-restrict certificates enable-http-redirect listen-address port request-body-size-limit tls-version virtual-host vrf`)
	set("service https allow-client", `address`)
	set("service https api", `cors debug gql graphql keys port rest socket strict`)
	set("service https api keys", `id`)
	t.names("service https api keys id", `key`)
	set("service https api rest", `authentication debug strict`)
	set("service https certificates", `ca-certificate certbot certificate dh-params system-generated-certificate verify-client`)
	t.names("service https virtual-host", `allow-client listen-address listen-port port server-name`)

	set("service ssh", `access-control ciphers client-keepalive-interval disable-host-validation disable-password-authentication dynamic-protection fido hostkey-algorithm
		key-exchange listen-address loglevel mac port pubkey-accepted-algorithm rekey trusted-user-ca trusted-user-ca-key vrf`)
	set("service ssh access-control", `allow deny`)
	set("service ssh access-control allow", `group user`)
	set("service ssh access-control deny", `group user`)
	set("service ssh dynamic-protection", `allow-from block-time detect-time threshold`)
	set("service ssh rekey", `data time`)

	set("system login", `banner max-login-session operator-group radius radius-server saml tacacs timeout user`)
	t.names("system login user", `access authentication disable full-name group home-directory level operator`)
	set("system login user * authentication", `encrypted-password otp plaintext-password principal public-keys`)
	set("system login user * authentication otp", `key rate-limit rate-time window-size`)
	t.names("system login user * authentication public-keys", `key options type`)

	set("protocols static", `arp interface-route interface-route6 mroute multicast neighbor-proxy route route-map route6 table`)
	t.names("protocols static table", `description interface-route interface-route6 route route6`)
	for _, path := range []string{"protocols static route", "protocols static route6", "protocols static table * route", "protocols static table * route6"} {
		t.names(path, `blackhole description dhcp-interface interface next-hop reject`)
		set(path+" * blackhole", `distance tag`)
		set(path+" * reject", `distance tag`)
		t.names(path+" * interface", `disable distance segments vrf`)
		t.names(path+" * next-hop", `bfd disable distance interface next-hop-interface segments vrf`)
	}

	set("nat", `cgnat destination nptv6 source static`)
	for _, path := range []string{"nat source", "nat destination"} {
		set(path, `rule`)
		t.names(path+" rule", `description destination disable exclude inbound-interface load-balance log outbound-interface packet-type protocol source translation`)
		rule := path + " rule *"
		set(rule+" source", `address fqdn group port`)
		set(rule+" destination", `address fqdn group port`)
		set(rule+" inbound-interface", `group interface-group interface-name name`)
		set(rule+" outbound-interface", `group interface-group interface-name name`)
		set(rule+" load-balance", `backend hash`)
		set(rule+" translation", `address options port redirect`)
		set(rule+" translation options", `address-mapping port-mapping`)
		set(rule+" translation redirect", `port`)
	}
	return t
}

// names lists the keys that every name in the node at path may have.
func (t vyosTable) names(path, keys string) { t[path], t[path+" *"] = []string{"*"}, words(keys) }

func words(s string) []string { return strings.Fields(s) }

// checkKeys tells the keys in n and below that VyOS does not know. at is the
// path of n as it is written, listed the one by which it is listed.
func checkKeys(n *VyOSNode, at, listed string) (problems, warnings inventory.Problems) {
	known, partly := vyosKnown[listed], vyosPartly[listed]
	for _, c := range n.Children {
		here, there := strings.TrimSpace(at+" "+c.Name), strings.TrimSpace(listed+" "+c.Name)
		p := inventory.Problem{Line: c.Line, Field: here, What: "unknown key: VyOS has none of this name here"}
		switch {
		case len(known) == 1 && known[0] == "*":
			there = listed + " *"
		case known != nil && !slices.Contains(known, c.Name):
			p.Remedy = strictyaml.Suggest(c.Name, known)
			problems = append(problems, p)
			continue
		case partly != nil && !slices.Contains(partly, c.Name):
			if near := strictyaml.Nearest(c.Name, partly); near != "" {
				p.What, p.Remedy = "is no key that is known here", strictyaml.Suggest(c.Name, partly)
				warnings = append(warnings, p)
			}
			continue
		case known == nil && partly == nil:
			return nil, nil
		}
		ps, ws := checkKeys(c, here, there)
		problems, warnings = append(problems, ps...), append(warnings, ws...)
	}
	return problems, warnings
}
