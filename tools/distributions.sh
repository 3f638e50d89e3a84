#!/usr/bin/env bash
# What a stranger does first, in bare roots of the Debian releases that the README names: `make distributions`, as root.
# Usage: tools/distributions.sh [RELEASE…]     (bookworm trixie)
# With MOTLEY_TARGETS=package-check the packages that `make deb` made here are tried there (tools/package_check.sh).
# Each root is made by debootstrap (minbase) in build/distributions/RELEASE. It gets this machine's sources of packages,
# its settings of apt and pip, its authorities of certificates, a clean clone of HEAD in /motley, and make. Then each of
# MOTLEY_TARGETS ("demo"; with others, split by ";": "demo;guide") is made there. Output stays beside the root, which is
# removed when all went well. MOTLEY_DEMO_STEPS (2) is how many steps the demo trains.
set -euo pipefail
cd "$(dirname "$0")/.."

here=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
mirror=$(apt-get indextargets --format "\$(REPO_URI)" "Codename: $here" "Created-By: Packages" | head -n 1)
if [ "$(id -u)" -ne 0 ] || [ -z "$mirror" ]; then
    echo "distributions: this must be root on a Debian machine whose lists of packages were fetched (apt-get update)" >&2
    exit 1
fi
# Whatever is mounted or started below ends with these namespaces.
if [ -z "${MOTLEY_APART:-}" ]; then
    MOTLEY_APART=1 exec unshare --mount --pid --fork --kill-child --mount-proc "$0" "$@"
fi
work=$PWD/build/distributions

root_make() {
    local release=$1 root=$work/$1 file
    rm -rf --one-file-system "$root"
    mkdir -p "$root"
    mount --bind "$root" "$root" # a mount point of its own, as `ip netns exec` needs its root to be
    debootstrap --variant=minbase "$release" "$root" "$mirror"
    rm -f "$root/etc/apt/sources.list"
    for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources; do
        [ ! -e "$file" ] || sed "s/\b$here\b/$release/g" "$file" >"$root$file"
    done
    for file in /etc/apt/apt.conf.d /etc/apt/auth.conf.d /usr/local/share/ca-certificates /etc/hosts /etc/resolv.conf /etc/pip.conf; do
        [ ! -e "$file" ] || cp -rL "$file" "$root$(dirname "$file")/"
    done
    git clone --quiet --no-hardlinks . "$root/motley"
    [ ! -d build/deb ] || { mkdir "$root/motley/build" && cp -r build/deb "$root/motley/build/"; }
    mount -t proc proc "$root/proc"
    mount --rbind /sys "$root/sys"
    mount --rbind /dev "$root/dev"
    inside "$release" "apt-get update && apt-get install -y --no-install-recommends make"
}

# inside RELEASE COMMAND: runs a shell command in the clone of the release's root, with this machine's settings of proxies.
inside() {
    local -a settings
    mapfile -t settings < <(env | grep -iE '^(pip_|[a-z]+_proxy=)')
    chroot "$work/$1" /usr/bin/env -i "${settings[@]}" HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin \
        DEBIAN_FRONTEND=noninteractive MOTLEY_DEMO_STEPS="${MOTLEY_DEMO_STEPS:-2}" /bin/bash -c "cd /motley && $2"
}

# step RELEASE NAME WORDS…: runs the words, prints how long they took, and the end of what they wrote if they failed.
step() {
    local release=$1 name=$2 log="$work/$1-${2%% *}.log" began=$SECONDS
    shift 2
    if "$@" >"$log" 2>&1; then
        echo "$release: $name in $((SECONDS - began)) s"
    else
        tail -n 60 "$log"
        echo "$release: $name failed after $((SECONDS - began)) s; all of its output is in $log"
        return 1
    fi
}

# Runs in a shell of its own, which ends at its first failure.
release_try() (
    set -e
    local -a targets
    IFS=';' read -r -a targets <<<"${MOTLEY_TARGETS:-demo}"
    step "$1" root root_make "$1"
    for target in "${targets[@]}"; do
        step "$1" "$target" inside "$1" "make $target"
    done
    umount -l "$work/$1/proc" "$work/$1/sys" "$work/$1/dev" "$work/$1"
    rm -rf --one-file-system "${work:?}/$1"
)

mkdir -p "$work"
[ $# -gt 0 ] || set -- bookworm trixie
failed=0
for release in "$@"; do
    release_try "$release" &
    wait $! || failed=1
done
exit "$failed"
