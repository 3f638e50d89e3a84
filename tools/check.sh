#!/usr/bin/env bash
# Build, lint and test the rooms that differ from origin/main (or from main where there is no such branch), or the
# rooms that are named. With rooms that differ go the tests that compare documents and migrations with what rooms say.
# Tests that are marked long in tests/CMakeLists.txt are left to `make test`, and said so. GPU kernels are compiled
# where the build folder has them, or when they differ: GPU_CODE says for which cards.
#
#   tools/check.sh [ROOM ...]
set -euo pipefail
cd "$(dirname "$0")/.."

rooms=("$@") beside=""
base=$(git merge-base HEAD origin/main 2>/dev/null || git merge-base HEAD main)
changed=$({ git diff --name-only "$base"; git ls-files --others --exclude-standard; })
if [ ${#rooms[@]} -eq 0 ]; then
  mapfile -t rooms < <(sed -nE 's#^migrations/#store/#; s#^(tests/)?([a-z]+)/.*#\2#p' <<<"$changed" | sort -u |
    while read -r room; do [ ! -d "tests/$room" ] || echo "$room"; done)
  ! grep -qE '^(docs|migrations)/|\.([ch]|yaml)$' <<<"$changed" || beside="cli/reference.py api/openapi store/queue"
fi
for room in "${rooms[@]}"; do
  [ -d "tests/$room" ] || { echo "check: no room $room has tests" >&2; exit 2; }
done
tools/lint.py
[ ${#rooms[@]} -gt 0 ] || [ -n "$beside" ] || { echo "check: nothing differs from origin/main"; exit 0; }

mkdir -p build
preset=release options=()
[ -e build/CMakeCache.txt ] || preset=cpu
if grep -qE '^(engine/gpu|cmake/gpu_code|tools/gpu_code)' <<<"$changed"; then
  tools/packages.sh test
  preset=release
  eval "options=(${GPU_CODE:--DMOTLEY_GPU_CODE=ON})"
fi
cmake --preset "$preset" "${options[@]}" --log-level=WARNING >build/configure.log 2>&1 || { cat build/configure.log; exit 1; }
only="$(IFS='|'; echo "${rooms[*]:-none}")"
mapfile -t tests < <(ninja -C build -t targets all | sed -nE "s#^(test_($only)_[A-Za-z0-9_]+): phony\$#\\1#p")
echo "check: ${rooms[*]}: ${#tests[@]} test programs"
# Programs that tests written in Python run.
[[ " ${rooms[*]} " != *" engine "* ]] || tests+=(gpu_check gpu_bench gpu_paper)
[[ " ${rooms[*]} " != *" wild "* ]] || tests+=(wild_answer)
[ -z "$beside" ] || tests+=(test_api_openapi test_store_queue)
cmake --build build -j "$(nproc)" --target programs "${tests[@]}" >build/compile.log 2>&1 ||
  { tail -n 60 build/compile.log; exit 1; }
list() { ctest --test-dir build -N "$@" | sed -nE 's/^ +Test +#[0-9]+: //p' | tr '\n' ' '; }
left=$(list -L "^($only)\$" -L '^long$')
run=$(list -L "^($only)\$" -LE '^long$')
ctest --test-dir build --output-on-failure --timeout 120 -j "$((2 * $(nproc)))" -R "^($(tr -s ' ' '|' <<<"${run}none $beside"))\$"
[ -z "$left" ] || echo "check: left to make test: $left"
