#!/usr/bin/env bash
# No program is linked against a vendor's library: the same binaries start on a machine with any driver, or none.
set -euo pipefail
command -v readelf >/dev/null || { echo "skipped: no readelf"; exit 77; }
count=0
for program in "$MOTLEY_BIN"/motley "$MOTLEY_BIN"/motley-*; do
    [ -x "$program" ] || continue
    needed=$(readelf -d "$program" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
    [ -n "$needed" ] || { echo "$program: readelf names no library at all"; exit 1; }
    if grep -Ei 'cuda|cudart|cublas|nccl|nvidia|nvrtc|nvml|amdhip|hsa|rocm|rocblas|hipblas|rccl|opencl|level_zero|ze_' <<<"$needed"; then
        echo "$program is linked against what stands above"
        exit 1
    fi
    count=$((count + 1))
done
[ "$count" -ge 3 ] || { echo "only $count programs in $MOTLEY_BIN"; exit 1; }
echo "$count programs name no vendor's library"
