#!/usr/bin/env bash
# Puts one program of a Debian package into .cache unless it is installed, because installing the package would start a
# server. Where it cannot be had, that is said, and its tests are skipped.
#
#   tools/take_program.sh PACKAGE PATH     such as: prometheus usr/bin/promtool, which becomes .cache/promtool/usr/bin/promtool
set -euo pipefail
cd "$(dirname "$0")/.."

package=$1 path=$2 name=$(basename "$2")
command -v "$name" >/dev/null && exit 0
[ -x ".cache/$name/$path" ] && exit 0
mkdir -p .cache
work=$(mktemp -d ".cache/$name.XXXXXX")
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
if ! (cd "$work" && timeout 300 apt-get download "$package" && dpkg-deb --fsys-tarfile "$package"_*.deb | tar -x "./$path" && rm "$package"_*.deb) >"$work.log" 2>&1; then
    tail -n 3 "$work.log" >&2
    rm -f "$work.log"
    echo "$name: Debian's package $package cannot be had; what needs it will not be tested" >&2
    exit 0
fi
rm -f "$work.log"
rm -rf ".cache/$name"
mv "$work" ".cache/$name"
