#!/usr/bin/env bash
# The main job, for `make demo`: SmolLM2-135M on two unlike devices, each too small for it alone, and on the GPUs
# that this machine has.
# Everything it makes lies under .demo/ (MOTLEY_DEMO to put it elsewhere); the model is fetched once into .cache/.
set -euo pipefail
cd "$(dirname "$0")/.."

demo=${MOTLEY_DEMO:-$PWD/.demo}
motley=$PWD/build/bin/motley
export MOTLEY_HOME=$demo/home

gguf=$(tools/fetch_smollm2.sh .cache)
"$motley" down >/dev/null 2>&1 || true
rm -rf "$demo"
mkdir -p "$demo"
tools/demo_rows.sh "$demo/train.jsonl" "$demo/held-out.jsonl"

cat >"$demo/up.yaml" <<YAML
agents:
  - name: left
    cards: all
    devices:
      - {kind: cpu, threads: 1, memory: 450MiB, isa: native}
  - name: right
    devices:
      - {kind: cpu, threads: 1, memory: 450MiB, isa: avx2}
YAML

cat >"$demo/demo.yaml" <<YAML
name: debian-in-a-line
model: $gguf
method: {kind: lora, rank: 16, alpha: 32, dropout: 0.05, targets: [q_proj, k_proj, v_proj, o_proj], base: fp32}
data: {train: $demo/train.jsonl, eval: $demo/held-out.jsonl, format: alpaca, sequence_tokens: 256}
train: {batch_rows: 8, epochs: 1, learning_rate: 1e-3, warmup_steps: 5, seed: 1}
checkpoint: {every_steps: 25}
eval: {every_steps: 25}
sample: {prompt: "Say in one line what the Debian package nginx is.", tokens: 32}
YAML

stop() {
    "$motley" down >/dev/null 2>&1 || true
}
trap stop EXIT
"$motley" up --config "$demo/up.yaml"
"$motley" devices
"$motley" run "$demo/demo.yaml" --out "$demo/out"
"$motley" down
