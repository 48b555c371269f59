package vyos

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	vyosStart = "interfaces {\n    ethernet eth0 {\n        hw-id 02:00:00:00:00:01\n    }\n}\nsystem {\n    host-name r\n}\n"
	vyosEnd   = "// vyos-config-version: \"system@29\"\n"
)

// nested writes a path as config.boot has it; the last word is a leaf. It
// returns the line of that, after vyosStart.
func nested(path string) (text string, line int) {
	words := strings.Fields(path)
	var b strings.Builder
	depth := 0
	for len(words) > 1 {
		name := words[0]
		words = words[1:]
		if strings.HasPrefix(words[0], "=") { // the name of a tag node
			name += " " + words[0][1:]
			words = words[1:]
		}
		b.WriteString(name + " {\n")
		depth++
	}
	b.WriteString(words[0] + " 1\n" + strings.Repeat("}\n", depth))
	return b.String(), strings.Count(vyosStart, "\n") + depth + 1
}

// TestKeys: an unknown key is reported with its line, its path and a similar
// key; nodes whose keys are not listed are not checked.
func TestKeys(t *testing.T) {
	for path, meant := range map[string]string{
		"interfces ethernet =eth1 address":                         "interfaces", // at its first word
		"interfaces ethrnet =eth1 address":                         "ethernet",
		"interfaces ethernet =eth1 addrress":                       "address",
		"interfaces ethernet =eth1 hwid":                           "hw-id",
		"interfaces ethernet =eth1 vif =20 addrress":               "address",
		"interfaces ethernet =eth1 vif =20 hw-idd":                 "",
		"interfaces ethernet =eth1 vif-s =20 vif-c =3 descriptiom": "description",
		"interfaces ethernet =eth1 vif =20 dhcp-options hostname":  "host-name",
		"interfaces ethernet =eth1 ip enable-proxyarp":             "enable-proxy-arp",
		"interfaces ethernet =eth1 offload gr0":                    "gro",
		"service dhcp-relay listen-intface":                        "listen-interface",
		"service dhcp-relay relay-options hop-cnt":                 "hop-count",
		"service https apis":                                       "api",
		"service https api key":                                    "keys",
		"service https api keys ids":                               "id",
		"service https api keys id =ingot keyy":                    "key",
		"service https api rest stric":                             "strict",
		"service https certificates ca-cert":                       "",
	} {
		t.Run(path, func(t *testing.T) {
			text, line := nested(path)
			words := strings.Fields(strings.ReplaceAll(path, "=", ""))
			field := strings.Join(words, " ")
			for n, w := range words { // one may be wrong higher up
				if w == "interfces" || w == "ethrnet" {
					field, line = strings.Join(words[:n+1], " "), strings.Count(vyosStart, "\n")+n+1
				}
			}
			found := false
			for _, p := range problems(t, vyosStart+text+vyosEnd) {
				if !strings.HasSuffix(p.Field, "hw-id") || p.Field == field { // that is missing where there is another interface
					require.Equal(t, field, p.Field, "nothing else is wrong: %v", p)
					require.Equal(t, line, p.Line)
					require.Contains(t, p.What, "unknown key")
					if meant != "" {
						require.Equal(t, "did you mean \""+meant+"\"?", p.Remedy)
					}
					found = true
				}
			}
			require.True(t, found)
		})
	}
}

// TestKnownKeys: documents of several versions, and nodes whose keys are not
// listed.
func TestKnownKeys(t *testing.T) {
	for name, text := range map[string]string{
		"1.3": `
interfaces {
    ethernet eth1 {
        duplex auto
        firewall {
            in {
                name WAN-IN
            }
        }
        hw-id 02:00:00:00:00:02
        ip {
            ospf {
                cost 10
            }
        }
        mirror eth0
        policy {
            route PBR
        }
        smp-affinity auto
        traffic-policy {
            out SHAPER
        }
        vif-s 200 {
            vif-c 201 {
                address 192.0.2.9/30
            }
        }
    }
    wirelessmodem wlm0 {
        apn x
    }
}
nat {
    source {
        rule 10 {
            log enable
            outbound-interface eth0
            translation {
                address masquerade
            }
        }
    }
}
protocols {
    static {
        arp 192.0.2.20 {
            hwaddr 02:00:00:00:00:20
        }
        interface-route6 2000::/3 {
            next-hop-interface pppoe0 {
            }
        }
        route 10.0.0.0/8 {
            blackhole {
                distance 254
            }
        }
    }
}
service {
    dhcp-relay {
        interface eth0
        interface eth1
        server 192.0.2.1
    }
    https {
        api {
            keys {
                id 1 {
                    key x
                }
            }
            strict
        }
        virtual-host rtr01 {
            listen-address 192.0.2.2
            listen-port 11443
        }
    }
}
system {
    ntp {
        server 192.0.2.3 {
        }
    }
}
zone-policy {
    zone LAN {
        whatever
    }
}
`,
		"1.5": `
container {
    name x {
        image y
    }
}
interfaces {
    bonding bond0 {
        never-heard-of 1
    }
    ethernet eth1 {
        dhcp-options {
            no-default-route
            reject 192.0.2.0/24
        }
        eapol {
            never-heard-of 1
        }
        hw-id 02:00:00:00:00:02
        interrupt-coalescing {
            adaptive-rx
        }
        ipv6 {
            never-heard-of 1
        }
        offload {
            gro
            rfs
        }
        ring-buffer {
            rx 4096
        }
        switchdev
        vif 20 {
            ingress-qos 0:1
            redirect eth0
            vrf RED
        }
    }
    vxlan vxlan10 {
        never-heard-of 1
    }
}
nat {
    destination {
        rule 10 {
            destination {
                port 443
            }
            inbound-interface {
                group WAN
            }
            translation {
                redirect {
                    port 8443
                }
            }
        }
    }
    source {
        rule 10 {
            load-balance {
                backend 192.0.2.251 {
                    weight 33
                }
                hash random
            }
            source {
                group {
                    address-group X
                }
            }
        }
    }
}
protocols {
    bgp {
        never-heard-of 1
    }
    static {
        route 10.0.0.0/8 {
            next-hop 192.0.2.140 {
                bfd {
                    never-heard-of 1
                }
            }
            reject
        }
        table 10 {
            route6 2001:db8::/32 {
                interface eth0 {
                    distance 3
                }
            }
        }
    }
}
service {
    dhcp-relay {
        disable
    }
    https {
        allow-client {
            address 192.0.2.0/24
        }
        api {
            graphql {
                never-heard-of 1
            }
            rest {
                strict
            }
        }
        tls-version 1.3
    }
    ssh {
        dynamic-protection {
            allow-from 192.0.2.0/24
        }
        port 22
        port 2222
        rekey {
            data 1024
        }
    }
    unheard-of-and-new {
        x 1
    }
}
system {
    login {
        banner {
            post-login x
        }
        user vyos {
            authentication {
                otp {
                    key X
                }
                public-keys me {
                    key A
                    type ssh-ed25519
                }
            }
        }
    }
    name-server 192.0.2.53
}
vpp {
    settings {
        x 1
    }
}
`,
	} {
		t.Run(name, func(t *testing.T) {
			require.Empty(t, problems(t, vyosStart+text+vyosEnd))
			require.Empty(t, warningsOf(t, vyosStart+text+vyosEnd))
		})
	}
}

// TestSimilarKeys: where releases differ much, a key that is similar to a known
// one is only warned of.
func TestSimilarKeys(t *testing.T) {
	text := vyosStart + "service {\n    htps {\n        api 1\n    }\n}\nsystem {\n    nameserver 192.0.2.1\n}\n" + vyosEnd
	require.Empty(t, problems(t, text))
	got := warningsOf(t, text)
	var texts []string
	for _, p := range got {
		texts = append(texts, p.String())
	}
	require.ElementsMatch(t, []string{
		`line 10: service htps: unknown key, similar to a known key (did you mean "https"?)`,
		`line 15: system nameserver: unknown key, similar to a known key (did you mean "name-server"?)`,
	}, texts)
}

// TestKeyTableIsConsistent: each node that is listed is a key of the node above
// it.
func TestKeyTableIsConsistent(t *testing.T) {
	for path, keys := range knownKeys {
		require.NotEmpty(t, keys, path)
		require.NotContains(t, incompleteKeys, path)
		if path == "" {
			continue
		}
		above, key := "", path
		if n := strings.LastIndexByte(path, ' '); n >= 0 {
			above, key = path[:n], path[n+1:]
		}
		known := slices.Concat(knownKeys[above], incompleteKeys[above])
		require.Contains(t, known, key, "%q", path)
	}
}
