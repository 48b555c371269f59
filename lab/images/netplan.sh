#!/usr/bin/env bash
# netplan.sh OUT.raw PKG: the Debian of debian.sh with netplan and systemd-networkd instead of ifupdown, as in Debian's own
# cloud images.
set -euo pipefail
LAB_NETWORK=netplan.io exec "$(dirname "$0")/debian.sh" "$@"
