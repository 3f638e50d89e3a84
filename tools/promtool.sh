#!/usr/bin/env bash
# Puts promtool into .cache/promtool unless it is installed: out of Debian's package prometheus, of which that one file is
# taken, because installing it would start a server. Where it cannot be had, it says so and the test of alerts is skipped.
set -euo pipefail
cd "$(dirname "$0")/.."

command -v promtool >/dev/null && exit 0
[ -x .cache/promtool/usr/bin/promtool ] && exit 0
mkdir -p .cache
work=$(mktemp -d .cache/promtool.XXXXXX)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
if ! (cd "$work" && timeout 300 apt-get download prometheus && dpkg-deb --fsys-tarfile prometheus_*.deb | tar -x ./usr/bin/promtool && rm prometheus_*.deb) >"$work.log" 2>&1; then
    tail -n 3 "$work.log" >&2
    rm -f "$work.log"
    echo "promtool: Debian's package prometheus cannot be had; alerts and the dashboard will not be tested" >&2
    exit 0
fi
rm -f "$work.log"
rm -rf .cache/promtool
mv "$work" .cache/promtool
