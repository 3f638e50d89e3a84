#!/usr/bin/env bash
# The planner is a library of its own: it builds with a plain compiler from planner/, program/, eleven files of common/ and
# the descriptions of model/, and its tests (four of them; with MOTLEY_LONG all that include no other room) run linked with nothing beside libc and
# libm but what common/ and model/ themselves stand on: jansson (documents), libcrypto (SHA-256 of a plan's seal) and
# PCRE2 (expressions over modules' names in a specification). It uses no clock, file, socket, process or environment.
set -euo pipefail
root=${MOTLEY_SOURCE:-$(cd "$(dirname "$0")/../.." && pwd)}
cd "$root"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cc=${CC:-cc}
command -v ccache >/dev/null && cc="ccache $cc"
# Functions that nobody here calls (model_config_load, which opens files) drop out at the link.
flags="-std=c17 -D_GNU_SOURCE ${MOTLEY_LONG:+-O2} -ffunction-sections -fdata-sections -I. -Itests"
tests="bound catalogue kind_data planner"
[ -z "${MOTLEY_LONG:-}" ] || tests=$(cd tests/planner && grep -L '\"\(show\|replay\)/\|oracle' test_*.c | sed 's/^test_//; s/\.c$//')
allowed="common/arena.c common/array.c common/buf.c common/clock.c common/digest.c common/doc.c common/err.c common/json.c common/outside.c common/rand.c common/units.c
    model/shape/arch.c model/shape/arch_table.c model/shape/block_cost.c model/shape/blocks.c model/shape/config.c model/shape/config_delta.c model/shape/config_experts.c model/shape/config_heads.c model/shape/config_keys.c model/shape/config_parse.c model/shape/config_plain.c model/shape/flat.c model/shape/footprint.c model/shape/layer.c
    model/shape/layer_steps.c model/shape/layer_tensors.c model/shape/lora_match.c model/shape/lora_rules.c model/shape/lora_sites.c model/shape/names.c model/shape/nf4_skipped.c model/job/order.c
    model/files/pack.c model/shape/packing.c model/shape/rope.c model/job/spec.c model/job/spec_array.c model/job/spec_check.c model/job/spec_json.c
    model/files/tensor_type.c"

build() { # SOURCE...
    printf '%s\n' "$@" | xargs -P 2 -I{} sh -c "$cc $flags -DMOTLEY_TEST_DATA='\"$root/tests/data\"' -c {} -o $work/\$(echo {} | tr / _).o"
}
for file in $allowed; do [ -e "$file" ] && build "$file"; done
build planner/*/*.c program/*.c program/*/*.c

# Purity, by what its objects ask for.
impure=$(nm -u "$work"/planner_*.o "$work"/program_*.o | awk '$1 == "U" {print $2}' | sort -u | grep -xE \
    'fopen.*|open(at)?.*|read|write|close|stat|fstat|socket|connect|send|recv|fork|exec.*|getenv|setenv|time|clock(_gettime)?|gettimeofday|rand(om)?|srand(om)?|printf|puts|putchar|perror|fprintf|fwrite|fputs|exit|_exit|abort|system|popen|dlopen|pthread_.*|sleep|nanosleep|usleep' || true)
if [ -n "$impure" ]; then
    echo "planner/ or program/ uses: $impure" >&2
    exit 1
fi

libraries() { # what it names itself: on Debian 13 libcrypto brings libz and libzstd
    readelf -d "$1" | sed -n 's/.*(NEEDED).*\[\(.*\)\.so.*\]/\1/p' | grep -vxE 'linux-vdso|ld-linux-.*|libc|libm|libjansson|libcrypto|libpcre2-8|libcmocka' || true
}
for name in $tests; do
    build "tests/planner/test_$name.c"
    $cc "$work/tests_planner_test_$name.c.o" "$work"/planner_*.o "$work"/program_*.o "$work"/common_*.o "$work"/model_*.o \
        -Wl,--gc-sections -o "$work/test_$name" -lcmocka -ljansson -lcrypto -lpcre2-8 -lm
    more=$(libraries "$work/test_$name")
    if [ -n "$more" ]; then
        echo "test_$name is linked with: $more" >&2
        exit 1
    fi
    "$work/test_$name" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
    rm "$work/tests_planner_test_$name.c.o"
    echo "test_$name: passed alone"
done
