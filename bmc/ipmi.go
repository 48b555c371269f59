package bmc

import (
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/ingotmetal/ingot/inventory"
)

// defaultCipher is cipher suite 17: RAKP-HMAC-SHA256, HMAC-SHA256-128, AES-CBC-128.
const defaultCipher = "17"

func cipher(b inventory.BMC) string { return cmp.Or(b.CipherSuite, defaultCipher) }

// checkCipher returns an error if b's cipher suite is invalid, or is suite 0, which checks no password (IPMI v2.0,
// table 22-20).
func checkCipher(b inventory.BMC) error {
	switch n, err := strconv.Atoi(cipher(b)); {
	case err != nil || n < 0 || n > 255:
		return fmt.Errorf("invalid cipher suite %q; must be a number from 1 to 255: %w", b.CipherSuite, inventory.ErrInvalid)
	case n == 0:
		return fmt.Errorf("cipher suite 0 accepts any password and cannot be used; "+
			"choose 17 or 3, and disable 0 in the BMC: %w", inventory.ErrUnsupported)
	}
	return nil
}

// ipmi is a provider that runs ipmitool for one operation on one BMC. It passes the password to ipmitool through a
// pipe, because other processes could read it from the environment of ipmitool. It always tells ipmitool which cipher
// suite to use: ipmitool would otherwise search for one, log in twice, and perhaps run a command twice.
type ipmi struct {
	link
	processes *processes
	path      string
	home      string // "" = none
	bmc       inventory.BMC
	password  inventory.Secret
	// flagsValid reports whether the boot flags that were last read were marked as valid.
	flagsValid bool
}

var (
	_ provider    = (*ipmi)(nil)
	_ bootChooser = (*ipmi)(nil)
	_ resetter    = (*ipmi)(nil)
	_ flagKeeper  = (*ipmi)(nil)
	_ flagReader  = (*ipmi)(nil)
)

func newIPMI(d *Driver, l link, _ string, b inventory.BMC, password inventory.Secret) (provider, error) {
	if err := checkCipher(b); err != nil {
		return nil, err
	}
	path := d.cfg.Ipmitool
	if path == "" {
		var err error
		if path, err = exec.LookPath("ipmitool"); err != nil {
			return nil, fmt.Errorf("ipmitool is needed for BMCs with driver ipmi; install Debian's package ipmitool: %w", inventory.ErrUnsupported)
		}
	}
	return &ipmi{link: l, processes: d.processes, path: path, home: d.cfg.Home, bmc: b, password: password}, nil
}

// close does nothing: each run of ipmitool has its own session.
func (*ipmi) close(context.Context) error { return nil }

func (p *ipmi) readPower(ctx context.Context) (string, error) {
	out, err := p.run(ctx, "chassis", "power", "status")
	if err != nil {
		return "", err
	}

	for line := range strings.Lines(out) {
		if strings.HasPrefix(line, "Chassis Power is") {
			return strings.TrimSpace(line), nil
		}
	}
	return strings.TrimSpace(out), nil
}

func (p *ipmi) setPower(ctx context.Context, power string) error {
	return p.confirm(ctx, "Chassis Power Control:", "chassis", "power", power)
}

// keepBootFlags prevents the BMC from clearing the boot device after 60 s or at the next reset (Set System Boot
// Options, parameter 3, IPMI v2.0 table 28-14).
func (p *ipmi) keepBootFlags(ctx context.Context) error {
	_, err := p.run(ctx, "raw", "0x00", "0x08", "0x03", "0x08")
	return err
}

func (p *ipmi) setBootDevice(ctx context.Context, want inventory.BootDevice) error {
	args := []string{"chassis", "bootdev", want.Device}
	var options []string
	if want.Persistent {
		options = append(options, "persistent")
	}
	if want.EFI {
		options = append(options, "efiboot")
	}
	if len(options) > 0 && want.Device != "none" {
		args = append(args, "options="+strings.Join(options, ","))
	}
	return p.confirm(ctx, "Set Boot Device to "+want.Device, args...)
}

var bootFlags = regexp.MustCompile(`(?m)^Boot parameter data: ([0-9a-fA-F]{4,})\s*$`)

// bootDevices maps the values of IPMI's boot device selector to devices (IPMI v2.0, table 28-14, parameter 5, data 2,
// bits 5:2).
var bootDevices = map[byte]string{
	0: "none", 1: "pxe", 2: "disk", 3: "safe", 4: "diag", 5: "cdrom", 6: "bios",
	7: "remote-floppy", 8: "remote-cdrom", 9: "remote-media", 11: "remote-disk", 15: "floppy",
}

// readBootDevice reads the boot device and its flags.
func (p *ipmi) readBootDevice(ctx context.Context) (b inventory.BootDevice, err error) {
	out, err := p.run(ctx, "chassis", "bootparam", "get", "5")
	if err != nil {
		return b, err
	}
	m := bootFlags.FindStringSubmatch(out)
	if m == nil {
		return b, fmt.Errorf("reading boot flags: invalid output %q of ipmitool", clip(meaning(out)))
	}
	data, err := hex.DecodeString(m[1][:4])
	if err != nil {
		return b, fmt.Errorf("reading boot flags %q: %w", m[1], err)
	}
	p.flagsValid = data[0]&0x80 != 0
	b.Persistent, b.EFI = data[0]&0x40 != 0, data[0]&0x20 != 0
	b.Device = cmp.Or(bootDevices[data[1]>>2&0x0f], "unknown")
	return b, nil
}

func (p *ipmi) hasValidFlags() bool { return p.flagsValid }

func (p *ipmi) resetBMC(ctx context.Context) error {
	return p.confirm(ctx, "Sent cold reset command to MC", "mc", "reset", "cold")
}

// confirm runs one ipmitool command. It returns errUnconfirmed if ipmitool succeeds without printing text.
func (p *ipmi) confirm(ctx context.Context, text string, command ...string) error {
	out, err := p.run(ctx, command...)
	if err == nil && !strings.Contains(out, text) {
		return errUnconfirmed
	}
	return err
}

// run runs one ipmitool command and returns its standard output and standard error as one text.
func (p *ipmi) run(ctx context.Context, command ...string) (out string, err error) {
	err = p.do(ctx, func() error {
		out, err = p.exec(ctx, command)
		return err
	})
	return out, err
}

func (p *ipmi) exec(ctx context.Context, command []string) (string, error) {
	switch text := p.password.Reveal(); {
	case text == "":
		return "", fmt.Errorf("IPMI needs a password; set bmc.password of the machine: %w", inventory.ErrRefused)
	case strings.ContainsAny(text, "\n\r\x00"):
		return "", fmt.Errorf("the BMC's password contains a line break or NUL, which ipmitool cannot read: %w",
			inventory.ErrInvalid)
	}

	leave, err := p.processes.enter(ctx)
	if err != nil {
		return "", err
	}
	defer leave()

	r, err := passwordPipe(p.password)
	if err != nil {
		return "", fmt.Errorf("starting ipmitool: %w", err)
	}
	defer func() { _ = r.Close() }() // the pipe was only read, so an error loses no data

	limited, cancel := context.WithTimeout(ctx, ipmitoolTime)
	defer cancel()

	// -v makes ipmitool report why it could not open a session. Without -v, ipmitool prints the same for a wrong
	// password and for an unreachable BMC.
	args := []string{
		"-v", "-I", "lanplus", "-H", p.bmc.Host, "-p", strconv.Itoa(p.bmc.ListenPort()), "-U", p.bmc.User,
		"-f", "/proc/self/fd/3", "-C", cipher(p.bmc), "-N", "5", "-R", "1",
	}
	cmd := exec.CommandContext(limited, p.path, append(args, command...)...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C"}
	if p.home != "" {
		cmd.Env = append(cmd.Env, "HOME="+p.home)
	}

	cmd.ExtraFiles = []*os.File{r} // descriptor 3 of the child
	cmd.WaitDelay = 2 * time.Second
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err = p.processes.run(cmd)

	text := out.String()
	switch {
	case ctx.Err() != nil:
		return text, ctx.Err()
	case limited.Err() != nil:
		return text, silentIPMI(p.bmc.ListenPort(), fmt.Sprintf("ipmitool took longer than %s", ipmitoolTime))
	case err != nil && noIPMI2.MatchString(text):
		return text, judgeIPMI2(ctx, p.bmc.Host, p.bmc.ListenPort(), clip(meaning(text)))
	case err != nil:
		return text, classify(text, p.bmc.ListenPort(), err)
	}

	return text, nil
}

// passwordPipe returns the read end of a pipe that contains the password as one line. With the pipe, the password
// appears in no argument, environment or file.
func passwordPipe(password inventory.Secret) (*os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	_, err = w.WriteString(password.Reveal() + "\n")
	if err = errors.Join(err, w.Close()); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// noise matches the output lines of ipmitool -v that do not help to explain an error.
var noise = regexp.MustCompile(`^(Loading IANA|Running Get (VSO|PICMG)|Invalid completion code received|` +
	`Discovered (IPMB|Target)|RAW RE[QS]|RAW RSP|\s*$)`)

// meaning returns the lines of ipmitool's output that explain an error, joined into one line.
func meaning(out string) string {
	var lines []string
	for line := range strings.Lines(out) {
		if line = strings.TrimSpace(line); !noise.MatchString(line) {
			lines = append(lines, strings.TrimPrefix(line, "> "))
		}
	}
	return strings.Join(lines, "; ")
}

// noAnswer matches ipmitool's messages for a BMC that did not answer.
var noAnswer = regexp.MustCompile(`(?i)unable to establish|address lookup|could not open socket|timeout|no response`)

// kinds says which error each message of ipmitool means. The first entry that matches applies.
var kinds = []struct {
	re     *regexp.Regexp
	kind   error
	remedy string
}{
	{
		regexp.MustCompile(`(?i)insufficient resources|node busy`), inventory.ErrUnreachable,
		"the BMC has no free session: end sessions at the BMC, or wait until they expire",
	},
	{
		regexp.MustCompile(`(?i)RAKP 2 HMAC is invalid|unauthorized (name|role|privilege)|invalid integrity check value|` +
			`invalid role|insufficient privilege|not authorized`),
		inventory.ErrRefused, "check user and password of the BMC",
	},
	{
		regexp.MustCompile(`(?i)invalid (authentication|integrity|confidentiality) algorithm|no cipher suite match|unsupported cipher suite`),
		inventory.ErrUnsupported, "set bmc.cipherSuite to 17 or 3",
	},
	{regexp.MustCompile(`(?i)unable to read password`), inventory.ErrRefused, "set bmc.password of the machine"},
	{
		regexp.MustCompile(`(?i)no response from RAKP`), inventory.ErrUnreachable,
		"the BMC does not answer the log-in: check bmc.user and bmc.cipherSuite",
	},
	{noAnswer, inventory.ErrUnreachable, ""},
	{
		regexp.MustCompile(`(?i)invalid command|invalid data field|not supported|rsp=0xc[1-c]|rsp=0xd[4-6]`),
		inventory.ErrUnsupported, "",
	},
}

// classify returns the error that the output of ipmitool describes. err is the error with which ipmitool ended, and
// port is the BMC's UDP port.
func classify(out string, port int, err error) error {
	said := meaning(out)
	for _, k := range kinds {
		if !k.re.MatchString(said) {
			continue
		}
		if k.re == noAnswer {
			return silentIPMI(port, said)
		}
		if k.remedy != "" {
			said = clip(said) + " (" + k.remedy + ")"
		}
		return fmt.Errorf("%s: %w", clip(said), k.kind)
	}
	return fmt.Errorf("ipmitool: %s: %w", clip(said), err)
}

// silentIPMI returns a silentError. said is the output of ipmitool, and port is the BMC's UDP port.
func silentIPMI(port int, said string) error {
	how := fmt.Sprintf("IPMI, UDP port %d; check the BMC's address, and that IPMI over LAN is enabled", port)
	return silentError{how, errors.New(clip(said))}
}
