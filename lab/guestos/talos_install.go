package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/diskfs/go-diskfs/backend/file"
	"github.com/diskfs/go-diskfs/partition/gpt"
)

// talosInstall writes partitions, loader with kernel and initramfs, and configuration to the disk.
func (h *host) talosInstall(ctx context.Context, c *talosConfig, doc []byte) error {
	d, err := h.talosDisk(c)
	if err != nil {
		return err
	}
	if c.Machine.Install.Image == "" {
		return errors.New("installing: machine.install.image is missing")
	}
	h.stage("installing", c.Machine.Install.Image+" on "+d.name)
	h.say("phase install (1/3): partitions of %s (%s)", d.name, d.serial)
	efi := int64(talosEFI)
	if !h.real {
		efi = 4 * mib
	}
	parts, err := d.partition([]part{
		{label: "EFI", kind: gpt.EFISystemPartition, size: efi, attributes: 1 << 2}, // "legacy BIOS bootable": where the loader for BIOS is
		{label: "BIOS", kind: gpt.BIOSBoot, size: mib},
		{label: "BOOT", kind: gpt.LinuxFilesystem, size: talosBoot},
		{label: "META", kind: gpt.LinuxFilesystem, size: talosMeta},
		{label: "STATE", kind: gpt.LinuxFilesystem, size: talosStateSize},
		{label: "EPHEMERAL", kind: gpt.LinuxFilesystem},
	}, h.payloadFile("mbr.bin"))
	if err != nil {
		return err
	}
	for _, p := range parts[3:] {
		if err := d.clear(p); err != nil { // what an earlier installation left
			return err
		}
	}
	h.say("phase install (2/3): loader")
	if h.fails("install") {
		return errors.New("installing: told to fail")
	}
	if err := h.writeLoader(d, parts[0]); err != nil {
		return err
	}
	if !pause(ctx, 0) {
		return ctx.Err()
	}
	h.say("phase install (3/3): configuration")
	if err := d.putFiles(parts[4], map[string][]byte{"config.yaml": doc}); err != nil {
		return err
	}
	s := &store{d: d, p: parts[3]}
	if err := s.save(talosState{Failures: h.health.Failures}); err != nil {
		return err
	}
	h.stage("installed", d.name)
	return nil
}

// writeLoader fills the EFI partition from the payload of the initramfs.
func (h *host) writeLoader(d *disk, p part) error {
	f, err := os.Open(filepath.Join(payloadDir, "esp.zst"))
	if errors.Is(err, os.ErrNotExist) && !h.real {
		return d.clear(p) // a simulated machine reads no loader
	}
	if err != nil {
		return err
	}
	defer f.Close() // only read from
	n, err := d.write(p, f)
	h.say("loader of %d bytes written", n)
	return err
}

// payloadDir is the folder of the initramfs with the files that installers write.
const payloadDir = "/payload"

func (h *host) payloadFile(name string) []byte {
	b, err := os.ReadFile(filepath.Join(payloadDir, name))
	if err != nil {
		return nil
	}
	return b
}

// talosGrow adds STATE and EPHEMERAL to a disk that was written as an image, and writes the configuration.
func (h *host) talosGrow(d *disk, doc []byte) error {
	have, err := d.partitions()
	if err != nil {
		return err
	}
	f, err := os.OpenFile(d.path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close() // synced below
	table, err := gpt.Read(file.New(f, true), sector, sector)
	if err != nil {
		return err
	}
	at, end := int64(0), d.size-mib
	for _, p := range have {
		if p.label == "CIDATA" {
			end = min(end, p.start)
		} else {
			at = max(at, p.start+p.size)
		}
	}
	at = (at + mib - 1) / mib * mib
	if at+talosStateSize+mib > end {
		return fmt.Errorf("growing %q: no room for STATE", d.name)
	}
	index := 0
	for _, p := range table.Partitions {
		index = max(index, p.Index)
	}
	for _, p := range []part{
		{label: "STATE", start: at, size: talosStateSize},
		{label: "EPHEMERAL", start: at + talosStateSize, size: (end - at - talosStateSize) / mib * mib},
	} {
		index++
		table.Partitions = append(table.Partitions, &gpt.Partition{
			Index: index, Start: uint64(p.start) / sector, End: uint64(p.start+p.size)/sector - 1,
			Type: gpt.LinuxFilesystem, Name: p.label,
		})
	}
	if err := errors.Join(table.Write(f, d.size), f.Sync()); err != nil {
		return err
	}
	if err := d.putFiles(d.find("STATE"), map[string][]byte{"config.yaml": doc}); err != nil {
		return err
	}
	return (&store{d: d, p: d.find("META")}).save(talosState{Failures: h.health.Failures})
}

// talosDisk finds the disk of machine.install.
func (h *host) talosDisk(c *talosConfig) (*disk, error) {
	in := c.Machine.Install
	if len(in.DiskSelector) == 0 {
		if in.Disk == "" {
			return nil, errors.New("finding the disk: machine.install has neither disk nor diskSelector")
		}
		return h.disk(in.Disk)
	}
	for _, d := range h.disks {
		ok, err := d.selected(in.DiskSelector)
		if err != nil {
			return nil, err
		}
		if ok {
			return d, nil
		}
	}
	return nil, fmt.Errorf("finding the disk: none matches machine.install.diskSelector %v", in.DiskSelector)
}

// selected reports whether a disk matches all keys of a diskSelector.
func (d *disk) selected(selector map[string]any) (bool, error) {
	for k, v := range selector {
		want := fmt.Sprint(v)
		ok := false
		switch k {
		case "serial":
			ok, _ = filepath.Match(want, d.serial)
		case "model":
			ok, _ = filepath.Match(want, d.model)
		case "name":
			ok, _ = filepath.Match(want, d.name)
		case "type":
			nvme := strings.HasPrefix(d.name, "/dev/nvme")
			ok = want == "nvme" && nvme || want == "ssd" && !d.rotary && !nvme || want == "hdd" && d.rotary && !nvme
		case "size":
			var err error
			if ok, err = sizeMatches(want, d.size); err != nil {
				return false, err
			}
		default:
			return false, fmt.Errorf("finding the disk: diskSelector by %q is not known here", k)
		}
		if !ok {
			return false, nil
		}
	}
	return true, nil
}

// sizeMatches reads ">= 10GB" and the like.
func sizeMatches(want string, size int64) (bool, error) {
	m := regexp.MustCompile(`^\s*(<=|>=|<|>|==)?\s*(\d+)\s*([KMGT]i?)?B?\s*$`).FindStringSubmatch(want)
	if m == nil {
		return false, fmt.Errorf("finding the disk: size %q", want)
	}
	n, err := strconv.ParseInt(m[2], 10, 64)
	if err != nil {
		return false, err
	}
	unit := int64(1000)
	if strings.HasSuffix(m[3], "i") {
		unit = 1024
	}
	for range strings.Index(" KMGT", (m[3] + " ")[:1]) {
		n *= unit
	}
	switch m[1] {
	case "<=":
		return size <= n, nil
	case ">=":
		return size >= n, nil
	case "<":
		return size < n, nil
	case ">":
		return size > n, nil
	}
	return size == n, nil
}
