package lab

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
)

// HostImage is a Debian 12 with systemd that runs a server, see images/host.sh. It is built like
// DebianImage. The output of the build goes to log, which may be nil.
func HostImage(ctx context.Context, log io.Writer) (Image, error) {
	return buildImage(ctx, "host", "", log)
}

// ServerHost starts a Debian with systemd in place of the namespace Server, with Server's addresses on
// eth0 and eth1, and returns when its shell answers. The content of the folder files is at /media.
// What the guest writes is lost when it ends.
func (l *Lab) ServerHost(ctx context.Context, image Image, files string) (*Guest, error) {
	dir := filepath.Join(l.dir, "host")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	media := filepath.Join(dir, "media.raw")
	c := exec.CommandContext(ctx, "mke2fs", "-q", "-t", "ext4", "-d", files, media, "1g")
	if out, err := c.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("making the disk of %s: %w: %s", files, err, out)
	}
	if err := l.replaceServer(ctx); err != nil {
		return nil, err
	}

	system := filepath.Dir(image.Raw)
	g, err := l.startGuest(ctx, dir, "LAB-HOST-UP", 3072, "-kernel", filepath.Join(system, "vmlinuz"), "-initrd",
		filepath.Join(system, "initrd"), "-append", "root=/dev/vda rw console=ttyS0 net.ifnames=0 mitigations=off quiet", "-drive",
		"if=virtio,format=raw,snapshot=on,cache=unsafe,file="+image.Raw, "-drive", "if=virtio,format=raw,readonly=on,file="+media)
	if err != nil {
		return nil, err
	}
	for _, line := range []string{
		"ip link set eth0 up && ip addr add " + ServerAddress + "/24 dev eth0",
		"ip link set eth1 up && ip addr add " + ServerBMCAddr + "/24 dev eth1",
		"ip route add default via " + DirectGateway,
	} {
		if _, err := g.Shell(ctx, line); err != nil {
			g.Stop()
			return nil, err
		}
	}
	return g, nil
}
