# bootstrap.sh: debian ROOT MODULES PACKAGE... makes the root file system of a Debian 12 in ROOT, by debootstrap and apt, with a cloud
# kernel whose initramfs has MODULES. It is sourced.

# retry: what fetches over a network is tried three times
retry() { "$@" || { sleep 3; "$@"; } || { sleep 10; "$@"; }; }
bootstrap() {
  rm -rf --one-file-system "$1"
  debootstrap --variant=minbase --include=systemd-sysv,udev,dbus,ca-certificates bookworm "$1" "$2"
}

debian() {
  local R=$1 modules=$2 mirror f proxies=()
  shift 2
  mirror=$(apt-get indextargets --format '$(REPO_URI)' | grep -E '/debian/?$' | head -n 1)   # the one that apt uses
  retry bootstrap "$R" "${mirror:-http://deb.debian.org/debian}"

  # The rest is installed by apt: debootstrap cannot resolve virtual packages, and python3-cryptography needs one.
  cp -L /etc/resolv.conf /etc/hosts "$R/etc/" 2>/dev/null || true
  for f in /etc/apt/apt.conf.d/*proxy*; do
    [ ! -e "$f" ] || { cp "$f" "$R/etc/apt/apt.conf.d/"; proxies+=("$R/etc/apt/apt.conf.d/${f##*/}"); }
  done
  printf '#!/bin/sh\nexit 101\n' > "$R/usr/sbin/policy-rc.d"; chmod +x "$R/usr/sbin/policy-rc.d"   # no service starts here
  # Few drivers in the initramfs: a virtual machine loads and unpacks it in half the time.
  mkdir -p "$R/etc/initramfs-tools/conf.d"
  printf 'MODULES=list\nCOMPRESS=zstd\nCOMPRESSLEVEL=3\n' > "$R/etc/initramfs-tools/conf.d/lab"
  printf '%s\n' $modules > "$R/etc/initramfs-tools/modules"
  export DEBIAN_FRONTEND=noninteractive LC_ALL=C
  local apt=(apt-get -y -qq -o Dpkg::Options::=--force-unsafe-io -o Dpkg::Options::=--force-confold)
  retry chroot "$R" "${apt[@]}" update
  retry chroot "$R" "${apt[@]}" install --no-install-recommends linux-image-cloud-amd64 initramfs-tools zstd "$@"
  rm -f "$R/usr/sbin/policy-rc.d" "$R/etc/resolv.conf" "${proxies[@]}"
  printf '127.0.0.1 localhost\n' > "$R/etc/hosts"
  echo "root:lab" | chroot "$R" chpasswd
  chroot "$R" apt-get clean
  rm -rf "$R"/var/lib/apt/lists/* "$R"/usr/share/{doc,man,locale,i18n}/*
  : > "$R/etc/machine-id"
}
