#!/usr/bin/env bash
# Installs the packages in build/deb on this machine, which should be a bare root (`make distributions` with
# MOTLEY_TARGETS=package-check), trains five steps between a server and an agent that joined it, reinstalls
# under it, and purges all. As root. What the units do is done by hand where no systemd runs.
set -euo pipefail
cd "$(dirname "$0")/.."
export MOTLEY_HOME=/var/lib/motley-server
version=$(dpkg-deb -f build/deb/motley-client_*.deb Version)

say() { echo "package-check: $*"; }
as() { local user=$1; shift; setpriv --reuid "$user" --regid "$user" --init-groups --no-new-privs "$@"; }
# The command that a unit runs, from the file that is installed.
command_of() { sed -n "s/^$2=//p" "/usr/lib/systemd/system/$1.service" | head -n 1; }
package() { echo "./build/deb/motley-$1_${version}_$(dpkg --print-architecture).deb"; }
install_packages() {
    apt-get install -y --no-install-recommends "$@" >>build/package-check.log 2>&1 || { tail -n 20 build/package-check.log; exit 1; }
}

install_packages "$(package agent)"
for program in motley-agent motley-worker; do
    "$program" --version
done
install_packages "$(package client)" "$(package server)" postgresql redis-server
[ "$(stat -c %U $MOTLEY_HOME 2>/dev/null || echo none)" = motley ] || install -d -o motley -g motley -m 0711 $MOTLEY_HOME
say "server: $(command_of motley ExecStart)"
as motley $(command_of motley ExecStart)
motley nodes

api=$(sed -n 's/.*"address": *"\([^"]*\)".*/\1/p' $MOTLEY_HOME/client.json)
motley join-token --node second >/etc/motley/join-token
chown motley-agent /etc/motley/join-token
chmod 0600 /etc/motley/join-token
install -d -o motley-agent -g motley-agent -m 0700 /var/lib/motley-agent
sed -i 's/^#name: second/name: second/' /etc/motley/agent.yaml
API=$api
agent=$(command_of motley-agent ExecStart)
say "agent: $agent, API=$API"
as motley-agent ${agent/'${API}'/$API} >build/package-check-agent.log 2>&1 &
agent_pid=$!
for _ in $(seq 60); do
    motley nodes | grep -q 'second *alive' && break
    sleep 1
done
motley nodes
motley devices

work=$(mktemp -d)
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
(cd "$work" && motley run job.yaml --out out)
ls "$work/out"
[ -s "$work/out/adapter_model.safetensors" ] || [ -n "$(find "$work/out" -name adapter_model.safetensors -size +0)" ]

say "stop, purge"
kill -TERM $agent_pid
wait $agent_pid || true
as motley $(command_of motley ExecStop)
apt-get purge -y motley-agent motley-client motley-server >>build/package-check.log 2>&1
rm -rf "$work"
left=$(find / -xdev \( -path /proc -o -path /sys -o -path "$PWD" -o -path /var/lib/apt -o -path /var/cache -o -path /var/log \) -prune -o -iname '*motley*' -print)
[ -z "$left" ] || { say "left after purge:" "$left"; exit 1; }
say "five steps trained, nothing left after purge"
