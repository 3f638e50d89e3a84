#!/usr/bin/env bash
# Every benchmark, one after the other, on a machine that does nothing else; figures into bench/results/ of today.
set -u
cd "$(dirname "$0")/.."
bin=$PWD/build/bin
export MOTLEY_BENCH_OUT=$PWD/bench/results
mkdir -p "$MOTLEY_BENCH_OUT"
failed=0
run() {
    echo "== $*"
    "$@" || failed=1
}
run "$bin/bench_mesh_speed"
run "$bin/bench_worker_link"
run "$bin/bench_api_submit" 10
run "$bin/bench_scheduler_soak" 10000
run "$bin/bench_engine_unpack"
run "$bin/bench_planner_simulate"
run python3 bench/plan_few.py 24 0 3-6
run python3 bench/plan_few.py 24 0 7-12
run python3 bench/plan_many.py 24 0 64-64
run python3 bench/plan_mixed.py 24 0 64-64
run python3 bench/start_latency.py
run python3 bench/split_throughput.py --rows 64
run python3 bench/split_throughput.py --rows 16
run python3 bench/accuracy.py
run python3 bench/engine_vs_torch.py
exit $failed
