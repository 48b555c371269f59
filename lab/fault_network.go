package lab

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Link is one port of the lab's switch, and so the cable of the host that is plugged in there.
type Link string

// The links that every lab has. Machine.Link is that of a machine.
const (
	ServerLink    Link = "p-srv-eth0"  // of the server's provisioning interface
	ServerBMCLink Link = "p-srv-eth10" // of the server's way to the BMCs
)

// Link is the machine's cable on its VLAN.
func (m *Machine) Link() Link { return Link(m.Port()) }

// faultName names a table or a device of one fault, so that each is taken away alone.
func (l *Lab) faultName() string { return "fault" + strconv.FormatInt(l.faults.Add(1), 10) }

// nft makes a table with one filter chain of the given rules.
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

// onSwitch puts rules between the ports of the switch.
func (l *Lab) onSwitch(what string, rules ...string) (Undo, error) {
	table := l.faultName()
	if err := l.nft(Switch, "bridge", table, "forward", rules...); err != nil {
		return nil, fmt.Errorf("making %s: %w", what, err)
	}
	return l.undoable(what, func() error { return l.dropTable(Switch, "bridge", table) })
}

// Cut loses every frame on a link, both ways. Both ends still see a carrier, as behind a switch that has failed.
func (l *Lab) Cut(link Link) (Undo, error) {
	return l.onSwitch("link "+string(link)+" cut", fmt.Sprintf("iifname %q counter drop", link),
		fmt.Sprintf("oifname %q counter drop", link))
}

// Lose loses that many percent of the frames on a link, at random, both ways.
func (l *Lab) Lose(link Link, percent int) (Undo, error) {
	return l.onSwitch(fmt.Sprintf("loss of %d %% on link %s", percent, link),
		fmt.Sprintf("iifname %q numgen random mod 100 < %d counter drop", link, percent),
		fmt.Sprintf("oifname %q numgen random mod 100 < %d counter drop", link, percent))
}

// Stall lets the server send after bytes more from TCP port to the other end of a link, then loses all that it sends from there,
// while its connections stay; only resets pass, see ResetTransfers. With ServerLink it holds for all machines together.
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

// Lost is how many frames the faults that there are now on the switch have lost so far; of links alone when some are given, for
// faults that were made on these.
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

// ResetTransfers is of one moment and needs no undo: it resets the TCP connections that the server has accepted on port from the address
// of a machine, in mid-transfer. An empty address means all. It returns how many there were.
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
