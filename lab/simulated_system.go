package lab

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf16"

	"github.com/diskfs/go-diskfs/backend/file"
	"github.com/diskfs/go-diskfs/filesystem/ext4"
	"github.com/diskfs/go-diskfs/filesystem/fat16"
)

// SimImage is a small disk image for simulated machines. Its 12 MiB hardly compress, so that
// writing it takes some time in a slow network. It has everything that the product's templates look
// for (GPT, a root file system with /etc/os-release) and a boot sector. It is built if the cache
// does not have it (a second). The output of the build goes to log, which may be nil.
func SimImage(ctx context.Context, log io.Writer) (Image, error) {
	return buildImage(ctx, "sim", "", log)
}

// bootDisk simulates the firmware's boot from disk and the installed system.
func (l *life) bootDisk() ending {
	if l.stage(StageDisk) != nil {
		return cutOff
	}
	if product, cmdline := productOn(l.sim.m.DiskPath()); product != "" && l.sim.m.spec.Guest != "" {
		return l.runGuest(product, cmdline)
	}
	sys, err := readSystem(l.sim.m.DiskPath())
	if err != nil {
		l.say("LAB-SIM disk: %v", err)
		return noBoot
	}
	// The same limits as -t 5 -T 1 in images/mini.sh.
	if err := l.lease(l.ctx, "", time.Second, 5); err != nil {
		l.say("LAB-SIM system: %v", err)
	}
	sys.fetchSeed(l)
	if l.ctx.Err() != nil {
		return cutOff
	}
	l.say("LAB-MINI-BOOTED fw=bios ip=%s root=%s instance-id=%s hostname=%s seed=%s secure=no up=0", cmp.Or(l.address(), "none"), sys.root,
		cmp.Or(sys.instance, "none"), cmp.Or(sys.hostname, "(none)"), sys.origin)
	if u := sys.phoneURL(); u != "" && l.stage(StagePhoneHome) == nil {
		sys.phone(l, u)
	}
	<-l.ctx.Done()
	return cutOff
}

// address returns the card's address with its prefix length, or "".
func (l *life) address() (addr string) {
	err := l.sim.m.lab.InNamespace(l.sim.m.Namespace(), func() error {
		eth, err := net.InterfaceByName(simInterface)
		if err != nil {
			return err
		}
		all, err := eth.Addrs()
		for _, a := range all {
			addr = a.String()
		}
		return err
	})
	if err != nil {
		return "" // the lab is closing
	}
	return addr
}

// system is the system on a disk, as images/mini.sh reads it.
type system struct {
	root     string            // path of the root file system
	origin   string            // origin of the seed: cidata, url, ec2, none
	seed     map[string]string // files by name
	instance string
	hostname string
	metadata string // URL in a file of the root file system
}

// seedNames are the files of a NoCloud seed that are used here.
var seedNames = [...]string{"meta-data", "user-data", "vendor-data"}

// readSystem reads the system from a disk, which must have a boot sector, a GPT and a root file
// system. An incomplete installation has none of them.
func readSystem(path string) (*system, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() // opened only for reading
	sector := make([]byte, 512)
	if _, err := f.ReadAt(sector, 0); err != nil {
		return nil, err
	}
	if sector[510] != 0x55 || sector[511] != 0xaa || bytes.Count(sector[:440], []byte{0}) == 440 {
		return nil, errors.New("it has no boot sector")
	}
	parts, err := partitions(f)
	if err != nil {
		return nil, err
	}
	s := &system{origin: "none", seed: map[string]string{}}
	disk := file.New(f, true)
	for n, p := range parts {
		if root, err := ext4.Read(disk, p.size, p.start, 512); err == nil && root.Label() == "labroot" {
			if _, err := root.ReadFile("etc/os-release"); err != nil {
				return nil, fmt.Errorf("reading the root file system: %w", err)
			}
			s.root = fmt.Sprintf("partition-%d", n+1)
			if b, err := root.ReadFile("etc/ingot/metadata-url"); err == nil { // usually there is none
				s.metadata = strings.TrimRight(strings.TrimSpace(string(b)), "/")
			}
		}
		if p.name != "CIDATA" {
			continue
		}
		vol, err := fat16.Read(disk, p.size, p.start, 512)
		if err != nil {
			return nil, fmt.Errorf("reading the CIDATA partition: %w", err)
		}
		s.origin = "cidata"
		for _, name := range seedNames {
			if b, err := vol.ReadFile("/" + name); err == nil { // each may be missing or empty
				s.seed[name] = string(b)
			}
		}
	}
	if s.root == "" {
		return nil, errors.New("it has a boot sector and no root file system")
	}
	return s, nil
}

// partition is an entry of a GPT, in bytes.
type partition struct {
	name        string
	start, size int64
}

// partitions reads the GPT at the beginning of a disk with 512-byte sectors (UEFI specification
// §5.3).
func partitions(f io.ReaderAt) ([]partition, error) {
	head := make([]byte, 92)
	if _, err := f.ReadAt(head, 512); err != nil {
		return nil, err
	}
	if string(head[:8]) != "EFI PART" {
		return nil, errors.New("it has no GPT")
	}
	le := binary.LittleEndian
	at, count, size := int64(le.Uint64(head[72:]))*512, int(le.Uint32(head[80:])), int(le.Uint32(head[84:]))
	if count > 128 || size < 128 || size > 4096 {
		return nil, errors.New("its GPT is damaged")
	}
	table := make([]byte, count*size)
	if _, err := f.ReadAt(table, at); err != nil {
		return nil, err
	}
	var parts []partition
	for i := range count {
		e := table[i*size:]
		first, last := int64(le.Uint64(e[32:])), int64(le.Uint64(e[40:]))
		if le.Uint64(e) == 0 && le.Uint64(e[8:]) == 0 || last < first {
			continue
		}
		var name []uint16
		for j := 56; j < 128 && le.Uint16(e[j:]) != 0; j += 2 {
			name = append(name, le.Uint16(e[j:]))
		}
		parts = append(parts, partition{string(utf16.Decode(name)), first * 512, (last - first + 1) * 512})
	}
	return parts, nil
}

// StrayBytes returns the offset of the first byte of the machine's disk that is not zero and belongs to nothing: not to
// the first image bytes, not to a partition, not to the two partition tables (UEFI specification §5.3). -1 means that
// there is none. The disk must have been blank.
func (m *Machine) StrayBytes(image int64) (int64, error) {
	f, err := os.Open(m.DiskPath())
	if err != nil {
		return -1, err
	}
	defer f.Close() // opened only for reading
	parts, err := partitions(f)
	if err != nil {
		return -1, fmt.Errorf("reading the partitions of %q: %w", m.DiskPath(), err)
	}
	const table = 34 * 512 // header and 128 entries
	size := m.spec.DiskSize
	used := []partition{{start: 0, size: max(image, table)}, {start: size - table, size: table}}
	used = append(used, parts...)
	slices.SortFunc(used, func(a, b partition) int { return cmp.Compare(a.start, b.start) })
	end := int64(0)
	for _, p := range used {
		if p.start > end {
			if at, err := FirstNonZero(io.NewSectionReader(f, end, p.start-end)); err != nil || at >= 0 {
				return end + at, err
			}
		}
		end = max(end, p.start+p.size)
	}
	return -1, nil
}

// FirstNonZero returns the offset of the first byte of r that is not zero, or -1.
func FirstNonZero(r io.Reader) (int64, error) {
	buf := make([]byte, 1<<20)
	for at := int64(0); ; {
		n, err := io.ReadFull(r, buf)
		for i, b := range buf[:n] {
			if b != 0 {
				return at + int64(i), nil
			}
		}
		at += int64(n)
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return -1, nil
		case err != nil:
			return -1, err
		}
	}
}

// fetchSeed gets the rest of the seed from the network, like images/mini.sh.
func (s *system) fetchSeed(l *life) {
	client := l.http()
	defer client.CloseIdleConnections()
	if s.origin == "none" && s.metadata != "" {
		s.origin = "url"
		for try := 0; try < 5; try++ {
			if try > 0 && !l.sleep(2*time.Second) {
				return
			}
			if _, status := ask(l.ctx, client, http.MethodGet, s.metadata+"/meta-data", ""); status/100 == 2 {
				break
			}
		}
		for _, name := range seedNames {
			if body, status := ask(l.ctx, client, http.MethodGet, s.metadata+"/"+name, ""); status/100 == 2 {
				s.seed[name] = body
			}
		}
	}
	s.instance = field(s.seed["meta-data"], "instance-id")
	s.hostname = cmp.Or(field(s.seed["meta-data"], "local-hostname"), field(s.seed["meta-data"], "hostname"))
	if s.origin == "none" && l.address() != "" {
		if body, status := ask(
			l.ctx,
			client,
			http.MethodGet,
			"http://"+MetadataAddress+"/2009-04-04/meta-data/instance-id",
			"",
		); status/100 == 2 {
			s.instance, s.origin = strings.TrimSpace(body), "ec2"
		}
	}
}

// field returns a value from meta-data, which is YAML or JSON.
func field(text, name string) string {
	m := regexp.MustCompile(`(?m)(?:^|[\s{,"])` + name + `"?\s*:\s*"?([^",}\s]+)`).FindStringSubmatch(text)
	if m == nil {
		return ""
	}
	return m[1]
}

var (
	phoneHome = regexp.MustCompile(`(?s)phone_home.*`)
	httpURL   = regexp.MustCompile(`http://[^"' ,}\s]*`)
)

// phoneURL returns the URL for the phone-home, or "": the first URL after the word phone_home.
func (s *system) phoneURL() string {
	for _, name := range []string{"vendor-data", "user-data"} {
		if u := httpURL.FindString(phoneHome.FindString(s.seed[name])); u != "" {
			return strings.ReplaceAll(u, "$INSTANCE_ID", s.instance)
		}
	}
	return ""
}

// phone repeats the call until it is answered, at most 150 times.
func (s *system) phone(l *life, to string) {
	client := l.http()
	defer client.CloseIdleConnections()
	body := "instance_id=" + url.QueryEscape(
		s.instance,
	) + "&hostname=" + url.QueryEscape(
		s.hostname,
	) + "&fqdn=" + url.QueryEscape(
		s.hostname,
	)
	for try := 1; try <= 150; try++ {
		if l.address() == "" {
			if err := l.lease(l.ctx, "", time.Second, 3); err != nil {
				l.say("LAB-SIM system: %v", err)
			}
		}
		_, status := ask(l.ctx, client, http.MethodPost, to, body)
		if status/100 == 2 {
			l.say("LAB-MINI-PHONED-HOME try=%d", try)
			return
		}
		if l.ctx.Err() != nil {
			return
		}
		l.say("LAB-MINI-PHONE-HOME-AGAIN try=%d answer=%d", try, status)
		if !l.sleep(2 * time.Second) {
			return
		}
	}
}

// ask sends a request and returns the body and status of the answer; 0 means no answer within 10 s.
func ask(ctx context.Context, client *http.Client, method, to, body string) (string, int) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, to, strings.NewReader(body))
	if err != nil {
		return "", 0
	}
	req.Header.Set("User-Agent", "lab-sim")
	if body != "" {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	res, err := client.Do(req)
	if err != nil {
		return "", 0
	}
	defer res.Body.Close() // opened only for reading
	b, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	if err != nil {
		return "", 0
	}
	return string(b), res.StatusCode
}
