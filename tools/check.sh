#!/usr/bin/env bash
# Build, lint and test the rooms that differ from origin/main (or from main where there is no such branch), or the
# rooms that are named. Tests that are marked long in tests/CMakeLists.txt are left to `make test`, and said so.
#
#   tools/check.sh [ROOM ...]
set -euo pipefail
cd "$(dirname "$0")/.."

rooms=("$@")
if [ ${#rooms[@]} -eq 0 ]; then
  base=$(git merge-base HEAD origin/main 2>/dev/null || git merge-base HEAD main)
  mapfile -t rooms < <({ git diff --name-only "$base"; git ls-files --others --exclude-standard; } |
    sed -nE 's#^(tests/)?([a-z]+)/.*#\2#p' | sort -u | while read -r room; do [ -d "tests/$room" ] && echo "$room"; done)
fi
for room in "${rooms[@]}"; do
  [ -d "tests/$room" ] || { echo "check: no room $room has tests" >&2; exit 2; }
done
tools/lint.py
[ ${#rooms[@]} -gt 0 ] || { echo "check: no room differs from origin/main"; exit 0; }

mkdir -p build
cmake --preset release --log-level=WARNING >build/configure.log 2>&1 || { cat build/configure.log; exit 1; }
only="$(IFS='|'; echo "${rooms[*]}")"
mapfile -t tests < <(ninja -C build -t targets all | sed -nE "s#^(test_($only)_[A-Za-z0-9_]+): phony\$#\\1#p")
echo "check: ${rooms[*]}: ${#tests[@]} test programs"
# Programs that tests written in Python run.
[[ " ${rooms[*]} " != *" engine "* ]] || tests+=(gpu_check gpu_bench)
[[ " ${rooms[*]} " != *" wild "* ]] || tests+=(wild_answer)
cmake --build build -j "$(nproc)" --target programs "${tests[@]}" >build/compile.log 2>&1 ||
  { tail -n 60 build/compile.log; exit 1; }
left=$(ctest --test-dir build -N -L "^($only)\$" -L '^long$' | sed -nE 's/^ +Test +#[0-9]+: //p' | tr '\n' ' ')
ctest --test-dir build --output-on-failure --timeout 120 -j "$((2 * $(nproc)))" -L "^($only)\$" -LE '^long$'
[ -z "$left" ] || echo "check: left to make test: $left"
