#!/usr/bin/env bash
# version.sh [COMMIT]: print the version of a commit and when it was made, "VERSION SECONDS".
#
# A commit with a tag vX.Y.Z or vX.Y.Z-PRE has that version; of several tags the highest. Every other commit has Go's pseudo-version,
# which sorts between the tag before it and the next one:
#
#   after v1.2.3         1.2.4-0.20261126041530-8501b10abcde
#   after v1.3.0-rc.1    1.3.0-rc.1.0.20261126041530-8501b10abcde
#   without any tag      0.0.0-20261126041530-8501b10abcde
set -euo pipefail
commit=$(git rev-parse --verify --quiet "${1:-HEAD}^{commit}") || { echo "version.sh: this clone lacks the commit ${1:-HEAD}" >&2; exit 1; }
seconds=$(git log -1 --format=%ct "$commit")
pseudo=$(TZ=UTC0 git log -1 --date=format-local:%Y%m%d%H%M%S --format=%cd "$commit")-${commit:0:12}
if described=$(git describe --tags --match 'v[0-9]*.[0-9]*.[0-9]*' --long "$commit" 2>/dev/null); then
  tag=${described%-*-g*} since=${described%-g*}
  since=${since##*-}
  # The tagged commit may have several tags: a release candidate that became the release.
  tags=$(git -c versionsort.suffix=- tag --points-at "$tag^{commit}" --list 'v[0-9]*.[0-9]*.[0-9]*' --sort=-version:refname)
  tag=${tags%%$'\n'*}
  tag=${tag#v}
  if [ "$since" = 0 ]; then
    version=$tag
  elif [[ $tag == *-* ]]; then
    version=$tag.0.$pseudo
  else
    IFS=. read -r major minor patch <<< "$tag"
    version=$major.$minor.$((patch + 1))-0.$pseudo
  fi
else
  version=0.0.0-$pseudo
fi
echo "$version $seconds"
