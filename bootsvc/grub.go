package bootsvc

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/ingotmetal/ingot/inventory"
)

// grubConfig is what Debian's signed GRUB reads first. It fetches the machine's own file, by
// the MAC of the card that it was loaded through. That file waits or boots. If it returns,
// the kernel did not start: it is fetched three times. A machine on hold waits for as long as the
// server does not answer, so that a restart of the server does not send it to half a system.
//
// With ingot=disk, GRUB starts the first boot loader that it finds on a disk: the removable media path
// (UEFI 2.10 §3.5.1.1), or Debian's or Ubuntu's shim.
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

// optionalOfShim are files that shim asks for before its second stage, and can do without.
var optionalOfShim = regexp.MustCompile(`^(revocations(_sku|_sbat)?|shim_certificate(_[0-9]+)?)\.efi$`)

// grubScript returns the machine's own part of GRUB's configuration. All its values are words of the alphabets of
// commandLine: the machine's name, in which GRUB's language has no operator, and kernel parameters in quotes (security S14).
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
		// After an exit, firmware opens its setup screen instead of trying the next entry. After a
		// restart, DHCP names no loader, unless another server always does.
		if s.cfg.alwaysNamesLoader() {
			return "echo Ingot: not armed, booting from disk\nset ingot=disk\n", nil
		}
		return "echo Ingot: not armed, restarting to boot from disk\nreboot\n", nil
	}
	return "", fmt.Errorf("GRUB cannot boot what machine %s is to boot (%s): %w", m.Name, d.Verdict, inventory.ErrInvalid)
}

// grubAgentOS returns the lines that boot the agent OS with a command line of iPXE's.
func (s *scripts) grubAgentOS(d Decision, what, line string) string {
	// The kernel would look for a file of that name; GRUB hands the initramfs over in memory.
	words := strings.Split(strings.TrimPrefix(line, "initrd=initramfs "), " ")
	for n, w := range words {
		words[n] = quoteGrub(w)
	}
	base := fmt.Sprintf("(tftp,%s)/boot/%s/%s/", s.cfg.Address, d.Interface.MAC, s.urls.token(d))
	return fmt.Sprintf("echo Ingot %s\nif [ \"$ingot\" = hold ]; then set ingot=1; fi\n"+
		"linux %svmlinuz %s\ninitrd %sinitramfs\nboot\n", what, base, strings.Join(words, " "), base)
}

// quoteGrub returns a word that GRUB reads as w, whatever characters w has (GRUB manual, "Quoting").
func quoteGrub(w string) string { return "'" + strings.ReplaceAll(w, "'", `'\''`) + "'" }
