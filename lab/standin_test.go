package lab

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ingotmetal/ingot/internal/systems/harvester"
	"github.com/ingotmetal/ingot/internal/systems/kubernetes"
	"github.com/ingotmetal/ingot/internal/systems/talos"
	"github.com/ingotmetal/ingot/internal/systems/vyos"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv4/nclient4"
	"github.com/insomniacslk/dhcp/dhcpv4/server4"
	"github.com/pin/tftp/v3"
	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	talosclient "github.com/siderolabs/talos/pkg/machinery/client"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
)

// standinServer is a DHCP and HTTP server in the lab's Server. It sends iPXE to /script and gives
// addresses to other clients.
type standinServer struct {
	mu     sync.Mutex
	script string
	leases map[string]net.IP // by MAC
	posts  chan string
	http.ServeMux
}

func newStandinServer(t *testing.T, l *Lab) *standinServer {
	t.Helper()
	b := &standinServer{leases: map[string]net.IP{}, posts: make(chan string, 100)}
	b.HandleFunc("GET /script", func(w http.ResponseWriter, _ *http.Request) {
		b.mu.Lock()
		defer b.mu.Unlock()
		_, _ = io.WriteString(w, b.script)
	})
	b.HandleFunc("GET /ipxe.efi", func(w http.ResponseWriter, r *http.Request) {
		http.ServeFile(w, r, filepath.Join(PackageDir("ipxe"), "usr/lib/ipxe/ipxe-amd64.efi"))
	})
	b.HandleFunc("POST /report/{event}", func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		b.posts <- r.PathValue("event") + " " + string(body)
	})
	s, err := l.Listen(t.Context(), Server, ":80")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: b}
	go func() { _ = srv.Serve(s) }()
	t.Cleanup(func() { _ = srv.Close() })
	var c net.PacketConn
	err = l.InNamespace(Server, func() (err error) {
		var lc net.ListenConfig
		c, err = lc.ListenPacket(t.Context(), "udp4", ServerAddress+":69")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	loader := tftp.NewServer(func(_ string, rf io.ReaderFrom) error {
		_, err := rf.ReadFrom(strings.NewReader("loader"))
		return err
	}, nil)
	loader.EnableSinglePort() // another port would be opened outside the namespace
	t.Cleanup(loader.Shutdown)
	go func() { _ = loader.Serve(c.(*net.UDPConn)) }()
	var d *server4.Server
	err = l.InNamespace(Server, func() (err error) {
		d, err = server4.NewServer("eth0", &net.UDPAddr{IP: net.IPv4zero, Port: 67}, b.dhcp)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = d.Serve() }()
	t.Cleanup(func() { _ = d.Close() })
	return b
}

// lease fixes a machine's address.
func (b *standinServer) lease(m *Machine, ip string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.leases[m.Spec().MAC] = net.ParseIP(ip)
}

func (b *standinServer) setScript(s string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.script = "#!ipxe\n" + s
}

func (b *standinServer) dhcp(c net.PacketConn, from net.Addr, p *dhcpv4.DHCPv4) {
	b.mu.Lock()
	ip := b.leases[p.ClientHWAddr.String()]
	b.mu.Unlock()
	if ip == nil {
		return
	}
	kind := dhcpv4.MessageTypeOffer
	if p.MessageType() == dhcpv4.MessageTypeRequest {
		kind = dhcpv4.MessageTypeAck
	}
	gw := net.ParseIP(DirectGateway)
	if p.GatewayIPAddr != nil && !p.GatewayIPAddr.IsUnspecified() {
		gw = p.GatewayIPAddr
	}
	reply, err := dhcpv4.NewReplyFromRequest(p, dhcpv4.WithMessageType(kind), dhcpv4.WithYourIP(ip),
		dhcpv4.WithServerIP(net.ParseIP(ServerAddress)),
		dhcpv4.WithOption(dhcpv4.OptServerIdentifier(net.ParseIP(ServerAddress))), dhcpv4.WithNetmask(net.CIDRMask(24, 32)),
		dhcpv4.WithRouter(gw), dhcpv4.WithLeaseTime(3600))
	if err != nil {
		return
	}
	switch {
	case p.Options.Get(dhcpv4.OptionUserClassInformation) != nil:
		reply.BootFileName = "http://" + ServerAddress + "/script"
	case strings.HasPrefix(p.ClassIdentifier(), "PXEClient"): // a simulated machine; the others have iPXE in their cards
		reply.BootFileName = "loader"
	case strings.HasPrefix(p.ClassIdentifier(), "HTTPClient"):
		reply.BootFileName = "http://" + ServerAddress + "/ipxe.efi"
		reply.UpdateOption(dhcpv4.OptClassIdentifier("HTTPClient"))
		reply.UpdateOption(dhcpv4.OptBootFileName(reply.BootFileName))
	}
	if o := p.Options.Get(dhcpv4.OptionRelayAgentInformation); o != nil {
		reply.Options.Update(dhcpv4.OptGeneric(dhcpv4.OptionRelayAgentInformation, o))
	}
	if p.GatewayIPAddr != nil && !p.GatewayIPAddr.IsUnspecified() {
		from = &net.UDPAddr{IP: p.GatewayIPAddr, Port: 67}
	} else if p.ClientIPAddr == nil || p.ClientIPAddr.IsUnspecified() {
		from = &net.UDPAddr{IP: net.IPv4bcast, Port: 68}
	}
	_, _ = c.WriteTo(reply.ToBytes(), from)
}

// pair is a CA in the format of machine configurations.
type pair struct{ crt, key string }

func (p pair) sign(t *testing.T, org string) tls.Certificate {
	t.Helper()
	ca, err := tls.X509KeyPair(unbase(t, p.crt), unbase(t, p.key))
	if err != nil {
		t.Fatal(err)
	}
	pub, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{Organization: []string{org}},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	},
		ca.Leaf, pub, ca.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func unbase(t *testing.T, s string) []byte {
	t.Helper()
	b, err := base64.StdEncoding.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func newPair(t *testing.T, kind string) pair {
	t.Helper()
	var key any
	var pub any
	var err error
	if kind == "ED25519 PRIVATE KEY" {
		pub, key, err = ed25519.GenerateKey(rand.Reader)
	} else {
		var k *ecdsa.PrivateKey
		k, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		key, pub = k, &k.PublicKey
	}
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{Organization: []string{"talos"}}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, pub, key)
	if err != nil {
		t.Fatal(err)
	}
	var kb []byte
	if k, ok := key.(*ecdsa.PrivateKey); ok {
		kb, err = x509.MarshalECPrivateKey(k)
	} else {
		kb, err = x509.MarshalPKCS8PrivateKey(key)
	}
	if err != nil {
		t.Fatal(err)
	}
	enc := func(kind string, b []byte) string {
		return base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: b}))
	}
	return pair{enc("CERTIFICATE", der), enc(kind, kb)}
}

// inLab returns an HTTP client in a namespace of the lab.
func inLab(l *Lab, ns Namespace, conf *tls.Config) *http.Client {
	return &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: conf,
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			return l.DialContext(ctx, ns, network, addr)
		},
	}}
}

// get repeats a request until the answer has the wanted status and contains want.
func get(t *testing.T, c *http.Client, at, want string) string {
	t.Helper()
	ctx := deadline(t, 2*time.Minute)
	var last string
	err := poll(ctx, func() (bool, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
		if err != nil {
			return false, err
		}
		res, err := c.Do(req)
		if err != nil {
			last = err.Error()
			return false, nil
		}
		defer res.Body.Close()
		b, _ := io.ReadAll(res.Body)
		last = res.Status + " " + string(b)
		return res.StatusCode/100 == 2 && strings.Contains(string(b), want), nil
	})
	if err != nil {
		t.Fatalf("%s: want %q: %v, last %s", at, want, err, last)
	}
	return last
}

// guestProgram is the program that simulates the guests of simulated machines.
func guestProgram(t *testing.T) string {
	t.Helper()
	path, err := GuestProgram(deadline(t, 2*time.Minute), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func console(t *testing.T, m *Machine) {
	t.Helper()
	t.Cleanup(func() {
		if t.Failed() {
			s, err := m.Serial()
			t.Logf("console of %s (%v):\n%s", m.Name(), err, strings.Join(tail(s, 60), "\n"))
		}
	})
}

// TestTalosStandin boots the stand-in for Talos from the network on a BIOS and a UEFI machine, lets
// it install, and controls the installed node with Talos's own client up to an applied manifest.
func TestTalosStandin(t *testing.T) {
	l := newLab(t)
	files, err := TalosFiles(deadline(t, 5*time.Minute), t.Output())
	if err != nil {
		t.Fatal(err)
	}
	b := newStandinServer(t, l)
	b.HandleFunc("GET /vmlinuz", func(w http.ResponseWriter, r *http.Request) { http.ServeFile(w, r, files.Kernel) })
	b.HandleFunc("GET /initramfs", func(w http.ResponseWriter, r *http.Request) { http.ServeFile(w, r, files.Initramfs) })
	machineCA, clusterCA := newPair(t, "ED25519 PRIVATE KEY"), newPair(t, "EC PRIVATE KEY")
	const base = "http://" + ServerAddress
	b.setScript(
		"kernel " + base + "/vmlinuz talos.platform=metal slab_nomerge pti=on init_on_alloc=1 console=tty0 printk.devkmsg=on talos.config=" +
			base + "/talos?serial=${serial} initrd=initramfs\ninitrd --name initramfs " + base + "/initramfs\nboot\n",
	)
	b.HandleFunc("GET /talos", func(w http.ResponseWriter, r *http.Request) {
		n := strings.TrimPrefix(r.FormValue("serial"), "SN-")
		ip := map[string]string{"talos1": "10.10.20.50", "talos2": "10.10.20.51", "talos3": "10.10.20.52"}[n]
		fmt.Fprintf(w, `version: v1alpha1
machine:
  type: controlplane
  token: abcdef.0123456789abcdef
  ca: {crt: %s, key: %s}
  network: {hostname: %s}
  install: {diskSelector: {serial: DISK-%s, size: ">= 60MB"}, image: "registry.lab/installer:v1.13.0", wipe: true}
cluster:
  controlPlane: {endpoint: "https://%s:6443"}
  clusterName: lab
  ca: {crt: %s, key: %s}
`, machineCA.crt, machineCA.key, n, n, ip, clusterCA.crt, clusterCA.key)
	})
	for _, c := range []struct {
		name, ip string
		firmware Firmware
		bus      Bus
	}{{"talos1", "10.10.20.50", BIOS, Virtio}, {"talos2", "10.10.20.51", UEFIHTTP, AHCI}, {"talos3", "10.10.20.52", Simulated, Virtio}} {
		t.Run(string(c.firmware), func(t *testing.T) {
			m := newMachine(
				t,
				l,
				Spec{
					Name:     c.name,
					Firmware: c.firmware,
					Bus:      c.bus,
					Order:    DiskFirst,
					NoBMC:    true,
					MemoryMB: 768,
					Decoys:   []string{"DECOY-" + c.name},
					Guest:    guestProgram(t),
				},
			)
			console(t, m)
			b.lease(m, c.ip)
			if err := m.PowerOn(deadline(t, time.Minute)); err != nil {
				t.Fatal(err)
			}
			wait := func(pattern string) {
				t.Helper()
				line, err := m.WaitSerial(deadline(t, 3*time.Minute), pattern)
				if err != nil {
					t.Fatal(err)
				}
				t.Log(line)
			}
			wait(`LAB-TALOS stage installed /dev/[vs]da`)
			wait(`LAB-TALOS stage running waiting for Bootstrap`)
			talosNode(t, l, machineCA, c.ip)
			bootstraps := `"bootstraps":2`
			if c.firmware == Simulated { // our own clients fit; once is enough
				ownClients(t, l, machineCA, c.ip)
				bootstraps = `"bootstraps":3`
			}
			// It keeps its state, even when it boots from the network again.
			m.SetNextBoot(NextNetwork)
			if err := m.PowerCycle(deadline(t, time.Minute)); err != nil {
				t.Fatal(err)
			}
			wait(`LAB-TALOS configuration from STATE`)
			wait(`LAB-TALOS stage running Kubernetes`)
			get(t, inLab(l, Server, nil), fmt.Sprintf("http://%s:%d/applied", c.ip, GuestHealthPort), bootstraps)
		})
	}
}

// TestHarvesterStandin installs two machines with Harvester's command line, one that creates the
// cluster and one that joins it, first with a wrong token.
func TestHarvesterStandin(t *testing.T) {
	t.Run("real", func(t *testing.T) { harvesterCluster(t, BIOS, UEFIHTTP) })
	t.Run("simulated", func(t *testing.T) { harvesterCluster(t, Simulated, Simulated) })
}

func harvesterCluster(t *testing.T, firmware ...Firmware) {
	t.Helper()
	l := newLab(t)
	files, err := HarvesterFiles(deadline(t, 5*time.Minute), t.Output())
	if err != nil {
		t.Fatal(err)
	}
	b := newStandinServer(t, l)
	for path, file := range map[string]string{
		"/vmlinuz": files.Kernel, "/initrd": files.Initrd, "/rootfs.squashfs": files.RootFS, "/harvester.iso": files.ISO,
	} {
		b.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) { http.ServeFile(w, r, file) })
	}
	const base = "http://" + ServerAddress
	script := "kernel " + base + "/vmlinuz initrd=initrd ip=dhcp rd.net.dhcp.retry=3 rd.cos.disable rd.noverifyssl " +
		"net.ifnames=1 root=live:" + base +
		"/rootfs.squashfs console=ttyS0,115200n8 console=tty1 harvester.install.automatic=true harvester.install.skipchecks=true " +
		"harvester.install.config_url=" + base + "/config/${serial} ingotlab.fail=\ninitrd --name initrd " + base + "/initrd\nboot\n"
	b.setScript(script)
	join := "server_url: https://10.10.20.60:443\n"
	var token atomic.Value
	token.Store("wrong")
	b.HandleFunc("GET /config/{serial}", func(w http.ResponseWriter, r *http.Request) {
		name := strings.TrimPrefix(r.PathValue("serial"), "SN-")
		mode, server, tok, mac := "create", "", "secret", "52:54:00:20:00:01"
		if name == "node3" {
			mac = "52:54:00:20:00:03"
		}
		if name == "node2" {
			mode, server, tok, mac = "join", join, token.Load().(string), "52:54:00:20:00:02"
		}
		fmt.Fprintf(w, `scheme_version: 1
token: %s
%sos: {hostname: %s, password: rancher, ntp_servers: [0.pool.ntp.org]}
install:
  mode: %s
  management_interface: {interfaces: [{hwAddr: "%s"}], method: dhcp, bond_options: {mode: balance-tlb, miimon: 100}}
  device: /dev/disk/by-id/nvme-QEMU_NVMe_Ctrl_DISK-%s
  iso_url: %s/harvester.iso
  vip: 10.10.20.60
  vip_mode: static
  tty: ttyS0
  webhooks:
    - {event: STARTED, method: POST, url: "%s/report/STARTED", payload: "{{.Hostname}} {{.IPAddrV4}}"}
    - {event: SUCCEEDED, method: POST, url: "%s/report/SUCCEEDED", payload: "{{.Hostname}} {{.MACAddr}}"}
    - {event: FAILED, method: POST, url: "%s/report/FAILED", payload: "{{.Hostname}}"}
`, tok, server, name, mode, mac, name, base, base, base, base)
	})
	var machines []*Machine
	for i, name := range []string{"node1", "node2"} {
		m := newMachine(
			t,
			l,
			Spec{
				Name:     name,
				Firmware: firmware[i],
				Bus:      NVMe,
				NoBMC:    true,
				Guest:    guestProgram(t),
				MemoryMB: 1024,
				MAC:      fmt.Sprintf("52:54:00:20:00:%02d", i+1),
			},
		)
		console(t, m)
		b.lease(m, fmt.Sprintf("10.10.20.6%d", i+1))
		machines = append(machines, m)
		if err := m.PowerOn(deadline(t, time.Minute)); err != nil {
			t.Fatal(err)
		}
	}
	report := func(want string) {
		t.Helper()
		for {
			select {
			case got := <-b.posts:
				t.Log(got)
				if got == want {
					return
				}
			case <-deadline(t, 5*time.Minute).Done():
				t.Fatalf("no report %q", want)
			}
		}
	}
	wait := func(m *Machine, pattern string) {
		t.Helper()
		line, err := m.WaitSerial(deadline(t, 5*time.Minute), pattern)
		if err != nil {
			t.Fatal(err)
		}
		t.Log(line)
	}
	report("SUCCEEDED node1 " + machines[0].Spec().MAC)
	wait(machines[0], "LAB-HARVESTER stage running the cluster answers")
	c := inLab(l, Server, &tls.Config{InsecureSkipVerify: true})
	get(t, c, "https://10.10.20.60/ping", "pong")
	get(t, c, "https://10.10.20.60/v1/harvester/cluster/local", `"nodeCount":1`)
	wait(machines[1], "joining: the cluster answers 401")
	token.Store("secret")
	if err := machines[1].PowerOff(t.Context()); err != nil {
		t.Fatal(err)
	}
	machines[1].SetNextBoot(NextNetwork)
	if err := machines[1].PowerOn(deadline(t, time.Minute)); err != nil {
		t.Fatal(err)
	}
	wait(machines[1], "stage running joined")
	if firmware[0] == Simulated { // the following steps are tested only once
		b.setScript(strings.Replace(script, "ingotlab.fail=", "ingotlab.fail=install", 1))
		m := newMachine(t, l,
			Spec{Name: "node3", Firmware: Simulated, Bus: NVMe, NoBMC: true, Guest: guestProgram(t), MAC: "52:54:00:20:00:03"})
		console(t, m)
		b.lease(m, "10.10.20.63")
		if err := m.PowerOn(deadline(t, time.Minute)); err != nil {
			t.Fatal(err)
		}
		report("FAILED node3")
		wait(m, "LAB-HARVESTER stage failed installing: told to fail")

		e := inventory.Endpoint{URL: "https://" + forward(t, l, Server, "10.10.20.60:443"), Insecure: true}
		if err := (harvester.Client{}).Ready(t.Context(), e); err != nil {
			t.Error(err)
		}
		token, err := harvester.Client{}.LogIn(t.Context(), e, "admin", inventory.NewSecret("first"))
		if err != nil {
			t.Fatal(err)
		}
		nodes, err := harvester.Client{}.Nodes(t.Context(), e, token)
		if err != nil || len(nodes) != 2 || !nodes[0].Ready || !nodes[1].Ready {
			t.Errorf("nodes: %v, %v", nodes, err)
		}
		if err := (harvester.Client{}).LogOut(t.Context(), e, token); err != nil {
			t.Error(err)
		}
		if _, err := (harvester.Client{}).Nodes(t.Context(), e, token); err == nil {
			t.Error("the token lives after the log-out")
		}
		if _, err := (harvester.Client{}).LogIn(t.Context(), e, "admin", inventory.NewSecret("another")); err == nil {
			t.Error("another password was accepted")
		}
	}
	get(t, c, "http://10.10.20.60:8099/nodes", `"count":2`)
	get(t, c, "https://10.10.20.62/ping", "pong")
}

// TestTalosImageStandin boots the raw image (path B). Its configuration is on a CIDATA volume at
// the end of the disk, and it creates its own partitions before that.
func TestTalosImageStandin(t *testing.T) {
	for _, firmware := range []Firmware{UEFI, Simulated} {
		t.Run(string(firmware), func(t *testing.T) {
			l := newLab(t)
			files, err := TalosFiles(deadline(t, 5*time.Minute), t.Output())
			if err != nil {
				t.Fatal(err)
			}
			b := newStandinServer(t, l)
			m := newMachine(t, l, Spec{Name: "talos", Firmware: firmware, NoBMC: true, DiskSize: 256 << 20, Guest: guestProgram(t)})
			console(t, m)
			b.lease(m, "10.10.20.50")
			machineCA, clusterCA := newPair(t, "ED25519 PRIVATE KEY"), newPair(t, "EC PRIVATE KEY")
			writeDisk(t, files.Image, m.DiskPath())
			addCIDATA(t, m.DiskPath(), map[string]string{"meta-data": "instance-id: i-1\n", "user-data": fmt.Sprintf(`version: v1alpha1
machine: {type: controlplane, ca: {crt: %s, key: %s}}
cluster: {controlPlane: {endpoint: "https://10.10.20.50:6443"}, ca: {crt: %s, key: %s}}
---
apiVersion: v1alpha1
kind: HostnameConfig
hostname: um760
`, machineCA.crt, machineCA.key, clusterCA.crt, clusterCA.key)})
			for range 2 { // the second time from STATE
				if err := m.PowerCycle(deadline(t, time.Minute)); err != nil {
					t.Fatal(err)
				}
				line, err := m.WaitSerial(deadline(t, 3*time.Minute), "LAB-TALOS stage running waiting for Bootstrap")
				if err != nil {
					t.Fatal(err)
				}
				t.Log(line)
			}
			talosNode(t, l, machineCA, "10.10.20.50")
			if out, err := exec.Command("sgdisk", "-v", "-p", m.DiskPath()).
				CombinedOutput(); err != nil ||
				!strings.Contains(string(out), "No problems found") {
				t.Errorf("sgdisk: %v: %s", err, out)
			}
		})
	}
}

// forward makes an address of the lab available on this host.
func forward(t *testing.T, l *Lab, ns Namespace, target string) string {
	t.Helper()
	addr, err := l.Forward(t.Context(), Host, "127.0.0.1:0", ns, target)
	if err != nil {
		t.Fatal(err)
	}
	return addr
}

// ownClients controls an installed node with the product's own clients.
func ownClients(t *testing.T, l *Lab, ca pair, ip string) {
	t.Helper()
	admin := ca.sign(t, "os:admin")
	der, err := x509.MarshalPKCS8PrivateKey(admin.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	enc := func(kind string, b []byte) string {
		return base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: b}))
	}
	conf := inventory.NewSecret(
		fmt.Sprintf("context: lab\ncontexts:\n  lab:\n    endpoints: [%s]\n    ca: %s\n    crt: %s\n    key: %s\n", ip, ca.crt,
			enc("CERTIFICATE", admin.Certificate[0]), enc("ED25519 PRIVATE KEY", der)),
	)
	api := forward(t, l, Server, ip+":50000")
	ctx := deadline(t, time.Minute)
	if v, err := (talos.Client{}).Version(ctx, api, conf); err != nil || !strings.Contains(v, "v1.13.0") {
		t.Errorf("Version: %q, %v", v, err)
	}
	if already, err := (talos.Client{}).Bootstrap(ctx, api, conf); err != nil || !already {
		t.Errorf("Bootstrap: %v, %v", already, err)
	}
	kubeconfig, err := talos.Client{}.Kubeconfig(ctx, api, conf, "https://"+forward(t, l, Server, ip+":6443"))
	if err != nil {
		t.Fatal(err)
	}
	k := kubernetes.Client{}
	if err := k.Ready(ctx, kubeconfig); err != nil {
		t.Error(err)
	}
	if nodes, err := k.Nodes(ctx, kubeconfig); err != nil || len(nodes) != 1 || !nodes[0].Ready {
		t.Errorf("nodes: %v, %v", nodes, err)
	}
	const manifest = "apiVersion: v1\nkind: Namespace\nmetadata: {name: own}\n---\napiVersion: v1\nkind: Secret\n" +
		"metadata: {name: s, namespace: own}\nstringData: {a: b}\n" +
		"---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d, namespace: own}\nspec: {replicas: 1}\n"
	for range 2 {
		if names, err := k.Apply(ctx, kubeconfig, inventory.NewSecret(manifest)); err != nil || len(names) != 3 {
			t.Errorf("Apply: %v, %v", names, err)
		}
	}
	if names, err := k.Delete(ctx, kubeconfig, inventory.NewSecret(manifest)); err != nil {
		t.Errorf("Delete: %v, %v", names, err)
	}
}

// talosNode controls an installed node.
func talosNode(t *testing.T, l *Lab, ca pair, ip string) {
	t.Helper()
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(unbase(t, ca.crt))
	conf := &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{ca.sign(t, "os:admin")}}
	dial := grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
		return l.DialContext(ctx, Server, "tcp", addr)
	})
	c, err := talosclient.New(t.Context(), talosclient.WithEndpoints(ip), talosclient.WithTLSConfig(conf),
		talosclient.WithGRPCDialOptions(dial))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	ctx := deadline(t, 2*time.Minute)
	v, err := c.Version(ctx)
	if err != nil || v.GetMessages()[0].GetVersion().GetTag() != "v1.13.0" {
		t.Fatalf("Version: %v, %v", v, err)
	}
	anonymous, err := talosclient.New(t.Context(), talosclient.WithEndpoints(ip),
		talosclient.WithTLSConfig(&tls.Config{RootCAs: pool}), talosclient.WithGRPCDialOptions(dial))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = anonymous.Close() }()
	if _, err := anonymous.Version(ctx); err == nil {
		t.Error("a client without a certificate was answered")
	}
	reader := &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{ca.sign(t, "os:reader")}}
	conn, err := grpc.NewClient("passthrough:///"+ip+":50000", grpc.WithTransportCredentials(credentials.NewTLS(reader)), dial)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := machine.NewMachineServiceClient(conn).
		Bootstrap(ctx, &machine.BootstrapRequest{}); status.Code(
		err,
	) != codes.PermissionDenied {
		t.Errorf("Bootstrap by a reader: %v", err)
	}
	tell := func(what string) {
		t.Helper()
		res, err := inLab(l, Server, nil).PostForm(fmt.Sprintf("http://%s:%d/fail", ip, GuestHealthPort), url.Values{"what": {what}})
		if err != nil || res.StatusCode != http.StatusOK {
			t.Fatalf("telling it to fail: %v, %v", res, err)
		}
		_ = res.Body.Close() // only read from
	}
	tell("bootstrap,node")
	get(t, inLab(l, Server, nil), fmt.Sprintf("http://%s:%d/", ip, GuestHealthPort), `"failures":["bootstrap","node"]`)
	if err := c.Bootstrap(ctx, &machine.BootstrapRequest{}); talosclient.StatusCode(err) != codes.Unavailable {
		t.Errorf("Bootstrap of a node that is to fail: %v", err)
	}
	tell("")
	if err := c.Bootstrap(ctx, &machine.BootstrapRequest{}); err != nil {
		t.Fatal(err)
	}
	if err := c.Bootstrap(ctx, &machine.BootstrapRequest{}); talosclient.StatusCode(err) != codes.AlreadyExists {
		t.Errorf("the second Bootstrap: %v", err)
	}
	text, err := c.Kubeconfig(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var k struct {
		Clusters []struct {
			Cluster struct {
				Server string
				CA     []byte `json:"certificate-authority-data"`
			}
		}
		Users []struct {
			User struct {
				Crt []byte `json:"client-certificate-data"`
				Key []byte `json:"client-key-data"`
			}
		}
	}
	if err := json.Unmarshal(text, &k); err != nil {
		t.Fatal(err)
	}
	user, err := tls.X509KeyPair(k.Users[0].User.Crt, k.Users[0].User.Key)
	if err != nil {
		t.Fatal(err)
	}
	kube := x509.NewCertPool()
	kube.AppendCertsFromPEM(k.Clusters[0].Cluster.CA)
	hc := inLab(l, Server, &tls.Config{RootCAs: kube, Certificates: []tls.Certificate{user}})
	at := k.Clusters[0].Cluster.Server
	get(t, hc, at+"/readyz", "ok")
	get(t, hc, at+"/api/v1/nodes", `"reason":"KubeletReady"`)
	apply := func(path, body string, want int) {
		t.Helper()
		req, err := http.NewRequestWithContext(ctx, http.MethodPatch, at+path+"?fieldManager=test&force=true", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/apply-patch+yaml")
		res, err := hc.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		if b, _ := io.ReadAll(res.Body); res.StatusCode != want {
			t.Errorf("applying %s: %s, want %d: %s", path, res.Status, want, b)
		}
	}
	deployment := "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: ingot, namespace: ingot}\nspec: {replicas: 1}\n"
	apply("/apis/apps/v1/namespaces/ingot/deployments/ingot", deployment, 404)
	apply("/api/v1/namespaces/ingot", "apiVersion: v1\nkind: Namespace\nmetadata: {name: ingot}\n", 201)
	apply("/apis/apps/v1/namespaces/ingot/deployments/ingot", deployment, 201)
	apply("/apis/apps/v1/namespaces/ingot/deployments/ingot", deployment, 200)
	get(t, inLab(l, Server, nil), fmt.Sprintf("http://%s:%d/applied", ip, GuestHealthPort), `"kind":"Deployment"`)
	bare := inLab(l, Server, &tls.Config{RootCAs: kube})
	res, err := bare.Get(at + "/api/v1/nodes")
	if err != nil || res.StatusCode != http.StatusUnauthorized {
		t.Errorf("without a certificate: %v, %v", res, err)
	}
}

// TestVyOSStandin writes the image of the stand-in for VyOS and a configuration to the disks of a
// BIOS and a UEFI machine with cards on three networks, which replaces the lab's router. It routes,
// relays DHCP, and its API changes the relay.
func TestVyOSStandin(t *testing.T) {
	img, err := func() (Image, error) {
		if !*realLab {
			t.Skip("an image is made only with -lab")
		}
		return VyOSImage(deadline(t, 5*time.Minute), t.Output())
	}()
	if err != nil {
		t.Fatal(err)
	}
	for _, firmware := range []Firmware{BIOS, UEFI, Simulated} {
		t.Run(string(firmware), func(t *testing.T) {
			l, err := New(t.Context(), Options{Home: true, NoRelay: true})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := l.Close(); err != nil {
					t.Error(err)
				}
			})
			vyosRouter(t, l, img, firmware)
		})
	}
}

func vyosRouter(t *testing.T, l *Lab, img Image, firmware Firmware) {
	t.Helper()
	m := newMachine(
		t,
		l,
		Spec{
			Name:     "vp6630",
			VLAN:     HomeVLAN,
			Firmware: firmware,
			NoBMC:    true,
			Cards:    []Card{{VLAN: DirectVLAN}, {VLAN: BMCVLAN}},
			DiskSize: 1 << 30,
			Guest:    guestProgram(t),
		},
	)
	console(t, m)
	if out, err := exec.Command("dd", "if="+img.Raw, "of="+m.DiskPath(), "bs=1M", "conv=notrunc,sparse", "status=none").
		CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	dir := t.TempDir()
	script := "#!/bin/sh\n(n=0; while [ \"$n\" -lt 90 ]; do if curl -fsS --max-time 10 -X POST 'http://192.168.1.10/report'; then rm -f " +
		"/opt/vyatta/etc/config/scripts/vyos-postconfig-bootup.script; exit 0; fi; n=$((n + 1)); sleep 1; done) >/dev/null 2>&1 &\n"
	const etc = "/boot/" + VyOSVersion + "/rw/opt/vyatta/etc/config"
	commands := ""
	for d := ""; d != etc+"/scripts"; {
		rest := strings.TrimPrefix(etc+"/scripts", d)
		d += rest[:1+strings.IndexAny(rest[1:]+"/", "/")]
		commands += "mkdir " + d + "\n"
	}
	for name, text := range map[string]string{
		"config.boot": VyOSConfig("the-key"), ".vyatta_config": "", "scripts/vyos-postconfig-bootup.script": script,
	} {
		file := filepath.Join(dir, filepath.Base(name))
		if err := os.WriteFile(file, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
		commands += fmt.Sprintf("write %s %s/%s\n", file, etc, name)
	}
	c := exec.Command("debugfs", "-w", "-f", "-", m.DiskPath()+"?offset="+strconv.Itoa(VyOSPersistence))
	c.Stdin = strings.NewReader(commands)
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := l.RemoveRouter(deadline(t, time.Minute)); err != nil {
		t.Fatal(err)
	}
	called := make(chan struct{}, 10)
	web, err := l.Listen(t.Context(), Seed, ":80")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost && r.URL.Path == "/report" {
			called <- struct{}{}
		}
	})}
	go func() { _ = srv.Serve(web) }()
	t.Cleanup(func() { _ = srv.Close() })
	if err := m.PowerOn(deadline(t, time.Minute)); err != nil {
		t.Fatal(err)
	}
	wait := func(pattern string) {
		t.Helper()
		line, err := m.WaitSerial(deadline(t, 2*time.Minute), pattern)
		if err != nil {
			t.Fatal(err)
		}
		t.Log(line)
	}
	wait("LAB-VYOS stage running vp6630")
	select {
	case <-called:
	case <-deadline(t, time.Minute).Done():
		t.Fatal("it did not phone home")
	}
	hc := inLab(l, Seed, &tls.Config{InsecureSkipVerify: true})
	api := func(path, key, data string, want int) string {
		t.Helper()
		res, err := hc.PostForm("https://192.168.1.2"+path, url.Values{"data": {data}, "key": {key}})
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		b, err := io.ReadAll(res.Body)
		if err != nil || res.StatusCode != want {
			t.Errorf("%s %s: %s, want %d: %s", path, data, res.Status, want, b)
		}
		return string(b)
	}
	has := func(got, want string) {
		t.Helper()
		if !strings.Contains(got, want) {
			t.Errorf("%s: want %s", got, want)
		}
	}
	api("/retrieve", "wrong", `{"op":"showConfig","path":[]}`, 401)
	has(api("/retrieve", "the-key", `{"op":"showConfig","path":[]}`, 200), `"host-name":"vp6630"`)
	has(api("/retrieve", "the-key", `{"op":"showConfig","path":["service","dns"]}`, 400), "path is empty")

	// Requests of a machine on VLAN 20 reach the seed through the relay.
	var seed net.PacketConn
	err = l.InNamespace(Seed, func() (err error) {
		var lc net.ListenConfig
		seed, err = lc.ListenPacket(t.Context(), "udp4", "0.0.0.0:67")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = seed.Close() })
	asked := func() {
		t.Helper()
		var n *nclient4.Client
		err := l.InNamespace(Client, func() (err error) {
			n, err = nclient4.New("eth0", nclient4.WithTimeout(time.Second), nclient4.WithRetry(30))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(deadline(t, time.Minute))
		defer cancel()
		go func() { _, _ = n.DiscoverOffer(ctx) }()
		if err := seed.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 2000)
		k, from, err := seed.ReadFrom(buf)
		if err != nil {
			t.Fatal(err)
		}
		p, err := dhcpv4.FromBytes(buf[:k])
		if err != nil || p.GatewayIPAddr.String() != "10.10.20.1" || p.Options.Get(dhcpv4.OptionRelayAgentInformation) == nil {
			t.Errorf("from %s: %v, %v", from, p, err)
		}
	}
	asked()
	api("/configure", "the-key", `[{"op":"set","path":["service","dhcp-relay","server","10.10.20.2"]}]`, 200)
	has(api("/retrieve", "the-key", `{"op":"showConfig","path":["service","dhcp-relay"]}`, 200), `"server":["192.168.1.10","10.10.20.2"]`)
	get(t, inLab(l, Seed, nil), "http://192.168.1.2:8099/", `"192.168.1.10","10.10.20.2"]`)
	api("/configure", "the-key", `{"op":"set","path":["service","dhcp-relay","nonsense","1"]}`, 400)
	api("/configure", "the-key", `[{"op":"delete","path":["service","dhcp-relay","server"]}]`, 400)
	api("/configure", "the-key", `{"op":"delete","path":["service","dhcp-relay","server","10.10.20.2"]}`, 200)
	api("/config-file", "the-key", `{"op":"save"}`, 200)
	if firmware == Simulated { // our own client fits; once is enough
		e, v := inventory.Endpoint{URL: "https://" + forward(t, l, Seed, "192.168.1.2:443"), Insecure: true}, vyos.Client{}
		key := inventory.NewSecret("the-key")
		for _, listed := range []bool{true, true, false, false} {
			if err := v.SetRelayServer(t.Context(), e, key, "10.10.20.9", listed); err != nil {
				t.Error(err)
			}
		}
		if servers, err := v.RelayServers(t.Context(), e, key); err != nil || !slices.Equal(servers, []string{"192.168.1.10"}) {
			t.Errorf("%v, %v", servers, err)
		}
		if tree, err := v.Configuration(t.Context(), e, key, "service", "dns"); err != nil || len(tree) != 0 {
			t.Errorf("what is not configured: %v, %v", tree, err)
		}
		if _, err := v.Configuration(t.Context(), e, inventory.NewSecret("wrong"), "service"); err == nil {
			t.Error("a wrong key was accepted")
		}
	}
	m.MarkSerial()
	if err := m.PowerCycle(deadline(t, time.Minute)); err != nil {
		t.Fatal(err)
	}
	wait("LAB-VYOS stage running vp6630")
	asked()
	has(get(t, inLab(l, Seed, nil), "http://192.168.1.2:8099/", ""), `"migrated":false`)
}
