#!/usr/bin/env bash
# debian.sh OUT.raw PKG : a real Debian 12 (systemd, cloud-init, ssh, cloud kernel), made by debootstrap.
#
# cloud-init takes its data from a CIDATA volume, from a NoCloud URL in /etc/cloud/cloud.cfg.d, or from the EC2 address.
# When everything has been done, one line stands on the serial console:
#   LAB-DEBIAN-BOOTED host=… up=… id=<instance-id> ds=<cloud-init's data source>
# PKG is the lab's folder of unpacked packages (not needed here: Debian brings its own kernel).
set -euo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)
OUT=$1
# In a mount namespace of its own, so that nothing stays mounted when this is killed.
[ "${LAB_UNSHARED:-}" = 1 ] || LAB_UNSHARED=1 exec unshare --mount --propagation private "$0" "$@"
T=$(mktemp -d "$(dirname "$OUT")/debian.XXXXXX"); trap 'rm -rf --one-file-system "$T"' EXIT
R=$T/root

# three: fetching over a network is tried three times
three() { "$@" || { sleep 3; "$@"; } || { sleep 10; "$@"; }; }
bootstrap() { rm -rf --one-file-system "$R"; debootstrap --variant=minbase --include=systemd-sysv,udev,dbus,ca-certificates bookworm "$R" "$1"; }
M=$(apt-get indextargets --format '$(REPO_URI)' | grep -E '/debian/?$' | head -n 1)   # the mirror that apt already uses
three bootstrap "${M:-http://deb.debian.org/debian}"
# debootstrap cannot resolve virtual packages (python3-cryptography needs one), so cloud-init is installed by apt in a chroot
cp -L /etc/resolv.conf /etc/hosts "$R/etc/" 2>/dev/null || true
proxies=()
for f in /etc/apt/apt.conf.d/*proxy*; do
  [ ! -e "$f" ] || { cp "$f" "$R/etc/apt/apt.conf.d/"; proxies+=("$R/etc/apt/apt.conf.d/${f##*/}"); }
done
printf '#!/bin/sh\nexit 101\n' > "$R/usr/sbin/policy-rc.d"; chmod +x "$R/usr/sbin/policy-rc.d"   # nothing is started in the chroot
export DEBIAN_FRONTEND=noninteractive LC_ALL=C
three chroot "$R" apt-get -qq update
three chroot "$R" apt-get -y -qq install --no-install-recommends cloud-init linux-image-cloud-amd64 initramfs-tools zstd \
  iproute2 netbase ifupdown isc-dhcp-client openssh-server
rm -f "$R/usr/sbin/policy-rc.d" "$R/etc/resolv.conf" "${proxies[@]}"
: > "$R/etc/hosts"; printf '127.0.0.1 localhost\n' > "$R/etc/hosts"
echo "LABEL=labroot / ext4 defaults,errors=remount-ro 0 1" > "$R/etc/fstab"
echo "root:lab" | chroot "$R" chpasswd
# only the data sources that are served in the lab; no waiting for others
cat > "$R/etc/cloud/cloud.cfg.d/90_lab.cfg" <<'E'
datasource_list: [ NoCloud, Ec2, None ]
datasource:
  Ec2: { metadata_urls: [ "http://169.254.169.254" ], max_wait: 30, timeout: 5, strict_id: false }
E
# ds-identify would otherwise switch cloud-init off on hardware that is no known cloud
echo "policy: enabled" > "$R/etc/cloud/ds-identify.cfg"
printf 'MODULES=most\nCOMPRESS=zstd\n' > "$R/etc/initramfs-tools/conf.d/lab"
cat > "$R/etc/systemd/system/lab-booted.service" <<'E'
[Unit]
Description=lab: say that the installed system is up
After=cloud-final.service multi-user.target
[Service]
Type=oneshot
ExecStart=/bin/sh -c 'echo "LAB-DEBIAN-BOOTED host=$$(hostname) up=$$(cut -d" " -f1 /proc/uptime) id=$$(cat /var/lib/cloud/data/instance-id) ds=$$(cloud-id)" > /dev/ttyS0'
[Install]
WantedBy=cloud-init.target
E
chroot "$R" systemctl -q enable lab-booted.service
ln -sf /lib/systemd/system/serial-getty@.service "$R/etc/systemd/system/getty.target.wants/serial-getty@ttyS0.service"
chroot "$R" update-initramfs -u
chroot "$R" apt-get clean
rm -rf "$R"/var/lib/apt/lists/* "$R"/usr/share/doc/* "$R"/usr/share/man/* "$R"/usr/share/locale/* "$R"/etc/ssh/ssh_host_*
: > "$R/etc/machine-id"
"$HERE/mkimage.sh" "$OUT" "$R" "$R"/boot/vmlinuz-* "$R"/boot/initrd.img-* 900 ""
