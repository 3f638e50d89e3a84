#!/usr/bin/env bash
# `make tarball`: build/tarball/motley-agent-VERSION-ARCHITECTURE.tar.gz, the agent and the worker for machines with another
# distribution than the packages', with every library that they need but those of glibc and libgcc_s, which each has. It is
# refused where a program or library asks for a glibc newer than 2.34 (Ubuntu 22.04, RHEL 9, Debian 12). Card drivers are the
# machine's, as ever. MOTLEY_GPU_CODE=OFF leaves the kernels for cards out; MOTLEY_GPU_TARGETS: those for some alone.
set -euo pipefail
cd "$(dirname "$0")/.."
newest_glibc=2.34
glibc="ld-linux.*|libc|libm|libpthread|libdl|librt|libresolv|libutil|libnsl|libgcc_s|linux-vdso"
build=build/portable
cmake -B $build -S . -G Ninja -DCMAKE_BUILD_TYPE=Release -DMOTLEY_PORTABLE=ON -DMOTLEY_TESTS=OFF -DMOTLEY_BENCH=OFF \
    -DMOTLEY_GPU_CODE="${MOTLEY_GPU_CODE:-ON}" -DMOTLEY_GPU_TARGETS="${MOTLEY_GPU_TARGETS:-.*}" --log-level=WARNING >/dev/null
cmake --build $build --target motley-agent motley-worker >$build/compile.log 2>&1 || { tail -n 40 $build/compile.log; exit 1; }

version=$($build/bin/motley-agent --version | awk '{print $2}')
name=motley-agent-$version-$(uname -m)
root=build/tarball/$name
rm -rf build/tarball
mkdir -p "$root"/{bin,lib,copyright,etc}
for program in motley-agent motley-worker; do
    strip --strip-debug -o "$root/bin/$program" "$build/bin/$program"
done

# The libraries that the loader finds here, and OpenBLAS with its own, which the worker loads by itself.
openblas=$(ldconfig -p | awk '$1 == "libopenblas.so.0" && !found++ {print $NF}')
for file in "$openblas" $(ldd "$root"/bin/* "$openblas" | awk '$2 == "=>" && $3 ~ /^\// {print $3}' | sort -u); do
    grep -qxE "($glibc)\.so.*" <<<"$(basename "$file")" && continue
    cp -L "$file" "$root/lib/"
    real=$(readlink -f "$file")
    package=$({ dpkg-query -S "$real" "${real#/usr}" 2>/dev/null || true; } | awk -F: '!found++ {print $1}')
    cp -L "/usr/share/doc/$package/copyright" "$root/copyright/$package"
done

for file in "$root"/bin/* "$root"/lib/*; do
    asks=$(objdump -T "$file" | grep -o 'GLIBC_[0-9.]*' | cut -d_ -f2 | sort -V | tail -n 1)
    [ "$(printf '%s\n' "$asks" $newest_glibc | sort -V | tail -n 1)" = $newest_glibc ] ||
        { echo "tarball: $(basename "$file") asks for glibc $asks, newer than $newest_glibc" >&2; exit 1; }
done

cp deploy/etc/agent.yaml deploy/etc/agent.env "$root/etc/"
sed 's|/usr/bin/motley-agent|/opt/motley/bin/motley-agent|' deploy/motley-agent.service >"$root/motley-agent.service"
cp debian/motley-agent.sysusers "$root/motley-agent.conf"
cp LICENSE "$root/"
tar -C build/tarball --owner=0 --group=0 -czf "build/tarball/$name.tar.gz" "$name"
echo "build/tarball/$name.tar.gz"
