#!/usr/bin/env bash
# Is the engine right on this machine's cards? Every kind of driver that finds one, or GPU_DEVICE alone; at most 5
# minutes each. GPU_BIN: the programs are built already. GPU_TRIALS: trials of each op (1: a toy).
set -uo pipefail
cd "$(dirname "$0")/.."
bin=${GPU_BIN:-$(bench/gpu_build.sh)} || exit 1
checked=0 failed=0
for kind in ${GPU_DEVICE:-cuda hip}; do
    timeout 300 "$bin/gpu_check" "$kind" ${GPU_TRIALS:-}
    case $? in
    0) checked=$((checked + 1)) ;;
    77) echo "gpu-check: no device of kind $kind here (above: why)" ;;
    124) echo "gpu-check: $kind took more than 5 minutes" && failed=1 ;;
    *) failed=1 ;;
    esac
done
[ $failed -eq 0 ] || { echo "gpu-check: failed"; exit 1; }
[ $checked -gt 0 ] || { echo "SKIP gpu-check: no card was found; GPU_DEVICE=emulated checks the emulated device"; exit 77; }
echo "gpu-check: $checked kind(s) of device are right"
