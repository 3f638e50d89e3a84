#!/usr/bin/env python3
"""A storm over a whole Motley: seeded kills, cuts, freezes and wipes while jobs come in over HTTP, then what became of them.

    chaos.py [--kills 200] [--seed 1] [--backlog 10] [--pause 2.0] [--only KIND,KIND]

The jobs run undisturbed first: their losses, evaluations and artifacts are what every job of the storm must have, and the time of
as many jobs as stand in the queue is what the work after the storm is measured by, on the same machine minutes apart.
A link is cut from outside: pidfd_getfd borrows the socket of one end, shutdown() ends it for both.
"""
import argparse
import contextlib
import ctypes
import http.client
import json
import os
import random
import re
import shutil
import signal
import socket
import sys
import threading
import time
import urllib.parse

from motley import GOLDEN, SLOW, Failed, Motley, expect, golden_spec, pids, poll, tokens_rows, two_unlike, with_workers_in_view

DUE_S = 10        # from the storm's end until everything that is due runs
LOSS = 2e-5      # relative, where an attempt had another plan
RATIO_MAX = 1.3   # the work after the storm, as a multiple of its undisturbed time
ENDED = ("succeeded", "failed", "cancelled")
UNANSWERED = (OSError, http.client.HTTPException, ValueError)


# ---- jobs ----

KINDS = {  # name: placement and what else differs
    "left": {"placement": {"kind": "single", "devices": ["left/cpu0"], "micro_batch_rows": 4}},
    "split": {"placement": {"kind": "pipeline", "stages": 2, "micro_batch_rows": 2}},
    "right": {"placement": {"kind": "single", "devices": ["right/cpu0"], "micro_batch_rows": 4}, "method": {"rank": 8}},
    "copies": {"placement": {"kind": "data", "micro_batch_rows": 4}},
    "fresh": {"placement": {"kind": "pipeline", "stages": 2, "micro_batch_rows": 2}},  # each of another length: measured first
    "often": {"placement": {"kind": "pipeline", "stages": 2, "micro_batch_rows": 4}, "checkpoint": {"every_steps": 5}},
}
ALONE = {"alone": {"placement": {"kind": "single", "micro_batch_rows": 4}}}  # with many devices: all of the queue at once


def specification(motley, kind, steps):
    folder = os.path.join(GOLDEN, "llama")
    with open(os.path.join(folder, "expected.json"), encoding="utf-8") as handle:
        expected = json.load(handle)
    rows = motley.write_rows("rows.jsonl", tokens_rows(expected["batches"]))
    held_out = motley.write_rows("held-out.jsonl", tokens_rows(expected["batches"])[:8])
    changes = {"train": {"steps": steps, "warmup_steps": 4}, "checkpoint": {"every_steps": 8}, "eval": {"every_steps": 20},
               "data": {"eval": held_out}}
    for key, value in {**KINDS, **ALONE}[kind].items():
        changes[key] = {**changes.get(key, {}), **value}
    return golden_spec(f"storm-{kind}", folder, rows, 0.005, expected, 8, **changes)


def made_new(spec, number):
    """Of a length that no job had before, so that the devices must be measured for it; the rows are shorter, the numbers the same."""
    return spec if spec["name"] != "storm-fresh" else {**spec, "data": {**spec["data"], "sequence_tokens": 50 + number % 200}}


class Api:
    """The HTTP interface as a client in another language would use it: connections come and go, answers may be lost."""

    def __init__(self, motley):
        with open(os.path.join(motley.home, "client.json"), encoding="utf-8") as handle:
            client = json.load(handle)
        self.address = urllib.parse.urlsplit(client["address"]).netloc
        self.token = client["token"]

    def call(self, method, path, body=None, key=None, timeout=5):
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        if key:
            headers["Idempotency-Key"] = key
        connection = http.client.HTTPConnection(self.address, timeout=timeout)
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read() or b"null")
        finally:
            connection.close()

    def get(self, path, seconds=30):
        """The document, asked for until the service answers."""
        deadline = time.monotonic() + seconds * SLOW
        while True:
            try:
                status, document = self.call("GET", path)
                if status == 200:
                    return document
                problem = f"{status} {document}"
                expect(status >= 500, f"GET {path}: {problem}")
            except UNANSWERED as error:
                problem = repr(error)
            expect(time.monotonic() < deadline, f"GET {path}: no answer in {seconds} s: {problem}")
            poll()

    def submit(self, spec, key, seconds=60):
        """The id of an acknowledged job: the same key again until there is an answer."""
        deadline = time.monotonic() + seconds * SLOW
        while True:
            try:
                status, document = self.call("POST", "/v1/jobs", spec, key)
                if status == 201:
                    return document["id"]
                problem = f"{status} {document}"
                expect(status >= 500 or status == 429, f"submit {key}: {problem}")
            except UNANSWERED as error:
                problem = repr(error)
            expect(time.monotonic() < deadline, f"submit {key}: not acknowledged in {seconds} s: {problem}")
            poll()

    def jobs(self):
        """All jobs, by id."""
        found, after = {}, ""
        while after is not None:
            page = self.get(f"/v1/jobs?limit=500{after}")
            found.update({job["id"]: job for job in page["jobs"]})
            after = None if page["next"] is None else f"&after={page['next']}"
        return found


# ---- what can go wrong ----

libc = ctypes.CDLL(None, use_errno=True)
PIDFD_GETFD = 438


def killed_once(motley, spec, name):
    """The ended job, of which a worker was killed after its first checkpoint. Its steps must take longer than a kill needs:
    a job that has ended first has one run."""
    job = motley.submit(spec, name="killed.json")
    motley.wait_steps(job["id"], 8)
    workers = pids(motley, "worker")
    expect(len(workers) >= 2, f"{name}: {len(workers)} workers")
    os.kill(workers[-1], signal.SIGKILL)
    job = motley.wait_state(job["id"], ("succeeded", "failed", "cancelled"))
    runs = Api(motley).get(f"/v1/jobs/{job['id']}/runs")["runs"]
    expect(len(runs) == 2, f"{name}: {len(runs)} runs, not one that was killed and one that resumed")
    return job


def sockets_of(pid):
    """(file descriptor, its other end) of the connected stream sockets of a process; borrowed, closed by the caller."""
    found = []
    try:
        handle = os.pidfd_open(pid)
        names = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return found
    for name in names:
        with contextlib.suppress(OSError):
            if not os.readlink(f"/proc/{pid}/fd/{name}").startswith("socket:"):
                continue
            copy = libc.syscall(PIDFD_GETFD, handle, int(name), 0)
            if copy < 0:
                continue
            end = socket.socket(fileno=copy)
            try:
                if end.type & socket.SOCK_STREAM:
                    peer = end.getpeername() or end.getsockname()
                    found.append((end, peer))
                    continue
            except OSError:
                pass
            end.close()
    os.close(handle)
    return found


def children_of(pid):
    with open(f"/proc/{pid}/task/{pid}/children", encoding="utf-8") as handle:
        return [int(child) for child in handle.read().split()]


class Storm:
    """Disturbs one Motley. Every choice comes from one seeded generator; what was done stands in `log`."""

    def __init__(self, motley, seed):
        self.motley = motley
        self.random = random.Random(seed)
        self.api_port = int(Api(motley).address.rsplit(":", 1)[1])
        self.frozen = []  # (when to thaw, pidfd)
        self.log = []
        self.began = time.monotonic()
        self.kinds = {
            "api": lambda: self.kill("api"),
            "leader": lambda: self.kill("scheduler", leader=True),
            "scheduler": lambda: self.kill("scheduler"),
            "agent": lambda: self.kill("agent"),
            "worker": lambda: self.kill("worker"),
            "node": self.node,
            "redis-wiped": self.redis_wiped,
            "redis-kept": self.redis_kept,
            "redis-flushed": self.redis_flushed,
            "redis-users": self.redis_users,
            "postgres-immediate": lambda: self.kill("postgres", number=signal.SIGQUIT),
            "postgres": lambda: self.kill("postgres"),
            "postgres-backend": self.postgres_backend,
            "supervisor": self.supervisor,
            "freeze-api": lambda: self.freeze("api"),
            "freeze-leader": lambda: self.freeze("scheduler", leader=True),
            "freeze-agent": lambda: self.freeze("agent"),
            "freeze-worker": lambda: self.freeze("worker"),
            "freeze-redis": lambda: self.freeze("redis"),
            "freeze-postgres": lambda: self.freeze("postgres"),
            "cut-redis": lambda: self.cut(("agent", "scheduler", "api"), lambda peer: "redis.sock" in str(peer)),
            "cut-postgres": lambda: self.cut(("scheduler", "api"), lambda peer: ".s.PGSQL" in str(peer)),
            "cut-worker": lambda: self.cut(("agent",), lambda peer: "worker.sock" in str(peer)),
            "cut-mesh": lambda: self.cut(("worker",), lambda peer: isinstance(peer, tuple) and peer[1] != self.api_port),
            "cut-api": lambda: self.cut(("worker", "agent"), lambda peer: isinstance(peer, tuple) and peer[1] == self.api_port),
        }

    # -- processes --

    def processes(self, role, leader=None):
        return [p for p in self.motley.processes() if p["role"] == role and (leader is None or p.get("leader") == leader)]

    def pick(self, role, leader=None):
        found = self.processes(role, leader)
        return self.random.choice(found) if found else None

    def kill(self, role, leader=None, number=signal.SIGKILL):
        victim = self.pick(role, leader)
        if not victim:
            return None
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim["pid"], number)
        return f"{victim['name']} {victim['pid']}"

    def node(self):
        """An agent and its workers at once: a machine that loses power and comes back."""
        agent = self.pick("agent")
        if not agent:
            return None
        workers = [p for p in self.processes("worker") if p["name"].startswith(agent["name"])]
        for victim in [agent, *workers]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim["pid"], signal.SIGKILL)
        return f"{agent['name']} and {len(workers)} workers"

    def supervisor(self):
        """Whoever restarts the rest dies; a person brings all of it up again."""
        done = self.kill("supervisor")
        self.thaw(everything=True)
        self.motley.up()
        return done

    def freeze(self, role, leader=None):
        victim = self.pick(role, leader)
        if not victim:
            return None
        seconds = self.random.uniform(0.5, 4)
        for pid in [victim["pid"], *(children_of(victim["pid"]) if role == "postgres" else [])]:
            with contextlib.suppress(ProcessLookupError):
                handle = os.pidfd_open(pid)
                self.frozen.append((time.monotonic() + seconds, handle))
                signal.pidfd_send_signal(handle, signal.SIGSTOP)
        return f"{victim['name']} for {seconds:.1f} s"

    def thaw(self, everything=False):
        now = time.monotonic()
        for until, handle in list(self.frozen):
            if everything or now >= until:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(handle, signal.SIGCONT)
                os.close(handle)
                self.frozen.remove((until, handle))

    # -- data --

    def redis(self, *words):
        """Tell Redis something as its administrator; False when it does not take it."""
        with open(os.path.join(self.motley.home, "run", "redis.password"), encoding="utf-8") as handle:
            password = handle.read().strip()
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
                link.settimeout(3)
                link.connect(os.path.join(self.motley.home, "run", "redis.sock"))
                for command in (("AUTH", "admin", password), words):
                    link.sendall(f"*{len(command)}\r\n".encode() + b"".join(f"${len(w)}\r\n{w}\r\n".encode() for w in command))
                    if not link.recv(4096).startswith((b"+OK", b":1")):
                        return False
            return True
        except OSError:
            return False

    def redis_wiped(self):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(self.motley.home, "redis", "dump.rdb"))
        return self.kill("redis")

    def redis_kept(self):
        return (self.kill("redis") or "") + " with its data" if self.redis("SAVE") else None

    def redis_flushed(self):
        return "emptied in place" if self.redis("FLUSHALL") else None

    def redis_users(self):
        """An agent's account is gone in place; a Redis that is killed has lost them all."""
        name = "agent-" + self.random.choice(self.processes("agent"))["name"]
        return f"{name} is unknown" if self.redis("ACL", "DELUSER", name) else None

    def postgres_backend(self):
        """One session's process: the server ends all the others and recovers."""
        for server in self.processes("postgres"):
            sessions = []
            for pid in children_of(server["pid"]):
                with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as handle:
                    if b"[local]" in handle.read():
                        sessions.append(pid)
            if sessions:
                victim = self.random.choice(sessions)
                os.kill(victim, signal.SIGKILL)
                return f"session {victim}"
        return None

    # -- links --

    def cut(self, roles, is_link):
        ends = []
        for role in roles:
            for process in self.processes(role):
                for end, peer in sockets_of(process["pid"]):
                    if is_link(peer):
                        ends.append((end, f"{process['name']} – {os.path.basename(peer) if isinstance(peer, str) else peer}"))
                    else:
                        end.close()
        if not ends:
            return None
        chosen = self.random.randrange(len(ends))
        with contextlib.suppress(OSError):
            ends[chosen][0].shutdown(socket.SHUT_RDWR)
        for end, _ in ends:
            end.close()
        return ends[chosen][1]

    # -- all of it --

    def blow(self, kills, pause_s, only=None):
        """`kills` disturbances, `pause_s` apart on average: every kind once in a random order, then again."""
        order = []
        while len(self.log) < kills:
            if not order:
                order = list(only or self.kinds)
                self.random.shuffle(order)
            kind = order.pop()
            until = time.monotonic() + self.random.uniform(0.1, 2 * pause_s - 0.1)
            done, patience = None, time.monotonic() + 3
            while done is None and time.monotonic() < patience:  # a link or a worker that is not there just now
                try:
                    done = self.kinds[kind]()
                except (Failed, OSError):
                    done = None
                if done is None:
                    self.thaw()
                    poll()
            if done is not None:
                self.log.append((time.monotonic() - self.began, kind, done))
                print(f"  {self.log[-1][0]:6.1f} s  {len(self.log):3d} {kind}: {done}", flush=True)
            while time.monotonic() < until:
                self.thaw()
                poll()
        while self.frozen:
            self.thaw()
            poll()


# ---- what was held ----

class Books:
    """When each assignment began and ended, noted by triggers of the test's own, to be compared with the ledger."""

    def __init__(self, motley):
        self.motley = motley
        motley.sql("""
            CREATE TABLE test_books (assignment bigint PRIMARY KEY, device text, begins timestamptz, ends timestamptz);
            CREATE FUNCTION test_note() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN
                IF TG_OP = 'INSERT' THEN
                    INSERT INTO test_books VALUES (NEW.id, NEW.device, now());
                ELSIF OLD.state IN ('sent', 'ready', 'running') AND NEW.state NOT IN ('sent', 'ready', 'running') THEN
                    UPDATE test_books SET ends = now() WHERE assignment = NEW.id;
                END IF;
                RETURN NULL;
            END $$;
            CREATE TRIGGER test_note AFTER INSERT OR UPDATE OF state ON assignments FOR EACH ROW EXECUTE FUNCTION test_note()""")

    def step_clock(self):
        """What runs now began while the clock was an hour ahead. Since then it was set back."""
        return "set back an hour, with " + self.motley.sql("""
            WITH u AS (UPDATE ledger SET begins = begins + interval '1 hour' WHERE ends IS NULL RETURNING assignment, begins),
                b AS (UPDATE test_books b SET begins = u.begins FROM u WHERE u.assignment = b.assignment),
                r AS (UPDATE runs SET created_at = created_at + interval '1 hour', started_at = started_at + interval '1 hour'
                      WHERE state IN ('starting', 'running', 'stopping'))
            SELECT count(*) FROM u""") + " intervals open"

    def check(self):
        """The number of intervals: all are closed, and the ledger has the same ones to the millisecond. A clock that stepped back
        ends none before its beginning."""
        wrong = self.motley.sql("""
            SELECT coalesce(l.assignment, b.assignment), b.begins, b.ends, l.begins, l.ends, l.closed FROM test_books b
            FULL JOIN (SELECT * FROM ledger WHERE assignment >= (SELECT min(assignment) FROM test_books)) l USING (assignment)
            WHERE b.assignment IS NULL OR l.assignment IS NULL OR b.device <> l.device OR b.ends IS NULL OR l.ends IS NULL
                OR l.closed IS NULL OR abs(extract(epoch FROM l.begins - b.begins)) > 0.001
                OR abs(extract(epoch FROM l.ends - greatest(b.begins, b.ends))) > 0.001 LIMIT 5""")
        expect(not wrong, f"the ledger is not what was held (assignment, noted begin and end, the ledger's, closed): {wrong}")
        return int(self.motley.sql("SELECT count(*) FROM test_books"))


# ---- jobs that come in meanwhile ----

class Submitter(threading.Thread):
    """Keeps `backlog` jobs unfinished until told to stop; each has its own key and is acknowledged before it counts."""

    def __init__(self, api, specs, backlog, seed):
        super().__init__(daemon=True)
        self.api, self.specs, self.backlog = api, specs, backlog
        self.random = random.Random(seed)
        self.keys = {}  # key: (id, kind)
        self.problem = None
        self.over = threading.Event()

    def run(self):
        try:
            while not self.over.is_set():
                try:
                    ended = {i for i, job in self.api.jobs().items() if job["state"] in ENDED}
                except Failed:
                    continue
                if sum(1 for ident, _ in self.keys.values() if ident not in ended) < self.backlog:
                    self.submit()
                self.over.wait(0.05)
        except BaseException as problem:  # told by whoever joins
            self.problem = problem

    def submit(self):
        kinds = list(self.specs)
        kind = kinds[len(self.keys) % len(kinds)]
        key = f"storm-{len(self.keys)}"
        spec = made_new(self.specs[kind], len(self.keys))
        ident = self.api.submit(spec, key)
        expect(ident not in {i for i, _ in self.keys.values()}, f"id {ident} was given twice")
        self.keys[key] = (ident, kind)
        if self.random.random() < 0.3:  # a client that lost the answer asks again
            expect(self.api.submit(spec, key) == ident, f"{key} made a second job")

    def stop(self):
        self.over.set()
        self.join()
        if self.problem:
            raise self.problem


def run_batch(api, specs, count, tag):
    """Submit `count` jobs at once and wait for them: (seconds, {kind: ids})."""
    began = time.monotonic()
    kinds = list(specs)
    idents = [(kinds[n % len(kinds)], api.submit(made_new(specs[kinds[n % len(kinds)]], 100 + n), f"{tag}-{n}")) for n in range(count)]
    deadline = began + 300 * SLOW
    while True:
        jobs = api.jobs()
        if all(jobs[ident]["state"] in ENDED for _, ident in idents):
            break
        expect(time.monotonic() < deadline, f"{tag}: not done in 300 s")
        poll()
    for _, ident in idents:
        expect(jobs[ident]["state"] == "succeeded", f"{tag}: job {ident} is {jobs[ident]['state']}: {jobs[ident].get('why')}")
    return time.monotonic() - began, idents


def is_due_and_waits(job, before):
    """Neither advanced since `before` (steps by id) nor queued behind devices that others use."""
    if job["state"] in ENDED or job["step"] > before.get(job["id"], -1):
        return False
    why = job.get("why") or ""
    behind = re.fullmatch(r"waits for .*", why) and not re.search(r"unreachable|measured|not there", why)
    return not (job["state"] == "queued" and behind)


def wait_for_calm(api, idents, patience_s):
    """After the storm: (seconds until everything that is due runs, seconds until all is done)."""
    began = time.monotonic()
    jobs = api.jobs()
    before = {i: jobs[i]["step"] for i in idents}
    late = {i for i in idents if is_due_and_waits(jobs[i], before)}
    due_s, said = 0.0, 0
    while True:
        now = time.monotonic() - began
        jobs = api.jobs()
        late = {i for i in late if is_due_and_waits(jobs[i], before)}
        due_s = now if late else due_s
        left = [jobs[i] for i in idents if jobs[i]["state"] not in ENDED]
        if not left:
            return due_s, now
        if now > said:
            said += 10
            for job in sorted(left, key=lambda j: j["id"])[:4]:
                print(f"  after {now:5.1f} s: job {job['id']} {job['state']} at step {job['step']}, {job.get('why')}", flush=True)
        expect(now < patience_s, f"{len(left)} jobs are not done {now:.0f} s after the storm: " +
               "; ".join(f"{j['id']} {j['state']} step {j['step']}: {j.get('why')}" for j in left[:5]))
        poll()


def outcome_of(api, ident, kind):
    """What a job that succeeded made, and with which plan: equal plans give equal bits."""
    job = api.get(f"/v1/jobs/{ident}")
    expect(job["state"] == "succeeded", f"job {ident} ({kind}): {job['state']}: {job.get('why')}")
    lines = api.get(f"/v1/jobs/{ident}/metrics?limit=10000")["lines"]
    runs = api.get(f"/v1/jobs/{ident}/runs")["runs"]
    done = [run for run in runs if run["state"] == "done"]
    expect(len(done) == 1, f"job {ident} ({kind}): {len(done)} of its runs came to their end")
    return {"attempts": len(runs), "plan": job["run"]["plan_answer"]["digest"],
            "steps": [(m["step"], m["loss"], m["grad_norm"]) for m in lines if "grad_norm" in m],
            "evals": [(m["step"], m["loss"]) for m in lines if "eval" in m],
            "artifacts": {a["name"]: a["sha256"] for a in api.get(f"/v1/jobs/{ident}/artifacts")["artifacts"]}}


def check_job(api, ident, kind, reference):
    """Every step once, and the numbers of the undisturbed run: the same bits when the plan was the same. Returns its attempts."""
    outcome = outcome_of(api, ident, kind)
    same_plan = outcome["plan"] == reference["plan"]
    for key in ("steps", "evals"):
        ours, theirs = outcome[key], reference[key]
        expect([line[0] for line in ours] == [line[0] for line in theirs],
               f"job {ident} ({kind}): {key} {[line[0] for line in ours]}, undisturbed {[line[0] for line in theirs]}")
        worst = max((abs(a - b) / abs(b) for line, other in zip(ours, theirs) for a, b in zip(line[1:], other[1:])), default=0)
        expect(worst <= (0 if same_plan else LOSS),
               f"job {ident} ({kind}): {key} off by {worst:.1e} from the undisturbed run's, {'the same' if same_plan else 'another'} plan")
    names = set(reference["artifacts"])
    expect(set(outcome["artifacts"]) == names, f"job {ident} ({kind}): artifacts {sorted(outcome['artifacts'])}")
    if same_plan:
        differ = [name for name in names if name.startswith("adapter/") and outcome["artifacts"][name] != reference["artifacts"][name]]
        expect(not differ, f"job {ident} ({kind}): {differ} are not the undisturbed run's")
    return outcome["attempts"]


def references(motley, api, kinds, steps):
    """Every kind once, undisturbed: {kind: specification as the service gives it back}, {kind: outcome}."""
    idents = {kind: motley.submit(specification(motley, kind, steps))["id"] for kind in kinds}
    for kind, ident in idents.items():
        job = motley.wait_state(ident, ENDED, timeout=240)
        expect(job["state"] == "succeeded", f"{kind}: {job['state']}: {job.get('why')}")
    return ({kind: api.get(f"/v1/jobs/{ident}")["spec"] for kind, ident in idents.items()},
            {kind: outcome_of(api, ident, kind) for kind, ident in idents.items()})


def storm(kills=200, seed=1, backlog=10, pause_s=2.0, steps=40, only=None, devices=1, ratio_max=RATIO_MAX):
    """One storm; the sentence that describes it. Failed says what was lost."""
    print(f"storm: {kills} disturbances, seed {seed}, {backlog} jobs of {steps} steps at a time", flush=True)
    config = with_workers_in_view(two_unlike(schedulers=2))
    for agent in config["agents"]:
        agent["devices"] *= devices
    with Motley(config) as motley:
        api = Api(motley)
        specs, reference = references(motley, api, KINDS if devices == 1 else ALONE, steps)

        def undisturbed(tag):
            seconds, idents = run_batch(api, specs, backlog, tag)
            for kind, ident in idents:
                check_job(api, ident, kind, reference[kind])
            print(f"  undisturbed: {backlog} jobs in {seconds:.1f} s", flush=True)
            return seconds

        undisturbed_s = undisturbed("before")
        before = set(api.jobs())
        weather, books = Storm(motley, seed), Books(motley)
        weather.kinds["clock"] = books.step_clock
        submitter = Submitter(api, specs, backlog, seed)
        submitter.start()
        weather.blow(kills, pause_s, only)
        storm_s = time.monotonic() - weather.began
        submitter.stop()
        made = {ident: kind for ident, kind in submitter.keys.values()}
        due_s, rest_s = wait_for_calm(api, list(made), max(120, 10 * undisturbed_s) * SLOW)

        there = set(api.jobs())
        expect(not before & set(made), f"ids used again: {before & set(made)}")
        expect(there - before == set(made), f"jobs that nobody was told of, or acknowledged ones that are gone: {(there - before) ^ set(made)}")
        attempts = [check_job(api, ident, kind, reference[kind]) for ident, kind in made.items()]
        left = [p for p in motley.processes() if p["role"] == "worker"]
        expect(not left, f"workers left over: {left}")
        intervals = books.check()
        if rest_s > ratio_max * undisturbed_s:  # the machine may have become slower meanwhile
            undisturbed_s = max(undisturbed_s, undisturbed("after"))
        text = (f"seed {seed}: {len(weather.log)} disturbances in {storm_s:.0f} s, {len(made)} jobs in {sum(attempts)} attempts, "
                f"whose {intervals} intervals are in the ledger; then all due "
                f"ran within {due_s:.1f} s, all was done in {rest_s:.1f} s, undisturbed {undisturbed_s:.1f} s: {rest_s / undisturbed_s:.2f}")
        expect(due_s <= DUE_S * SLOW, f"what was due did not run within {DUE_S} s of the storm's end; {text}")
        expect(rest_s <= ratio_max * undisturbed_s, f"the work took more than {ratio_max} times its undisturbed time; {text}")
        return text


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--backlog", type=int, default=10)
    parser.add_argument("--pause", type=float, default=2.0, help="seconds between disturbances, on average")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--devices", type=int, default=1, help="an agent; of more than one, every job takes one for itself")
    parser.add_argument("--only", default=None, help="these kinds of disturbance alone, with commas")
    return parser.parse_args()


if __name__ == "__main__":
    given = options()
    try:
        print(storm(given.kills, given.seed, given.backlog, given.pause, given.steps, given.only and given.only.split(","),
                    given.devices))
    except Failed as failure:
        print(f"FAILED  {failure}")
        sys.exit(1)
