#!/usr/bin/env bash
# Build gpu_check and gpu_bench with the engine alone, from a plain checkout, with what this machine has and no
# network; prints the folder of the programs. GPU_BUILD names another folder than build/gpu.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${GPU_BUILD:-build/gpu}
for tool in cmake python3; do
    command -v $tool >/dev/null || { echo "make gpu-*: $tool is missing on this machine" >&2; exit 1; }
done
command -v cc >/dev/null || command -v gcc >/dev/null || { echo "make gpu-*: a C compiler is missing" >&2; exit 1; }
mkdir -p "$folder"
generator=$(command -v ninja >/dev/null && echo Ninja || echo "Unix Makefiles")
{ cmake -S . -B "$folder" -G "$generator" -DMOTLEY_ENGINE_ONLY=ON -DCMAKE_BUILD_TYPE=Release ${GPU_CMAKE:-} &&
  cmake --build "$folder" -j "$(nproc)"; } >"$folder/build.log" 2>&1 || { tail -n 40 "$folder/build.log" >&2; exit 1; }
grep -h "going on without it" "$folder/build.log" | sed 's/^-- //' >&2 || true
echo "$folder/bin"
