#!/usr/bin/env bash
# `make image-check`, after `make image`, as root: the images train five steps with compose.yaml, and once more as podman plays
# the Kubernetes manifests (of the DaemonSet and the Job what they make, a pod); a server that is stopped and started again knows
# its job. The manifests are held against the schemas of Kubernetes where PyPI can be reached.
set -euo pipefail
cd "$(dirname "$0")/.."
# podman needs one kind of control groups: where both are mounted, these namespaces lose the empty one.
if [ -z "${MOTLEY_APART:-}" ]; then
    MOTLEY_APART=1 exec unshare --mount --propagation private "$0" "$@"
fi
! mountpoint -q /sys/fs/cgroup/unified || umount /sys/fs/cgroup/unified
work=$(mktemp -d)
export CONTAINERS_CONF=$work/containers.conf
printf '[containers]\ndefault_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]\n' >"$CONTAINERS_CONF"
say() { echo "image-check: $*"; }
export DOCKER_HOST=unix://$work/podman.sock # docker-compose, on podman's service
compose() { (cd "$work" && docker-compose -p motleycheck "$@" >>compose.log 2>&1) || { tail -n 20 "$work/compose.log"; exit 1; }; }
pods() { podman kube play --network host "$@" >>"$work/pods.log" 2>&1 || { tail -n 20 "$work/pods.log"; exit 1; }; }
clean() {
    (cd "$work" && docker-compose -p motleycheck down -t 5 -v) >/dev/null 2>&1 || true
    kill "$service" || true
    for pod in motley-server-pod-0 motley-daemonset motley-job; do
        podman pod rm -f "$pod" >/dev/null 2>&1 || true
    done
    podman volume rm -f motley-server >/dev/null 2>&1 || true
    rm -rf "$work"
}
trap clean EXIT

# until SECONDS TEXT WORDS...: runs the words until they print the text.
until_says() {
    local seconds=$1 text=$2 tries
    shift 2
    for ((tries = 0; tries < seconds; tries++)); do
        "$@" 2>/dev/null | grep -q "$text" && return
        sleep 1
    done
    "$@" || true
    say "after $seconds s no '$text' of: $*"
    exit 1
}

# train CONTAINER NAME: five steps, with the container's own client.
train() {
    mkdir -p "$work/job"
    cp -r tests/data/golden/llama "$work/job/model"
    for row in 1 2 3 4 5 6 7 8; do
        echo "{\"input_ids\": [$(seq -s, "$row" 40)]}"
    done >"$work/job/rows.jsonl"
    printf '%s\n' "name: $2" 'model: model' 'data: {train: rows.jsonl, format: tokens, sequence_tokens: 64}' \
        'train: {batch_rows: 4, steps: 5}' >"$work/job/job.yaml"
    podman cp "$work/job" "$1:/tmp/$2"
    podman exec -w "/tmp/$2" "$1" motley run job.yaml --out out >"$work/$2.log" 2>&1 || { tail -n 20 "$work/$2.log"; exit 1; }
    podman exec "$1" sh -c "ls /tmp/$2/out/*/adapter_model.safetensors" >/dev/null
}

podman system service --time=0 "$DOCKER_HOST" 2>"$work/service.log" &
service=$!
for name in server agent; do
    podman load -q -i "build/image/motley-$name.tar" >/dev/null
done

cp deploy/image/compose.yaml "$work/"
sed 's/server.example.org/localhost/' deploy/image/up.yaml >"$work/up.yaml"
compose up -d server
until_says 60 DISK-FREE podman exec motleycheck_server_1 motley nodes
MOTLEY_API=https://localhost:8443 MOTLEY_JOIN=$(podman exec motleycheck_server_1 motley join-token 2>/dev/null) compose up -d agent
until_says 60 ' alive ' podman exec motleycheck_server_1 motley nodes
train motleycheck_server_1 composed
say "compose.yaml: $(grep -o 'job succeeded' "$work/composed.log")"
compose stop server
[ "$(podman inspect -f '{{.State.ExitCode}}' motleycheck_server_1)" = 0 ] || { podman logs motleycheck_server_1; exit 1; }
compose start server
until_says 60 composed podman exec motleycheck_server_1 motley jobs
until_says 60 ' alive ' podman exec motleycheck_server_1 motley nodes
say "compose.yaml: the server was stopped in order, and knows its job and its node"
compose down -t 20 -v

if python3 -m venv "$work/venv" && "$work/venv/bin/pip" install -q kubernetes-validate >/dev/null 2>&1; then
    "$work/venv/bin/kubernetes-validate" --strict deploy/kubernetes/*.yaml >"$work/schemas.log" 2>&1 || { cat "$work/schemas.log"; exit 1; }
    say "kubernetes: the schemas of Kubernetes agree"
fi
sed 's/advertise: motley-server/advertise: localhost/; /ports:$/,/containerPort: 6380/d' deploy/kubernetes/server.yaml >"$work/server.yaml" # no ports of a pod on the host's network
pods "$work/server.yaml"
server=$(podman ps --format '{{.Names}}' | grep '^motley-server.*-server$')
until_says 60 DISK-FREE podman exec "$server" motley nodes
token=$(podman exec "$server" motley join-token --uses 2 2>/dev/null) python3 - deploy/kubernetes/agent.yaml deploy/kubernetes/agent-job.yaml \
    >"$work/agents.yaml" <<'PYTHON'
import os, sys, yaml
documents = []
for path in sys.argv[1:]:
    made = yaml.safe_load(open(path))
    spec = made["spec"]["template"]["spec"]
    container = spec["containers"][0]
    # podman 4.3 cannot read what it makes of a secret
    container["env"] = [{"name": v["name"], "value": os.environ["token"] if "valueFrom" in v else "https://localhost:8443"} for v in container["env"]]
    del container["resources"]  # there are no cards, nor their plugin
    spec.pop("nodeSelector", None)
    # podman takes volumes of one name for one
    spec["volumes"] = [{"name": made["kind"].lower(), "emptyDir": {}}]
    container["volumeMounts"][0]["name"] = made["kind"].lower()
    documents.append({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "motley-" + made["kind"].lower()}, "spec": spec})
print(yaml.safe_dump_all(documents))
PYTHON
pods "$work/agents.yaml"
until_says 60 2 sh -c "podman exec $server motley nodes | grep -c ' alive '"
podman exec "$server" motley nodes
train "$server" played
say "kubernetes: $(grep -o 'job succeeded' "$work/played.log")"
