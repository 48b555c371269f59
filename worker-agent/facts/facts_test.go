package facts

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/worker-agent/disk/blockdev"
)

// sysfs creates a tree of one-line files.
func sysfs(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestFacts(t *testing.T) {
	dir := sysfs(t, map[string]string{
		"class/dmi/id/sys_vendor": "ACME \x1b[31mInc.", "class/dmi/id/product_name": "Box", "class/dmi/id/product_serial": "SN1",
		"class/dmi/id/bios_vendor": "EDK II", "class/dmi/id/bios_version": "2022.11", "class/dmi/id/bios_date": "02/02/2022",
		"proc/cpuinfo":              "processor\t: 0\nmodel name\t: Fast CPU @ 3GHz\nmodel name\t: other",
		"class/dmi/id/product_uuid": "ABCD-EF", "firmware/efi/fw_platform_size": "64",
		"class/net/eth0/type": "1", "class/net/eth0/address": "52:54:00:00:00:01", "class/net/eth0/carrier": "1", "class/net/eth0/speed": "10000",
		"class/net/eth1/type": "1", "class/net/eth1/address": "52:54:00:00:00:02", "class/net/eth1/carrier": "0", "class/net/eth1/speed": "-1",
		"class/net/lo/type": "772", "class/net/lo/address": "00:00:00:00:00:00",
		"block/vda/size": "2048", "block/vda/serial": "VS1", "block/vda/queue/rotational": "1", "block/vda/queue/logical_block_size": "4096",
		"block/nvme0n1/size": "4096", "block/nvme0n1/device/serial": "NV 1  ", "block/nvme0n1/device/model": "Fast Disk",
		"block/nvme0n1/device/firmware_rev": "2.1.0", "block/nvme0n1/wwid": "eui.0025", "block/nvme0n1/nsid": "1",
		"block/sda/size": "8192", "block/sda/device/wwid": "naa.5000c500a1b2c3d4", "block/sda/device/vpd_pg80": "\x00\x80\x00\x08  ZA1234",
		"block/sda/device/model": "ST1", "block/sda/device/vendor": "SEAGATE", "block/sda/device/rev": "SN05", "block/sda/ro": "1",
		"block/loop0/size": "99", "block/sr0/size": "99", "block/dm-0/size": "99", "block/zram0/size": "9", "block/md0/size": "9",
		"block/sdb/size": "0",
		"block/sdc/size": "2048", "block/sdc/device/rev": "FW12", "block/sdc/device/vpd_pg89": strings.Repeat("\x00", 106) + "WF2143 0" + "xx",
	})
	neighbours := &Neighbours{last: map[string]action.Neighbour{"eth0": {System: "leaf-1", Port: "7"}}}
	firmware := func(name string) string { return map[string]string{"eth0": "14.2"}[name] }
	f, err := HostFinder{Sys: dir, Proc: filepath.Join(dir, "proc"), Neighbours: neighbours, nicFirmware: firmware}.Facts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if f.CPU != "Fast CPU @ 3GHz" || f.BIOS != "EDK II 2022.11 02/02/2022" {
		t.Errorf("processor %q, firmware %q", f.CPU, f.BIOS)
	}
	if n := f.NICs[0].Neighbour; n == nil || n.System != "leaf-1" || f.NICs[1].Neighbour != nil {
		t.Errorf("neighbours %+v, %+v", n, f.NICs[1].Neighbour)
	}
	f.NICs[0].Neighbour = nil
	if f.Manufacturer != "ACME [31mInc." || f.Product != "Box" || f.Serial != "SN1" || f.UUID != "abcd-ef" || f.Firmware != "uefi" ||
		f.CPUs < 1 || f.Memory < blockdev.MiB {
		t.Errorf("%+v", f)
	}
	if got := fmt.Sprint(f.NICs); got != "[{eth0 52:54:00:00:00:01 10000 true 14.2 <nil>} {eth1 52:54:00:00:00:02 0 false  <nil>}]" {
		t.Errorf("interfaces %s", got)
	}
	want := map[string]string{
		"/dev/sdc":     "||scsi|FW12340|1048576/0|[]",
		"/dev/vda":     "VS1||virtio||1048576/4096|[/dev/disk/by-id/virtio-VS1]",
		"/dev/nvme0n1": "NV 1|eui.0025|nvme|2.1.0|2097152/0|[/dev/disk/by-id/nvme-eui.0025 /dev/disk/by-id/nvme-Fast_Disk_NV_1 /dev/disk/by-id/nvme-Fast_Disk_NV_1_1]",
		"/dev/sda":     "ZA1234|0x5000c500a1b2c3d4|scsi|SN05|4194304/0|[/dev/disk/by-id/wwn-0x5000c500a1b2c3d4 /dev/disk/by-id/scsi-35000c500a1b2c3d4 /dev/disk/by-id/scsi-SSEAGATE_ST1_ZA1234]",
	}
	for _, d := range f.Disks {
		if got := fmt.Sprintf(
			"%s|%s|%s|%s|%d/%d|%v",
			d.Serial,
			d.WWN,
			d.Transport,
			d.Firmware,
			d.Size,
			d.SectorSize,
			d.ByID,
		); got != want[d.Path] {
			t.Errorf("%s: %s, want %s", d.Path, got, want[d.Path])
		}
		if d.Blank {
			t.Errorf("%s: a disk that cannot be read counts as blank", d.Path)
		}
		if d.ReadOnly != (d.Path == "/dev/sda") || d.Rotational != (d.Path == "/dev/vda") {
			t.Errorf("%+v", d)
		}
	}
	if len(f.Disks) != len(want) {
		t.Errorf("%d disks: %+v", len(f.Disks), f.Disks)
	}
}
