"""The real service of the strangers' machine: PostgreSQL, Redis, the signing process, an api and a scheduler, each of which
may be killed, frozen and started again. One start serves many seeds."""
import asyncio
import contextlib
import hashlib
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "api"))
from api import BIN, LLAMA, SLOW, Api, Failed, expect, wait_for  # noqa: E402
from wire import Postgres as Sql, Redis  # noqa: E402

if os.path.isdir("/dev/shm") and os.access("/dev/shm", os.W_OK):
    tempfile.tempdir = "/dev/shm"

# Waits of minutes become seconds, so that what a lab sees in a day happens within a round.
LIMITS = {"unreachable_ms": 3000, "lost_ms": 6000, "missing_ms": 3000, "start_ms": 8000, "stop_ms": 1500, "checkpoint_stop_ms": 1500,
          "kill_ms": 1500, "retry_ms_min": 50, "retry_ms_max": 400, "redeliver_ms": 300, "profile_start_ms": 1, "profile_ms": 50,
          "profile_grace_ms": 1500, "links_ms": 1500, "look_ms": 500, "leader_poll_ms": 100, "leader_silent_ms": 3000, "prune_ms": 5000,
          "queue_check_ms": 5000, "aside_ms": 1000, "remeasure_ms": 500}


class Service(Api):
    def __init__(self):
        super().__init__(connections=4, measure_seconds=1)
        self.config.update(redis={"address": "unix:" + self.path("redis.sock")},
                           ca={"cert": self.path("ca.pem"), "signer": self.path("signer.sock")})
        self.password = secrets.token_hex(16)
        self.processes = {}  # name: process, without the api and PostgreSQL
        self.log_at = {}
        self.frozen = set()
        self.sql = Sql(self.postgres.folder)

    # ---- start and end ----

    def __enter__(self):
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout",
                        self.path("ca.key"), "-out", self.path("ca.pem"), "-subj", "/CN=strangers", "-days", "2"],
                       check=True, capture_output=True, timeout=30)
        subprocess.run(["openssl", "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", self.path("node.key")],
                       check=True, capture_output=True, timeout=30)
        super().__enter__()
        try:
            for name in ("signer", "redis", "scheduler"):
                self.spawn(name)
            wait_for(lambda: os.path.exists(self.path("leader")), "a leading scheduler", 30 * SLOW)
        except BaseException:
            self.__exit__(Failed, None, None)
            raise
        return self

    def __exit__(self, kind, value, trace):
        self.sql.close()
        for process in self.processes.values():
            process.kill()
            process.wait()
        if self.process and "api" in self.frozen:
            self.process.send_signal(signal.SIGCONT)
        super().__exit__(kind, value, trace)

    def _arguments(self, name):
        if name == "signer":
            return [os.path.join(BIN, "motley-signer"), "--ca", self.path("ca.pem"), "--key", self.path("ca.key"), "--socket",
                    self.path("signer.sock")]
        if name == "redis":
            os.makedirs(self.path("redis"), exist_ok=True)
            digest = hashlib.sha256(self.password.encode()).hexdigest()
            with open(self.path("redis.conf"), "w", encoding="utf-8") as handle:
                handle.write(f'port 0\nunixsocket {self.path("redis.sock")}\nunixsocketperm 700\nsave ""\nappendonly no\n'
                             f'dir {self.path("redis")}\ndaemonize no\nuser default off\nuser admin on #{digest} ~* &* +@all\n')
            return [shutil.which("redis-server"), self.path("redis.conf")]
        config = {"name": "scheduler-1", "postgres": self.postgres.conninfo, "leader_file": self.path("leader"), "limits": LIMITS,
                  "redis": {"address": "unix:" + self.path("redis.sock"), "user": "admin", "password": self.password}}
        with open(self.path("scheduler.yaml"), "w", encoding="utf-8") as handle:
            json.dump(config, handle)
        return [os.path.join(BIN, "motley-scheduler"), "--config", self.path("scheduler.yaml")]

    def spawn(self, name):
        with open(self.path(name + ".log"), "ab") as log:
            self.processes[name] = subprocess.Popen(self._arguments(name), stdout=log, stderr=log)
        ready = {"signer": "signer.sock", "redis": "redis.sock"}.get(name)
        if ready:
            wait_for(lambda: os.path.exists(self.path(ready)), f"{name}'s socket")

    # ---- faults ----

    def process_of(self, name):
        return self.process if name == "api" else self.postgres.process if name == "postgres" else self.processes[name]

    def kill(self, name):
        """Kills a process; `restore` starts it again."""
        process = self.process_of(name)
        if process is None or process.poll() is not None:
            return
        self.freeze(name, False)
        process.send_signal(signal.SIGQUIT if name == "postgres" else signal.SIGKILL)
        process.wait(30)
        if name == "postgres":
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(self.postgres.folder, ".s.PGSQL.5432"))
        if name == "redis":
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path("redis.sock"))

    def freeze(self, name, frozen):
        process = self.process_of(name)
        if process and process.poll() is None and frozen != (name in self.frozen):
            process.send_signal(signal.SIGSTOP if frozen else signal.SIGCONT)
        self.frozen.add(name) if frozen else self.frozen.discard(name)

    def restore(self, name):
        """Starts what was killed and lets go what is frozen. What died of itself is a finding: its words are returned."""
        self.freeze(name, False)
        process = self.process_of(name)
        if process and process.poll() is None:
            return
        if name == "postgres":
            self.postgres.start()
        elif name == "api":
            self.process = None
            self.start()
        else:
            self.spawn(name)

    async def threaded(self, call, *arguments):
        return await asyncio.get_running_loop().run_in_executor(None, call, *arguments)

    async def redis_say(self, *words):
        redis = Redis(self.path("redis.sock"))
        await redis.open("admin", self.password)
        try:
            return await redis.say(*words)
        finally:
            redis.close()

    # ---- what is read beside the service's own answers ----

    async def rows(self, query):
        """The rows of a SELECT as a list of objects."""
        found = await self.sql.query(f"SELECT coalesce(json_agg(q), '[]') FROM ({query}) q")
        return json.loads(found[0])

    def log_lines(self, name):
        """What was written into a log since it was asked last: [(level, event, line)]."""
        found = []
        path = self.path(name + ".log")
        if not os.path.exists(path):
            return found
        with open(path, "rb") as handle:
            handle.seek(self.log_at.get(name, 0))
            for raw in handle:
                if not raw.endswith(b"\n"):
                    break
                self.log_at[name] = self.log_at.get(name, 0) + len(raw)
                line = raw.decode(errors="replace").rstrip()
                match = re.match(r"\S+ (debug|info|warn|error) (\S+)", line)
                found.append((match.group(1), match.group(2), line) if match else ("other", "", line))
        return found

    def weight(self):
        """Resident bytes and open descriptors of the daemons."""
        out = {}
        for name in ("api", "scheduler"):
            process = self.process_of(name)
            with contextlib.suppress(OSError, AttributeError):
                with open(f"/proc/{process.pid}/statm", encoding="ascii") as handle:
                    pages = int(handle.read().split()[1])
                out[name] = {"pid": process.pid, "rss_bytes": pages * os.sysconf("SC_PAGE_SIZE"), "descriptors": len(os.listdir(f"/proc/{process.pid}/fd"))}
                with open(f"/proc/{process.pid}/stat", encoding="ascii") as handle:
                    out[name]["cpu_s"] = sum(int(ticks) for ticks in handle.read().rpartition(")")[2].split()[11:13]) / os.sysconf("SC_CLK_TCK")
        return out


__all__ = ["LIMITS", "LLAMA", "SLOW", "Failed", "Service", "expect", "wait_for"]
