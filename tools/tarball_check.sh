#!/usr/bin/env bash
# Tries what `make tarball` made in a bare root of another release of Debian (trixie, or the one named), made by debootstrap, in
# which nothing is installed: its agent joins a server of this machine and trains five steps. As root.
set -euo pipefail
cd "$(dirname "$0")/.."
release=${1:-trixie}
here=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
mirror=$(apt-get indextargets --format "\$(REPO_URI)" "Codename: $here" "Created-By: Packages" | head -n 1)
work=$(mktemp -d)
chmod 755 "$work"
root=$work/root
export MOTLEY_HOME=$work/home
agent_pid=
clean() {
    [ -z "$agent_pid" ] || kill -TERM "$agent_pid" 2>/dev/null || true
    [ -z "$agent_pid" ] || wait "$agent_pid" || true
    build/bin/motley down || true
    umount "$root/proc" "$root/dev" 2>/dev/null || true
    rm -rf --one-file-system "$work"
}
trap clean EXIT

debootstrap --variant=minbase "$release" "$root" "$mirror" >"$work/root.log" 2>&1 || { tail -n 20 "$work/root.log"; exit 1; }
mount -t proc proc "$root/proc"
mount --bind /dev "$root/dev"
mkdir -p "$root/opt/motley" "$root/etc/motley"
tar -xzf build/tarball/motley-agent-*.tar.gz --strip-components=1 -C "$root/opt/motley"
printf 'listen: 127.0.0.1\ntls: true\nagents: []\n' >"$work/up.yaml"
build/bin/motley up --config "$work/up.yaml"
build/bin/motley join-token --node second >"$root/etc/motley/join-token"
printf 'name: second\ndevices: [{kind: cpu, threads: 1, memory: 450MiB}]\n' >"$root/etc/motley/agent.yaml"
api=$(sed -n 's/.*"address": *"\([^"]*\)".*/\1/p' "$MOTLEY_HOME/client.json" | sed 's/localhost/127.0.0.1/')
chroot "$root" /opt/motley/bin/motley-agent --api "$api" --join-file /etc/motley/join-token --home /root/agent \
    --config /etc/motley/agent.yaml >"$work/agent.log" 2>&1 &
agent_pid=$!
for _ in $(seq 120); do
    build/bin/motley nodes | grep -q 'second *alive' && break
    sleep 1
done
build/bin/motley nodes
cp -r tests/data/golden/llama "$work/model"
for row in 1 2 3 4 5 6 7 8; do
    echo "{\"input_ids\": [$(seq -s, "$row" 40)]}"
done >"$work/rows.jsonl"
cat >"$work/job.yaml" <<EOF
name: five
model: model
data: {train: rows.jsonl, format: tokens, sequence_tokens: 64}
train: {batch_rows: 4, steps: 5}
EOF
program=$PWD/build/bin/motley
(cd "$work" && "$program" run job.yaml --out out) || { tail -n 20 "$work/agent.log"; exit 1; }
[ -s "$work/out/adapter_model.safetensors" ] || [ -n "$(find "$work/out" -name adapter_model.safetensors -size +0)" ]
echo "tarball-check: five steps trained in a bare root of $release, glibc $(chroot "$root" ldd --version | head -n 1 | awk '{print $NF}')"
