"""Drives a whole Motley (PostgreSQL, Redis, api, scheduler, agents, workers) from the outside, as its users do.

Only the names fixed in docs/INTERFACES.md are used. Standard library alone.
"""
import contextlib
import json
import math
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from claims import BIN, GOLDEN, SKIP, SLOW, SOURCE, Failed, expect, main, skip  # noqa: E402,F401

SHARED = os.path.join(os.path.dirname(SOURCE), "shared")


def two_unlike(memory_left="450MiB", memory_right="450MiB", isa_left="native", isa_right="avx2", **extra):
    """The usual two agents, one CPU device each, truly unlike."""
    config = {"agents": [
        {"name": "left", "devices": [{"kind": "cpu", "threads": 1, "memory": memory_left, "isa": isa_left}]},
        {"name": "right", "devices": [{"kind": "cpu", "threads": 1, "memory": memory_right, "isa": isa_right}]},
    ]}
    config.update(extra)
    return config


def two_paced(**extra):
    """Two alike devices whose steps of the tiny Llama on two rows take 20 ms, most of which they sleep: for jobs that are to be
    under way while something else happens, at a quarter of the CPU time that computing so long would take."""
    device = {"kind": "paced", "memory": "450MiB", "pace": {"flops": 3e9, "flops_16": 3e9, "bytes_per_s": 1e10}}
    return {"agents": [{"name": name, "devices": [device]} for name in ("left", "right")], **extra}


def with_workers_in_view(config):
    """For tests that look at workers' descriptors: of confined ones only root can."""
    for agent in config["agents"] if os.geteuid() != 0 else []:
        agent["sandbox"] = "off"
    return config


class Motley:
    """One home of `motley up`; use as a context manager: `down` runs whatever happened, logs are shown on failure."""

    def __init__(self, config, keep_logs=True):
        self.base = tempfile.mkdtemp(prefix="motley-test-")
        os.chmod(self.base, 0o755)
        self.home = os.path.join(self.base, "home")
        self.config = os.path.join(self.base, "up.yaml")
        self.keep_logs = keep_logs
        with open(self.config, "w", encoding="utf-8") as handle:
            json.dump(config, handle)

    def __enter__(self):
        try:
            self.up()
        except BaseException:
            self.show_logs()
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind, value, trace):
        if kind is not None and self.keep_logs:
            self.show_logs()
        subprocess.run([self.program("motley"), "down", "--home", self.home], timeout=60,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
        left = self.processes_left()
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.base, ignore_errors=True)
        if left and kind is None:
            raise Failed(f"processes left over after `motley down`: {left}")

    @staticmethod
    def program(name):
        return os.path.join(BIN, name)

    def path(self, name):
        return os.path.join(self.base, name)

    def up(self):
        if not os.path.exists(self.home):
            self.copy_database()
        self.run("up", "--config", self.config, timeout=90)

    def copy_database(self):
        """A copy of a database cluster without tables, which `up` then takes as the home's: initdb takes a second of a core."""
        folder = os.path.join(self.home, "pg")
        os.makedirs(folder, 0o700)
        done = subprocess.run([os.path.join(SOURCE, "tests", "support", "postgres.sh"), os.path.join(folder, "data")],
                              capture_output=True, text=True, timeout=120, check=False,
                              env={"MOTLEY_BUILD": os.path.dirname(BIN), **os.environ})
        expect(done.returncode == 0, f"initdb: {done.stderr[-1000:]}")
        if os.geteuid() == 0:
            os.chmod(self.home, 0o711)
            owner = os.stat(os.path.join(folder, "data"))
            os.chown(folder, owner.st_uid, owner.st_gid)

    def run(self, *words, status=0, timeout=120, parse=False, stdin=None):
        """Run a client command; its output, or the JSON document with parse. Any other exit status is a failure."""
        command = [self.program("motley"), *words, "--home", self.home]
        if parse:
            command.append("--json")
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout * SLOW, check=False,
                              input=stdin)
        allowed = status if isinstance(status, tuple) else (status,)
        expect(done.returncode in allowed,
               f"{' '.join(command)}: status {done.returncode}, not {status}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
        self.last_error = done.stderr
        if parse:
            return json.loads(done.stdout)
        return done.stdout

    def lines(self, *words, **keywords):
        return [json.loads(line) for line in self.run(*words, "--json", **keywords).splitlines() if line.strip()]

    def write(self, name, text):
        path = self.path(name)
        with open(path, "w", encoding="utf-8") as handle:
            handle.write(text if isinstance(text, str) else json.dumps(text))
        return path

    def write_rows(self, name, rows):
        return self.write(name, "".join(json.dumps(row) + "\n" for row in rows))

    def submit(self, spec, wait=False, timeout=240, name="spec.json"):
        words = ["submit", self.write(name, spec)] + (["--wait"] if wait else [])
        return self.run(*words, parse=True, timeout=timeout)

    def job(self, ident):
        return self.run("job", str(ident), parse=True)

    def wait_state(self, ident, states, timeout=120):
        deadline = time.monotonic() + timeout * SLOW
        while time.monotonic() < deadline:
            job = self.job(ident)
            if job["state"] in states:
                return job
            poll()
        raise Failed(f"job {ident} is {job['state']} after {timeout} s, not one of {states}")

    def metrics(self, ident):
        lines = self.lines("metrics", str(ident))
        return [m for m in lines if "eval" not in m], [m for m in lines if "eval" in m]

    def wait_steps(self, ident, count, timeout=120):
        deadline = time.monotonic() + timeout * SLOW
        while time.monotonic() < deadline:
            steps, _ = self.metrics(ident)
            if len(steps) >= count:
                return steps
            poll()
        raise Failed(f"job {ident}: {len(steps)} steps after {timeout} s, not {count}; {self.job(ident)['state']}")

    def get(self, ident, name="out", checkpoint=None):
        out = self.path(name)
        self.run("get", str(ident), out, *(["--checkpoint", str(checkpoint)] if checkpoint else []))
        return out

    def gradients(self, ident, step, name):
        """The gradients of step number `step`, before clipping, of a job with beta1 = 0: then AdamW's first moment is the
        clipped gradient itself, and the checkpoint after that step holds it."""
        folder = os.path.join(self.get(ident, name, checkpoint=step + 1), f"checkpoint-{step + 1}")
        norm = self.metrics(ident)[0][step]["grad_norm"]
        clip = min(1.0, 1.0 / (norm + 1e-6))
        out = {}
        for part in sorted(os.listdir(folder)):
            if part.startswith("optimizer-"):
                for key, (shape, values) in safetensors(os.path.join(folder, part)).items():
                    if key.endswith(".exp_avg"):
                        out[key[:-len(".exp_avg")]] = (shape, [v / clip for v in values])
        return out

    def as_user(self, token, *words, status=0):
        """The JSON document of a client command of the user who has this token; None where it is to fail."""
        with open(os.path.join(self.home, "client.json"), encoding="utf-8") as handle:
            client = json.load(handle)
        home = tempfile.mkdtemp(prefix="user-", dir=self.base)
        self.write(os.path.join(home, "client.json"), {**client, "token": token})
        os.chmod(os.path.join(home, "client.json"), 0o600)
        done = subprocess.run([self.program("motley"), *words, "--home", home, "--json"], capture_output=True, text=True,
                              timeout=120 * SLOW, check=False)
        expect(done.returncode == status, f"{words}: {done.returncode}, not {status}: {done.stderr}")
        return json.loads(done.stdout) if status == 0 else None

    def sql(self, text):
        """What psql prints for this SQL, asked of the home's own PostgreSQL."""
        with open(os.path.join(self.home, "run", "scheduler-1.yaml"), encoding="utf-8") as handle:
            conninfo = json.load(handle)["postgres"]
        done = subprocess.run(["psql", "-v", "ON_ERROR_STOP=1", "-X", "-q", "-A", "-t", "-d", conninfo, "-c", text],
                              capture_output=True, text=True, timeout=60 * SLOW, check=False)
        expect(done.returncode == 0, done.stderr)
        return done.stdout.strip()

    def processes(self):
        return self.run("status", parse=True)["processes"]

    def processes_left(self):
        """Pids whose environment or command line names this home."""
        left = []
        for entry in os.listdir("/proc"):
            if not entry.isdigit() or int(entry) == os.getpid():
                continue
            try:
                with open(f"/proc/{entry}/cmdline", "rb") as handle:
                    words = handle.read()
            except OSError:
                continue
            if self.base.encode() in words:
                left.append(int(entry))
        return left

    def show_logs(self, size=3000):
        for folder, _, names in os.walk(self.home):
            for name in sorted(names):
                if name.endswith(".log"):
                    with open(os.path.join(folder, name), "rb") as handle:
                        handle.seek(0, os.SEEK_END)
                        handle.seek(max(0, handle.tell() - size))
                        print(f"--- {os.path.join(folder, name)}\n{handle.read().decode(errors='replace')}")


def poll():
    """Between two questions to the service, each of which starts a client; every caller has a deadline."""
    time.sleep(0.1)


def tokens_rows(batches):
    return [{"ids": ids, "labels": labels} for batch in batches for ids, labels in zip(batch["ids"], batch["labels"])]


def golden_spec(name, model, rows, peak, expected, batch_rows, **changes):
    spec = {
        "name": name, "model": model,
        "method": {"kind": "lora", "rank": 16, "alpha": 32, "dropout": 0.0},
        "data": {"train": rows, "format": "tokens", "shuffle": False, "sequence_tokens": 256},
        "train": {"batch_rows": batch_rows, "steps": expected["steps"], "learning_rate": peak, "schedule": "cosine",
                  "warmup_steps": expected["warmup"], "final_fraction": 0.1, "weight_decay": 0,
                  "betas": [0.9, 0.95], "eps": 1e-8, "clip_norm": 1.0, "seed": 1, "compute": "fp32"},
    }
    for key, value in changes.items():
        if isinstance(value, dict):
            spec.setdefault(key, {}).update(value)
        else:
            spec[key] = value
    return spec


def llama_spec(motley, name, steps, batch_rows, repeat=1, warmup=4, every=10, retries=0, **changes):
    """A job of the tiny Llama on its golden rows, so many times over."""
    folder = os.path.join(GOLDEN, "llama")
    with open(os.path.join(folder, "expected.json"), encoding="utf-8") as handle:
        expected = json.load(handle)
    rows = motley.write_rows("rows.jsonl", tokens_rows(expected["batches"]) * repeat)
    return golden_spec(name, folder, rows, 0.005, expected, batch_rows, train={"steps": steps, "warmup_steps": warmup},
                       checkpoint={"every_steps": every}, limits={"retries": retries}, **changes)


def golden_job(motley, model, method, placement, name, steps):
    """A job of a golden model on its own rows by LoRA or "full", with a checkpoint every six steps."""
    folder = os.path.join(GOLDEN, model)
    with open(os.path.join(folder, "expected.json"), encoding="utf-8") as handle:
        expected = json.load(handle)
    rows = motley.write_rows(f"{model}.jsonl", tokens_rows(expected["batches"]))
    peak = expected["full" if method == "full" else "lora"]["peak_lr"]
    spec = golden_spec(name, folder, rows, peak, expected, len(expected["batches"][0]["ids"]), placement=placement,
                       train={"steps": steps}, checkpoint={"every_steps": 6}, limits={"retries": 3})
    if method == "full":
        spec["method"] = {"kind": "full"}
    return spec


def every_loss(motley, job, name, steps):
    """The losses of an ended job, which must have succeeded with each step once."""
    expect(job["state"] == "succeeded", f"{name}: {job['state']}: {job.get('why')}")
    done = motley.metrics(job["id"])[0]
    expect([m["step"] for m in done] == list(range(steps)), f"{name}: {len(done)} steps")
    return [m["loss"] for m in done]


def slowly_linked(devices):
    """Agents n0, n1 … of one device each, behind links so slow that a run of tiny models can be killed in the middle."""
    names = [f"n{i}" for i in range(len(devices))]
    return {"agents": [{"name": name, "devices": [{"kind": "cpu", "threads": 1, **device}]} for name, device in zip(names, devices)],
            "links": [{"between": [a, b], "rate": "200Mbit/s", "latency": "1ms"} for i, b in enumerate(names) for a in names[:i]]}


def of_protocol(motley, program, protocol):
    """A copy of a program that is of the release with this protocol (common/release.c), beside the other programs."""
    folder = motley.path(f"protocol-{protocol}")
    copy = os.path.join(folder, program)
    if not os.path.isdir(folder):
        os.mkdir(folder)
        beside = os.path.dirname(motley.program(program))
        for name in os.listdir(beside):
            if name.startswith("motley"):
                os.symlink(os.path.join(beside, name), os.path.join(folder, name))
    if os.path.islink(copy):
        with open(copy, "rb") as handle:
            parts = re.split(rb"motley-protocol=\d{4}\0", handle.read())
        expect(len(parts) == 2, f"{program} says its protocol {len(parts) - 1} times")
        os.unlink(copy)
        with open(copy, "xb") as handle:
            handle.write(parts[0] + b"motley-protocol=%04d\0" % protocol + parts[1])
        os.chmod(copy, 0o755)
    return copy


def pids(motley, role):
    return [process["pid"] for process in motley.processes() if process["role"] == role]


def safetensors(path):
    """{name: list of floats} of an F32 file."""
    import array
    with open(path, "rb") as handle:
        size = struct.unpack("<Q", handle.read(8))[0]
        header = json.loads(handle.read(size))
        data = handle.read()
    out = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        expect(entry["dtype"] == "F32", f"{path}: {name} is {entry['dtype']}, not F32")
        begin, end = entry["data_offsets"]
        values = array.array("f")
        values.frombytes(data[begin:end])
        out[name] = (entry["shape"], values)
    return out


def relative_difference(ours, theirs):
    """The norm of the difference over the norm of theirs, over all tensors; and the worst single tensor's."""
    expect(set(ours) == set(theirs), f"tensor names differ: {sorted(set(ours) ^ set(theirs))[:4]}")
    total = reference = worst = 0.0
    for name, (shape, values) in theirs.items():
        expect(ours[name][0] == shape, f"{name}: shape {ours[name][0]}, not {shape}")
        difference = sum((a - b) ** 2 for a, b in zip(ours[name][1], values))
        norm = sum(b * b for b in values)
        total += difference
        reference += norm
        if norm > 0:
            worst = max(worst, math.sqrt(difference / norm))
    return math.sqrt(total / reference), worst


def largest_relative(ours, theirs):
    expect(len(ours) == len(theirs), f"{len(ours)} values, not {len(theirs)}")
    return max(abs(a - b) / abs(b) for a, b in zip(ours, theirs))
