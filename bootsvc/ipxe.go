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

// maxCommandLine is the size limit of x86 kernels for the command line: COMMAND_LINE_SIZE, including the terminating
// zero.
const maxCommandLine = 2048

// Patterns of the values that a script may contain. Each value is checked before it is inserted;
// inventory.ParameterProblem checks kernel parameters. None of these rules allows a line break, a further command or
// the expansion of an iPXE setting (security S14).
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

// exitLines end iPXE so that the firmware boots from disk. UEFI firmware continues with the next boot entry only after
// a failure; a plain exit would open its setup screen. BIOS accepts both.
const exitLines = "iseq ${platform} efi && exit 1 || exit 0\n"

// autoexecLines begin a script that iPXE 2.0 fetched as autoexec.ipxe. iPXE then uses the firmware's DHCP lease, but
// may have closed the interface again.
const autoexecLines = "isset ${net0/ip} || dhcp ||\nifopen net0 ||\n"

// scripts renders the scripts for iPXE and GRUB.
type scripts struct {
	cfg        *Config
	urls       *urls
	installers *installers
}

// checkNames returns an error if m's name or d's MAC is not safe to insert in a boot script.
func checkNames(m inventory.Machine, d Decision) error {
	if _, ok := wire.ParseMAC(d.Interface.MAC); !ok || !machineName.MatchString(m.Name) {
		return fmt.Errorf("machine name %q or MAC %q is not allowed in a boot script: %w", m.Name, d.Interface.MAC, inventory.ErrInvalid)
	}
	return nil
}

// commandLine returns the kernel command line of the agent OS.
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
	if d.Verdict != Agent { // armed by an operator: the agent only reports the hardware
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

// joinLine joins the kernel arguments for m. It returns an error if the command line is too long.
func joinLine(m inventory.Machine, args []string) (string, error) {
	line := strings.Join(args, " ")
	if len(line) >= maxCommandLine {
		return "", fmt.Errorf("the kernel command line of machine %s has %d characters; the limit is %d: %w", m.Name,
			len(line), maxCommandLine-1, inventory.ErrInvalid)
	}
	return line, nil
}

// bootScript returns the script that boots the agent OS. All requests of one boot get the same script, and rendering
// it has no side effect.
func (s *scripts) bootScript(m inventory.Machine, d Decision, autoexec bool) (string, error) {
	line, err := s.commandLine(m, d)
	if err != nil {
		return "", err
	}
	return s.netbootScript(d, "Ingot boots "+m.Name, s.loadAgentOS(d, line), autoexec), nil
}

// loadAgentOS returns the script lines that load the agent OS with the command line. The signed iPXE starts a Debian
// kernel, whose signature firmware does not trust, through Debian's shim (https://ipxe.org/cmd/shim). It fetches the
// shim only if Secure Boot is on. An iPXE without the command shim continues.
func (s *scripts) loadAgentOS(d Decision, line string) string {
	base := s.urls.boot(d)
	lines := fmt.Sprintf("kernel %svmlinuz %s || goto again\ninitrd --name initramfs %sinitramfs || goto again\n", base, line, base)
	if d.Interface.Loader == inventory.LoaderIPXEShim {
		lines += "shim " + s.urls.loader(d.Interface.MAC, loaderShim) + " ||\n"
	}
	return lines
}

// netbootScript returns a script that prints what, runs the lines of load and boots the kernel. After three failed
// attempts it boots from disk.
func (s *scripts) netbootScript(d Decision, what, load string, autoexec bool) string {
	// After a failure, fetch the script again: if it was fetched just before the run counted this boot, its URLs are
	// those of the previous boot.
	again := s.urls.script(d.Interface.MAC, scriptName)
	return scriptHead(autoexec) + "echo " + what + ` (${platform}, iPXE ${version})
isset ${tries} || set tries:int32 0
:try
` + load + `boot || goto again
:again
imgfree
inc tries
iseq ${tries} 3 && goto fail ||
echo Ingot: that did not work, again in 5 seconds
sleep 5
chain --replace --autofree ` + again + ` || goto try
:fail
echo Ingot: giving up on the network, going on to the disk
sleep 2
` + exitLines
}

// scriptHead returns the first lines of a script. autoexec reports that iPXE fetches it as autoexec.ipxe.
func scriptHead(autoexec bool) string {
	if autoexec {
		return "#!ipxe\n" + autoexecLines
	}
	return "#!ipxe\n"
}

// holdScript returns a script that keeps a machine at its loader and fetches its next script every 15 s. It loops
// until the server answers, so that a server restart does not send the machine to an incomplete disk.
func (s *scripts) holdScript(d Decision, autoexec bool) string {
	return scriptHead(autoexec) + "echo Ingot: the installation of " + d.Machine + ` is not finished, waiting for its run
:hold
sleep 15
chain --replace --autofree ` + s.urls.script(d.Interface.MAC, holdName) + ` || goto hold
`
}

// diskScript returns the script that sends a known machine to its disk. ok is false if the machine's method requires a
// 404 instead.
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

// render returns the script for iPXE: the boot script for an armed or discovered machine, the hold script for a
// machine on hold, the disk script for any other known machine. ok is false if the answer must be 404.
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

// installerScript returns the script that boots the installer of d's run. The only secret in it is the capability path
// (security S44).
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
		_ = f.Close() // only opened to check that it can be served
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

// installerLine returns the kernel command line of the installer i.
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
				v, _ := cloudinit.Reference(ref, s.cfg.MetadataURL, s.cfg.ClaimKey, d.Owner) // no error: it accepts all three
				return v, nil
			}
			return "", fmt.Errorf("this reference is not allowed on a kernel command line: %w", inventory.ErrInvalid)
		})
		if err != nil {
			return "", err
		}
		if why := inventory.InstallerParameterProblem(a); why != "" { // the argument may contain a capability, so it is not shown
			return "", fmt.Errorf("a kernel parameter of the installer of machine %s %s: %w", m.Name, why, inventory.ErrInvalid)
		}
		args = append(args, a)
	}
	return joinLine(m, args)
}

// scriptEvent returns the kind of event to record when a machine fetches its script.
func scriptEvent(d Decision) string {
	if d.Armed() {
		return inventory.EventScript
	}
	return diskEvent(d)
}

// diskEvent returns the kind of event to record when a machine asks for a boot file or script while it is not armed.
func diskEvent(d Decision) string {
	if d.Spent || d.Verdict == Hold {
		return inventory.EventRebooted
	}
	return inventory.EventDisk
}

// chainScript returns the script for a client whose source address does not identify the machine. iPXE inserts its own
// MAC into the URL of the next script.
func (s *scripts) chainScript() string {
	return "#!ipxe\n" + autoexecLines +
		"chain --replace --autofree " + s.urls.base() + "/ipxe/script/${mac:hexhyp}/" + scriptName + " ||\n" + exitLines
}

// checkScript returns the script that CheckMAC gets by HTTP and TFTP.
func (s *scripts) checkScript() string {
	return "#!ipxe\necho Ingot at " + s.cfg.Address.String() + ": this address belongs to no machine, booting from disk\n" + exitLines
}

// discoveryLine returns the kernel command line for an agent that only reports the hardware of a discovered machine.
func (s *scripts) discoveryLine(d Decision) string {
	return fmt.Sprintf("initrd=initramfs rdinit=/init ingot.server=%s ingot.pin=%s ingot.mac=%s ingot.discover=1 "+
		"console=tty0 console=ttyS0,115200 panic=30", s.cfg.AgentURL, s.cfg.AgentPin, d.Interface.MAC)
}
