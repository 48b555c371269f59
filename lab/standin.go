package lab

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/diskfs/go-diskfs/backend/file"
	"github.com/diskfs/go-diskfs/filesystem/iso9660"
	"github.com/diskfs/go-diskfs/filesystem/squashfs"
)

// GuestHealthPort is the port on which every stand-in guest (VyOS, Talos, Harvester) reports its
// state: GET / returns JSON, POST /fail?what=WORD,WORD makes it fail from then on, also after a
// reboot, and POST /reboot reboots it. See lab/guestos.
const GuestHealthPort = 8099

// Talos has the paths of the stand-in for Talos in the cache.
type Talos struct {
	Kernel    string // boots with Initramfs and talos.platform=metal talos.config=URL: path A
	Initramfs string
	Image     Image // raw image of path B: reads the volume CIDATA
}

// TalosFiles builds the stand-in for Talos if the cache does not have it (half a minute). The
// output of the build goes to log, which may be nil.
func TalosFiles(ctx context.Context, log io.Writer) (Talos, error) {
	dir, err := standin(ctx, "talos", log, func(_, out, _ string) error {
		return finishImage(ctx, filepath.Join(out, "talos.raw"), discard(log))
	})
	if err != nil {
		return Talos{}, err
	}
	img, err := openImage("talos", dir)
	return Talos{Kernel: filepath.Join(dir, "vmlinuz"), Initramfs: filepath.Join(dir, "initramfs"), Image: img}, err
}

// Harvester has the paths of the stand-in for Harvester's network installation in the cache.
type Harvester struct {
	Kernel string // boots with Initrd and the command line of Harvester's documentation
	Initrd string
	RootFS string // root=live:URL
	ISO    string // install.iso_url
}

// HarvesterFiles builds the stand-in for Harvester if the cache does not have it (half a minute).
// The output of the build goes to log, which may be nil.
func HarvesterFiles(ctx context.Context, log io.Writer) (Harvester, error) {
	dir, err := standin(ctx, "harvester", log, func(work, out, program string) error {
		root := filepath.Join(work, "root")
		if err := liveRoot(root, "harvester", program, map[string]string{"etc/harvester-release.yaml": "harvester: v1.7.0\n"}); err != nil {
			return err
		}
		if err := makeSquashFS(root, filepath.Join(out, "rootfs.squashfs")); err != nil {
			return err
		}
		iso := filepath.Join(work, "iso")
		if err := os.MkdirAll(filepath.Join(iso, "payload"), 0o755); err != nil {
			return err
		}
		for _, f := range []string{"esp.zst", "mbr.bin"} {
			if err := os.Rename(filepath.Join(out, f), filepath.Join(iso, "payload", f)); err != nil {
				return err
			}
		}
		return makeISO(iso, filepath.Join(out, "harvester.iso"), "COS_LIVE")
	})
	return Harvester{
		Kernel: filepath.Join(dir, "vmlinuz"), Initrd: filepath.Join(dir, "initramfs"),
		RootFS: filepath.Join(dir, "rootfs.squashfs"), ISO: filepath.Join(dir, "harvester.iso"),
	}, err
}

// VyOSVersion is the version of the stand-in for VyOS: the name of the folder in /boot of its
// image.
const VyOSVersion = "1.5-lab"

// VyOSPersistence is the offset of the partition persistence on a disk with the image, in bytes.
const VyOSPersistence = 50 << 20

// VyOSFooter ends every configuration of that version; a config.boot that ends otherwise is taken for one of another version.
const VyOSFooter = `// Warning: Do not remove the following line.
// vyos-config-version: "dhcp-relay@2:https@7:interfaces@33:ntp@3:quagga@12:ssh@2:system@29"
// Release version: 1.5-lab
`

// VyOSConfig is a config.boot with which the stand-in takes the place of a home lab's router: cards of HomeVLAN, DirectVLAN and
// BMCVLAN, with the hardware addresses 52:54:00:01:00:01, 52:54:00:20:01:01 and 52:54:00:10:02:01 that the first machine of a
// lab has; a relay to Seed; and the HTTP API, which takes the given key.
func VyOSConfig(key string) string {
	return fmt.Sprintf(vyosConfig, RouterHomeAddress, DirectGateway, HomeGateway, SeedAddress, key) + VyOSFooter
}

const vyosConfig = `interfaces {
    ethernet eth0 {
        address "%s/24"
        hw-id "52:54:00:01:00:01"
    }
    ethernet eth1 {
        address "%s/24"
        hw-id "52:54:00:20:01:01"
    }
    ethernet eth2 {
        address "10.10.10.1/24"
        hw-id "52:54:00:10:02:01"
    }
}
protocols {
    static {
        route 0.0.0.0/0 {
            next-hop %s {
            }
        }
    }
}
service {
    dhcp-relay {
        listen-interface "eth1"
        relay-options {
            max-size "576"
            relay-agents-packets "forward"
        }
        server "%s"
        upstream-interface "eth0"
    }
    https {
        api {
            keys {
                id ingot {
                    key "%s"
                }
            }
            rest {
            }
        }
    }
    ssh {
        port "22"
    }
}
system {
    host-name "vp6630"
}


`

// vyosDefault is the configuration of an image before its first configuration.
const vyosDefault = `system {
    host-name "vyos"
}


` + VyOSFooter

// VyOSImage is the raw image of the stand-in for VyOS, with VyOS's partitions. It is built if the
// cache does not have it (half a minute). The output of the build goes to log, which may be nil.
// Its relay is ISC's; it needs 512 MB of memory.
func VyOSImage(ctx context.Context, log io.Writer) (Image, error) {
	dir, err := standin(ctx, "vyos", log,
		func(_, out, _ string) error { return finishImage(ctx, filepath.Join(out, "vyos.raw"), discard(log)) })
	if err != nil {
		return Image{}, err
	}
	return openImage("vyos", dir)
}

// vyosRoot packs the root file system of VyOS into the folder in which the recipe of the image
// expects it.
func vyosRoot(ctx context.Context, work, out, program string, log io.Writer) error {
	root := filepath.Join(work, "root")
	if err := liveRoot(
		root,
		"vyos",
		program,
		map[string]string{"opt/vyatta/etc/config.boot.default": vyosDefault, "opt/vyatta/etc/config/scripts/README": "see /config\n"},
	); err != nil {
		return err
	}
	if err := runBuild(ctx, log, filepath.Join(work, "images", "vyos-root.sh"), root, filepath.Join(CacheDir(), "pkg")); err != nil {
		return err
	}
	return makeSquashFS(root, filepath.Join(out, "vyos.squashfs"))
}

// liveRoot creates the root file system of a guest's second stage.
func liveRoot(root, product, program string, files map[string]string) error {
	for _, d := range []string{"proc", "sys", "dev", "run", "tmp", "mnt", "sbin", "etc"} {
		if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
			return err
		}
	}
	b, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(root, "sbin/init"), b, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(root, "product"), []byte(product+"\n"), 0o644); err != nil {
		return err
	}
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			return err
		}
	}
	return nil
}

// makeSquashFS packs a folder; root owns all files in it.
func makeSquashFS(root, out string) error {
	b, err := file.CreateFromPath(out, 1<<30) // truncated to its size below
	if err != nil {
		return err
	}
	fs, err := squashfs.Create(b, 1<<30, 0, 0)
	if err != nil {
		return err
	}
	defer os.RemoveAll(fs.Workspace()) // a temporary folder
	var root0 uint32
	err = copyTree(fs.Workspace(), root)
	if err == nil {
		err = fs.Finalize(squashfs.FinalizeOptions{FileUID: &root0, FileGID: &root0})
	}
	if err := errors.Join(err, b.Close()); err != nil {
		return fmt.Errorf("making a squashfs: %w", err)
	}
	// The length is at offset 40 of the superblock, and is padded to 4 KiB.
	f, err := os.OpenFile(out, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	head := make([]byte, 48)
	if _, err = f.ReadAt(head, 0); err == nil {
		used := int64(binary.LittleEndian.Uint64(head[40:]))
		err = f.Truncate((used + 4095) / 4096 * 4096)
	}
	return errors.Join(err, f.Close())
}

// makeISO packs a folder into an ISO 9660 image with Rock Ridge names.
func makeISO(root, out, label string) error {
	b, err := file.CreateFromPath(out, 1<<30)
	if err != nil {
		return err
	}
	fs, err := iso9660.Create(b, 1<<30, 0, 2048, "")
	if err != nil {
		return err
	}
	defer os.RemoveAll(fs.Workspace()) // a temporary folder
	err = copyTree(fs.Workspace(), root)
	if err == nil {
		err = fs.Finalize(iso9660.FinalizeOptions{RockRidge: true, VolumeIdentifier: label})
	}
	if err := errors.Join(err, b.Close()); err != nil {
		return fmt.Errorf("making an ISO image: %w", err)
	}
	// The number of blocks is at offset 80 of the primary volume descriptor.
	f, err := os.OpenFile(out, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	head := make([]byte, 84)
	if _, err = f.ReadAt(head, 16*2048); err == nil {
		err = f.Truncate(int64(binary.LittleEndian.Uint32(head[80:])) * 2048)
	}
	return errors.Join(err, f.Close())
}

// copyTree copies the content of a folder with modes and links.
func copyTree(to, from string) error {
	out, err := exec.Command("cp", "-a", from+"/.", to).CombinedOutput()
	if err != nil {
		return fmt.Errorf("copying %q: %w: %s", from, err, out)
	}
	return nil
}

func discard(log io.Writer) io.Writer {
	if log == nil {
		return io.Discard
	}
	return log
}

// GuestProgram builds lab/guestos into a folder and returns its path. It needs the go command and
// must run in the module's folder.
func GuestProgram(ctx context.Context, dir string) (string, error) {
	path := filepath.Join(dir, "guestos")
	// Use the settings of the environment except cgo: the guest has no libraries.
	err := runBuild(ctx, io.Discard, "env", "CGO_ENABLED=0", "go", "build", "-buildvcs=false", "-ldflags", "-s -w", "-o",
		path, "github.com/ingotmetal/ingot/lab/guestos")
	return path, err
}

// standin builds the files of a product. Before the files count as complete, it calls more with a
// temporary folder, the folder of the files, and the path of the guest's program.
func standin(ctx context.Context, product string, log io.Writer, more func(work, out, program string) error) (string, error) {
	tmp, err := os.MkdirTemp("", "ingot-lab-guestos-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(tmp) // a later program's system cleans up what is left
	program, err := GuestProgram(ctx, tmp)
	if err != nil {
		return "", err
	}
	key, err := packageKey("kernel", "busybox", "relay")
	if err != nil {
		return "", err
	}
	h := sha256.New()
	f, err := os.Open(program)
	if err != nil {
		return "", err
	}
	defer f.Close() // opened only for reading
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	for _, name := range []string{"standin.sh", "vyos-root.sh"} {
		b, err := recipes.ReadFile("images/" + name)
		if err != nil {
			return "", err
		}
		h.Write(b)
	}
	fmt.Fprint(h, key, vyosDefault, standinRecipe) // writing to a hash never fails
	dir := filepath.Join(CacheDir(), "images", product+"-"+hex.EncodeToString(h.Sum(nil))[:16])
	err = inCache(ctx, product, dir, func() error {
		_, err := os.Stat(dir)
		return err
	}, func(work, out string) error {
		if product == "vyos" {
			if err := vyosRoot(ctx, work, out, program, discard(log)); err != nil {
				return err
			}
		}
		err := runBuild(ctx, discard(log), filepath.Join(work, "images", "standin.sh"), out, filepath.Join(CacheDir(), "pkg"), program, product)
		if err != nil {
			return err
		}
		return more(work, out, program)
	})
	return dir, err
}

// standinRecipe is a version number; increase it when the Go code that builds the files changes.
const standinRecipe = 1
