#!/usr/bin/env bash
# Puts what the page's tests take from PyPI (tests/page/requirements.txt: Playwright, axe-core; 53 MB) into .cache/page, once, checked by
# SHA-256. Where that cannot be had, it says so and the page's tests are skipped: nothing else needs it.
set -euo pipefail
cd "$(dirname "$0")/.."

wanted=tests/page/requirements.txt
cmp --silent "$wanted" .cache/page/requirements.txt && exit 0
mkdir -p .cache
work=$(mktemp -d .cache/page.XXXXXX)
trap 'rm -rf "$work"' EXIT
if ! timeout 300 python3 -m pip install --quiet --disable-pip-version-check --no-cache-dir --no-compile --root-user-action=ignore \
    --only-binary=:all: --require-hashes --target "$work" -r "$wanted" >"$work.log" 2>&1; then
    tail -n 3 "$work.log" >&2
    rm -f "$work.log"
    echo "page_packages: Playwright cannot be had from PyPI; the page's tests will be skipped" >&2
    exit 0
fi
rm -f "$work.log"
cp "$wanted" "$work/requirements.txt"
rm -rf .cache/page
mv "$work" .cache/page
