package e2e

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"database/sql"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	_ "github.com/mattn/go-sqlite3"
	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/internal/observe/notify"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/lab"
	"github.com/ingotmetal/ingot/lab/webhook"
	"github.com/ingotmetal/ingot/workflows"
	"github.com/ingotmetal/ingot/workflows/contract"
)

// canary is a secret that must not be found, or text that must be found: a search that never
// finds anything proves nothing.
type canary struct {
	what string
	text []byte
	// where lists prefixes of the places in which the text belongs.
	where []string
}

// newCanary returns a unique text.
func newCanary() string {
	var b [7]byte
	_, _ = rand.Read(b[:]) // never returns an error: it ends the program instead
	return "cnry" + hex.EncodeToString(b[:])
}

// forms are the ways in which a text can appear in a file: plain, in hex, and in base64,
// also as part of something longer.
func (c canary) forms() [][]byte {
	forms := [][]byte{c.text, []byte(hex.EncodeToString(c.text)), []byte(strings.ToUpper(hex.EncodeToString(c.text)))}
	for before := range 3 {
		padded := append(make([]byte, before), c.text...)
		for _, e := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
			// Characters that hold bits of neighboring bytes do not count.
			b := e.EncodeToString(padded)[[]int{0, 2, 3}[before] : len(padded)*8/6]
			forms = append(forms, []byte(b))
		}
	}
	return forms
}

// in reports whether any of the forms is in b.
func (c canary) in(b []byte) bool {
	return slices.ContainsFunc(c.forms(), func(f []byte) bool { return bytes.Contains(b, f) })
}

func (c canary) belongs(place string) bool {
	return slices.ContainsFunc(c.where, func(w string) bool { return strings.HasPrefix(place, w) })
}

// places is everything that is searched, by name.
type places map[string][]byte

// bmcUser begins the names of BMC users of this test.
const bmcUser = "ucnry"

// processWatch keeps the arguments and the environment of every process of this host.
type processWatch struct {
	stop func()
	seen map[string][]byte // by program, all of its arguments and environments
	ipmi int               // ipmitool processes of this test that were seen
	envs int               // those with their own environment
}

// watchProcesses reads all processes until stop is called.
func watchProcesses(t *testing.T) *processWatch {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	w := &processWatch{stop: func() { cancel(); <-done }, seen: map[string][]byte{}}
	go func() {
		defer close(done)
		looks := map[string]int{}     // reads of a process while it is new
		contents := map[string]bool{} // contents that are already stored
		counted := map[string]bool{}
		tick := time.NewTicker(4 * time.Millisecond)
		defer tick.Stop()
		for n := 0; ; n++ {
			dirs, err := os.ReadDir("/proc")
			if err != nil {
				return
			}
			for _, d := range dirs {
				if _, err := strconv.Atoi(d.Name()); err != nil {
					continue
				}
				// A process changes both when it runs another program, soon after its start; later,
				// an occasional read is enough.
				if looks[d.Name()]++; looks[d.Name()] > 20 && n%250 != 0 {
					continue
				}
				argv, err := os.ReadFile("/proc/" + d.Name() + "/cmdline")
				if err != nil {
					looks[d.Name()] = 0 // ended; the id may be reused
					continue
				}
				env, _ := os.ReadFile("/proc/" + d.Name() + "/environ") // may have ended
				program := filepath.Base(string(bytes.SplitN(argv, []byte{0}, 2)[0]))
				if program == "ipmitool" && bytes.Contains(argv, []byte(bmcUser)) && !counted[d.Name()+string(argv)] {
					counted[d.Name()+string(argv)] = true
					w.ipmi++
					if bytes.Contains(env, []byte("LC_ALL=C")) {
						w.envs++
					}
				}
				for kind, b := range map[string][]byte{"argv/": argv, "environ/": env} {
					if key := kind + program + "\x00" + string(b); !contents[key] {
						contents[key] = true
						w.seen[kind+program] = append(append(w.seen[kind+program], b...), '\n')
					}
				}
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
	}()
	t.Cleanup(w.stop)
	return w
}

// TestS10S25S44Canaries puts a unique text into every field that may contain a secret. It lets one
// run succeed, one run fail, one run get a refused BMC password, and a Genesis fail at its first
// machine. It pairs with a standby, makes a backup, and searches everything that remains for these
// texts.
func TestS10S25S44Canaries(t *testing.T) {
	runInTurn(t, 85, 7)
	ctx := needLab(t)
	require.ElementsMatch(t, []string{
		"inventory.UserData", "inventory.VendorData", "inventory.Password", // of machines, and of those of the lab file
		"inventory.Value",                                                           // of a SecretField: points to one of those
		"inventory.Files", "genesis.Key", "genesis.Talosconfig", "genesis.Password", // canaryFiles
		"importfile.UserData", "importfile.VendorData", "importfile.Userdata", "importfile.Vendordata", // become those of machines
		"api.Token",                           // pair
		"api.Passphrase", "backup.Passphrase", // backUp
	}, secretFields(t, ".."), "a new secret field needs a canary here")
	watch := watchProcesses(t)
	image, err := lab.SimImage(ctx, testWriter{t})
	require.NoError(t, err)
	// An external receiver gets notices; its URL contains a token.
	told := &told{secret: "whsec_" + newCanary() + newCanary(), token: newCanary()}
	secretFile := filepath.Join(t.TempDir(), "notify")
	require.NoError(t, os.WriteFile(secretFile, []byte(told.secret), 0o600))
	collectorToken := newCanary() // S62: spans are searched, too
	traces, tracing := collect(t, collectorToken)
	s, err := NewSite(
		ctx,
		Options{
			Root:     "..",
			Programs: programs(),
			Dir:      keepDir(t),
			Home:     true,
			NoStart:  true,
			Top: tracing + "images: {fetch_hosts: [" + lab.DirectGateway + "]}\n" +
				"notify: {url: \"http://" + toldAt + "/" + told.token + "\", secret_file: " + secretFile + "}\n",
		},
	)
	require.NoError(t, err)
	s.keep(t)
	env := newCanary()
	s.extraEnv = append(s.extraEnv, "INGOT_CANARY="+env) // in every process of the site: shows that reading /proc works
	require.NoError(t, s.Start(ctx))
	stream := s.stream(ctx, t)
	s.listenForNotices(ctx, t, told)
	s.serveCollector(ctx, t, traces)

	secrets := map[string]string{
		"what notices are signed with": told.secret, "the token in the address of notices": told.token, "the collector's token": collectorToken,
	}
	secret := func(what string) string { secrets[what] = newCanary(); return secrets[what] }
	label, literal := newCanary(), canary{what: "a template's environment", text: []byte(newCanary())}

	// An image on a server that requires a password.
	fetch := secret("an image's address")
	server := s.guarded(ctx, t, image.Zst, fetch)
	require.NoError(t, s.REST(ctx, http.MethodPost, "/v1/images", map[string]any{"name": "sim", "url": server(fetch)}, nil))
	wrong := secret("an image's wrong address")
	refusal := s.REST(ctx, http.MethodPost, "/v1/images", map[string]any{"name": "wrong", "url": server(wrong)}, nil)
	require.ErrorContains(t, refusal, "401")

	names := map[string]string{
		"good":    "g" + newCanary(),
		"bad":     "b" + newCanary(),
		"refused": "r" + newCanary(),
		"router":  "v" + newCanary(),
	}
	machine := func(name string, spec lab.Spec, imageName string) *lab.Machine {
		spec.Name, spec.BMCPassword, spec.BMCUser = names[name], secret("BMC password of "+name), bmcUser+newCanary()[4:8]
		spec.Agent, spec.DiskSerial = filepath.Join(s.root, "bin/worker-agent"), "D-"+name
		m, err := s.Add(ctx, spec, func(doc map[string]any) {
			doc["labels"] = map[string]any{"control": label}
			doc["userData"] = "#cloud-config\n# " + secret("user-data of "+name) + "\n{}\n"
			doc["vendorData"] = map[string]any{"base64": []byte("#cloud-config\n# \xff" + secret("vendor-data of "+name) + "\n{}\n")}
			if imageName != "" {
				doc["image"] = imageName
			}
			if name == "refused" {
				doc["bmc"].(map[string]any)["password"] = secret("wrong BMC password")
			}
		})
		require.NoError(t, err)
		return m
	}
	gate := lab.NewGate(lab.StageDisk)
	good := machine("good", lab.Spec{Firmware: lab.Simulated, Stage: gate.Stage}, "sim")
	bad := machine("bad", lab.Spec{}, "") // QEMU: a real kernel prints its command line
	machine("refused", lab.Spec{Firmware: lab.Simulated}, "sim")
	s.template(ctx, t, "fails", `version: "0.1"
name: fails
tasks:
- name: t
  worker: "{{.device_1}}"
  actions:
  - name: told
    image: noop
    timeout: 60
    environment: {LITERAL: "`+string(literal.text)+`", USER: "{{.user_data}}", VENDOR: "{{.vendor_data}}",
      HOME: "{{.phone_home_url}}", LOG: "told"}
  - name: fails
    image: image2disk
    timeout: 60
    environment: {IMG_URL: "`+server(string(literal.text))+`", IMG_SHA256: "`+image.SHA256+`",
      DEST_DISK: /dev/vda}
`)

	// A lab, and a standby to which the site could move.
	found := places{}
	router, err := s.Machine(
		ctx,
		lab.Spec{
			Name:        names["router"],
			Firmware:    lab.Simulated,
			DiskSerial:  "D-router",
			Agent:       filepath.Join(s.root, "bin/worker-agent"),
			BMCUser:     "admin",
			BMCPassword: secret("lab file: BMC password"),
		},
	)
	require.NoError(t, err)
	var sim inventory.Image
	require.NoError(t, s.REST(ctx, http.MethodGet, "/v1/images/sim", nil, &sim))
	s.beginGenesis(ctx, t, found, canaryFiles(t, router, sim.SHA256, secret), secret("lab file: a password in an address"))
	standby := s.pair(ctx, t, found, secret("a peer's token")+secret("the rest of a peer's token"))

	// During the runs.
	runs := map[string]string{}
	for name, in := range map[string]contract.ProvisionInput{"good": {}, "bad": {Template: "fails"}, "refused": {}} {
		in.Machine = names[name]
		runs[name], err = s.Provision(ctx, in)
		require.NoError(t, err)
	}
	claims := map[string]map[string]string{}
	for name, m := range map[string]*lab.Machine{"good": good, "bad": bad} {
		sim := s.Simulate(names[name], m.Spec().MAC)
		claims[name], err = sim.armed(ctx)
		require.NoError(t, err)
		script, err := sim.Script(ctx)
		require.NoError(t, err)
		require.Contains(t, script, claims[name]["claim"])
		found["script/"+name] = []byte(script)
	}
	asked, err := s.Follow(ctx, names["refused"], func(w inventory.Workflow) bool { return w.Question != nil })
	require.NoError(t, err)
	require.Contains(t, asked.Question.Text, "check user and password")
	found["question"] = []byte(asked.Question.Text)

	key := s.claimKey(t)
	owner := func(name string) inventory.Owner {
		return inventory.Owner{Machine: names[name], Run: runs[name], Epoch: 1}
	}
	s.of(ctx, t, runs["good"], func(w inventory.Workflow) bool { return w.Phase == inventory.PhaseReady })
	require.NoError(t, gate.Reached(ctx))
	seed := s.get(
		ctx,
		t,
		fmt.Sprintf("http://%s:7172/c/%s/%s/nocloud/user-data", lab.ServerAddress, names["good"], inventory.Capability(key, owner("good"))),
	)
	require.Contains(t, seed, secrets["user-data of good"], "the window is open: the machine's own system is told")
	s.snapshot(ctx, t, found, "during", names, runs)
	gate.Open()
	// cloud-init would read the address from the seed's MIME parts; the lab's system reads none.
	s.phoneHome(
		ctx,
		t,
		fmt.Sprintf("http://%s:7172/phone-home/%s/%s", lab.ServerAddress, names["good"], inventory.Nonce(key, owner("good"))),
	)
	require.Equal(t, inventory.StateSuccess, s.of(ctx, t, runs["good"], final).State)
	end := s.of(ctx, t, runs["bad"], final)
	require.Equal(t, inventory.StateFailed, end.State)
	require.Contains(t, end.Message, "fails", "it failed where it was meant to: %s", end.Message)
	s.must(ctx, t, "workflow", "cancel", names["refused"])
	s.of(ctx, t, runs["refused"], final)
	runs["router"] = s.endGenesis(ctx, t)
	end = s.of(ctx, t, runs["router"], final)
	require.Equal(t, inventory.StateFailed, end.State)
	require.Contains(t, end.Message, "fails", "it failed where it was meant to: %s", end.Message)

	// S44: a claim on a kernel's command line is no longer valid.
	for name := range claims {
		sim := s.Simulate(names[name], "")
		sim.gone(ctx, t, claims[name], Nonce())
	}
	s.snapshot(ctx, t, found, "after", names, runs)
	for name, m := range map[string]*lab.Machine{"good": good, "bad": bad, "router": router} {
		console, err := m.Serial()
		require.NoError(t, err)
		found["serial/"+name] = []byte(console)
	}
	require.Contains(t, string(found["serial/bad"]), "ommand line: ", "a kernel has printed its command line")
	found["stream"] = stream()
	found["traces"] = tracesOf(ctx, t, traces, s, runs)
	found["notice"] = told.await(ctx, t, inventory.NoticeFailed, inventory.NoticeWaiting)
	nonces := s.nonces(t)
	require.NoError(t, bad.PowerOff(ctx))
	s.backUp(ctx, t, found, secret("a backup's passphrase"))
	s.files(t, found, "live")
	standby.Stop()
	s.Stop()
	s.files(t, found, "stopped")
	for _, name := range []string{"ingot.db", "temporal"} {
		s.dump(t, found, name)
	}
	watch.stop()
	maps.Copy(found, places(watch.seen))

	// Canaries that must be found: the search can read each kind of place.
	for _, c := range []struct {
		canary
		places []string
	}{
		{canary{what: "machine name", text: []byte(names["good"])}, []string{
			"history/", "raw-history/", "describe/", "list", "query/", "cli/", "rest/", "stream", "script/",
			"file/live/ingot.log", "file/live/state/ingot/ingot.db", "file/stopped/state/ingot/ingot.db",
			"file/stopped/state/ingot/temporal", "dump/ingot.db", "dump/temporal", "vacuumed/ingot.db", "vacuumed/temporal",
			"serial/good", "argv/worker-agent",
			"backup.tar", "backup/inventory.db", "backup/temporal.db",
		}},
		{canary{what: "router's name", text: []byte(names["router"])}, []string{
			"rest/stored/genesis", "rest/after/genesis", "cli/after/genesis", "history/after/genesis/canary",
			"raw-history/after/genesis/canary", "history/after/machine/",
			"rest/after/operations", "stream", "dump/ingot.db", "dump/temporal", "backup/temporal.db", "file/live/ingot.log",
		}},
		{
			canary{what: "peer's address", text: []byte(lab.SeedAddress + ":7444")},
			[]string{"rest/after/peers", "cli/after/peer", "cli/standby", "file/live/state/ingot/site.json"},
		},
		{canary{what: "machine name", text: []byte(names["bad"])}, []string{"serial/bad", "history/", "notice"}},
		{canary{what: "machine name", text: []byte(names["refused"])}, []string{"notice", "traces"}},
		{canary{what: "label", text: []byte(label)}, []string{"rest/", "cli/", "dump/ingot.db", "file/live/state/ingot/ingot.db"}},
		{canary{what: "BMC user", text: []byte(good.Spec().BMCUser)}, []string{"argv/ipmitool"}},
		{canary{what: "environment", text: []byte(env)}, []string{"environ/ingot", "environ/temporal"}},
		{literal, []string{"dump/ingot.db", "backup.tar"}},
	} {
		for _, place := range c.places {
			require.True(t, slices.ContainsFunc(slices.Collect(maps.Keys(found)), func(p string) bool {
				return strings.HasPrefix(p, place) && c.in(found[p])
			}), "the search does not find the %s in %s: it would find no secret there either", c.what, place)
		}
	}
	require.Positive(t, watch.ipmi, "no ipmitool was seen at work")
	require.Positive(t, watch.envs, "no environment of an ipmitool was seen")

	// Canaries that must not be found.
	var hunted []canary
	for what, text := range secrets {
		hunted = append(hunted, canary{what: what, text: []byte(text)})
	}
	// Templates are visible to users; secrets belong in user-data.
	literal.where = []string{
		"dump/ingot.db/template", "vacuumed/ingot.db", "file/live/state/ingot/ingot.db", "file/stopped/state/ingot/ingot.db",
		"backup.tar", "backup/inventory.db", "rest/during/templates", "rest/after/templates", "cli/during/template ", "cli/after/template ",
	}
	hunted = append(hunted, literal)
	for name, n := range runs {
		o := owner(name)
		hunted = append(hunted, canary{what: "nonce of " + name, text: []byte(inventory.Nonce(key, o))},
			canary{what: "capability of " + name, text: []byte(inventory.Capability(key, o))})
		if claims[name] != nil {
			hunted = append(hunted, canary{what: "claim of " + name, text: []byte(claims[name]["claim"]), where: []string{
				"script/", "serial/", "argv/worker-agent", "argv/ip", // of the lab, which gives the simulated machine's agent its command line so
			}})
		}
		if nonces[n] != "" {
			hunted = append(hunted, canary{what: "agent's token of " + name, text: []byte(agentToken(key, o, 1, nonces[n]))})
		}
	}
	require.Len(t, nonces, 3, "three agents have had a token")
	hunted = append(hunted, s.siteSecrets(t)...)
	hunted = append(hunted, privateKey(t, filepath.Join(s.dir, "etc/ingot/site.pem")),
		privateKey(t, filepath.Join(standby.dir, "etc/ingot/site.pem")))
	total, hits := 0, 0
	for _, place := range slices.Sorted(maps.Keys(found)) {
		total += len(found[place])
		for _, c := range hunted {
			if !c.belongs(place) && c.in(found[place]) {
				hits++
				t.Errorf("%s is found in %s", c.what, place)
			}
		}
	}
	t.Logf("%d secrets looked for in %d places of %d MiB; %d ipmitools seen, %d with their environment; %d hits",
		len(hunted), len(found), total>>20, watch.ipmi, watch.envs, hits)
}

// agentToken returns the token of an agent, derived as in the server.
func agentToken(key []byte, o inventory.Owner, boot int, nonce string) string {
	m := hmac.New(sha256.New, key)
	fmt.Fprintf(m, "token\x00%s\x00%s\x00%d\x00%d\x00%s", o.Machine, o.Run, o.Epoch, boot, nonce)
	return base64.RawURLEncoding.EncodeToString(m.Sum(nil))
}

// keys are those of the site's key file.
func (s *Site) keys(t *testing.T) map[string][]byte {
	t.Helper()
	var file struct{ Keys map[string][]byte }
	b, err := os.ReadFile(filepath.Join(s.dir, "etc/ingot/keys.json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(b, &file))
	require.NotEmpty(t, file.Keys)
	return file.Keys
}

func (s *Site) claimKey(t *testing.T) []byte {
	t.Helper()
	key := s.keys(t)["claim"]
	require.Len(t, key, 32)
	return key
}

// siteSecrets are the secrets that the site created, each in a file that only its user can
// read.
func (s *Site) siteSecrets(t *testing.T) (found []canary) {
	t.Helper()
	for purpose, key := range s.keys(t) {
		found = append(found, canary{what: "the key for " + purpose, text: key})
	}
	token, err := os.ReadFile(filepath.Join(s.dir, "etc/ingot/token"))
	require.NoError(t, err)
	found = append(found, canary{what: "the admin token", text: bytes.TrimSpace(token)})
	found = append(found, privateKey(t, filepath.Join(s.dir, "etc/ingot/agent.pem")))
	for _, name := range []string{"keys.json", "token", "agent.pem", "ingot.yaml"} {
		st, err := os.Stat(filepath.Join(s.dir, "etc/ingot", name))
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), st.Mode().Perm(), name)
	}
	return found
}

// privateKey returns a part of the key in a file that is not in the certificate.
func privateKey(t *testing.T, file string) canary {
	t.Helper()
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	for len(b) > 0 {
		var block *pem.Block
		if block, b = pem.Decode(b); strings.Contains(block.Type, "PRIVATE KEY") {
			return canary{what: "the key of " + file, text: block.Bytes[len(block.Bytes)/4 : len(block.Bytes)/2]}
		}
	}
	t.Fatalf("%s holds no key", file)
	return canary{}
}

// guarded serves a file to clients with the password. The returned function puts a password into
// its address.
func (s *Site) guarded(ctx context.Context, t *testing.T, file, password string) func(password string) string {
	t.Helper()
	l, err := s.Listen(ctx, lab.Router, lab.DirectGateway+":0")
	require.NoError(t, err)
	server := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, p, ok := r.BasicAuth(); !ok || p != password {
			http.Error(w, "who are you?", http.StatusUnauthorized)
			return
		}
		http.ServeFile(w, r, file)
	})}
	t.Cleanup(func() { require.NoError(t, server.Close()) })
	go func() { _ = server.Serve(l) }() // ends with Close
	return func(password string) string {
		return fmt.Sprintf("http://ingot:%s@%s/%s", password, l.Addr(), filepath.Base(file))
	}
}

// toldAt is the URL for the notices.
const toldAt = lab.DirectGateway + ":9099"

// told stores the received notices.
type told struct {
	secret, token string

	mu     sync.Mutex
	bodies []byte
	events map[string]int
	bad    []error
}

// listenForNotices receives notices. It refuses the first, so that it is sent again.
func (s *Site) listenForNotices(ctx context.Context, t *testing.T, x *told) {
	t.Helper()
	l, err := s.Listen(ctx, lab.Router, toldAt)
	require.NoError(t, err)
	key, err := notify.ParseSecret(x.secret)
	require.NoError(t, err)
	x.events = map[string]int{}
	server := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		var n inventory.Notice
		if err == nil {
			err = webhook.Verify(key, r.Header, body, time.Now(), time.Minute)
		}
		if err == nil {
			err = json.Unmarshal(body, &n)
		}
		x.mu.Lock()
		defer x.mu.Unlock()
		if err != nil {
			x.bad = append(x.bad, err)
		}
		first := len(x.bodies) == 0
		if x.bodies = append(append(x.bodies, body...), '\n'); first {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		x.events[n.Event]++
	})}
	t.Cleanup(func() { require.NoError(t, server.Close()) })
	go func() { _ = server.Serve(l) }() // ends with Close
}

// await returns all notices once each of the events has arrived.
func (x *told) await(ctx context.Context, t *testing.T, events ...string) []byte {
	t.Helper()
	for {
		x.mu.Lock()
		missing := slices.ContainsFunc(events, func(e string) bool {
			return x.events[e] == 0 && (e != inventory.NoticeWaiting || x.events[inventory.NoticeBMC] == 0)
		})
		bodies, bad := slices.Clone(x.bodies), slices.Clone(x.bad)
		x.mu.Unlock()
		require.Empty(t, bad)
		if !missing {
			return bodies
		}
		select {
		case <-ctx.Done():
			t.Fatalf("not all of %v was told: %s", events, bodies)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// get fetches from inside the lab.
func (s *Site) get(ctx context.Context, t *testing.T, url string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	require.NoError(t, err)
	res, err := s.Simulate("", "").plain.Do(req)
	require.NoError(t, err)
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, res.StatusCode, "%s", b)
	return string(b)
}

// phoneHome sends the report of an installed system.
func (s *Site) phoneHome(ctx context.Context, t *testing.T, url string) {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader("hostname=installed"))
	require.NoError(t, err)
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	res, err := s.Simulate("", "").plain.Do(req)
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	require.Equal(t, http.StatusOK, res.StatusCode)
}

// asAdmin asks the API for the bytes that it answers, whatever they are.
func (s *Site) asAdmin(ctx context.Context, t *testing.T, method, path string) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, method, "http://"+s.API+path, nil)
	require.NoError(t, err)
	token, err := os.ReadFile(filepath.Join(s.dir, "etc/ingot/token"))
	require.NoError(t, err)
	req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	res, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	return res
}

// stream listens to the server's events until the returned function is called,
// which returns what came.
func (s *Site) stream(ctx context.Context, t *testing.T) func() []byte {
	t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	res := s.asAdmin(ctx, t, http.MethodGet, "/v1/events/stream")
	require.Equal(t, http.StatusOK, res.StatusCode)
	var b bytes.Buffer
	var ended sync.WaitGroup
	ended.Go(func() { _, _ = io.Copy(&b, res.Body) }) // ends with the request
	t.Cleanup(cancel)
	return func() []byte {
		cancel()
		ended.Wait()
		_ = res.Body.Close() // was read to its end
		return b.Bytes()
	}
}

// snapshot collects the output of the API, the command line and Temporal.
func (s *Site) snapshot(ctx context.Context, t *testing.T, found places, when string, names, runs map[string]string) {
	t.Helper()
	paths := []string{
		"/metrics",
		"/v1/status",
		"/v1/secrets",
		"/v1/machines",
		"/v1/templates",
		"/v1/templates/fails",
		"/v1/templates/image",
		"/v1/images",
		"/v1/images/sim",
		"/v1/workflows",
		"/v1/bmc/jobs",
		"/v1/seen",
		"/v1/openapi.yaml",
		"/v1/genesis",
		"/v1/genesis/canary",
		"/v1/genesis/canary/status",
		"/v1/operations",
		"/v1/peers",
		"/v1/site",
	}
	commands := [][]string{
		{"status"},
		{"secret", "status"},
		{"machine", "list"},
		{"workflow", "list"},
		{"image", "list"},
		{"template", "list"},
		{"template", "get", "fails"},
		{"bmc", "job", "list"},
		{"doctor"},
		{"genesis", "list"},
		{"genesis", "plan", "canary"},
		{"genesis", "status", "canary"},
		{"operation", "list"},
		{"operation", "get", "genesis/canary"},
		{"peer", "list"},
		{"handover", "status"},
	}
	for name, machine := range names {
		for _, p := range []string{"", "/disks", "/events", "/workflow", "/why"} {
			paths = append(paths, "/v1/machines/"+machine+p)
		}
		for _, p := range []string{"", "/events", "/logs"} {
			if runs[name] != "" {
				paths = append(paths, "/v1/workflows/"+runs[name]+p)
			}
		}
		paths = append(paths, "/v1/bmc/jobs/"+machine+"/netboot-1-1")
		for _, c := range [][]string{{"machine", "get"}, {"workflow", "get"}, {"workflow", "events"}, {"workflow", "logs"}, {"why"}} {
			commands = append(commands, append(c, machine))
		}
		if runs[name] == "" {
			continue
		}
		for _, args := range [][]string{{"metadata"}, {"stack"}, {"query", "--type", workflows.QueryStatus}} {
			out, err := s.TemporalCLI(
				ctx,
				append(append([]string{"workflow"}, args...), "--workflow-id", workflows.MachineID(machine), "--run-id", runs[name], "-o", "json")...)
			kind := "temporal-" + args[0] + "/"
			if args[0] == "query" {
				kind = "query/"
			}
			found[kind+when+"/"+name] = []byte(out + fmt.Sprint(err))
		}
	}
	s.allHistories(ctx, t, found, when)
	for _, p := range paths {
		res := s.asAdmin(ctx, t, http.MethodGet, p)
		b, err := io.ReadAll(res.Body)
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
		require.Less(t, res.StatusCode, 500, "%s: %s", p, b)
		found["rest/"+when+strings.TrimPrefix(p, "/v1")] = b
	}
	for _, c := range commands {
		for _, form := range []string{"text", "json", "yaml"} {
			args := c
			if form != "text" {
				args = append(slices.Clone(c), "-o", form)
			}
			out, err := s.CLI(ctx, args...) // some have nothing to say yet, or no such form: their words are searched, too
			found["cli/"+when+"/"+strings.Join(args, " ")] = []byte(out + fmt.Sprint(err))
		}
	}
}

// files adds logs and databases on the disk: everything in the site's directory except disks,
// images, and the files in which users and the lab store secrets.
func (s *Site) files(t *testing.T, found places, when string) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(s.dir, func(path string, d os.DirEntry, err error) error {
		rel, _ := filepath.Rel(s.dir, path)
		switch {
		case err != nil:
			return err
		case d.IsDir() && d.Name() == "etc" || rel == "state/ingot/images" || d.IsDir() && d.Name() == "bmc":
			return filepath.SkipDir // the BMC's own configuration holds its password
		case !d.Type().IsRegular() || strings.HasSuffix(path, ".raw") || strings.HasSuffix(path, ".fd"):
			return nil
		case filepath.Dir(rel) == "." && (strings.HasSuffix(rel, ".json") || strings.HasSuffix(rel, ".yaml")):
			return nil // pushed by this test
		case rel == "serial.log" || d.Name() == "serial.log":
			return nil // see serial/
		}
		b, err := os.ReadFile(path)
		found["file/"+when+"/"+rel] = b
		return err
	}))
}

// dump collects every cell of a closed database, and the file after a VACUUM.
func (s *Site) dump(t *testing.T, found places, name string) {
	t.Helper()
	file := filepath.Join(s.dir, "state/ingot", name)
	if name == "temporal" {
		files, err := filepath.Glob(filepath.Join(file, "*.db"))
		require.NoError(t, err)
		require.Len(t, files, 1)
		file = files[0]
	}
	db, err := sql.Open("sqlite3", "file:"+file)
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close()) }()
	small := filepath.Join(t.TempDir(), "vacuumed.db")
	_, err = db.ExecContext(t.Context(), "VACUUM INTO ?", small)
	require.NoError(t, err)
	found["vacuumed/"+name], err = os.ReadFile(small)
	require.NoError(t, err)
	// The contents of a virtual table are in separate tables.
	for _, table := range column(t, db, "SELECT name FROM sqlite_schema WHERE type = 'table' AND sql NOT LIKE 'CREATE VIRTUAL%'") {
		found["dump/"+name+"/"+table] = cells(t, db, table)
	}
}

func column(t *testing.T, db *sql.DB, query string) (out []string) {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), query)
	require.NoError(t, err)
	defer rows.Close()
	for rows.Next() {
		var v string
		require.NoError(t, rows.Scan(&v))
		out = append(out, v)
	}
	require.NoError(t, rows.Err())
	return out
}

func cells(t *testing.T, db *sql.DB, table string) []byte {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), `SELECT * FROM "`+table+`"`)
	require.NoError(t, err)
	defer rows.Close()
	names, err := rows.Columns()
	require.NoError(t, err)
	var b bytes.Buffer
	for rows.Next() {
		row := make([]sql.RawBytes, len(names))
		to := make([]any, len(names))
		for i := range row {
			to[i] = &row[i]
		}
		require.NoError(t, rows.Scan(to...))
		for _, v := range row {
			b.Write(v)
			b.WriteByte('\n')
		}
	}
	require.NoError(t, rows.Err())
	return b.Bytes()
}

// nonces returns the nonces of the agents by run: together with the key, which is stored elsewhere,
// a token can be derived from one.
func (s *Site) nonces(t *testing.T) map[string]string {
	t.Helper()
	db, err := sql.Open("sqlite3", "file:"+filepath.Join(s.dir, "state/ingot/ingot.db")+"?mode=ro")
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close()) }()
	out := map[string]string{}
	for _, pair := range column(t, db, "SELECT run || ' ' || nonce FROM agent") {
		run, nonce, _ := strings.Cut(pair, " ")
		out[run] = nonce
	}
	return out
}
