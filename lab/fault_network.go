package lab

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Link is one port of the lab's switch, and therefore the cable of the host at that port.
type Link string

// The links that every lab has. Machine.Link returns the link of a machine.
const (
	ServerLink    Link = "p-srv-eth0"  // the server's provisioning interface
	ServerBMCLink Link = "p-srv-eth10" // the server's interface to the BMCs
)

// Link is the machine's cable on its VLAN.
func (m *Machine) Link() Link { return Link(m.Port()) }

// faultName returns a unique name for the table or device of a fault, so that each can be removed
// separately.
func (l *Lab) faultName() string { return "fault" + strconv.FormatInt(l.faults.Add(1), 10) }

// nft creates a table with one filter chain of the given rules.
func (l *Lab) nft(ns Namespace, family, table, hook string, rules ...string) error {
	script := fmt.Sprintf("table %s %s {\n chain c {\n type filter hook %s priority 0\n %s\n }\n}\n", family, table,
		hook, strings.Join(rules, "\n "))
	_, err := l.outside(ns, script, "nft", "-f", "-")
	return err
}

func (l *Lab) dropTable(ns Namespace, family, table string) error {
	out, err := l.outside(ns, "", "nft", "list", "tables", family)
	if err != nil || !strings.Contains(out, "table "+family+" "+table+"\n") {
		return err
	}
	_, err = l.outside(ns, "", "nft", "delete", "table", family, table)
	return err
}

// onSwitch adds rules between the ports of the switch.
func (l *Lab) onSwitch(what string, rules ...string) (Undo, error) {
	table := l.faultName()
	if err := l.nft(Switch, "bridge", table, "forward", rules...); err != nil {
		return nil, fmt.Errorf("making %s: %w", what, err)
	}
	return l.undoable(what, func() error { return l.dropTable(Switch, "bridge", table) })
}

// Cut drops every frame on a link in both directions. Both ends still have a carrier, as with a
// failed switch.
func (l *Lab) Cut(link Link) (Undo, error) {
	return l.onSwitch("link "+string(link)+" cut", fmt.Sprintf("iifname %q counter drop", link),
		fmt.Sprintf("oifname %q counter drop", link))
}

// Lose drops that many percent of the frames on a link, at random, in both directions.
func (l *Lab) Lose(link Link, percent int) (Undo, error) {
	return l.onSwitch(fmt.Sprintf("loss of %d %% on link %s", percent, link),
		fmt.Sprintf("iifname %q numgen random mod 100 < %d counter drop", link, percent),
		fmt.Sprintf("oifname %q numgen random mod 100 < %d counter drop", link, percent))
}

// Stall lets the server send after bytes more from TCP port to the other end of a link. Then it
// drops everything that the server sends from that port, while the connections stay open; only
// resets pass, see ResetTransfers. With ServerLink the limit is for all machines together.
func (l *Lab) Stall(link Link, port int, after int64) (Undo, error) {
	dir := "oifname"
	if link == ServerLink {
		dir = "iifname"
	}
	rule := fmt.Sprintf("%s %q ip protocol tcp tcp sport %d tcp flags & rst == 0", dir, link, port)
	if after > 0 {
		rule += fmt.Sprintf(" quota over %d bytes", after)
	}
	return l.onSwitch(fmt.Sprintf("port %d stalled on link %s", port, link), rule+" counter drop")
}

var counted = regexp.MustCompile(`counter packets (\d+)`)

// Lost returns how many frames the current faults on the switch have dropped so far. If links are
// given, only faults on these count.
func (l *Lab) Lost(links ...Link) (int, error) {
	out, err := l.outside(Switch, "", "nft", "list", "ruleset", "bridge")
	sum := 0
	for line := range strings.Lines(out) {
		m := counted.FindStringSubmatch(line)
		if m == nil ||
			len(links) > 0 && !slices.ContainsFunc(links, func(k Link) bool { return strings.Contains(line, strconv.Quote(string(k))) }) {
			continue
		}
		n, e := strconv.Atoi(m[1])
		err = errors.Join(err, e)
		sum += n
	}
	return sum, err
}

// ResetTransfers resets the TCP connections that the server has accepted on port from the address
// of a machine, during their transfers. An empty address means all machines. It returns the number
// of connections. It has no lasting effect and needs no undo.
func (l *Lab) ResetTransfers(port int, address string) (int, error) {
	filter := "sport = :" + strconv.Itoa(port)
	if address != "" {
		filter += " and dst " + address
	}
	out, err := l.outside(Server, "", "ss", "-K", "-H", "-t", "-n", filter)
	n := strings.Count(out, "ESTAB")
	l.log.Info("fault", "what", "connections reset", "port", port, "connections", n)
	return n, err
}

var socketPort = regexp.MustCompile(`^\S+\s+\S+\s+\S+\s+\S+:(\d+)\s`)

// destroy resets the TCP connections of process pid that match ss's filter.
func (l *Lab) destroy(ns Namespace, pid int, filter string) error {
	out, err := l.outside(ns, "", "ss", "-H", "-t", "-n", "-p", filter)
	if err != nil {
		return err
	}
	var errs []error
	for line := range strings.Lines(out) {
		m := socketPort.FindStringSubmatch(line)
		if m == nil || !strings.Contains(line, fmt.Sprintf("pid=%d,", pid)) {
			continue
		}
		_, err := l.outside(ns, "", "ss", "-K", "-H", "-t", "-n", "sport = :"+m[1]+" and "+filter)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
