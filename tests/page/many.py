"""A live service with very many jobs and devices: copies, made by SQL, of a job and of devices that the service itself
knows. What no client could make in a minute; everything else about them is the service's own."""
import json
import os
import re
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "system"))
from motley import Failed, llama_spec  # noqa: E402

NODES = 62
DEVICES_A_NODE = 8
PROFILED = os.environ.get("MOTLEY_PAGE_TRACE")  # a file for the last trace, with samples of where the time goes


class Database:
    def __init__(self, motley):
        with open(os.path.join(motley.home, "run", "scheduler-1.yaml"), encoding="utf-8") as handle:
            self.conninfo = json.load(handle)["postgres"]

    def run(self, text):
        done = subprocess.run(["psql", "-v", "ON_ERROR_STOP=1", "-X", "-q", "-A", "-t", "-c", text, self.conninfo],
                              capture_output=True, text=True, check=False, timeout=300)
        if done.returncode != 0:
            raise Failed(f"{text[:200]}: {done.stderr[-500:]}")
        return done.stdout.strip()


def make_jobs(motley, database, count):
    """Copies of a job that waits for a device, of fifty people, so many times over; the one that they are copies of."""
    spec = llama_spec(motley, "many", 20, 16, repeat=8, placement={"kind": "single", "devices": ["left/cpu0"]})
    one = motley.submit({**spec, "hold": True, "labels": {"of": "many"}})["id"]
    motley.run("drain", "left/cpu0")  # or it would be over before it is held again
    database.run("INSERT INTO users (name) SELECT 'user' || i FROM generate_series(0, 49) i ON CONFLICT DO NOTHING")
    database.run(f"""INSERT INTO jobs SELECT r.* FROM jobs j, generate_series(0, {count - 1}) i, jsonb_populate_record(NULL::jobs, to_jsonb(j) || jsonb_build_object(
        'id', nextval('jobs_id_seq'), 'name', 'job-' || i, 'state', 'queued', 'priority', i % 5 - 5,
        'owner', (SELECT id FROM users WHERE name = 'user' || i % 50))) r
        WHERE j.id = {one}""")
    database.run(f"INSERT INTO job_counts (state, n) VALUES ('queued', {count}); SELECT pg_notify('motley_jobs', '')")
    return one


def make_devices(database):
    """Machines n0, n1 … with eight devices each, like left's, and with a health. Nothing of them is heard, so that they are
    soon unreachable."""
    health = {"temperature_c": 61, "power_w": 250, "used_bytes": 30 << 30, "memory_bytes": 80 << 30, "throttle": []}
    database.run(f"""INSERT INTO nodes SELECT r.* FROM nodes n, generate_series(0, {NODES - 1}) i, jsonb_populate_record(NULL::nodes,
        to_jsonb(n) || jsonb_build_object('name', 'n' || i)) r WHERE n.name = 'left'""")
    database.run(f"""INSERT INTO devices SELECT r.* FROM devices d, generate_series(0, {NODES - 1}) i, generate_series(0, {DEVICES_A_NODE - 1}) k,
        jsonb_populate_record(NULL::devices, to_jsonb(d) || jsonb_build_object('name', 'n' || i || '/cuda' || k, 'node', 'n' || i, 'kind', 'cuda')) r
        WHERE d.name = 'left/cpu0'""")
    database.run(f"UPDATE devices SET health = '{json.dumps(health)}' WHERE kind = 'cuda'")
    return NODES * DEVICES_A_NODE


def make_steps(database, job, begin, count, batch=5000):
    """Steps of a job as its events, as the scheduler writes them; the last ones come last."""
    for first in range(begin, begin + count, batch):
        last = min(first + batch, begin + count) - 1
        database.run(f"""INSERT INTO events (job, type, body) SELECT {job}, 'step', json_build_object('step', s, 'loss', 3 + sin(s / 5000.0),
            'grad_norm', 1.5 + cos(s / 300.0), 'learning_rate', 0.001, 'rows', 16, 'tokens', 4096, 'labelled_tokens', 4096, 'seconds', 0.125)
            FROM generate_series({first}, {last}) s ORDER BY s; SELECT pg_notify('motley_jobs', ''), pg_notify('motley_events', '')""")


RANKS, INSTRUCTIONS, STEP_NS = 72, 20000, 10**10


def dense_lanes(px, begin, end, first, ranks):
    """What the api would answer of such a step: three of four instructions compute; what is narrower than a pixel is one box."""
    def boxes():
        for queue, share in ((0, 0.75), (1, 0.125), (2, 0.125)):
            events = int(INSTRUCTIONS * share * (end - begin) / STEP_NS)
            count = min(px, events)
            wide = (end - begin) / max(1, count)
            for k in range(count):
                at = int(begin + k * wide)
                yield [queue, queue, k * events // count, k % 8, 1 if queue else -1, at, int(at + 0.8 * wide), at, events // count]
    lane = list(boxes())
    return {"run": 1, "step": 1, "steps": [1], "end_ns": STEP_NS, "predicted_ns": STEP_NS, "measured_ns": STEP_NS, "residual_ns": 1000, "unmatched": 0, "differences": [{"rank": RANKS - 1, "instr": 0, "op": "FORWARD", "queue": 0, "micro_batch": 0, "peer": -1, "predicted_ns": 1, "measured_ns": 400000}],
            "columns": ["queue", "op", "instr", "micro_batch", "peer", "begin_ns", "end_ns", "ready_ns", "count"], "queues": ["compute", "send", "receive"],
            "ops": ["FORWARD", "SEND", "RECV"], "ranks": [{"rank": rank, "device": f"n{rank // 8}/cuda{rank % 8}", **dict.fromkeys(("predicted", "measured"), lane if first <= rank < first + ranks else [])} for rank in range(RANKS)]}


def answer_dense_lanes(context):
    """Lanes are answered as of a job of so many ranks, whatever job is asked for; the list of what was asked grows."""
    asked = []

    def of_lanes(route):
        asked.append({name: int(value) for name, value in re.findall(r"[?&](px|from|to|first_rank|ranks)=([0-9]+)", route.request.url)})
        route.fulfill(json=dense_lanes(asked[-1]["px"], asked[-1].get("from", 0), asked[-1].get("to", STEP_NS), asked[-1]["first_rank"], asked[-1]["ranks"]))

    def of_job(route):
        document = route.fetch().json()
        document["run"]["ranks"] = [{**document["run"]["ranks"][0], "rank": rank} for rank in range(RANKS)]
        route.fulfill(json=document)

    context.route("**/lanes?*", of_lanes)
    context.route(re.compile(r"/v1/jobs/[0-9]+$"), of_job)
    return asked


class Tasks:
    """The tasks of a page's main thread while one is inside: how long each took by the clock and by the CPU, in
    milliseconds. On a machine that does other things, too, only the latter says what the page costs."""

    def __init__(self, browser, page):
        self.browser, self.page, self.wall, self.cpu = browser, page, [0], [0]

    def __enter__(self):
        self.browser.chromium.start_tracing(page=self.page, categories=["toplevel", "disabled-by-default-cpu_profiler"] if PROFILED else ["toplevel"])
        self.began = time.monotonic()
        return self

    def __exit__(self, *_):
        self.seconds = time.monotonic() - self.began
        trace = self.browser.chromium.stop_tracing()
        events = json.loads(trace)["traceEvents"]
        if PROFILED:
            with open(PROFILED, "wb") as handle:
                handle.write(trace)
        busiest = {}
        pages = {e["pid"] for e in events if e["name"] == "process_name" and e["args"]["name"] == "Renderer"}  # Chromium's own are WebUI renderers
        mains = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name" and e["args"]["name"] == "CrRendererMain" and e["pid"] in pages}
        for event in events:
            if event["ph"] == "X" and event["name"].endswith("RunTask") and (event["pid"], event["tid"]) in mains:
                busiest.setdefault(event["pid"], []).append((event["dur"] / 1000, event.get("tdur", 0) / 1000))
        tasks = max(busiest.values(), key=lambda each: sum(cpu for _, cpu in each), default=[(0, 0)])
        self.wall, self.cpu = [wall for wall, _ in tasks], [cpu for _, cpu in tasks]

    def __str__(self):
        return (f"in {self.seconds:.0f} s the longest task {max(self.wall):.0f} ms, {max(self.cpu):.0f} ms of CPU; over 100 ms: "
                f"{sum(t > 100 for t in self.wall)}, of CPU {sum(t > 100 for t in self.cpu)}; {sum(self.cpu) / 10 / self.seconds:.1f} % of a core; load {os.getloadavg()[0]:.1f}")
