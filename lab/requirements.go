package lab

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

const (
	remedy   = "run `make deps`"
	ovmfCode = "/usr/share/OVMF/OVMF_CODE_4M.fd"
	ovmfVars = "/usr/share/OVMF/OVMF_VARS_4M.fd"

	// Secure Boot is on, with Microsoft's keys.
	ovmfSecureCode = "/usr/share/OVMF/OVMF_CODE_4M.secboot.fd"
	ovmfSecureVars = "/usr/share/OVMF/OVMF_VARS_4M.ms.fd"

	// Secure Boot is on, with the certificate of SnakeoilKey.
	ovmfSnakeoilVars = "/usr/share/OVMF/OVMF_VARS_4M.snakeoil.fd"
)

// What signs the programs that firmware with Spec.Snakeoil boots. The key's password is "snakeoil".
const (
	SnakeoilKey         = "/usr/share/ovmf/PkKek-1-snakeoil.key"
	SnakeoilCertificate = "/usr/share/ovmf/PkKek-1-snakeoil.pem"
)

// CacheDir returns the folder for unpacked packages and built images:
// ${XDG_CACHE_HOME:-$HOME/.cache}/ingot-lab.
func CacheDir() string {
	base := os.Getenv("XDG_CACHE_HOME")
	if base == "" {
		base = filepath.Join(os.Getenv("HOME"), ".cache")
	}
	return filepath.Join(base, "ingot-lab")
}

// PackageDir returns the folder of a package that `make deps` has unpacked instead of installing
// it: "ipxe", "kernel", "busybox", "relay", "dhcp", "openipmi", "tftp" or "ovs".
func PackageDir(name string) string { return filepath.Join(CacheDir(), "pkg", name) }

// Requirements checks that this program can run a lab here, and returns everything that is missing
// with its remedy. Tests that need the lab fail with this error; they are not skipped.
func Requirements() error {
	return requirements(os.Geteuid(), exec.LookPath, func(path string) error {
		_, err := os.Stat(path)
		return err
	})
}

func requirements(uid int, look func(string) (string, error), stat func(string) error) error {
	var programs, packages, rest []string
	for _, p := range []string{
		// running the lab
		"qemu-system-x86_64", "ip", "tc", "ss", "nft", "nsenter", "ipmitool", "tcpdump", "curl",
		// building images
		"grub-mkstandalone", "syslinux", "mcopy", "mkfs.vfat", "sgdisk", "mke2fs", "modprobe", "depmod", "cpio", "zstd",
		"debootstrap", "unshare",
	} {
		if _, err := look(p); err != nil {
			programs = append(programs, p)
		}
	}
	for _, p := range []string{"ipxe", "kernel", "busybox", "secureboot", "relay", "dhcp", "openipmi"} {
		if stat(filepath.Join(PackageDir(p), ".stamp")) != nil {
			packages = append(packages, PackageDir(p))
		}
	}
	for _, f := range []string{ovmfCode, ovmfVars, ovmfSecureCode, ovmfSecureVars, "/usr/lib/syslinux/mbr/gptmbr.bin"} {
		if stat(f) != nil {
			rest = append(rest, f)
		}
	}
	var errs []error
	if uid != 0 {
		errs = append(errs, errors.New("the lab makes network namespaces: run it as root"))
	}
	if stat("/dev/net/tun") != nil {
		errs = append(errs, errors.New("there is no /dev/net/tun: load the kernel module tun, or give the container this device"))
	}
	for _, m := range []struct {
		what  string
		names []string
	}{{"programs", programs}, {"unpacked packages", packages}, {"files", rest}} {
		if len(m.names) > 0 {
			errs = append(errs, fmt.Errorf("these %s are missing: %s; %s", m.what, strings.Join(m.names, ", "), remedy))
		}
	}
	return errors.Join(errs...)
}
