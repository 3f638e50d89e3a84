#!/usr/bin/env bash
# Install the Debian packages Motley is built and run with, once; say nothing when all are there.
# As root or through sudo; otherwise print the one command to run and fail.
#   tools/packages.sh          what `make build` and `make demo` need
#   tools/packages.sh check    adds what tests need;  tools/packages.sh test: what tests of GPU kernels need, too
#   tools/packages.sh gpu      adds what compiles GPU kernels into the build, as all do where a card is
#   tools/packages.sh deb      adds what `make deb` needs
#   tools/packages.sh lint     adds what `make lint` needs;  tools/packages.sh sanitize: clang's runtimes
#   tools/packages.sh distributions   what makes bare roots of Debian, alone;  tools/packages.sh image: images, and runs them
# Every name is one in Debian 12 and in Debian 13.
set -euo pipefail

packages=(gcc libc6-dev make cmake ninja-build pkg-config ccache
    libpq-dev libevent-dev libhiredis-dev libmsgpack-dev libssl-dev libjansson-dev libcurl4-openssl-dev
    libonig-dev libpcre2-dev libutf8proc-dev libyaml-dev zlib1g-dev libopenblas-dev libcmocka-dev
    postgresql redis-server curl openssl unzip git iproute2 procps python3 python3-pip python3-jsonschema ca-certificates util-linux)
gpu=(clang-19 lld-19) # about 45 MB with what they need; the kernels of PTX and of AMD's code objects
# pgbouncer: for the test that Motley refuses one; aiosmtpd: for mail; chromium-headless-shell: for the page's; nodejs
# runs pyright.
tests=(nftables wireguard-tools wireguard-go pgbouncer python3-aiosmtpd chromium-headless-shell nodejs man-db groff-base clang-format-19)
case "${1:-}" in
check) packages+=("${tests[@]}") ;;
test) packages+=("${tests[@]}" llvm-19 "${gpu[@]}") ;; # llvm-19 reads code of AMD's cards
gpu) packages+=("${gpu[@]}") ;;
deb) packages+=("${gpu[@]}" debhelper lintian) ;;
lint) packages+=(clang-format-19 cppcheck) ;;
sanitize) packages+=(clang-19 libclang-rt-19-dev) ;;
distributions) packages=(debootstrap git util-linux) ;;
image) packages=(mmdebstrap buildah podman crun catatonit containernetworking-plugins docker-compose python3-venv python3-yaml util-linux) ;;
esac
# Where there is a card, a build without its kernels would leave it idle.
if [ -e /dev/nvidiactl ] || [ -e /dev/kfd ]; then
    packages+=("${gpu[@]}")
fi

missing=()
installed=$(dpkg-query -W -f '${Package} ${db:Status-Status}\n' 2>/dev/null | awk '$2 == "installed" {print $1}')
for package in "${packages[@]}"; do
    grep -qxF "$package" <<<"$installed" || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0

run=(env)
if [ "$(id -u)" -ne 0 ]; then
    if command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
        run=(sudo)
    elif [ -t 0 ] && [ "${CI:-}" != true ] && command -v sudo >/dev/null; then
        run=(sudo)
    else
        echo "Motley needs these Debian packages; as root, run:" >&2
        echo "  apt-get update && apt-get install -y --no-install-recommends ${missing[*]}" >&2
        exit 1
    fi
fi

echo "installing Debian packages: ${missing[*]}"
# Debian's package would start a PostgreSQL cluster of its own on installation; Motley brings up private ones.
if [ ! -e /etc/postgresql-common/createcluster.conf ]; then
    "${run[@]}" mkdir -p /etc/postgresql-common
    echo "create_main_cluster = false" | "${run[@]}" tee /etc/postgresql-common/createcluster.conf >/dev/null
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! { "${run[@]}" apt-get -o DPkg::Lock::Timeout=300 update &&
       "${run[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 \
           install -y --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    echo "could not install the packages above" >&2
    exit 1
fi
