#!/usr/bin/env bash
# manifests.sh VERSION DIR: write into the folder DIR what runs the container image of that version.
#
#   ingot-VERSION.compose.yaml   for Docker
#   ingot-VERSION-kubernetes/    the Helm chart, the overlays, and monitoring/ for Prometheus and Grafana
set -euo pipefail
[ $# = 2 ] || { echo "usage: manifests.sh VERSION DIR" >&2; exit 2; }
VERSION=$1
mkdir -p "$2"
DIR=$(cd "$2" && pwd)
cd "$(dirname "$0")/.."

name=ingot-$VERSION
sed "s|^    image: ingot:latest\$|    image: ingot:$VERSION|
  s|^#   docker load < .*|#   mv $name.compose.yaml compose.yaml\n#   docker load < $name.oci.tar|" compose.yaml > "$DIR/$name.compose.yaml"

K=$DIR/$name-kubernetes
cp -rL kubernetes "$K" # the chart's links to monitoring become files
cp -r monitoring "$K/"
rm "$K"/*.go # tests
sed -i "s/^version: .*/version: $VERSION/; s/^appVersion: .*/appVersion: \"$VERSION\"/" "$K/chart/Chart.yaml"
sed -i "s/newTag: .*/newTag: \"$VERSION\"/" "$K/base/kustomization.yaml"
