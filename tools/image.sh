#!/usr/bin/env bash
# `make image`: build/image/motley-server.tar and motley-agent.tar, OCI images of the packages in build/deb (`make deb`) on a base
# of this machine's release of Debian, which mmdebstrap makes from its sources of packages: no image is fetched. As root.
#   podman load -i build/image/motley-agent.tar        (or docker load)
set -euo pipefail
cd "$(dirname "$0")/.."
release=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
version=$(dpkg-deb -f build/deb/motley-client_*.deb Version)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
apt-get indextargets --format 'deb $(REPO_URI) $(CODENAME) $(COMPONENT)' "Created-By: Packages" | sort -u >"$work/sources.list"
mkdir -p build/image

# image NAME HOME COMMAND PACKAGES: the named packages, and those files of build/deb that PACKAGES names with a slash.
image() {
    local name=$1 home=$2 command=$3 packages=$4 container
    mmdebstrap --quiet --mode=root --variant=minbase --include="$packages" --hook-dir=/usr/share/mmdebstrap/hooks/file-mirror-automount \
        --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
        --essential-hook='mkdir -p "$1/etc/postgresql-common" && echo create_main_cluster = false >"$1/etc/postgresql-common/createcluster.conf"' \
        --customize-hook='copy-in deploy/image/entrypoint /usr/bin' --customize-hook="install -d \"\$1$home\"" \
        "$release" "$work/$name.tar" "$work/sources.list"
    container=$(buildah from scratch)
    buildah add --quiet "$container" "$work/$name.tar" / >/dev/null
    rm "$work/$name.tar"
    # The words of NVIDIA's container toolkit: the driver's files for computing, of the cards that the container is given.
    buildah config --entrypoint '["/usr/bin/entrypoint"]' --cmd "$command" --volume "$home" --env MOTLEY_HOME="$home" \
        --env PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
        --env NVIDIA_DRIVER_CAPABILITIES=compute,utility --label org.opencontainers.image.version="$version" \
        --label org.opencontainers.image.title="$name" "$container"
    rm -f "build/image/$name.tar"
    buildah commit --quiet --rm "$container" "docker-archive:build/image/$name.tar:localhost/$name:$version" >/dev/null
    echo "build/image/$name.tar"
}

debs=$PWD/build/deb
file() { echo "$debs/motley-$1_${version}_$(dpkg --print-architecture).deb"; }
image motley-server /var/lib/motley-server server "ca-certificates,postgresql,redis-server,$(file client),$(file server)"
image motley-agent /var/lib/motley-agent agent "ca-certificates,$(file agent)"
