#!/usr/bin/env bash
# Builds the Python client's wheel into a folder (build/wheel) with flit of .cache/client, without the network.
#   tools/wheel.sh [FOLDER]
set -euo pipefail
cd "$(dirname "$0")/.."

out=${1:-build/wheel}
mkdir -p "$out"
[ -d .cache/client/flit_core ] || { echo "wheel: flit is not in .cache/client: tools/pypi_packages.sh client fetches it" >&2; exit 1; }
# The same sources give the same bytes: files in a wheel have the time of the last commit.
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null || echo 315532800) PYTHONPATH=$PWD/.cache/client \
    python3 -m pip wheel --quiet --disable-pip-version-check --no-deps --no-index --no-build-isolation --wheel-dir "$out" ./client
ls "$out"/motley-*.whl
