#!/usr/bin/env bash
# deps.sh [demo | test | lint | e2e | release | vuln]...: install what is missing for these parts; without a part, for all of them.
#
#   demo     building the programs, the lab and its images: enough for "make build" and "make demo"
#   test     demo, and what tests need besides: file system tools, a browser, the Temporal command line tool
#   lint     the linters
#   e2e      what only long end-to-end tests need: clients that others have written, nfpm, helm, Docker, a Temporal
#            cluster with PostgreSQL, Firefox (not part of "all of them")
#   release  what "make release" and "make manifests" need: nfpm, helm, kubeconform, kustomize (not part of "all of them")
#   vuln     govulncheck, for "make vulncheck" (not part of "all of them")
#
# It writes to four places:
#   the system     Debian packages, by apt-get install --no-install-recommends (needs root, or sudo)
#   $CACHE/pkg/    packages that are unpacked and not installed: some would start services (DHCP relay, DHCP servers, IPMI simulator,
#                  Prometheus, netplan, Docker),
#                  others go to other machines (kernel, shim and GRUB with Debian's signatures, mdadm, LVM, crun, iPXE of
#                  Debian sid, busybox)
#   .tools/        Go programs of pinned versions
#   e2e/firefox/   node_modules: what drives Firefox, by its lock file
# CACHE is ${XDG_CACHE_HOME:-$HOME/.cache}/ingot-lab. The script asks no questions, can be interrupted and repeated at any
# time, and takes a second when nothing is missing.
set -euo pipefail
REPO=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/ingot-lab
TOOLS=$REPO/.tools

say() { printf 'deps: %s\n' "$*"; }
die() { printf 'deps: %s\n' "$*" >&2; exit 1; }

parts=" ${*:-test lint} "
wants() { case $parts in *" $1 "*) ;; *) return 1 ;; esac; }
for part in $parts; do
  case $part in demo | test | lint | e2e | release | vuln) ;; *) die "invalid part \"$part\": must be demo, test, lint, e2e, release or vuln" ;; esac
done

packages=() tools=()
demo= # set when the packages of "demo" are wanted
if wants demo || wants test || wants release; then
  demo=1
  packages+=(
    ca-certificates iproute2 nftables ipmitool tcpdump curl                               # running the lab
    qemu-system-x86 ovmf ipxe-qemu
    kmod cpio zstd xz-utils xfsprogs                                                      # building the agent's system
    debootstrap grub-efi-amd64-bin grub-common syslinux syslinux-common mtools dosfstools # building disk images
    gdisk e2fsprogs
  )
  command -v gcc >/dev/null || packages+=(gcc libc6-dev)
  command -v git >/dev/null || packages+=(git)
fi
if wants test; then
  packages+=(btrfs-progs chromium fonts-dejavu-core minisign qemu-utils systemd)
  tools+=(temporal=github.com/temporalio/cli@v1.5.1)
fi
if wants lint; then
  tools+=(
    golangci-lint=github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
    workflowcheck=go.temporal.io/sdk/contrib/tools/workflowcheck@v0.6.0
  )
fi
if wants e2e; then
  packages+=(firefox-esr)
fi
if wants e2e || wants release; then
  tools+=(
    nfpm=github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.45.2
    helm=helm.sh/helm/v4/cmd/helm@v4.3.1
  )
fi
if wants release; then
  tools+=(
    kubeconform=github.com/yannh/kubeconform/cmd/kubeconform@v0.8.0
    kustomize=sigs.k8s.io/kustomize/kustomize/v5@v5.8.2
  )
fi
if wants vuln; then
  packages+=(curl)
  tools+=(govulncheck=golang.org/x/vuln/cmd/govulncheck@v1.9.0)
fi

# retry COMMAND...: run it up to three times, for what fetches over a network.
retry() {
  local i
  for i in 1 2 3; do
    "$@" && return 0
    [ "$i" = 3 ] || { say "failed (try $i of 3), trying again in $((i * 3)) s: $*"; sleep $((i * 3)); }
  done
  return 1
}

[ -e /etc/debian_version ] && command -v apt-get >/dev/null || die "apt-get is missing: this script needs Debian; it lists what to install by hand elsewhere"
if [ "$(id -u)" = 0 ]; then ROOT=(); else ROOT=(sudo -n); fi
export DEBIAN_FRONTEND=noninteractive
# Another apt-get may hold the lock: wait for it.
APT=(apt-get -q -y -o DPkg::Lock::Timeout=900 -o Acquire::Retries=2 -o APT::Sandbox::User=root)

updated=
apt_update() { # once per run of this script
  [ -z "$updated" ] || return 0
  [ ${#ROOT[@]} = 0 ] || command -v sudo >/dev/null || die "package lists must be updated: run as root, or install sudo"
  say "updating the package lists"
  retry "${ROOT[@]}" "${APT[@]}" -qq update || die "apt-get update failed: is a Debian mirror reachable?"
  updated=1
}

# --- 1. packages that are installed -------------------------------------------------------------------------------------
install_missing() {
  local missing=() have p install
  have=$(dpkg-query -W -f='${Package} ${db:Status-Status}\n' "$@" 2>/dev/null || true)
  for p in "$@"; do
    case $'\n'"$have"$'\n' in *$'\n'"$p installed"$'\n'*) ;; *) missing+=("$p") ;; esac
  done
  [ ${#missing[@]} -gt 0 ] || return 0

  [ ${#ROOT[@]} = 0 ] || sudo -n true 2>/dev/null || die "these packages are missing and need root: apt-get install ${missing[*]}"
  apt-cache show "${missing[@]}" >/dev/null 2>&1 || apt_update
  say "installing ${missing[*]}"
  install=("${ROOT[@]}" env DEBIAN_FRONTEND=noninteractive "${APT[@]}" install --no-install-recommends "${missing[@]}")
  # A mirror that has newer versions answers 404 to an old package list: then, and only then, update and try again.
  "${install[@]}" || { apt_update; retry "${install[@]}"; } || die "apt-get install failed: ${missing[*]}"
}
[ ${#packages[@]} = 0 ] || install_missing "${packages[@]}"

# --- 2. packages that are only unpacked ---------------------------------------------------------------------------------
RECIPE=3 # count up when the content of the unpacked trees changes
work=
trap '[ -z "$work" ] || rm -rf "$work"' EXIT

is_unpacked() { [ "$(cat "$CACHE/pkg/$1/.stamp" 2>/dev/null)" = "$RECIPE" ]; }

# install_tree NAME: unpack the .deb files in $work and rename the result to $CACHE/pkg/NAME when it is complete.
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

# resolve NAME PACKAGE...: set resolved to the packages to download: for a kernel's metapackage the package that it depends
# on now, for programs also the libraries that this system lacks.
resolved=()
resolve() {
  local name=$1 p; shift
  resolved=()
  for p in "$@"; do
    case $p in linux-image-*) p=$(apt-cache depends --important "$p" | awk '$1=="Depends:" && !d {d = $2} END {print d}') || p= ;; esac
    [ -n "$p" ] || die "apt-cache does not know all of $*"
    resolved+=("$p")
  done
  case $name in
    relay | openipmi | dhcp | nginx | wrk | clients | postgres | docker)
      # The "Inst" lines of a simulation name what apt would install.
      for p in $(apt-get -s --no-install-recommends install "${resolved[@]}" 2>/dev/null | awk '$1=="Inst"{print $2}'); do
        case " ${resolved[*]} " in *" $p "*) ;; *) resolved+=("$p") ;; esac
      done ;;
  esac
}

# unpack NAME PACKAGE...: packages of the installed Debian release.
unpack() {
  local name=$1; shift
  is_unpacked "$name" && return 0
  say "unpacking $* into $CACHE/pkg/$name"
  work=$(mktemp -d "$CACHE/pkg/.tmp.XXXXXX")
  apt-cache show "$@" >/dev/null 2>&1 || apt_update
  resolve "$name" "$@"
  # After an update the kernel's package may have another name: the mirror drops the old one.
  debian_download "${resolved[@]}" || { apt_update; resolve "$name" "$@"; retry debian_download "${resolved[@]}"; } ||
    die "downloading ${resolved[*]} failed"
  install_tree "$name"
}

# unpack_ipxe takes iPXE 2.0 of Debian sid, with a private list of sources. The one of Debian 12 dates from 2019, waits 13 s
# for IPv6, and has neither HTTPS nor autoexec.ipxe.
unpack_ipxe() {
  is_unpacked ipxe && return 0
  say "unpacking iPXE of Debian sid into $CACHE/pkg/ipxe"
  work=$(mktemp -d "$CACHE/pkg/.tmp.XXXXXX")
  local mirror
  # The mirror that apt uses, if its path is Debian's usual one; else Debian's own.
  mirror=$(apt-get indextargets --format '$(REPO_URI)' | awk '/\/debian\/?$/ && !m {m = $0} END {print m}')
  mkdir -p "$work"/apt/lists/partial "$work"/apt/cache/archives/partial
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] ${mirror:-http://deb.debian.org/debian} sid main" > "$work/apt/sid.list"
  local sid=(-o Dir::Etc::sourcelist="$work/apt/sid.list" -o Dir::Etc::sourceparts=/dev/null
    -o Dir::State::lists="$work/apt/lists" -o Dir::Cache="$work/apt/cache")
  retry "${APT[@]}" -qq "${sid[@]}" update || die "reading the package list of Debian sid failed"
  (cd "$work" && retry "${APT[@]}" -qq "${sid[@]}" download ipxe ipxe-qemu) || die "downloading iPXE failed"
  install_tree ipxe
}

unpack_all() {
  local name missing=
  for name in busybox relay dhcp nginx wrk openipmi tftp ovs programs crun kernel secureboot ipxe; do is_unpacked "$name" || missing=1; done
  [ -n "$missing" ] || return 0

  mkdir -p "$CACHE/pkg"
  exec 9> "$CACHE/pkg/.lock"
  flock 9 # another clone may be unpacking as well
  rm -rf "$CACHE"/pkg/.tmp.*
  unpack busybox busybox-static
  unpack relay isc-dhcp-relay
  unpack dhcp isc-dhcp-server dnsmasq-base kea-dhcp4-server kea-admin # kea-admin has perfdhcp
  unpack nginx nginx
  unpack wrk wrk
  unpack openipmi openipmi libopenipmi0
  unpack tftp atftp atftpd tftp-hpa tftpd-hpa libwrap0 # the two servers conflict: apt could not install both
  # Open vSwitch, a switch with 802.1Q and LACP in user space; it is started by the lab, never as a service.
  unpack ovs openvswitch-switch openvswitch-common libxdp1 libbpf1 libunbound8
  unpack programs mdadm lvm2 extlinux syslinux-common libdevmapper1.02.1 libdevmapper-event1.02.1 libaio1 libedit2 libbsd0 libmd0
  unpack crun crun libyajl2 libseccomp2 libcap2
  unpack kernel linux-image-amd64
  unpack secureboot shim-signed grub-efi-amd64-signed # their scripts would make this host boot from them
  unpack_ipxe
  exec 9>&-
}
[ -z "$demo" ] || unpack_all

# Prometheus scrapes a server in a test, and its promtool checks alert rules. What else it depends on is for its own pages.
# netplan reads the network of an installed system; installed, it would configure this host.
unpack_test_programs() {
  is_unpacked prometheus && is_unpacked netplan && return 0
  mkdir -p "$CACHE/pkg"
  exec 9> "$CACHE/pkg/.lock"
  flock 9
  unpack prometheus prometheus
  unpack netplan netplan.io libnetplan0 libyaml-0-2
  exec 9>&-
}
! wants test || unpack_test_programs

unpack_peers() {
  is_unpacked clients && is_unpacked postgres && is_unpacked signing && is_unpacked docker && return 0
  mkdir -p "$CACHE/pkg"
  exec 9> "$CACHE/pkg/.lock"
  flock 9
  unpack clients isc-dhcp-client cloud-init ignition redfishtool python3-sushy
  unpack postgres postgresql-15
  unpack signing sbsigntool
  unpack docker docker.io docker-compose
  exec 9>&-
}
! wants e2e || unpack_peers

# --- 3. Go programs -----------------------------------------------------------------------------------------------------
# build_temporal MODULE@VERSION: the Temporal command line tool without its development server, which would take four minutes
# more: it contains a Temporal server of another version than Ingot's.
build_temporal() {
  local source
  work=$(mktemp -d)
  source=$(go mod download -json "$1" | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')
  [ -d "$source" ] || return 1
  cp -r "$source/." "$work"
  chmod -R u+w "$work"
  rm -r "$work/temporalcli/devserver"
  cat > "$work/temporalcli/commands.server.go" <<'EOF'
package temporalcli

import "errors"

func (*TemporalServerStartDevCommand) run(*CommandContext, []string) error {
	return errors.New("this build has no development server")
}
EOF
  (cd "$work" && retry nice -n 10 go build -o "$TOOLS/temporal" ./cmd/temporal)
  rm -rf "$work"; work=
}

mkdir -p "$TOOLS"
for tool in "${tools[@]}"; do
  name=${tool%%=*} pkg=${tool#*=}
  stamp=$TOOLS/.$name-${pkg##*@}
  if [ -e "$stamp" ] && [ -x "$TOOLS/$name" ]; then continue; fi
  command -v go >/dev/null || die "Go is missing: install it from https://go.dev/dl/ (see go.mod for the version)"
  say "building $pkg into .tools/ (one to five minutes)"
  if [ "$name" = temporal ]; then
    build_temporal "$pkg" || die "building $pkg failed"
  else
    GOBIN=$TOOLS GOFLAGS=-mod=mod retry nice -n 10 go install "$pkg" || die "go install $pkg failed"
  fi
  rm -f "$TOOLS/.$name-"*
  : > "$stamp"
done
# The services and the schema tool of the Temporal version in go.mod, for a cluster of separate processes.
if wants e2e; then
  (cd "$REPO" && nice -n 10 go build -o "$TOOLS/temporal-server" go.temporal.io/server/cmd/server &&
    nice -n 10 go build -o "$TOOLS/temporal-sql-tool" go.temporal.io/server/cmd/tools/sql) || die "building Temporal's services failed"
  lock=$REPO/e2e/firefox/package-lock.json have=$REPO/e2e/firefox/node_modules/.package-lock.json
  [ "$have" -nt "$lock" ] || retry npm --prefix "$REPO/e2e/firefox" ci --ignore-scripts --loglevel=error || die "npm ci in e2e/firefox failed"
fi
say "everything is installed for${parts% }"
