/* The router VP6630 of the example lab. The sockets are told apart by their hardware addresses: write those of yours. */
interfaces {
    ethernet eth0 {
        address "192.168.1.2/24"
        description "Home network, towards the NAS"
        hw-id "02:00:00:66:30:01"
    }
    ethernet eth1 {
        description "Trunk to the switch; VLAN 20 goes untagged to the machines"
        hw-id "02:00:00:66:30:02"
        vif 20 {
            address "10.10.20.1/24"
            description "LAB_PROV"
        }
    }
    ethernet eth2 {
        disable
        hw-id "02:00:00:66:30:03"
    }
    ethernet eth3 {
        disable
        hw-id "02:00:00:66:30:04"
    }
    loopback lo {
    }
}
nat {
    source {
        rule 100 {
            destination {
                address "!192.168.1.10"
            }
            outbound-interface {
                name "eth0"
            }
            source {
                address "10.10.20.0/24"
            }
            translation {
                address "masquerade"
            }
        }
    }
}
protocols {
    static {
        route 0.0.0.0/0 {
            next-hop 192.168.1.1 {
            }
        }
    }
}
service {
    dhcp-relay {
        listen-interface "eth1.20"
        relay-options {
            hop-count "10"
            max-size "576"
            relay-agents-packets "forward"
        }
        server "192.168.1.10"
        upstream-interface "eth0"
    }
    https {
        api {
            keys {
                id ingot {
                    key "EXAMPLE-make-your-own-with-openssl-rand-hex-32"
                }
            }
            rest {
            }
        }
    }
    ntp {
        allow-client {
            address "10.10.20.0/24"
        }
        server 0.pool.ntp.org {
        }
        server 1.pool.ntp.org {
        }
    }
    ssh {
        port "22"
    }
}
system {
    config-management {
        commit-revisions "100"
    }
    console {
        device ttyS0 {
            speed "115200"
        }
    }
    host-name "vp6630"
    login {
        user vyos {
            authentication {
                encrypted-password "$6$EXAMPLE$make.your.own.with.mkpasswd"
            }
        }
    }
    name-server "192.168.1.1"
    time-zone "UTC"
}


// Warning: Do not remove the following line.
// vyos-config-version: "bgp@6:broadcast-relay@1:cluster@2:config-management@1:conntrack@6:conntrack-sync@2:container@3:dhcp-relay@2:dhcp-server@11:dhcpv6-server@6:dns-dynamic@4:dns-forwarding@4:firewall@18:flow-accounting@2:https@7:ids@2:interfaces@33:ipoe-server@4:ipsec@13:isis@3:l2tp@9:lldp@3:mdns@1:monitoring@2:nat@8:nat66@3:nhrp@1:ntp@3:openconnect@3:openvpn@4:ospf@2:pim@1:policy@9:pppoe-server@11:pptp@5:qos@3:quagga@12:reverse-proxy@3:rip@1:rpki@2:salt@1:snmp@3:ssh@2:sstp@6:system@29:vrf@3:vrrp@4:vyos-accel-ppp@2:wanloadbalance@4:webproxy@2"
// Release version: EXAMPLE: copy these lines from the config.boot of your image
