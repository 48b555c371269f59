package lab

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv4/nclient4"
	"github.com/vishvananda/netlink"

	"github.com/ingotmetal/ingot/action"
)

// link sets the machine's cards up or down. A card that is down has no address.
func (s *simulation) link(up bool) error {
	return s.m.lab.InNamespace(s.m.Namespace(), func() error {
		for i := range len(s.m.spec.Cards) + 1 {
			eth, err := netlink.LinkByName("eth" + strconv.Itoa(i))
			if err != nil {
				return err
			}
			if up && i == 0 {
				err = netlink.LinkSetUp(eth)
			} else if !up {
				err = errors.Join(flush(eth), netlink.LinkSetDown(eth))
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// flush removes all addresses, and with them the routes.
func flush(eth netlink.Link) error {
	have, err := netlink.AddrList(eth, netlink.FAMILY_V4)
	if err != nil {
		return err
	}
	for _, a := range have {
		err = errors.Join(err, netlink.AddrDel(eth, &a))
	}
	return err
}

// unplugged resets the card: it is up and has no address.
func (l *life) unplugged() error {
	return errors.Join(l.sim.link(false), l.sim.link(true))
}

// The vendor classes of DHCP clients; the empty one is an operating system.
const (
	classPXE   = "PXEClient:Arch:00000:UNDI:002001"
	classIPXE  = "iPXE"
	classAgent = action.VendorClass
)

// request returns the options of a class.
func (l *life) request(class string) []dhcpv4.Modifier {
	id, err := hex.DecodeString(strings.ReplaceAll(l.sim.m.spec.UUID, "-", ""))
	if err != nil || len(id) != 16 {
		id = make([]byte, 16) // the UUID has another form: send zeros, as firmware without a UUID does
	}
	return clientOptions(class, id)
}

// clientOptions returns what a client of that class with that UUID sends.
func clientOptions(class string, uuid []byte) []dhcpv4.Modifier {
	mods := []dhcpv4.Modifier{dhcpv4.WithRequestedOptions(dhcpv4.OptionSubnetMask, dhcpv4.OptionRouter, dhcpv4.OptionDomainNameServer,
		dhcpv4.OptionHostName, dhcpv4.OptionInterfaceMTU, dhcpv4.OptionClasslessStaticRoute)}
	switch class {
	case "":
		return mods
	case classAgent:
		return append(mods, dhcpv4.WithOption(dhcpv4.OptClassIdentifier(class)))
	}
	mods = append(mods,
		dhcpv4.WithRequestedOptions(dhcpv4.OptionVendorSpecificInformation, dhcpv4.OptionTFTPServerName, dhcpv4.OptionBootfileName),
		dhcpv4.WithOption(dhcpv4.OptClassIdentifier(classPXE)),
		dhcpv4.WithGeneric(dhcpv4.OptionClientSystemArchitectureType, []byte{0, 0}),
		dhcpv4.WithGeneric(dhcpv4.OptionClientNetworkInterfaceIdentifier, []byte{1, 2, 1}),
		dhcpv4.WithGeneric(dhcpv4.OptionClientMachineIdentifier, append([]byte{0}, uuid...)))
	if class == classIPXE {
		return append(mods, dhcpv4.WithGeneric(dhcpv4.OptionUserClassInformation, []byte("iPXE")))
	}
	return append(mods, dhcpv4.WithBroadcast(true))
}

// dhcp runs DISCOVER, OFFER, REQUEST and ACK, and configures the card with the result. Each message
// is sent up to tries times; the first pause is wait, and each further one is twice as long.
func (l *life) dhcp(ctx context.Context, class string, wait time.Duration, tries int) (*dhcpv4.DHCPv4, error) {
	var c *nclient4.Client
	err := l.sim.m.lab.InNamespace(l.sim.m.Namespace(), func() (err error) {
		c, err = nclient4.New(simInterface, nclient4.WithTimeout(wait), nclient4.WithRetry(tries))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("opening a socket for DHCP: %w", err)
	}
	defer func() { _ = c.Close() }() // an error does not matter
	offer, err := l.offer(ctx, c, class)
	if err != nil {
		return nil, fmt.Errorf("asking for an address: %w", err)
	}
	lease, err := c.RequestFromOffer(ctx, offer, l.request(class)...)
	if err != nil {
		return nil, fmt.Errorf("asking for an address: %w", err)
	}
	return lease.ACK, l.configure(lease.ACK)
}

// moreOffers is how long firmware waits for further offers after the first.
const moreOffers = 2 * time.Second

// offer returns the first offer. Firmware on the network of a home router prefers the first offer
// with a boot file, like EDK2 and iPXE.
func (l *life) offer(ctx context.Context, c *nclient4.Client, class string) (*dhcpv4.DHCPv4, error) {
	if class == "" || class == classAgent || l.sim.m.spec.VLAN != HomeVLAN {
		return c.DiscoverOffer(ctx, l.request(class)...)
	}
	discover, err := dhcpv4.NewDiscovery(
		c.InterfaceAddr(),
		dhcpv4.PrependModifiers(l.request(class), dhcpv4.WithOption(dhcpv4.OptMaxMessageSize(nclient4.MaxMessageSize)))...)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	offers := make(chan *dhcpv4.DHCPv4, 1) // the first one
	got, err := c.SendAndRead(ctx, nclient4.DefaultServers, discover, func(p *dhcpv4.DHCPv4) bool {
		if p.MessageType() != dhcpv4.MessageTypeOffer {
			return false
		}
		select {
		case offers <- p:
			time.AfterFunc(moreOffers, cancel)
		default:
		}
		return bootFile(p) != ""
	})
	if err == nil {
		return got, nil
	}
	select {
	case first := <-offers:
		return first, nil
	default:
		return nil, err
	}
}

// OfferedBootFile sends one DISCOVER of firmware with the machine's MAC on its cable, and returns the boot file of
// the first offer: "" if an offer has none, and an error if there is no offer. The machine need not be in its firmware.
func (m *Machine) OfferedBootFile(ctx context.Context) (string, error) {
	l := &life{sim: m.sim}
	var c *nclient4.Client
	err := m.lab.InNamespace(m.Namespace(), func() (err error) {
		c, err = nclient4.New(simInterface, nclient4.WithTimeout(time.Second), nclient4.WithRetry(4))
		return err
	})
	if err != nil {
		return "", fmt.Errorf("opening a socket for DHCP: %w", err)
	}
	defer func() { _ = c.Close() }() // an error does not matter
	offer, err := l.offer(ctx, c, classPXE)
	if err != nil {
		return "", fmt.Errorf("asking %q's network for a boot file: %w", m.spec.Name, err)
	}
	return bootFile(offer), nil
}

// lease runs the DHCP of an operating system of a class until it has an address, at most rounds times unless
// rounds is negative.
func (l *life) lease(ctx context.Context, class string, wait time.Duration, rounds int) error {
	var err error
	for n := 0; n != rounds; n++ {
		if _, err = l.dhcp(ctx, class, wait, 1); err == nil || ctx.Err() != nil {
			return err
		}
		l.sleep(100 * time.Millisecond) // an immediate error must not cause a busy loop
	}
	return err
}

// configure sets the card's address and the system's routes.
func (l *life) configure(ack *dhcpv4.DHCPv4) error {
	return l.sim.m.lab.InNamespace(l.sim.m.Namespace(), func() error {
		eth, err := netlink.LinkByName(simInterface)
		if err != nil {
			return err
		}
		mask := ack.SubnetMask()
		if mask == nil {
			mask = ack.YourIPAddr.DefaultMask()
		}
		if err := flush(eth); err != nil {
			return err
		}
		if err := netlink.AddrReplace(eth, &netlink.Addr{IPNet: &net.IPNet{IP: ack.YourIPAddr, Mask: mask}}); err != nil {
			return fmt.Errorf("setting the address %s: %w", ack.YourIPAddr, err)
		}
		route := func(dst *net.IPNet, gw net.IP) error {
			r := &netlink.Route{LinkIndex: eth.Attrs().Index, Dst: dst, Gw: gw}
			if gw == nil || gw.IsUnspecified() {
				r.Gw, r.Scope = nil, netlink.SCOPE_LINK
			}
			return netlink.RouteReplace(r)
		}
		// RFC 3442: a client ignores the router option if there are classless routes.
		if routes := ack.ClasslessStaticRoute(); len(routes) > 0 {
			for _, r := range routes {
				err = errors.Join(err, route(r.Dest, r.Router))
			}
		} else if routers := ack.Router(); len(routers) > 0 {
			err = route(&net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}, routers[0])
		}
		return err
	})
}

// netboot simulates the firmware's PXE boot, iPXE and its script. It returns the command line of
// the loaded kernel, or "" if the script sends the machine to its disk. After an error, the machine
// also continues with its disk.
func (l *life) netboot() (cmdline string, err error) {
	if err := l.stage(StageDHCP); err != nil {
		return "", err
	}
	ack, err := l.dhcp(l.ctx, classPXE, time.Second, 6) // 63 s in total
	if err != nil {
		return "", err
	}
	loader := bootFile(ack)
	l.say("LAB-SIM address %s, boot file %q", ack.YourIPAddr, loader)
	if loader == "" {
		return "", nil
	}
	if err := l.stage(StageLoader); err != nil {
		return "", err
	}
	n, err := l.tftp(ack.ServerIPAddr.String(), loader)
	if err != nil {
		return "", fmt.Errorf("fetching loader %q: %w", loader, err)
	}
	l.say("LAB-SIM loader %s: %d bytes", loader, n)
	if err := l.stage(StageIPXE); err != nil {
		return "", err
	}
	if ack, err = l.dhcp(l.ctx, classIPXE, time.Second, 6); err != nil {
		return "", err
	}
	url := bootFile(ack)
	l.say("LAB-SIM iPXE: script %q", url)
	if url == "" {
		return "", nil
	}
	load := func(url string) (string, error) {
		if err := l.stage(StageScript); err != nil {
			return "", err
		}
		var script strings.Builder
		_, err := l.get(url, &script)
		return script.String(), err
	}
	script, err := load(url)
	if err != nil {
		return "", err
	}
	x := &ipxe{
		load: load,
		vars: map[string]string{
			"platform": "pcbios",
			"version":  "2.0.0",
			"net0/ip":  ack.YourIPAddr.String(),
			"net0/mac": l.sim.m.spec.MAC,
			"serial":   l.sim.m.spec.Serial,
		},
		say:   func(text string) { l.say("LAB-SIM iPXE: %s", text) },
		pause: l.sleep,
		fetch: func(kind, url string) error {
			stage := StageKernel
			if kind == "initrd" {
				stage = StageInitrd
			}
			if err := l.stage(stage); err != nil {
				return err
			}
			n, err := l.get(url, io.Discard)
			if err == nil {
				l.say("LAB-SIM %s: %d bytes", stage, n)
			}
			return err
		},
	}
	return x.run(script)
}

// bootFile returns option 67, or else the header's field.
func bootFile(p *dhcpv4.DHCPv4) string {
	if f := p.BootFileNameOption(); f != "" {
		return strings.TrimRight(f, "\x00")
	}
	return p.BootFileName
}

// stall is how long iPXE waits for data before it gives up a transfer.
const stall = time.Minute

// get fetches url like iPXE, from the machine's own address, and returns the number of bytes. An
// incomplete transfer is an error.
func (l *life) get(url string, to io.Writer) (int64, error) {
	client := l.http()
	defer client.CloseIdleConnections()
	return download(l.ctx, client, url, to)
}

// download is get for any client.
func download(ctx context.Context, client *http.Client, url string, to io.Writer) (int64, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	alarm := time.AfterFunc(stall, func() { cancel(errors.New("nothing comes any more")) })
	defer alarm.Stop()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err
	}
	req.Header.Set("User-Agent", "iPXE/2.0.0")
	res, err := client.Do(req)
	if err != nil {
		return 0, fmt.Errorf("fetching: %w", errors.Join(err, context.Cause(ctx)))
	}
	defer res.Body.Close() // opened only for reading
	if res.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("fetching %q: status %d", url, res.StatusCode)
	}
	buf := make([]byte, 256<<10)
	var n int64
	for {
		k, err := res.Body.Read(buf)
		alarm.Reset(stall)
		if n += int64(k); k > 0 {
			if _, err := to.Write(buf[:k]); err != nil {
				return n, err
			}
		}
		if errors.Is(err, io.EOF) {
			return n, nil // a body shorter than announced ends with another error
		}
		if err != nil {
			return n, fmt.Errorf("fetching %q: %w", url, errors.Join(err, context.Cause(ctx)))
		}
	}
}

// http returns a client with the machine's position in the network.
func (l *life) http() *http.Client {
	return &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		return l.sim.m.lab.DialContext(ctx, l.sim.m.Namespace(), network, addr)
	}}}
}

// tftp reads a file like firmware (RFC 1350, with the block size of RFC 2348) and returns its
// length.
func (l *life) tftp(server, name string) (int64, error) {
	var c *net.UDPConn
	err := l.sim.m.lab.InNamespace(l.sim.m.Namespace(), func() (err error) {
		c, err = net.ListenUDP("udp4", nil)
		return err
	})
	if err != nil {
		return 0, err
	}
	defer c.Close() // a UDP socket
	stop := context.AfterFunc(l.ctx, func() { _ = c.Close() })
	defer stop()
	return tftpRead(c, &net.UDPAddr{IP: net.ParseIP(server), Port: 69}, name)
}

func tftpRead(c *net.UDPConn, to *net.UDPAddr, name string) (int64, error) {
	const data, ack, failed, oack = 3, 4, 5, 6
	send := append([]byte{0, 1}, name+"\x00octet\x00blksize\x001428\x00"...)
	size, expect := 512, uint16(1)
	var total int64
	buf := make([]byte, 2048)
	for tries := 0; ; {
		if _, err := c.WriteToUDP(send, to); err != nil {
			return total, err
		}
		if err := c.SetReadDeadline(time.Now().Add(time.Second << min(tries, 3))); err != nil {
			return total, err
		}
		n, from, err := c.ReadFromUDP(buf)
		var timeout net.Error
		if errors.As(err, &timeout) && timeout.Timeout() && tries < 5 {
			tries++
			continue
		}
		if err != nil {
			return total, err
		}
		if n < 4 || !from.IP.Equal(to.IP) {
			continue
		}
		block := binary.BigEndian.Uint16(buf[2:])
		switch binary.BigEndian.Uint16(buf) {
		case oack:
			to = from // the server may have chosen another port (RFC 1350 §4)
			words := strings.Split(string(buf[2:n]), "\x00")
			for i := 0; i+1 < len(words); i += 2 {
				if v, err := strconv.Atoi(words[i+1]); err == nil && strings.EqualFold(words[i], "blksize") {
					size = v
				}
			}
			send = []byte{0, ack, 0, 0}
		case data:
			to = from
			if block != expect {
				continue // a repeated block: repeat the answer
			}
			tries, total = 0, total+int64(n-4)
			send = []byte{0, ack, buf[2], buf[3]}
			if expect++; n-4 < size {
				_, err := c.WriteToUDP(send, to)
				return total, err
			}
		case failed:
			return total, fmt.Errorf("the server says %q", strings.TrimRight(string(buf[4:n]), "\x00"))
		}
	}
}
