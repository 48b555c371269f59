#!/usr/bin/env bash
# debian.sh OUT.raw PKG: a real Debian 12 (systemd, cloud-init, ssh, cloud kernel), made by debootstrap.
#
# cloud-init takes its data from a CIDATA volume, from a NoCloud URL in /etc/cloud/cloud.cfg.d, or from the EC2 address.
# When the system is up, it prints one line on the serial console:
#   LAB-DEBIAN-BOOTED host=… up=… id=<instance-id> ds=<cloud-init's data source>
# PKG is the lab's folder of unpacked packages. The kernel is not from there: Debian brings its own.
set -euo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)
OUT=$1
# In a mount namespace of its own, so that nothing stays mounted when this is killed.
[ "${LAB_UNSHARED:-}" = 1 ] || LAB_UNSHARED=1 exec unshare --mount --propagation private "$0" "$@"
T=$(mktemp -d "$(dirname "$OUT")/debian.XXXXXX"); trap 'umount -l "$T" 2>/dev/null || true; rm -rf --one-file-system "$T"' EXIT
# In memory if there is plenty: dpkg syncs each file to the disk.
[ "$(awk '/^MemAvailable/ {print $2}' /proc/meminfo)" -lt 6000000 ] || mount -t tmpfs -o size=1500m tmpfs "$T"
R=$T/root

. "$HERE/bootstrap.sh"
# What configures the network: ifupdown, or with netplan.sh netplan and systemd-networkd.
network=${LAB_NETWORK:-ifupdown}
debian "$R" "virtio_pci virtio_blk virtio_scsi nvme ahci sd_mod ext4" \
  cloud-init iproute2 netbase "$network" isc-dhcp-client openssh-server
[ "$network" = ifupdown ] || chroot "$R" systemctl -q enable systemd-networkd.service
echo "LABEL=labroot / ext4 defaults,errors=remount-ro 0 1" > "$R/etc/fstab"

# Only the data sources that the lab serves, so that cloud-init does not wait for others; key types that are quick to make;
# the modules that a seed of the lab uses, because an emulated processor takes seconds to load all of them.
# A template may write another address of the metadata service into a file that is read after 05_lab.cfg.
cat > "$R/etc/cloud/cloud.cfg.d/05_lab.cfg" <<'Y'
datasource:
  Ec2: { metadata_urls: [ "http://169.254.169.254" ], max_wait: 30, timeout: 5, strict_id: false }
Y
cat > "$R/etc/cloud/cloud.cfg.d/90_lab.cfg" <<'Y'
datasource_list: [ NoCloud, Ec2, None ]
ssh_genkeytypes: [ ed25519, ecdsa ]
cloud_init_modules: [ seed_random, bootcmd, write_files, set_hostname, update_etc_hosts, users_groups, ssh ]
cloud_config_modules: [ set_passwords, timezone, runcmd ]
cloud_final_modules: [ scripts_vendor, scripts_per_once, scripts_per_boot, scripts_per_instance, scripts_user, phone_home, final_message ]
Y
# ds-identify would otherwise switch cloud-init off: the lab's hardware is not a known cloud's.
echo "policy: enabled" > "$R/etc/cloud/ds-identify.cfg"
cat > "$R/etc/systemd/system/lab-booted.service" <<'Y'
[Unit]
Description=lab: report that the installed system is up
After=cloud-final.service multi-user.target
[Service]
Type=oneshot
ExecStart=/bin/sh -c 'echo "LAB-DEBIAN-BOOTED host=$$(hostname) up=$$(cut -d" " -f1 /proc/uptime) id=$$(cat /var/lib/cloud/data/instance-id) ds=$$(cloud-id)" > /dev/ttyS0'
[Install]
WantedBy=cloud-init.target
Y
chroot "$R" systemctl -q enable lab-booted.service
ln -sf /lib/systemd/system/serial-getty@.service "$R/etc/systemd/system/getty.target.wants/serial-getty@ttyS0.service"

# A small disk: an installation writes every byte of it and reads every byte back. What the lab's machines do not use goes:
# documentation, charsets, drivers and file systems of other hardware, and what an emulated processor is slow with: KVM and the
# hardware ciphers, whose self-tests run when they are loaded. Kernel and initramfs are on the ESP.
rm -rf "$R"/usr/share/{zsh,vim}/* "$R"/usr/lib/x86_64-linux-gnu/gconv \
  "$R"/usr/lib/udev/hwdb.d "$R"/usr/lib/udev/hwdb.bin "$R"/etc/ssh/ssh_host_*
chroot "$R" systemctl -q mask systemd-hwdb-update.service apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer \
  e2scrub_reap.service e2scrub_all.timer fstrim.timer
V=$(basename "$R"/usr/lib/modules/*)
K=$R/usr/lib/modules/$V/kernel
rm -rf "$K"/virt "$K"/arch/x86/{crypto,kvm} "$K"/drivers/{comedi,cxl,hid,hv,infiniband,md,media,soundwire,target,uio,vfio,vhost,video} \
  "$K"/drivers/net/{ethernet,hyperv,team,wireguard,wwan} \
  "$K"/fs/{btrfs,ceph,erofs,nfs,nfsd,orangefs,smb,sysv,udf,ufs,xfs,zonefs} \
  "$K"/net/{ceph,dccp,l2tp,mptcp,openvswitch,rds,sctp,smc,sunrpc,tipc}
chroot "$R" depmod "$V"
mv "$R"/boot/vmlinuz-* "$T/vmlinuz"
mv "$R"/boot/initrd.img-* "$T/initrd"
MB=$(($(du -sm "$R" | cut -f1) * 110 / 100 + 64)) # room for ext4's own tables and for what cloud-init writes
"$HERE/mkimage.sh" "$OUT" "$R" "$T/vmlinuz" "$T/initrd" "$MB" "mitigations=off" "$2"
