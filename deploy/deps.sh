#!/usr/bin/env bash
# deps.sh: install what building, testing and the lab need, and nothing that is there already.
#
# Three places are written:
#   the system          Debian packages, by apt-get install --no-install-recommends (needs root, or sudo)
#   $CACHE/pkg/         packages that must not be installed, because they start services (DHCP relay, IPMI simulator) or are
#                       boot files of other machines (kernels, iPXE of Debian sid, busybox): downloaded and unpacked only
#   .tools/             Go programs of pinned versions: linters, the Temporal command line tool
# where CACHE is ${XDG_CACHE_HOME:-$HOME/.cache}/ingot-lab. It asks nothing, can be interrupted and started again at any
# time, and ends in a second when nothing is missing.
set -euo pipefail
REPO=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/ingot-lab
TOOLS=$REPO/.tools

PACKAGES=(
  qemu-system-x86 qemu-utils ovmf ipxe-qemu iproute2 nftables ipmitool
  grub-efi-amd64-bin grub-common syslinux syslinux-common mtools dosfstools gdisk e2fsprogs xfsprogs btrfs-progs kmod cpio zstd xz-utils
  debootstrap ca-certificates chromium fonts-dejavu-core tcpdump curl
)
TOOL_VERSIONS=(
  golangci-lint=github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
  workflowcheck=go.temporal.io/sdk/contrib/tools/workflowcheck@v0.6.0
  temporal=github.com/temporalio/cli/cmd/temporal@v1.5.1
)

say() { printf 'deps: %s\n' "$*"; }
die() { printf 'deps: %s\n' "$*" >&2; exit 1; }

# three COMMAND...: fetching over a network is tried three times.
three() {
  local i
  for i in 1 2 3; do
    "$@" && return 0
    [ "$i" = 3 ] || { say "that did not work (try $i of 3), again in $((i * 3)) s: $*"; sleep $((i * 3)); }
  done
  return 1
}

[ -e /etc/debian_version ] && command -v apt-get >/dev/null || die "this needs Debian's apt-get; see deploy/deps.sh for what to install by hand"
if [ "$(id -u)" = 0 ]; then ROOT=(); else ROOT=(sudo -n); fi
export DEBIAN_FRONTEND=noninteractive
# Another apt-get may hold the lock: wait for it instead of giving up.
APT=(apt-get -q -y -o DPkg::Lock::Timeout=900 -o Acquire::Retries=2 -o APT::Sandbox::User=root)

updated=
apt_update() { # once per run
  [ -z "$updated" ] || return 0
  [ ${#ROOT[@]} = 0 ] || command -v sudo >/dev/null || die "package lists must be updated: run as root, or install sudo"
  say "updating the package lists"
  three "${ROOT[@]}" "${APT[@]}" -qq update || die "apt-get update did not work: is a Debian mirror reachable?"
  updated=1
}

# --- 1. packages that are installed -------------------------------------------------------------------------------------
missing=()
have=$(dpkg-query -W -f='${Package} ${db:Status-Status}\n' "${PACKAGES[@]}" 2>/dev/null || true)
for p in "${PACKAGES[@]}"; do
  case $'\n'"$have"$'\n' in *$'\n'"$p installed"$'\n'*) ;; *) missing+=("$p") ;; esac
done
command -v gcc >/dev/null || missing+=(gcc libc6-dev)
command -v git >/dev/null || missing+=(git)
if [ ${#missing[@]} -gt 0 ]; then
  [ ${#ROOT[@]} = 0 ] || sudo -n true 2>/dev/null || die "these packages are missing and need root: apt-get install ${missing[*]}"
  apt-cache show "${missing[@]}" >/dev/null 2>&1 || apt_update
  say "installing ${missing[*]}"
  install=("${ROOT[@]}" env DEBIAN_FRONTEND=noninteractive "${APT[@]}" install --no-install-recommends "${missing[@]}")
  # A mirror that moved on answers 404 to an old list: then, and only then, update and try again.
  "${install[@]}" || { apt_update; three "${install[@]}"; } || die "apt-get install did not work: ${missing[*]}"
fi

# --- 2. packages that are only unpacked ---------------------------------------------------------------------------------
RECIPE=1 # count up when the unpacked trees change
mkdir -p "$CACHE/pkg"
work=
trap '[ -z "$work" ] || rm -rf "$work"' EXIT

unpacked() { [ "$(cat "$CACHE/pkg/$1/.stamp" 2>/dev/null)" = "$RECIPE" ]; }

# install_tree NAME: the .deb files in $work become $CACHE/pkg/NAME, at once or not at all.
install_tree() {
  local deb
  mkdir "$work/tree"
  for deb in "$work"/*.deb; do dpkg -x "$deb" "$work/tree"; done
  echo "$RECIPE" > "$work/tree/.stamp"
  (cd "$work" && ls -- *.deb) > "$work/tree/.packages"
  rm -rf "$CACHE/pkg/$1.old"
  [ ! -e "$CACHE/pkg/$1" ] || mv -T "$CACHE/pkg/$1" "$CACHE/pkg/$1.old"
  mv -T "$work/tree" "$CACHE/pkg/$1"
  rm -rf "$CACHE/pkg/$1.old" "$work"; work=
}

debian_download() { (cd "$work" && "${APT[@]}" -qq download "$@"); }

# resolve NAME PACKAGE...: all becomes what NAME takes by the package lists of now: for metapackages the package that they mean.
all=()
resolve() {
  local name=$1 p; shift
  all=()
  for p in "$@"; do
    case $p in linux-image-*) p=$(apt-cache depends --important "$p" | awk '$1=="Depends:" && !d {d = $2} END {print d}') || p= ;; esac # the kernel of the metapackage
    [ -n "$p" ] || die "apt-cache does not know all of $*"
    all+=("$p")
  done
  case $name in
    relay | openipmi)
      # "Inst" lines name what apt would install: the packages and the libraries that are missing here.
      for p in $(apt-get -s --no-install-recommends install "${all[@]}" 2>/dev/null | awk '$1=="Inst"{print $2}'); do
        case " ${all[*]} " in *" $p "*) ;; *) all+=("$p") ;; esac
      done ;;
  esac
}

# unpack NAME PACKAGE...: Debian packages of this release, and the libraries of theirs that the system lacks.
unpack() {
  local name=$1; shift
  unpacked "$name" && return 0
  say "unpacking $* into $CACHE/pkg/$name"
  work=$(mktemp -d "$CACHE/pkg/.tmp.XXXXXX")
  apt-cache show "$@" >/dev/null 2>&1 || apt_update
  resolve "$name" "$@"
  # After an update the kernel may have another name: the old one is gone from lists and mirror.
  debian_download "${all[@]}" || { apt_update; resolve "$name" "$@"; three debian_download "${all[@]}"; } || die "downloading ${all[*]} did not work"
  install_tree "$name"
}

# iPXE of Debian sid (2.0) with a private list of sources: that of Debian 12 is of 2019, waits 13 s for IPv6 and knows neither
# HTTPS nor autoexec.ipxe.
unpack_ipxe() {
  unpacked ipxe && return 0
  say "unpacking iPXE of Debian sid into $CACHE/pkg/ipxe"
  work=$(mktemp -d "$CACHE/pkg/.tmp.XXXXXX")
  local mirror
  # A mirror under another path is not guessed at: then it is Debian's own.
  mirror=$(apt-get indextargets --format '$(REPO_URI)' | awk '/\/debian\/?$/ && !m {m = $0} END {print m}')
  mkdir -p "$work"/apt/lists/partial "$work"/apt/cache/archives/partial
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] ${mirror:-http://deb.debian.org/debian} sid main" > "$work/apt/sid.list"
  local sid=(-o Dir::Etc::sourcelist="$work/apt/sid.list" -o Dir::Etc::sourceparts=/dev/null
    -o Dir::State::lists="$work/apt/lists" -o Dir::Cache="$work/apt/cache")
  three "${APT[@]}" -qq "${sid[@]}" update || die "reading the package list of Debian sid did not work"
  (cd "$work" && three "${APT[@]}" -qq "${sid[@]}" download ipxe ipxe-qemu) || die "downloading iPXE did not work"
  install_tree ipxe
}

if ! { unpacked ipxe && unpacked kernel && unpacked cloud-kernel && unpacked busybox && unpacked relay && unpacked openipmi; }; then
  exec 9> "$CACHE/pkg/.lock"
  flock 9 # another clone may be doing the same
  rm -rf "$CACHE"/pkg/.tmp.*
  unpack busybox busybox-static
  unpack relay isc-dhcp-relay
  unpack openipmi openipmi libopenipmi0
  unpack cloud-kernel linux-image-cloud-amd64
  unpack kernel linux-image-amd64
  unpack_ipxe
  exec 9>&-
fi

# --- 3. Go programs -----------------------------------------------------------------------------------------------------
mkdir -p "$TOOLS"
for t in "${TOOL_VERSIONS[@]}"; do
  name=${t%%=*} pkg=${t#*=}
  stamp=$TOOLS/.$name-${pkg##*@}
  if [ -e "$stamp" ] && [ -x "$TOOLS/$name" ]; then continue; fi
  command -v go >/dev/null || die "Go is missing: install it from https://go.dev/dl/ (see go.mod for the version)"
  say "building $pkg into .tools/ (one to five minutes)"
  GOBIN=$TOOLS GOFLAGS=-mod=mod three nice -n 10 go install "$pkg" || die "go install $pkg did not work"
  rm -f "$TOOLS/.$name-"*
  : > "$stamp"
done
say "everything is there"
