"""Nodes whose agents speak the real protocol (docs/CONTRACTS.md) and run no worker: a script says how each assignment goes."""
import asyncio
import os
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "system"))
from rogue import pack, seal  # noqa: E402
from wire import Closed, Http, Redis, RedisError, unpack  # noqa: E402

CHECKPOINT = b"a checkpoint of the strangers"
PLANTED = bool(os.environ.get("STRANGERS_PLANTED"))  # a fault of this machine's own: no run ends on a node whose health was told, so that one can see it found and shrunk
ACTED_MAX = 20000


def loss(step):
    """The loss depends on the step alone, so that every attempt reports the same one."""
    return 5.0 / (step + 1)


def profile(device, speed, how):
    """Tables of a device that is so fast. They are doubtful where `how` says it: times then fall where they must rise."""
    points = []
    for rows, tokens in ((1, 32), (1, 128), (2, 512), (2, 2048)):
        square = tokens * tokens / rows
        seconds = (2e-5 + 8e-5 * tokens + 2e-8 * square) / speed
        if how == "doubtful" and tokens > 100:
            seconds /= tokens
        for block, share in (("embedding", 0.001), ("layer", 1), ("head", 3), ("attention", 0.4), ("ffn", 0.6)):
            points.append({"block": block, "rows": rows, "tokens": tokens, "labelled": tokens // 2, "sum_sq": square,
                           "forward_s": seconds * share, "backward_s": 1.2 * seconds * share, "recompute_s": seconds * share,
                           "saved_bytes": 1000 * tokens, "boundary_bytes": 256 * tokens, "workspace_bytes": 100000})
    if how == "nonsense":
        points[0]["forward_s"] = -1
    return {"device": device, "isa": "avx2", "threads": 1, "shape": "s", "method": "lora", "base": "fp32", "compute": "fp32",
            "base_process_bytes": 1 << 20, "points": points, "weights_bytes": {"embedding": 65536, "layer": 200000, "head": 65536},
            "adapter_bytes": {"layer": 50000}, "optimizer_bytes": {"layer": 100000}, "step_s": {"layer": 1e-5},
            "waited_share": 0.5 if how == "busy" else 0.0, "spread": 0.6 if how == "doubtful" else 0.01}


class Worker:
    def __init__(self, message):
        self.run, self.epoch, self.rank, self.device = message["run"], message["epoch"], message["rank"], message["device"]
        self.message = message
        self.seq = 0
        self.journal = []  # events that are not yet acknowledged, as bytes with their numbers
        self.over = False
        self.step = message["start"]["step"]
        self.peers = asyncio.Event()
        self.saves = False
        self.how = "done"
        self.task = None


class Node:
    def __init__(self, machine, name, devices):
        self.machine, self.service, self.name, self.devices = machine, machine.service, name, devices
        self.away = set()      # devices that the agent does not name
        self.measures = {}     # device: how it answers when it is to be measured
        self.health = {}
        self.workers = {}      # (run, epoch, rank)
        self.clock_s = 0.0     # how far its clock is off
        self.is_there = self.silent = False
        self.lost_percent = 0
        self.token = self.key = self.user = None  # token: None once the node was removed
        self.joins = False
        self.tasks = []
        self.commands = None
        self.acted = {}
        self.after = "0"
        self.boots = 0
        self.reset_boot()

    def reset_boot(self):
        self.boots += 1
        self.boot = f"{time.time_ns():020d}-{self.boots:04d}"
        self.beat = self.node_seq = 0
        self.node_journal = []

    # ---- coming and going ----

    async def enrol(self):
        http = Http(self.service)
        made = await http.call("POST", "/v1/join-tokens", {"node": self.name, "replace": True}, self.service.token)
        csr = await self.service.threaded(lambda: subprocess.run(
            ["openssl", "req", "-new", "-key", self.service.path("node.key"), "-subj", f"/CN=agent:{self.name}"],
            capture_output=True, text=True, timeout=30, check=True).stdout)
        answer = await http.call("POST", "/v1/enroll", {"token": made.json["token"], "node": self.name, "csr": csr, "address": "127.0.0.1"})
        if answer.status != 201:
            raise Closed(f"enroll {self.name}: {answer.status} {answer.body[:300]}")
        self.token, self.key, self.user = answer.json["token"], bytes.fromhex(answer.json["seal"]), answer.json["redis"]
        await http.call("PUT", f"/v1/blobs/{self.machine.checkpoint_sha}", CHECKPOINT, self.token)
        http.close()

    def come(self):
        if not self.is_there:
            self.is_there = True
            self.silent = False
            self.reset_boot()
            self.tasks = [asyncio.ensure_future(self.listen()), asyncio.ensure_future(self.talk())]

    def go(self, forgets=True):
        """The agent is gone; with `forgets` its machine is, and its workers with it."""
        self.is_there = False
        self.boots += 1
        for task in self.tasks:
            task.cancel()
        self.tasks = []
        if self.commands:
            self.commands.close()
        self.commands = None
        if forgets:
            for worker in self.workers.values():
                self.end(worker)
            self.workers = {}

    @staticmethod
    def end(worker):
        worker.over = True
        if worker.task and worker.task is not asyncio.current_task():
            worker.task.cancel()

    async def connect(self, life):
        while life == self.boots:
            redis = Redis(self.service.path("redis.sock"))
            try:
                await redis.open(self.user["user"], self.user["password"])
                return redis
            except (OSError, Closed, RedisError, asyncio.TimeoutError):
                redis.close()
                await asyncio.sleep(0.1)
            except asyncio.CancelledError:
                redis.close()
                raise
        raise asyncio.CancelledError

    async def listen(self):
        redis, life = None, self.boots  # a cancellation is lost when the answer comes in the same moment
        try:
            while life == self.boots:
                redis = redis or await self.connect(life)
                try:
                    answer = await redis.say("XREAD", "COUNT", "100", "BLOCK", "2000", "STREAMS", f"motley:agent:{self.name}", self.after)
                except (OSError, Closed, RedisError, asyncio.TimeoutError):
                    redis.close()
                    redis = None
                    continue
                for ident, words in answer[0][1] if answer else []:
                    self.after = ident.decode()
                    entry = dict(zip(words[::2], words[1::2]))
                    if entry.get(b"a") == seal(self.key, "messages", self.name, entry[b"m"]):
                        self.take(unpack(entry[b"m"]))
        finally:
            if redis:
                redis.close()

    async def talk(self):
        life = self.boots
        redis = self.commands = await self.connect(life)
        self.hello()
        try:
            while life == self.boots:
                if not redis.writer:
                    redis = self.commands = await self.connect(life)
                    self.hello()
                self.passing("heartbeat", {"boot": self.boot})
                self.again(self.node_journal)
                for worker in list(self.workers.values()):
                    self.again(worker.journal)
                    if worker.over and not worker.journal:
                        del self.workers[worker.run, worker.epoch, worker.rank]
                await asyncio.sleep(0.4)
        finally:
            redis.close()

    # ---- what it says ----

    def put(self, body):
        if self.silent or not self.commands or not self.commands.writer:
            return
        if self.lost_percent and self.machine.random.randrange(100) < self.lost_percent:
            return
        self.commands.send("XADD", f"motley:events:{self.name}", "*", "m", body, "a", seal(self.key, "events", self.name, body))

    def envelope(self, kind, fields):
        return {**fields, "type": kind, "node": self.name, "at": int((time.time() + self.clock_s) * 1e6)}

    def passing(self, kind, fields):
        self.beat += 1
        self.put(pack({**self.envelope(kind, fields), "seq": 0, "beat": self.beat}))

    def hello(self):
        living = [{"run": w.run, "epoch": w.epoch, "rank": w.rank, "device": w.device} for w in self.workers.values()
                  if not w.over or w.journal]
        self.passing("node_hello", {"boot": self.boot, "machine_id": f"m-{self.name}", "address": "127.0.0.1:7000",
                                    "devices": [{k: v for k, v in d.items() if k != "speed"} for d in self.devices if d["name"] not in self.away],
                                    "workers": living})
        if self.health:
            self.passing("health", {"boot": self.boot, "devices": self.health})

    def say(self, worker, kind, fields=None):
        if worker.over and kind not in ("stopped", "failed", "done", "checkpoint"):
            return
        worker.seq += 1
        body = pack({**self.envelope(kind, fields or {}), "run": worker.run, "epoch": worker.epoch, "rank": worker.rank, "seq": worker.seq})
        worker.journal.append([worker.seq, body, time.monotonic()])
        self.put(body)

    def say_of_node(self, kind, fields):
        self.node_seq += 1
        body = pack({**self.envelope(kind, fields), "boot": self.boot, "seq": self.node_seq})
        self.node_journal.append([self.node_seq, body, time.monotonic()])
        self.put(body)

    def again(self, journal):
        now = time.monotonic()
        if journal and now - journal[0][2] > 1:
            for entry in journal[:200]:
                entry[2] = now
                self.put(entry[1])

    # ---- what it is told ----

    def take(self, message):
        ident = message.get("id")
        if ident is not None:
            self.passing("received", {"message": ident})
            if ident in self.acted:
                return
            self.acted[ident] = None
            if len(self.acted) > ACTED_MAX:
                del self.acted[next(iter(self.acted))]
        kind = message["type"]
        self.machine.told[kind] = self.machine.told.get(kind, 0) + 1
        handler = getattr(self, "on_" + kind, None)
        if handler:
            handler(message)

    def on_hello(self, _):
        self.hello()

    def on_ack(self, message):
        if message.get("run") is None:
            if message.get("boot") == self.boot:
                self.node_journal = [e for e in self.node_journal if e[0] > message["seq"]]
            return
        worker = self.workers.get((message["run"], message["epoch"], message["rank"]))
        if worker:
            worker.journal = [e for e in worker.journal if e[0] > message["seq"]]

    def on_profile(self, message):
        asyncio.ensure_future(self.measure(message))

    async def measure(self, message):
        how = "good" if self.machine.calm else self.measures.get(message["device"], "good")
        await asyncio.sleep(0.02)
        if how == "never":
            return
        if how == "fails":
            self.say_of_node("failed", {"request": message["request"], "code": "no-memory", "text": "no memory for it", "own_fault": False})
            return
        speed = next((d["speed"] for d in self.devices if d["name"] == message["device"]), 1)
        self.say_of_node("profile", {"request": message["request"], "document": profile(message["device"], speed, how)})

    def on_links(self, message):
        for to in message["to"]:
            self.say_of_node("link", {"request": message["request"], "document": {"from": self.name, "to": to["node"], "latency_s": 1e-4,
                                                                                  "bytes_per_s": 1e9}})

    def on_peers(self, message):
        for worker in self.of_run(message):
            worker.peers.set()

    def on_save(self, message):
        for worker in self.of_run(message):
            worker.saves = True

    def of_run(self, message):
        return [w for w in list(self.workers.values()) if (w.run, w.epoch) == (message["run"], message["epoch"]) and not w.over]

    def on_stop(self, message):
        for worker in self.of_run(message):
            if worker.how == "deaf" and not message.get("kill"):
                continue
            if message.get("checkpoint") and worker.step > worker.message["start"]["step"]:
                self.checkpoint(worker)
            self.end(worker)
            if message.get("kill"):
                self.say(worker, "failed", {"code": "cancelled", "text": "killed as told", "own_fault": False})
            else:
                self.say(worker, "stopped", {"step": worker.step, "checkpoint": bool(message.get("checkpoint"))})

    def on_assign(self, message):
        for worker in list(self.workers.values()):
            if worker.device == message["device"] and not worker.over and worker.epoch < message["epoch"]:
                self.end(worker)
                self.say(worker, "failed", {"code": "cancelled", "text": "a newer assignment came", "own_fault": False})
        worker = Worker(message)
        worker.how = self.machine.how_of(message)
        self.workers[worker.run, worker.epoch, worker.rank] = worker
        worker.task = asyncio.ensure_future(self.work(worker))

    # ---- a worker's life, without a worker ----

    def checkpoint(self, worker):
        if worker.rank == 0:
            self.say(worker, "checkpoint", {"step": worker.step, "best": worker.step % 5 == 0,
                                            "blobs": {"adapter_model.safetensors": self.machine.checkpoint_sha}})

    def fail(self, worker, code, text, own=False):
        self.machine.run_of(worker)["failed"] = True
        self.end(worker)
        self.say(worker, "failed", {"code": code, "text": text, "own_fault": own})

    async def work(self, worker):
        how, message = worker.how, worker.message
        if how == "no-memory":
            return self.fail(worker, "no-memory", "the system has no memory for it")
        if how == "stillborn":
            return None  # neither ready nor gone: the scheduler gives the start up
        await asyncio.sleep(0.01)
        self.say(worker, "worker_ready", {"address": "127.0.0.1:9000" if len(message["ranks"]) > 1 else "none", "identity": f"agent:{self.name}:1"})
        if len(message["ranks"]) > 1:
            await worker.peers.wait()
        self.say(worker, "started", {"step": worker.step})
        steps = message["spec"]["train"].get("steps") or worker.step + 3
        every = (message["spec"].get("checkpoint") or {}).get("every_steps") or 0
        middle = (worker.step + steps) // 2
        while worker.step < steps:
            while self.machine.still:
                await asyncio.sleep(0.05)
            if worker.step == middle and await self.stumble(worker, how):
                return None
            if self.machine.run_of(worker)["failed"]:
                await asyncio.sleep(3600)  # it waits for its peer, until it is stopped
            if worker.rank == len(message["ranks"]) - 1:
                self.say(worker, "step", {"step": worker.step, "loss": loss(worker.step), "rows": 2, "tokens": 8, "labelled_tokens": 6,
                                          "seconds": 0.01, "grad_norm": 1.0, "learning_rate": 0.001})
            self.say(worker, "ranks", {"step": worker.step, "compute_s": 0.01, "wait_s": 0.0, "send_s": 0.0, "wall_s": 0.01})
            worker.step += 1
            if worker.saves or every and worker.step % every == 0:
                worker.saves = False
                self.checkpoint(worker)
            await asyncio.sleep(0.4 if how == "slow" and not self.machine.calm else 0.005)
        if PLANTED and self.health:
            await asyncio.sleep(3600)
        await self.arrive(worker)
        if not every or worker.step % every:
            self.checkpoint(worker)
        self.end(worker)
        self.say(worker, "done", {"step": worker.step, **({"artifacts": {"adapter/adapter_model.safetensors": {
            "sha256": self.machine.checkpoint_sha, "size": len(CHECKPOINT)}}} if worker.rank == 0 else {})})
        return None

    async def arrive(self, worker):
        """A rank is done when all are; one that failed keeps the others waiting until they are stopped."""
        run = self.machine.run_of(worker)
        run["arrived"].add(worker.rank)
        while len(run["arrived"]) < len(worker.message["ranks"]) or run["failed"]:
            await asyncio.sleep(0.02)

    async def stumble(self, worker, how):
        """What the script has for the middle of the run; true when the worker has ended."""
        if how == "own":
            self.fail(worker, "not-finite", f"step {worker.step}: loss is NaN", own=True)
        elif how == "crash":
            self.fail(worker, "peer", "killed by signal 9")
        elif how in ("device-lost", "device-fault"):
            self.fail(worker, how, "the card fell off the bus")
        elif how == "hang":
            for _ in range(40):
                await asyncio.sleep(0.1)
                if self.machine.calm:
                    break
            self.fail(worker, "timeout", "rank 0 did not answer for 4 s")
        elif how == "lies":
            self.lie(worker)
            return False
        else:
            return False
        return True

    def lie(self, worker):
        """Nonsense within its own node: other ranks, epochs and numbers, garbage, steps that were never taken."""
        mine = {"run": worker.run, "epoch": worker.epoch, "rank": worker.rank}
        for kind, fields in (("step", {**mine, "seq": worker.seq + 7, "step": 3, "loss": 1.0}), ("done", {**mine, "epoch": worker.epoch - 1, "seq": 1}),
                             ("done", {**mine, "rank": 77, "seq": 1}), ("done", {**mine, "run": worker.run + 1000, "seq": 1}),
                             ("worker_ready", {**mine, "seq": 0}), ("no-such", {**mine, "seq": 1}), ("heartbeat", {"boot": 7, "seq": 0}),
                             ("profile", {"boot": self.boot, "seq": self.node_seq + 5, "request": 1, "document": {}}),
                             ("received", {"seq": 0, "message": 10 ** 12, "boot": self.boot})):
            self.put(pack(self.envelope(kind, fields)))
        self.put(b"\xc1")
        for kind, fields in (("step", {"step": -5, "loss": 1.0}), ("step", {"step": 1 << 41, "loss": 1.0}), ("checkpoint", {"step": 1, "blobs": {"a": "b"}}),
                             ("log", {"level": "warn", "text": "nul \0 and \u2028"}), ("ranks", {"step": 0, "compute_s": 1e300}),
                             ("step", {"step": worker.step, "loss": None}), ("memory", {"peak": 7}), ("trace", {"step": 0})):
            self.say(worker, kind, fields)
