package bootsvc

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/ingotmetal/ingot/inventory"
)

// grubConfig is the first configuration that Debian's signed GRUB reads. It sources the machine's own file, whose name
// contains the MAC of the card through which GRUB was loaded. The machine's file boots a kernel, waits or restarts. If
// the file returns without booting, GRUB fetches it again, up to three times. For a machine on hold, GRUB fetches the
// file without limit, so that a restart of the server does not send the machine to an incomplete system.
//
// If the machine's file sets ingot=disk, GRUB starts the first boot loader that it finds on a disk: the removable media
// path (UEFI 2.10 §3.5.1.1), or the shim of Debian or Ubuntu.
const grubConfig = `set timeout=0
if [ -z "$net_default_mac" -o -z "$net_default_server" ]; then
  echo "Ingot: GRUB does not know its network card or its server"
  sleep 5
  exit
fi
set ingot=1
while [ "$ingot" != 4 ]; do
  source (tftp,$net_default_server)/grub/m/$net_default_mac
  if [ "$ingot" = disk ]; then
    for path in /EFI/BOOT/BOOTX64.EFI /EFI/debian/shimx64.efi /EFI/ubuntu/shimx64.efi; do
      if search --set=root --file $path; then
        chainloader $path
        boot
      fi
    done
    echo "Ingot: no boot loader on a disk"
    exit
  fi
  sleep 5
  if [ "$ingot" = 3 ]; then set ingot=4; fi
  if [ "$ingot" = 2 ]; then set ingot=3; fi
  if [ "$ingot" = 1 ]; then set ingot=2; fi
done
echo "Ingot: giving up on the network"
sleep 2
exit
`

// optionalOfShim matches the names of files that shim requests before it loads its second stage, but does not need.
var optionalOfShim = regexp.MustCompile(`^(revocations(_sku|_sbat)?|shim_certificate(_[0-9]+)?)\.efi$`)

// grubScript returns the machine's own part of GRUB's configuration. Nothing in this part can inject a GRUB command
// (security S14), because the machine's name contains no special character of GRUB's language, and all kernel
// parameters are quoted.
func (s *scripts) grubScript(m inventory.Machine, d Decision) (string, error) {
	switch d.Verdict {
	case Agent, Rescue:
		line, err := s.commandLine(m, d)
		if err != nil {
			return "", err
		}
		return s.grubAgentOS(d, "boots "+m.Name, line), nil
	case Discover:
		return s.grubAgentOS(d, "discovers this machine", s.discoveryLine(d)), nil
	case Hold:
		return "echo Ingot: the installation is not finished, waiting for its run\nset ingot=hold\nsleep 10\n", nil
	case Disk:
		// Do not use exit: the firmware would open its setup screen instead of booting the next entry. After a restart,
		// DHCP names no loader, so the machine boots from disk. But if another DHCP server always names a loader, GRUB
		// must boot the disk itself.
		if s.cfg.alwaysNamesLoader() {
			return "echo Ingot: not armed, booting from disk\nset ingot=disk\n", nil
		}
		return "echo Ingot: not armed, restarting to boot from disk\nreboot\n", nil
	}
	return "", fmt.Errorf("GRUB cannot boot machine %s, whose verdict is %s: %w", m.Name, d.Verdict, inventory.ErrInvalid)
}

// grubAgentOS returns the lines that boot the agent OS. line is the kernel command line in the form for iPXE.
func (s *scripts) grubAgentOS(d Decision, what, line string) string {
	// Remove initrd= from the line: it makes the kernel look for a file of that name, but GRUB passes the initramfs in
	// memory.
	words := strings.Split(strings.TrimPrefix(line, "initrd=initramfs "), " ")
	for n, w := range words {
		words[n] = quoteGrub(w)
	}
	base := fmt.Sprintf("(tftp,%s)/boot/%s/%s/", s.cfg.Address, d.Interface.MAC, s.urls.token(d))
	return fmt.Sprintf("echo Ingot %s\nif [ \"$ingot\" = hold ]; then set ingot=1; fi\n"+
		"linux %svmlinuz %s\ninitrd %sinitramfs\nboot\n", what, base, strings.Join(words, " "), base)
}

// quoteGrub quotes w so that GRUB reads it as one word, whatever characters w contains (GRUB manual, "Quoting").
func quoteGrub(w string) string { return "'" + strings.ReplaceAll(w, "'", `'\''`) + "'" }
