package bootsvc

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/ingotmetal/ingot/bootsvc/wire"
	"github.com/ingotmetal/ingot/internal/documents/cloudinit"
	"github.com/ingotmetal/ingot/inventory"
)

// maxCommandLine is how many bytes an x86 kernel reads as its command line (COMMAND_LINE_SIZE), including the zero byte
// at the end.
const maxCommandLine = 2048

// Patterns for values that are inserted in a script. Each value is checked before it is inserted; kernel parameters are
// checked by inventory.ParameterProblem instead. No value can contain a line break, a further command or an iPXE
// setting that iPXE would expand (security S14).
var (
	imageName   = regexp.MustCompile(`^[A-Za-z0-9_.][A-Za-z0-9_.,:=/@%+-]*$`)
	machineName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
)

// The names of scripts.
const (
	autoexecName = "autoexec.ipxe"
	scriptName   = "auto.ipxe"
	holdName     = "hold.ipxe"
)

// exitLines end iPXE so that the firmware boots from disk. UEFI firmware tries the next boot entry only if iPXE exits
// with an error; after a plain exit, it would open its setup screen. BIOS boots from disk in both cases.
const exitLines = "iseq ${platform} efi && exit 1 || exit 0\n"

// autoexecLines are the first lines of a script that iPXE 2.0 has fetched as autoexec.ipxe. At this point, iPXE uses
// the DHCP lease of the firmware, but may have closed the network interface again.
const autoexecLines = "isset ${net0/ip} || dhcp ||\nifopen net0 ||\n"

// scripts renders the scripts for iPXE and GRUB.
type scripts struct {
	cfg        *Config
	urls       *urls
	installers *installers
}

// checkNames returns an error if the name of m or the MAC of d is not safe to insert in a boot script.
func checkNames(m inventory.Machine, d Decision) error {
	if _, ok := wire.ParseMAC(d.Interface.MAC); !ok || !machineName.MatchString(m.Name) {
		return fmt.Errorf("machine name %q or MAC %q is not allowed in a boot script: %w", m.Name, d.Interface.MAC, inventory.ErrInvalid)
	}
	return nil
}

// commandLine returns the kernel command line with which the agent OS boots.
func (s *scripts) commandLine(m inventory.Machine, d Decision) (string, error) {
	if err := checkNames(m, d); err != nil {
		return "", err
	}
	args := []string{
		"initrd=initramfs", "rdinit=/init",
		"ingot.server=" + s.cfg.AgentURL, "ingot.pin=" + s.cfg.AgentPin,
		"ingot.machine=" + m.Name, "ingot.mac=" + d.Interface.MAC,
		"ingot.claim=" + inventory.Claim(s.cfg.ClaimKey, d.Owner, d.Boot),
	}
	if s.cfg.PlanKey != "" {
		args = append(args, "ingot.plan="+s.cfg.PlanKey)
	}
	if d.Verdict != Agent { // armed by an operator, so the agent gets no assignments
		args = append(args, "ingot.rescue=1")
	}
	args = append(args, "console=tty0", "console=ttyS0,115200", "panic=30")
	for _, a := range m.KernelArgs {
		if why := inventory.ParameterProblem(a); why != "" {
			return "", fmt.Errorf("kernel argument %q of machine %s %s: %w", a, m.Name, why, inventory.ErrInvalid)
		}
		args = append(args, a)
	}
	return joinLine(m, args)
}

// joinLine joins args, the kernel arguments for m, to a command line. It returns an error if the line is too long.
func joinLine(m inventory.Machine, args []string) (string, error) {
	line := strings.Join(args, " ")
	if len(line) >= maxCommandLine {
		return "", fmt.Errorf("the kernel command line of machine %s has %d characters; the limit is %d: %w", m.Name,
			len(line), maxCommandLine-1, inventory.ErrInvalid)
	}
	return line, nil
}

// bootScript returns the script that boots the agent OS. All requests during one boot get the same script. bootScript
// has no side effect.
func (s *scripts) bootScript(m inventory.Machine, d Decision, autoexec bool) (string, error) {
	line, err := s.commandLine(m, d)
	if err != nil {
		return "", err
	}
	return s.netbootScript(d, "Ingot boots "+m.Name, s.loadAgentOS(d, line), autoexec), nil
}

// loadAgentOS returns the script lines that load the agent OS, with line as its kernel command line. Firmware does not
// trust the signature of a Debian kernel, so the signed iPXE starts the kernel through Debian's shim
// (https://ipxe.org/cmd/shim). It fetches this shim only if Secure Boot is on. An iPXE that does not know the command
// shim ignores it.
func (s *scripts) loadAgentOS(d Decision, line string) string {
	base := s.urls.boot(d)
	lines := fmt.Sprintf("kernel %svmlinuz %s || goto again\ninitrd --name initramfs %sinitramfs || goto again\n", base, line, base)
	if d.Interface.Loader == inventory.LoaderIPXEShim {
		lines += "shim " + s.urls.loader(d.Interface.MAC, loaderShim) + " ||\n"
	}
	return lines
}

// netbootScript returns a script that prints the text what, executes the script lines load, and boots the kernel. After
// three attempts that have failed, it boots from disk.
func (s *scripts) netbootScript(d Decision, what, load string, autoexec bool) string {
	// After a failure, fetch the script again. The first script may have been fetched just before the run counted this
	// boot; its URLs are then those of the previous boot.
	again := s.urls.script(d.Interface.MAC, scriptName)
	return scriptHead(autoexec) + "echo " + what + ` (${platform}, iPXE ${version})
isset ${tries} || set tries:int32 0
:try
` + load + `boot || goto again
:again
imgfree
inc tries
iseq ${tries} 3 && goto fail ||
echo Ingot: booting failed, next attempt in 5 seconds
sleep 5
chain --replace --autofree ` + again + ` || goto try
:fail
echo Ingot: giving up on the network, going on to the disk
sleep 2
` + exitLines
}

// scriptHead returns the first lines of a script. autoexec reports whether iPXE fetches the script as autoexec.ipxe.
func scriptHead(autoexec bool) string {
	if autoexec {
		return "#!ipxe\n" + autoexecLines
	}
	return "#!ipxe\n"
}

// holdScript returns a script that keeps a machine at its loader, and fetches the machine's next script every 15 s. If
// the server does not answer, the script tries again without limit, so that a restart of the server does not send the
// machine to an incomplete system on its disk.
func (s *scripts) holdScript(d Decision, autoexec bool) string {
	return scriptHead(autoexec) + "echo Ingot: the installation of " + d.Machine + ` is not finished, waiting for its run
:hold
sleep 15
chain --replace --autofree ` + s.urls.script(d.Interface.MAC, holdName) + ` || goto hold
`
}

// diskScript returns the script that sends a known machine to its disk. ok is false if the machine's method requires
// the answer 404 instead of a script.
func diskScript(d Decision) (script string, ok bool) {
	const head = "#!ipxe\necho Ingot: not armed, booting from disk\n"
	switch d.Method {
	case Method404:
		return "", false
	case MethodSanboot:
		return head + "iseq ${platform} efi && goto efi ||\n" +
			"sanboot --no-describe --drive 0x80 ||\ngoto done\n" +
			":efi\nsanboot --no-describe --drive 0 ||\n:done\n" + exitLines, true
	}
	return head + exitLines, true
}

// render returns the script that iPXE gets: the boot script if the machine is armed or in discovery, the hold script if
// it is on hold, and the disk script for any other known machine. ok is false if the answer must be 404.
func (s *scripts) render(ctx context.Context, m inventory.Machine, d Decision, autoexec bool) (script string, ok bool, err error) {
	switch d.Verdict {
	case Unknown:
		return "", false, nil
	case Agent, Rescue:
		script, err = s.bootScript(m, d, autoexec)
		return script, err == nil, err
	case Installer:
		script, err = s.installerScript(ctx, m, d, autoexec)
		return script, err == nil, err
	case Discover:
		return s.netbootScript(d, "Ingot discovers this machine", s.loadAgentOS(d, s.discoveryLine(d)), autoexec), true, nil
	case Hold:
		return s.holdScript(d, autoexec), true, nil
	}
	script, ok = diskScript(d)
	return script, ok, nil
}

// installerScript returns the script that boots the installer of d's run. The only secret in the script is the
// capability, a part of its URLs (security S44).
func (s *scripts) installerScript(ctx context.Context, m inventory.Machine, d Decision, autoexec bool) (string, error) {
	i, err := s.installers.find(ctx, d)
	if err != nil {
		return "", err
	}
	for _, name := range slices.Compact(i.Images()) {
		f, err := s.installers.open(ctx, i, name)
		if err != nil {
			return "", err
		}
		_ = f.Close() // the image was opened only to check that it can be served
	}
	line, err := s.installerLine(m, d, i)
	if err != nil {
		return "", err
	}
	base := s.urls.boot(d)
	var load strings.Builder
	fmt.Fprintf(&load, "kernel %s%s %s || goto again\n", base, i.Kernel, line)
	for _, name := range i.Initrds {
		fmt.Fprintf(&load, "initrd --name %s %s%s || goto again\n", name, base, name)
	}
	return s.netbootScript(d, "Ingot boots the installer of "+m.Name, load.String(), autoexec), nil
}

// installerLine returns the kernel command line with which the installer i boots.
func (s *scripts) installerLine(m inventory.Machine, d Decision, i inventory.Installer) (string, error) {
	for _, name := range i.Images() {
		if !isFileName(name) || !imageName.MatchString(name) {
			return "", fmt.Errorf("image name %q is not allowed in a boot script: %w", name, inventory.ErrInvalid)
		}
	}
	if err := checkNames(m, d); err != nil {
		return "", err
	}
	var args []string
	for _, name := range i.Initrds {
		args = append(args, "initrd="+name)
	}
	for _, a := range append(slices.Clone(i.Parameters), m.KernelArgs...) {
		a, err := inventory.Resolve(a, func(ref string) (string, error) {
			switch ref {
			case inventory.RefBootURL:
				return s.urls.boot(d), nil
			case inventory.RefDocumentsURL, inventory.RefWebhookURL, inventory.RefMetadataURL:
				v, _ := cloudinit.Reference(ref, s.cfg.MetadataURL, s.cfg.ClaimKey, d.Owner) // never fails for these three
				return v, nil
			}
			return "", fmt.Errorf("this reference is not allowed on a kernel command line: %w", inventory.ErrInvalid)
		})
		if err != nil {
			return "", err
		}
		if why := inventory.InstallerParameterProblem(a); why != "" { // do not show the argument, because it may contain a capability
			return "", fmt.Errorf("a kernel parameter of the installer of machine %s %s: %w", m.Name, why, inventory.ErrInvalid)
		}
		args = append(args, a)
	}
	return joinLine(m, args)
}

// scriptEvent returns which kind of event to record when a machine fetches its script.
func scriptEvent(d Decision) string {
	if d.Armed() {
		return inventory.EventScript
	}
	return diskEvent(d)
}

// diskEvent returns which kind of event to record when a machine that is not armed asks for a boot file or script.
func diskEvent(d Decision) string {
	if d.Spent || d.Verdict == Hold {
		return inventory.EventRebooted
	}
	return inventory.EventDisk
}

// chainScript returns the script for a client that cannot be identified by its source address. In this script, iPXE
// inserts its own MAC into the URL of the next script.
func (s *scripts) chainScript() string {
	return "#!ipxe\n" + autoexecLines +
		"chain --replace --autofree " + s.urls.base() + "/ipxe/script/${mac:hexhyp}/" + scriptName + " ||\n" + exitLines
}

// checkScript returns the script that is served for CheckMAC by HTTP and TFTP.
func (s *scripts) checkScript() string {
	return "#!ipxe\necho Ingot at " + s.cfg.Address.String() + ": this address belongs to no machine, booting from disk\n" + exitLines
}

// discoveryLine returns the kernel command line for a machine in discovery, whose agent only reports the hardware.
func (s *scripts) discoveryLine(d Decision) string {
	return fmt.Sprintf("initrd=initramfs rdinit=/init ingot.server=%s ingot.pin=%s ingot.mac=%s ingot.discover=1 "+
		"console=tty0 console=ttyS0,115200 panic=30", s.cfg.AgentURL, s.cfg.AgentPin, d.Interface.MAC)
}
