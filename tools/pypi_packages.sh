#!/usr/bin/env bash
# Puts what the tests of a room take from PyPI (tests/ROOM/requirements.txt) into .cache/ROOM, once, checked by SHA-256. Where
# that cannot be had, it says so and those tests are skipped: nothing else needs it.
#   tools/pypi_packages.sh page     Playwright and axe-core, 53 MB
#   tools/pypi_packages.sh client   httpx; basedpyright, schemathesis, openapi-python-client; flit, which makes the wheel: 45 MB
#   tools/pypi_packages.sh engine   NVIDIA's ptxas: 41 MB
#   tools/pypi_packages.sh hub      huggingface_hub and what it needs, 4 MB
#   tools/pypi_packages.sh api      authlib and oidc-provider-mock, OpenID providers, and what they need: 10 MB
set -euo pipefail
cd "$(dirname "$0")/.."

room=$1
wanted=tests/$room/requirements.txt
cmp --silent "$wanted" ".cache/$room/requirements.txt" && exit 0
mkdir -p .cache
work=$(mktemp -d ".cache/$room.XXXXXX")
trap 'rm -rf "$work"' EXIT
if ! timeout 300 python3 -m pip install --quiet --disable-pip-version-check --no-cache-dir --no-compile --root-user-action=ignore \
    --no-deps --only-binary=:all: --require-hashes --target "$work" -r "$wanted" >"$work.log" 2>&1; then
    tail -n 3 "$work.log" >&2
    rm -f "$work.log"
    echo "pypi_packages: what tests/$room needs cannot be had from PyPI; its tests will be skipped" >&2
    exit 0
fi
rm -f "$work.log"
cp "$wanted" "$work/requirements.txt"
rm -rf ".cache/$room"
mv "$work" ".cache/$room"
