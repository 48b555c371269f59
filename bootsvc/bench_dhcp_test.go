package bootsvc

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"testing"

	"github.com/ingotmetal/ingot/bootsvc/dhcp"
)

const (
	dhcpRuns = 3
	dhcpStep = 1000 // DORA/s
	dhcpFrom = 8000 // the first step
	mostLost = 1.0  // per cent
	dhcpFor  = 2    // seconds
	// leastSent is the share of the rate below which perfdhcp, which sends less when it is busy, is at its own limit.
	leastSent = 0.8
)

// TestBenchDHCP measures this server and Kea with its leases in a file (memfile), with reservations
// for all clients: the highest rate that perfdhcp, as a relay, completes while it loses at most 1 % of its
// DISCOVERs and REQUESTs together, and how many exchanges are completed when twice that rate is asked for. The
// figures are medians.
//
// The sockets of perfdhcp and Kea get a receive buffer of the size that this server's have. The kernel's usual one holds 277
// answers: all losses of this server's benchmark would be in perfdhcp's socket (RcvbufErrors of its namespace).
func TestBenchDHCP(t *testing.T) {
	setHost(t, "core/rmem_max", strconv.Itoa(dhcp.ReceiveBuffer))
	setHost(t, "core/rmem_default", strconv.Itoa(2*dhcp.ReceiveBuffer)) // the kernel doubles only what a program sets
	dir, ok := beginBench(t)
	if !ok {
		return
	}
	sizes := []int{1000, 10_000, 100_000}
	inventories := map[int]string{}
	for _, machines := range sizes {
		inventories[machines] = benchInventory(t, dir, machines, 0)
	}
	// The figures of the runs, by server and number of machines. Each run measures all: the host's speed changes within minutes.
	var lossFree, twice, cpu [2]map[int][]float64
	for n := range lossFree {
		lossFree[n], twice[n], cpu[n] = map[int][]float64{}, map[int][]float64{}, map[int][]float64{}
	}
	for run := range dhcpRuns {
		for _, machines := range sizes {
			targets := []dhcpTarget{
				{"cli0", benchSelf, machines, startServer(t, inventories[machines], dir, fmt.Sprintf("dhcp-%d-%d", machines, run))},
				{"cli1", peerSelf, machines, startKea(t, dir, machines)},
			}
			for _, target := range targets {
				target.warmUp(t)
			}
			for n, rate := range lossFreeRates(t, targets) {
				lossFree[n][machines] = append(lossFree[n][machines], rate)
				_, completed := targets[n].perfdhcp(t, 2*rate)
				twice[n][machines] = append(twice[n][machines], completed)
				cpu[n][machines] = append(cpu[n][machines], targets[n].cost(t))
			}
			for _, target := range targets {
				target.process.stop()
			}
		}
	}

	fmt.Printf("%-44s %9s %9s %6s   (medians of %d)\n", "DORA/s", "ingot", "Kea", "ratio", dhcpRuns)
	for _, machines := range sizes {
		row := func(name string, s [2]map[int][]float64) {
			fmt.Printf("%-44s %9.0f %9.0f %6.2f\n", fmt.Sprintf("%d machines, %s", machines, name), median(s[0][machines]),
				median(s[1][machines]), median(ratios(s[0][machines], s[1][machines])))
		}
		row("at most 1 % lost", lossFree)
		row("completed of twice as many", twice)
		row(fmt.Sprintf("CPU at %d/s, µs for each", dhcpFrom), cpu)
	}
	first, last := sizes[0], sizes[len(sizes)-1]
	relative := func(s map[int][]float64) float64 { return median(s[last]) / median(s[first]) }
	fmt.Printf("%-44s %9.2f %9.2f\n", fmt.Sprintf("at most 1 %% lost, %d compared to %d machines", last, first),
		relative(lossFree[0]), relative(lossFree[1]))
}

// dhcpTarget is a server, and how perfdhcp reaches it.
type dhcpTarget struct {
	iface    string // of the client
	server   netip.Addr
	machines int
	process  *benchProcess
}

// warmUp asks until nothing is lost: a server reads its inventory into memory in the first seconds.
func (d dhcpTarget) warmUp(t *testing.T) {
	t.Helper()
	for range 10 {
		if lost, _ := d.perfdhcp(t, dhcpStep); lost == 0 {
			return
		}
	}
}

// cost returns the processor time of one exchange at dhcpFrom, in microseconds.
func (d dhcpTarget) cost(t *testing.T) float64 {
	t.Helper()
	before := d.process.cpu(t)
	_, completed := d.perfdhcp(t, dhcpFrom)
	return float64((d.process.cpu(t) - before).Microseconds()) / (completed * dhcpFor)
}

// lossFreeRates returns the highest rate that each target completes while at most mostLost are lost. The targets climb side by
// side: other programs on the host then disturb both.
func lossFreeRates(t *testing.T, targets []dhcpTarget) []float64 {
	t.Helper()
	rates := make([]float64, len(targets))
	climbing := make([]int, len(targets))
	for n := range targets {
		climbing[n] = n
	}
	for rate := float64(dhcpFrom); len(climbing) > 0; rate += dhcpStep {
		climbing = slices.DeleteFunc(climbing, func(n int) bool {
			completed := targets[n].lossFree(t, rate)
			rates[n] = max(rates[n], completed)
			return completed < rate*leastSent
		})
	}
	for n := range targets {
		for rate := float64(dhcpFrom - dhcpStep); rates[n] == 0 && rate > 0; rate -= dhcpStep {
			rates[n] = targets[n].lossFree(t, rate)
		}
	}
	return rates
}

// lossFree asks for a rate and returns the rate that is completed, or 0 if more than mostLost is lost. A rate is tried twice:
// other programs disturb single ones.
func (d dhcpTarget) lossFree(t *testing.T, rate float64) (completed float64) {
	t.Helper()
	for range 2 {
		if lost, c := d.perfdhcp(t, rate); lost <= mostLost {
			completed = max(completed, c)
		}
		if completed >= rate*leastSent {
			break
		}
	}
	return completed
}

var (
	perfSent     = regexp.MustCompile(`sent packets: (\d+)`)
	perfReceived = regexp.MustCompile(`received packets: (\d+)`)
)

// perfdhcp asks for rate exchanges in a second, for dhcpFor. It returns the share of DISCOVERs and REQUESTs that
// were lost, in per cent, and the rate of completed exchanges.
func (d dhcpTarget) perfdhcp(t *testing.T, rate float64) (lost, completed float64) {
	t.Helper()
	cmd := inNamespace(clientNS, peerProgram(t, "dhcp", "perfdhcp", "-4", "-l", d.iface, "-b", "mac="+benchMAC(0).String(),
		"-R", fmt.Sprint(d.machines), "-r", fmt.Sprint(int(rate)), "-p", fmt.Sprint(dhcpFor), "-W", "300000", d.server.String()))
	out, _ := cmd.Output() // its status says that packets were lost
	sent, received := numbers(perfSent, out), numbers(perfReceived, out)
	if len(sent) != 2 || len(received) != 2 || sent[0] == 0 {
		t.Fatalf("perfdhcp: %s", out)
	}
	if os.Getenv("INGOT_BENCH_DETAILS") != "" {
		fmt.Printf("  %s %d machines, %.0f/s: sent %.0f+%.0f, received %.0f+%.0f\n", d.iface, d.machines, rate, sent[0], sent[1],
			received[0], received[1])
	}
	return 100 * (sent[0] - received[0] + sent[1] - received[1]) / (sent[0] + sent[1]), received[1] / dhcpFor
}

func numbers(pattern *regexp.Regexp, text []byte) (out []float64) {
	for _, m := range pattern.FindAllSubmatch(text, -1) {
		n, err := strconv.ParseFloat(string(m[1]), 64)
		if err == nil {
			out = append(out, n)
		}
	}
	return out
}

// startKea starts Kea with reservations for that many machines.
func startKea(t *testing.T, dir string, machines int) *benchProcess {
	t.Helper()
	reservations := make([]map[string]string, machines)
	for n := range reservations {
		reservations[n] = map[string]string{"hw-address": benchMAC(n).String(), "ip-address": benchAddress(peerNet, n).String()}
	}
	leases := filepath.Join(dir, "kea.csv")
	if err := os.Remove(leases); err != nil && !errors.Is(err, fs.ErrNotExist) { // those of an earlier run
		t.Fatal(err)
	}
	config, err := json.Marshal(map[string]any{"Dhcp4": map[string]any{
		"interfaces-config":            map[string]any{"interfaces": []string{"peer0"}, "dhcp-socket-type": "udp"},
		"lease-database":               map[string]any{"type": "memfile", "persist": true, "name": leases, "lfc-interval": 3600},
		"multi-threading":              map[string]any{"enable-multi-threading": true, "thread-pool-size": 2, "packet-queue-size": 64},
		"host-reservation-identifiers": []string{"hw-address"},
		"valid-lifetime":               604800,
		"loggers":                      []any{map[string]any{"name": "kea-dhcp4", "severity": "ERROR"}},
		"subnet4": []any{map[string]any{
			"subnet": peerNet.String(), "reservations-in-subnet": true, "reservations-out-of-pool": true, "reservations": reservations,
			"option-data": []any{map[string]any{"name": "routers", "data": peerSelf.String()}},
		}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "kea.json")
	write(t, file, string(config))
	kea := peerProgram(t, "dhcp", "kea-dhcp4", "-c", file)
	lfc := peerProgram(t, "dhcp", "kea-lfc").Path
	kea.Env = append(kea.Environ(), "KEA_PIDFILE_DIR="+dir, "KEA_LOCKFILE_DIR="+dir, "KEA_LFC_EXECUTABLE="+lfc)
	process := startPeer(t, kea)
	target := dhcpTarget{"cli1", peerSelf, machines, process}
	waitFor(t, func() bool {
		lost, _ := target.perfdhcp(t, 100)
		return lost == 0
	})
	return process
}
