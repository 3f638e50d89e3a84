"""Runs the operations of a seed in a lab of its own inside a running service, lets everything come to rest after each
round, and asks the invariants. One event loop runs people, agents and faults."""
import asyncio
import datetime
import gzip
import hashlib
import json
import random
import re
import time

from agents import CHECKPOINT, Node
from followers import Follower
from invariants import Invariants
from operations import ADMIN, DEVICES, GROUPS, NODES, NONSENSE, USERS
from service import LLAMA, SLOW, Failed
from wire import Closed, Http, RedisError

IN_FLIGHT = 24
REST_S = 10 * SLOW  # what has not moved for so long, with nothing to wait for, never will
ROWS = b"".join(b'{"ids": [1, 2, 3, %d], "labels": [-100, 2, 3, 4]}\n' % (4 + n) for n in range(4))
MODEL_OF_EVERYONE = "strangers"
SCOPES = ["jobs:read", "jobs:write", "nodes:read", "models:read", "models:write", "leases:write"]
NAMED = re.compile(r"@(\w+):(-?\d+)@")


class Finding(Exception):
    pass


class Machine:
    def __init__(self, service, seed, lab, ignored=()):
        self.service, self.seed, self.lab, self.ignored = service, seed, lab, ignored
        self.random = random.Random(f"agents {seed}")
        self.findings = []       # [{"what", "text", "n"}]
        self.tokens = {}         # user's number (ADMIN: the administrator): token
        self.lines = {}          # user's number: the future of the operation that the user asked last
        self.connections = {}
        self.made = {}           # number of an operation: future of the id that it made
        self.hows = {}           # number of a submit: how its attempts go
        self.runs = {}
        self.told = {}
        self.counts = {}         # what was answered: {status: how often}
        self.calm = self.still = False  # agents are honest and quick; workers take no step
        self.poisoned = []       # [(trigger's name, table, job or None)]
        self.trouble_until = 0.0
        self.tasks = set()
        self.streams = []
        self.followers = []
        self.seen = set()        # (user, job) of streams that told something of that job
        self.shared = set()      # jobs whose visibility somebody changed
        self.done = 0
        self.spent = {}          # what was done: seconds of it
        self.ranges = {"told": 0, "held": 0}  # predicted starts of jobs that have started
        self.checkpoint_sha = hashlib.sha256(CHECKPOINT).hexdigest()
        self.rows_sha = hashlib.sha256(ROWS).hexdigest()
        self.nodes = [Node(self, f"{lab}-n{n}", []) for n in range(NODES)]
        for number, (node, kind, like, megabytes, speed) in enumerate(DEVICES):
            self.nodes[node].devices.append({"name": self.device_name(number), "kind": kind, "threads": 1, "isa": "avx2", "speed": speed,
                                             "memory_limit_bytes": megabytes << 20, **({"like": like} if like else {})})
        self.invariants = Invariants(self)

    def device_name(self, number):
        return f"{self.lab}-n{DEVICES[number][0]}/{DEVICES[number][1]}{number}"

    def user_name(self, number):
        return f"{self.lab}-u{number}"

    def group_name(self, number):
        return f"{self.lab}-g{number}"

    def found(self, what, text, number=None):
        """A finding: `what` is its kind, by which findings are counted."""
        if len(self.findings) < 200 and not any(words in what for words in self.ignored):
            self.findings.append({"what": what, "text": str(text)[:1500], "n": number})

    # ---- what agents ask ----

    def how_of(self, message):
        if self.calm:
            return "done"
        number = (message["spec"].get("labels") or {}).get("n", "")
        hows = self.hows.get(int(number) if number.isdigit() else -1) or []
        return hows[message["attempt"] - 1] if message["attempt"] <= len(hows) else "done"

    def run_of(self, worker):
        return self.runs.setdefault((worker.run, worker.epoch), {"failed": False, "arrived": set()})

    # ---- the lab ----

    async def ask(self, by, method, path, body=None, headers=None, seconds=30 * SLOW):
        http = self.connections.get(by) or self.connections.setdefault(by, Http(self.service))
        return await http.call(method, path, body, self.tokens.get(by), headers, seconds)

    async def must(self, method, path, body=None):
        answer = await self.ask(ADMIN, method, path, body)
        if answer.status >= 300:
            raise Failed(f"{method} {path}: {answer.status} {answer.body[:300]}")
        return answer.json

    async def build(self):
        self.tokens[ADMIN] = self.service.token
        for row in await self.service.rows("SELECT coalesce(max(id), 0) AS id FROM jobs"):
            self.first_job = row["id"]
        draw = random.Random(f"lab {self.seed}")
        for number in range(USERS):
            self.tokens[number] = (await self.must("POST", "/v1/tokens", {"user": self.user_name(number), "scopes": SCOPES}))["token"]
        for number in range(GROUPS):
            members = sorted({self.user_name(draw.randrange(USERS)) for _ in range(6)})
            await self.must("POST", "/v1/groups", {"name": self.group_name(number), "members": members})
        for number in range(GROUPS):
            await self.must("PATCH", f"/v1/groups/{self.group_name(number)}",
                            {"parent": self.group_name(draw.randrange(2)) if number > 1 else None, "weight": draw.choice([1, 2, 5]),
                             "devices_max": draw.choice([0, 0, 2, 6]), "running_max": draw.choice([0, 0, 0, 4])})
        for number in range(USERS):
            await self.must("PATCH", f"/v1/users/{self.user_name(number)}",
                            {"account": self.group_name(number % GROUPS), "devices_max": draw.choice([0, 0, 0, 1, 3]), "running_max": draw.choice([0, 0, 0, 2]),
                             "queued_max": draw.choice([0, 0, 30])})
        for number in range(USERS):
            await self.ask(number, "PUT", f"/v1/blobs/{self.rows_sha}", ROWS)
        for node in self.nodes:
            await node.enrol()
            node.come()
        await self.until(self.all_alive, "all nodes alive", 10 * SLOW)
        self.followers = [Follower(self, by) for by in (ADMIN, *draw.sample(range(USERS), 2))]

    async def all_alive(self):
        rows = await self.service.rows(f"SELECT count(*) AS n FROM nodes n WHERE name LIKE '{self.lab}-%' AND state = 'alive' "
                                       "AND EXISTS (SELECT 1 FROM devices d WHERE d.node = n.name)")
        return rows[0]["n"] == len([node for node in self.nodes if node.is_there])

    @staticmethod
    async def until(question, what, seconds):
        deadline = time.monotonic() + seconds
        while not await question():
            if time.monotonic() > deadline:
                raise Failed(f"{what} within {seconds} s")
            await asyncio.sleep(0.1)

    async def leave(self):
        """Takes the lab out of the service, so that the next one finds it empty."""
        try:
            await self.lift()
            for name, table, _ in self.poisoned:
                await self.service.sql.query(f"DROP TRIGGER {name} ON {table}")
            for row in await self.service.rows(f"SELECT id FROM jobs WHERE id > {self.first_job} AND state NOT IN ('succeeded', 'failed', 'cancelled')"):
                await self.ask(ADMIN, "POST", f"/v1/jobs/{row['id']}/cancel", {})
            for node in self.nodes:
                node.go()
                await self.ask(ADMIN, "DELETE", f"/v1/nodes/{node.name}")
        finally:
            for stream in [*self.streams, *(follower.task for follower in self.followers)]:
                stream.cancel()
            for node in self.nodes:
                node.go()
            for http in self.connections.values():
                http.close()

    # ---- operations ----

    async def name(self, kind, number):
        number = int(number)
        if kind in self.invariants.MADE:
            future = self.made.get(number)
            made = await asyncio.shield(future) if future else None
            return made if made is not None else 999999999 if kind != "token" else 0
        if kind == "in":
            return (datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=number)).strftime("%Y-%m-%dT%H:%M:%SZ")
        if kind == "data":
            return "sha256:" + self.rows_sha
        if kind == "node":
            return f"{self.lab}-n{number}"
        if kind in ("rows", "golden"):
            return self.rows_sha if kind == "rows" else LLAMA
        return {"device": self.device_name, "user": self.user_name, "group": self.group_name}[kind](number)

    async def named(self, value, in_path=False):
        """The value with the names of this lab in the place of `@KIND:NUMBER@`."""
        if isinstance(value, dict):
            return {key: await self.named(item) for key, item in value.items()}
        if isinstance(value, list):
            items = [await self.named(item) for item in value]
            return [item for at, item in enumerate(items) if isinstance(item, (dict, list)) or item not in items[:at]]
        if not isinstance(value, str) or "@" not in value:
            return value
        whole = NAMED.fullmatch(value)
        if whole:
            return await self.name(*whole.groups())
        out, at = "", 0
        for match in NAMED.finditer(value):
            name = str(await self.name(*match.groups()))
            out += value[at:match.start()] + (name.replace("/", "%2F") if in_path else name)
            at = match.end()
        return out + value[at:]

    async def run(self, operations):
        """Runs operations: those of one person in their order, those of different people beside each other."""
        room = asyncio.Semaphore(IN_FLIGHT)
        for operation in operations:
            self.done += 1
            if "how" in operation:
                self.hows[operation["n"]] = operation["how"]
            if operation.get("makes"):
                self.made[operation["n"]] = asyncio.get_running_loop().create_future()
            if "wait" in operation:
                await asyncio.sleep(operation["wait"])
            elif "do" in operation:
                self.machine_does(operation)
            elif "fault" in operation:
                await self.fault(operation)
            else:
                await room.acquire()
                before = self.lines.get(operation["by"])
                task = asyncio.ensure_future(self.request(operation, before, room))
                self.lines[operation["by"]] = task
                self.tasks.add(task)
                task.add_done_callback(self.tasks.discard)
        if self.tasks:
            await asyncio.wait(self.tasks)

    async def request(self, operation, before, room):
        made = None
        try:
            if before:
                await asyncio.wait([before])
            if "stream" in operation:
                await self.follow(operation)
            else:
                made = await self.one_request(operation)
        except Exception as problem:  # a mistake of this machine must not be taken for silence
            self.found("machine", f"{type(problem).__name__}: {problem}", operation["n"])
        finally:
            room.release()
            future = self.made.get(operation["n"])
            if future and not future.done():
                future.set_result(made)

    async def one_request(self, operation):
        path, body = await self.named(operation["path"], True), await self.named(operation.get("body"))
        headers = {"Idempotency-Key": operation["key"]} if "key" in operation else {}
        began = time.monotonic()
        try:
            if "body" in operation and (body is None or "coding" in operation):
                body = json.dumps(body).encode()
                headers["Content-Type"] = "application/json"
            if "raw" in operation:
                body = operation["raw"].encode()
            if "copies" in operation and isinstance(body, dict):
                body = await self.measured(body, operation["copies"])
            if "coding" in operation:
                headers["Content-Encoding"] = operation["coding"]
                body = gzip.compress(body) if "gzip" in operation["coding"] else body
            if "match" in operation:
                headers.update(await self.precondition(operation, path))
            answer = await self.ask(operation["by"], operation["method"], path, body, headers)
        except (Closed, asyncio.TimeoutError) as problem:
            if not self.in_trouble(began):
                self.found("no-answer", f"{operation['method']} {path}: {type(problem).__name__} {problem} after {time.monotonic() - began:.1f} s", operation["n"])
            return None
        self.invariants.answered(operation, path, body, answer, began, headers)
        if answer.status == 200 and operation["method"] == "DELETE" and path.startswith("/v1/nodes/"):
            node = next((each for each in self.nodes if each.name == path.split("/")[3]), None)
            if node:
                node.go()
                node.token = None
        if answer.status == 200 and path.endswith("/share"):
            self.shared.add(int(path.split("/")[3]))
        if operation.get("makes") and answer.status in (200, 201):
            return answer.json.get("id")
        return None

    async def precondition(self, operation, path):
        """A header that asks for the version that was just read, or for one that never was."""
        name = "If-None-Match" if operation["method"] == "GET" else "If-Match"
        if operation["match"] == "never":
            return {"If-Match": '"never"', "Accept-Encoding": "gzip"}
        before = await self.ask(operation["by"], "GET", path, None, {"Accept-Encoding": "gzip"})
        return {name: before.headers["etag"]} if "etag" in before.headers else {}

    async def measured(self, body, spoiled):
        """What was measured here, as `motley profile export` writes it; one of its numbers is wrong if `spoiled` says which."""
        http = Http(self.service)  # the administrator's own connection may be in use
        for key, path in (("devices", "/v1/devices"), ("profiles", "/v1/profiles?limit=20")):
            answer = await http.call("GET", path, None, self.service.token)
            body = {**body, key: answer.json[key] if answer.status == 200 else []}
        http.close()
        numbers = [(where, key) for profile in body["profiles"] for where in [profile, *profile.get("points", [])] for key, value in where.items() if isinstance(value, (int, float))]
        if spoiled is not None and numbers:
            where, key = numbers[spoiled % len(numbers)]
            where[key] = NONSENSE[spoiled % len(NONSENSE)]
        return body

    def in_trouble(self, began=None):
        """Whether processes or statements were made to fail at that time, or just before."""
        return (began or time.monotonic()) < self.trouble_until or bool(self.poisoned)

    async def follow(self, operation):
        path = await self.named(operation["stream"], True)
        http = Http(self.service)

        def take(_, kind, data):
            document = json.loads(data)
            job = document.get("job") if isinstance(document, dict) else None
            if kind == "message" or not isinstance(document, dict) or job and "topics=devices" in path:
                self.found("stream", f"{path}: {kind} {data[:200]}", operation["n"])
            if job and kind != "refused" and "owner" not in document:
                self.seen.add((operation["by"], job))

        async def read():
            try:
                await asyncio.wait_for(http.stream(path, self.tokens[operation["by"]], take), operation["seconds"])
            except (OSError, Closed, asyncio.TimeoutError, asyncio.IncompleteReadError):
                http.close()
        self.streams.append(asyncio.ensure_future(read()))

    # ---- machines and faults ----

    def machine_does(self, operation):
        node, do, value = self.nodes[operation["node"]], operation["do"], operation["value"]
        device = next((d for d in node.devices if d["name"] == self.device_name(operation["device"])), node.devices[0])
        name = device["name"]
        if do == "go":
            node.go()
        elif do == "come":
            self.join_soon(node)
        elif do == "restart" and node.is_there:  # the agent alone: its workers live on
            node.go(forgets=False)
            node.come()
        elif do in ("silence", "speak"):
            node.silent = do == "silence"
        elif do == "clock":
            node.clock_s = value
        elif do == "lose":
            node.lost_percent = value
        elif do == "measure":
            node.measures[name] = value
        elif do == "kill-workers":
            for worker in list(node.workers.values()):
                if not worker.over:
                    node.fail(worker, "peer", "killed by signal 9")
        elif do in ("away", "back"):
            (node.away.add if do == "away" else node.away.discard)(name)
        elif do == "heat":
            node.health[name] = {"temperature_c": 95 if value < 1 else 50, "heat": value, "throttle": ["thermal"] if value < 1 else []}
        elif do == "shrink":
            limit = device["memory_limit_bytes"]
            node.health[name] = {"usable_bytes": int(limit * value), "others_bytes": limit - int(limit * value), "memory_bytes": limit}
        if do in ("away", "back", "heat", "shrink") and node.is_there:
            node.hello()

    def join_soon(self, node):
        """The node comes; one that was removed joins anew."""
        async def join():
            try:
                await node.enrol()
                node.come()
            except (OSError, Closed, asyncio.TimeoutError) as problem:
                if not self.in_trouble(began):
                    self.found("a node that was removed cannot join again", problem)
            finally:
                node.joins = False
        began = time.monotonic()
        if node.token:
            node.come()
        elif not node.joins:
            node.joins = True
            task = asyncio.ensure_future(join())
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    async def fault(self, operation):
        kind = operation["fault"]
        self.trouble_until = max(self.trouble_until, time.monotonic() + 8)
        try:
            if kind == "wipe":
                await self.service.redis_say("FLUSHALL")
            elif kind == "statement":
                await self.poison(operation)
            else:
                verb, name = kind.split(" ")
                if verb == "freeze":
                    self.service.freeze(name, True)
                else:
                    await self.service.threaded(self.service.kill, name)
                asyncio.get_running_loop().call_later(0.7, lambda: self.mend_soon(name))
        except (OSError, Closed, RedisError, asyncio.TimeoutError):
            pass  # that one is down already

    def mend_soon(self, name):
        task = asyncio.ensure_future(self.service.threaded(self.service.restore, name))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def poison(self, operation):
        """From now on that statement fails for one job; or, without a job, the next three times."""
        table, job = operation["table"], operation["job"]
        ident = await self.named(job) if job else None
        name = f"strangers_{self.lab}_{operation['n']}"  # labs share a database, and a replay the numbers
        column = "id" if table == "jobs" else "job"
        row = "NEW"
        if job:
            body = f"IF {row}.{column} = {int(ident)} THEN RAISE EXCEPTION 'a statement fails for job %', {row}.{column}; END IF;"
        else:  # sequences are not rolled back, so that failures count
            await self.service.sql.query(f"CREATE SEQUENCE {name}_left")
            body = f"IF nextval('{name}_left') <= 3 THEN RAISE EXCEPTION 'a statement fails thrice'; END IF;"
        await self.service.sql.query(f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body} RETURN {row}; END $$")
        await self.service.sql.query(f"CREATE TRIGGER {name} BEFORE {operation['when']} ON {table} FOR EACH ROW EXECUTE FUNCTION {name}()")
        self.poisoned.append((name, table, ident))

    async def lift(self):
        """Ends all faults but those of machines: what they left is the service's own matter."""
        if self.tasks:
            await asyncio.wait(self.tasks)
        for name in ("postgres", "redis", "signer", "api", "scheduler"):
            await self.service.threaded(self.service.restore, name)
        for name, table, ident in self.poisoned:
            if ident is None:
                await self.service.sql.query(f"DROP TRIGGER {name} ON {table}")
        self.poisoned = [each for each in self.poisoned if each[2] is not None]
        for node in self.nodes:
            node.silent, node.lost_percent = False, 0

    async def rest(self):
        """Lets what runs stand still, and asks what holds then; then waits until nothing runs, and asks again."""
        self.still = True
        await self.lift()
        await self.invariants.still()
        self.calm, self.still = True, False
        for stream in self.streams:
            stream.cancel()
        self.streams = []
        await self.invariants.rest(REST_S)
        self.calm = False

    async def free(self):
        """Takes away whatever a job could wait for; then all of them must end."""
        await self.lift()
        self.calm = True
        for name, table, _ in self.poisoned:
            await self.service.sql.query(f"DROP TRIGGER {name} ON {table}")
        self.poisoned = []
        joined = {row["name"] for row in await self.service.rows("SELECT name FROM nodes WHERE removed_at IS NULL")}
        for node in self.nodes:
            if node.name not in joined:  # also where the answer to its removal was lost
                node.go()
                node.token = None
            node.away, node.health, node.measures, node.clock_s = set(), {d["name"]: {"temperature_c": 40, "heat": 1, "throttle": []} for d in node.devices}, {}, 0.0
            if not node.token:
                await node.enrol()
            node.come()
            node.hello()
        for number in range(USERS):
            await self.must("PATCH", f"/v1/users/{self.user_name(number)}", {"disabled": False, "devices_max": 0, "running_max": 0, "month_seconds_max": 0})
        for group in (await self.must("GET", "/v1/groups"))["groups"]:
            if group["name"].startswith(self.lab + "-"):
                await self.must("PATCH", f"/v1/groups/{group['name']}", {"devices_max": 0, "running_max": 0, "month_seconds_max": 0})
        for lease in (await self.must("GET", "/v1/leases"))["leases"]:
            await self.ask(ADMIN, "DELETE", f"/v1/leases/{lease['id']}")
        for node in self.nodes:
            await self.ask(ADMIN, "POST", f"/v1/nodes/{node.name}/undrain", {})
        for row in await self.service.rows(f"SELECT id, state, begin_at FROM jobs WHERE id > {self.first_job} AND state IN ('held', 'queued')"):
            if row["state"] == "held":
                await self.ask(ADMIN, "POST", f"/v1/jobs/{row['id']}/release", {})
            if row["begin_at"]:
                await self.ask(ADMIN, "PATCH", f"/v1/jobs/{row['id']}", {"begin": None})
        await self.invariants.all_end(REST_S)

    async def play(self, operations, rounds, last=True):
        """All of it: the lab, the rounds, the end. Whoever finds something has it in `findings`."""
        await self.timed("build", self.build())
        try:
            size = max(1, (len(operations) + rounds - 1) // rounds)
            for at in range(0, len(operations), size):
                await self.timed("play", self.run(operations[at:at + size]))
                await self.timed("rest", self.rest())
                if any(each["what"] != "machine" for each in self.findings):
                    break
            if last and not self.findings:
                await self.timed("end", self.free())
            self.ranges = (await self.service.rows(
                "SELECT count(*) AS told, count(*) FILTER (WHERE started_at BETWEEN starts_from AND starts_to) AS held FROM arrivals "
                f"WHERE job > {self.first_job} AND starts_from IS NOT NULL AND started_at IS NOT NULL"))[0]
        finally:
            await self.timed("leave", self.leave())
        return self.findings

    async def timed(self, what, call):
        began = time.monotonic()
        try:
            await call
        finally:
            self.spent[what] = self.spent.get(what, 0) + time.monotonic() - began
