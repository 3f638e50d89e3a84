#!/usr/bin/env bash
# Fuzz every importer and parser of the planner: libFuzzer with ASan and UBSan (clang 19), FUZZ_SECONDS each (600),
# FUZZ_JOBS at a time (1), FUZZ_ONLY="plan spec" for some of them. Findings stay in build/fuzz/found; what was reached is in
# build/fuzz/coverage.md. FUZZ_KEEP=1: the smallest inputs that reach it become seeds (keep.py).
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
cd "$root"
build=${FUZZ_BUILD:-$root/build/fuzz}
seconds=${FUZZ_SECONDS:-600}
targets=${FUZZ_ONLY:-$(cd tests/fuzz && ls fuzz_*.c | sed 's/^fuzz_//; s/\.c$//')}

cmake -G Ninja -S . -B "$build" -DCMAKE_C_COMPILER=clang-19 -DCMAKE_BUILD_TYPE=Release -DMOTLEY_SANITIZE=fuzzer \
    -DMOTLEY_BENCH=OFF -DMOTLEY_GPU_CODE=OFF --log-level=WARNING >/dev/null
cmake --build "$build" -j "$(nproc)" --target $(printf 'fuzz_%s ' $targets) >"$build/compile.log" 2>&1 ||
    { tail -n 40 "$build/compile.log"; exit 1; }
mkdir -p "$build/found" "$build/corpus"
python3 tests/fuzz/seeds.py "$build/seeds"

one() {
    local name=$1
    mkdir -p "$build/corpus/$name"
    ASAN_OPTIONS=detect_leaks=1 UBSAN_OPTIONS=print_stacktrace=1 "$build/bin/fuzz_$name" \
        -max_total_time="$seconds" -max_len=65536 -timeout=60 -rss_limit_mb=3000 -print_final_stats=1 \
        -dict="$build/seeds/words.dict" -artifact_prefix="$build/found/$name-" \
        "$build/corpus/$name" "$build/seeds/$name" >"$build/$name.log" 2>&1
    local result=$?
    printf '%-10s %s: %s\n' "$name" "$([ $result -eq 0 ] && echo clean || echo FOUND)" \
        "$(grep -h -o 'Done .*\|stat::number_of_executed_units: .*' "$build/$name.log" | head -n 1)"
    return $result
}
export -f one
export build seconds
result=0
printf '%s\n' $targets | xargs -P "${FUZZ_JOBS:-1}" -I{} bash -c 'one {}' || result=1
python3 tests/fuzz/keep.py "$build" >"$build/coverage.md"
exit $result
