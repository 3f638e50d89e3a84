#!/usr/bin/env python3
"""`motley up`, `status` and `down` with the real daemons: as root and as a plain user, over deaths, and when it cannot work."""
import contextlib
import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "system"))
from motley import BIN, Failed, SKIP, expect, main, poll  # noqa: E402

ONE = {"agents": [{"name": "left", "devices": [{"kind": "cpu", "threads": 1, "memory": "64MiB"}]}], "schedulers": 2}
ROLES = ["agent", "api", "postgres", "redis", "scheduler", "scheduler", "signer", "supervisor"]


class Home:
    def __init__(self, user=None, name="home"):
        self.user = pwd.getpwnam(user) if user else None
        self.base = tempfile.mkdtemp(prefix="motley-up-")
        os.chmod(self.base, 0o755)
        if self.user:
            os.chown(self.base, self.user.pw_uid, self.user.pw_gid)
        self.path = os.path.join(self.base, name)

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        self.run("down")
        left = self.left()
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if kind is not None:
            for name in sorted(os.listdir(os.path.join(self.path, "logs"))) if os.path.isdir(self.path + "/logs") else []:
                with open(os.path.join(self.path, "logs", name), errors="replace") as handle:
                    print(f"--- {name}\n{handle.read()[-1500:]}")
        shutil.rmtree(self.base, ignore_errors=True)
        if left and kind is None:
            raise Failed(f"left over after down: {left}")

    def become(self):
        if self.user:
            os.setgroups([])
            os.setgid(self.user.pw_gid)
            os.setuid(self.user.pw_uid)

    def run(self, *words, env=None):
        environment = dict(os.environ, **(env or {}))
        environment.pop("MOTLEY_HOME", None)
        return subprocess.run([os.path.join(BIN, "motley"), *words, "--home", self.path], capture_output=True, text=True,
                              timeout=90, check=False, preexec_fn=self.become, cwd="/", env=environment)

    def config(self, document, name="up.json"):
        path = os.path.join(self.base, name)
        with open(path, "w", encoding="utf-8") as handle:
            json.dump(document, handle)
        os.chmod(path, 0o644)
        return path

    def up(self, document=None):
        words = ["up"] if document is None else ["up", "--config", self.config(document)]
        done = self.run(*words)
        expect(done.returncode == 0, f"up: status {done.returncode}: {done.stderr}")

    def processes(self):
        """Without workers: agents try one when they start."""
        return [p for p in json.loads(self.run("status", "--json").stdout)["processes"] if p["role"] != "worker"]

    def pid(self, role):
        return [p["pid"] for p in self.processes() if p["role"] == role][0]

    def left(self):
        found = []
        for entry in os.listdir("/proc"):
            with contextlib.suppress(OSError):
                if entry.isdigit() and int(entry) != os.getpid():
                    with open(f"/proc/{entry}/cmdline", "rb") as handle:
                        if self.base.encode() in handle.read():
                            found.append(int(entry))
        return found


def until(what, condition, seconds=30):
    deadline = time.monotonic() + seconds
    while not condition():
        expect(time.monotonic() < deadline, f"{what} not within {seconds} s")
        poll()


def check_whole_life(user):
    with Home(user) as home:
        home.up(ONE)
        processes = home.processes()
        expect(sorted(p["role"] for p in processes) == ROLES, f"roles {sorted(p['role'] for p in processes)}")
        expect(sorted(str(p["leader"]) for p in processes if p["role"] == "scheduler") == ["False", "True"], "not one leader")
        info = os.stat(os.path.join(home.path, "client.json"))
        expect(info.st_mode & 0o777 == 0o600, f"client.json has mode {info.st_mode & 0o777:o}")
        if user:
            expect(info.st_uid == home.user.pw_uid, "client.json belongs to another user")
        home.up(ONE)  # running already: success
        other = home.run("up", "--config", home.config({"agents": []}, "other.json"))
        expect(other.returncode == 1 and "another configuration" in other.stderr, f"other configuration: {other.stderr}")
        for role in ("api", "agent", "scheduler", "signer", "redis", "postgres"):
            victim = home.pid(role)
            if role == "redis":
                shutil.rmtree(os.path.join(home.path, "redis"))
            os.kill(victim, signal.SIGKILL)
            until(f"{role} is back", lambda: victim not in [p["pid"] for p in home.processes()] and
                  sorted(p["role"] for p in home.processes()) == ROLES)
        until("the api is ready", lambda: home.run("nodes", "--json").returncode == 0)
        supervisor = home.pid("supervisor")
        os.kill(supervisor, signal.SIGKILL)
        until("the supervisor is gone", lambda: supervisor not in [p["pid"] for p in home.processes()])  # a killed process may run on for a moment
        home.up()  # with the configuration it had; what was left is replaced
        expect(sorted(p["role"] for p in home.processes()) == ROLES, "not all is back after the supervisor's death")
        done = home.run("down")
        expect(done.returncode == 0 and not home.left(), f"left over: {home.left()} {done.stderr}")
        expect(home.run("down").returncode == 0, "a second down fails")
        expect(not home.processes(), "status shows processes after down")


def as_this_user_all_is_started_survives_and_is_stopped():
    check_whole_life(None)


def as_a_plain_user_all_is_started_survives_and_is_stopped():
    if os.getuid() != 0:
        return "this user is a plain one: done above"
    check_whole_life("nobody")
    return None


def a_home_of_any_name_and_length_works():
    other = "nobody" if os.getuid() == 0 else None
    for user, name in ((None, "-a 'b\" \u00fc%s#$(x)\\"), (other, "/".join(["d" * 200] * 19))):
        with Home(user, name) as home:
            home.up(ONE)
            expect(sorted(p["role"] for p in home.processes()) == ROLES, f"not all runs in {name[:40]}")
            expect(home.run("nodes", "--json").returncode == 0, f"the api does not answer in {name[:40]}")
            done = home.run("down")
            expect(done.returncode == 0 and not home.processes(), f"down in {name[:40]}: {done.stderr}")


def a_start_that_is_cut_is_finished():
    """As when a terminal is closed, or `motley up | head -1`: whoever began it is gone before an agent has joined."""
    with Home() as home:
        words = [os.path.join(BIN, "motley"), "up", "--config", home.config(ONE), "--home", home.path]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as begun:
            for line in begun.stdout:
                if "starting under" in line:
                    begun.kill()
                    break
        until("the api answers", lambda: home.run("nodes", "--json").returncode == 0)
        until("the agent joins", lambda: [n["state"] for n in json.loads(home.run("nodes", "--json").stdout)["nodes"]] == ["alive"], 20)
        done = subprocess.run(["bash", "-c", '"$0" up --home "$1" >&-', words[0], home.path], capture_output=True, text=True, timeout=90,
                              check=False)
        expect(done.returncode == 0 and not done.stderr, f"without an output: {done.returncode}: {done.stderr}")


def a_home_that_was_moved_has_its_agents():
    """Once while it was up, once while it was not: its agents, and all else, know it by the path that it had."""
    with Home() as home:
        home.up(ONE)
        for name, says in (("moved", ["moved while it was up", "agent left knew another Redis"]), ("again", ["agent left knew another Redis"])):
            if name == "again":
                expect(home.run("down").returncode == 0, "down")
            path = os.path.join(home.base, name)
            os.rename(home.path, path)
            home.path = path
            done = home.run("up")
            expect(done.returncode == 0 and all(text in done.stdout for text in says), f"{done.returncode}: {done.stdout} {done.stderr}")
            expect(sorted(p["role"] for p in home.processes()) == ROLES, f"{name}: {home.processes()}")
            with open(os.path.join(path, "agents/left/agent.json"), encoding="utf-8") as handle:
                expect(json.load(handle)["redis"]["address"] == f"unix:{path}/run/redis.sock", "the agent knows another Redis")


def postgres_of(folder):
    """PostgreSQL's own processes with their files below this folder."""
    found = []
    for entry in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if entry.isdigit():
                with open(f"/proc/{entry}/cmdline", "rb") as handle:
                    words = handle.read().split(b"\0")
                if words[0].endswith(b"postgres") and any(word.startswith(folder.encode()) for word in words[1:]):
                    found.append(int(entry))
    return found


def a_home_that_postgres_cannot_reach_is_moved_and_stopped_with_its_database():
    if os.getuid() != 0:
        return "only root's PostgreSQL is another user"
    with Home() as home:
        os.chmod(home.base, 0o700)  # as /root is
        home.up(ONE)
        with open(os.path.join(home.path, "run", "services.json"), encoding="utf-8") as handle:
            outside = [s["dir"] for s in json.load(handle) if s["role"] == "postgres"][0]
        expect(outside.startswith("/var/lib/motley/"), outside)
        try:
            expect(home.run("token", "make", "--user", "dana").returncode == 0, "a user")
            os.kill(home.pid("supervisor"), signal.SIGKILL)
            home.up()
            expect(len(postgres_of(outside)) == 1, f"{postgres_of(outside)}")
            expect(home.run("down").returncode == 0 and not postgres_of(outside), f"down left {postgres_of(outside)}")
            before, home.path = home.path, os.path.join(home.base, "moved")
            os.rename(before, home.path)
            home.up()
            expect("dana" in home.run("user", "list").stdout, "the moved home has another database")
            home.run("down")
            shutil.copytree(home.path, before, symlinks=True)
            original, home.path = home.path, before
            done = home.run("up")
            expect(done.returncode != 0 and f'is a copy of "{original}"' in done.stderr, done.stderr)
        finally:
            home.run("down")
            expect(not postgres_of(outside), f"left over: {postgres_of(outside)}")
            shutil.rmtree(outside)
    return None


def somebodys_way_to_another_server_is_kept():
    with Home() as home:
        os.makedirs(home.path)
        text = json.dumps({"address": "https://lab.example:8443", "token": "t", "ca": None})
        with open(os.path.join(home.path, "client.json"), "w", encoding="utf-8") as handle:
            handle.write(text)
        spec = home.config({"model": home.base, "data": {"train": home.base}}, "job.json")
        for words, says in ((("up",), "--home DIR"), (("run", spec), "client.json names: https://")):
            done = home.run(*words)
            expect(done.returncode != 0 and "https://lab.example:8443" in done.stderr and says in done.stderr, f"{words}: {done.stderr}")
        expect("motley up" not in done.stderr, f"run says more than that the server did not answer: {done.stderr}")
        with open(os.path.join(home.path, "client.json"), encoding="utf-8") as handle:
            expect(handle.read() == text, "client.json has changed")
        expect(os.listdir(home.path) == ["client.json"], os.listdir(home.path))


def a_limit_that_is_too_low_is_named_and_nothing_starts():
    for word, limit in (("-n", "32"), ("-f", "100"), ("-u", "5"), ("-v", "100000")):
        with Home() as home:
            command = f'ulimit {word} {limit} && exec "$0" up --home "$1"'
            done = subprocess.run(["bash", "-c", command, os.path.join(BIN, "motley"), home.path], capture_output=True, text=True,
                                  timeout=60, check=False)
            expect(done.returncode == 1 and f"ulimit {word}" in done.stderr, f"{word}: {done.returncode}: {done.stderr}")
            expect(not home.left(), f"{word}: something runs")


def a_key_that_the_api_alone_checks_is_told_of_the_file_that_has_it():
    with Home() as home:
        path = home.config({**ONE, "notify": {"mail": {"server": "smtp.example.org", "from": "a@example.org"}}})
        done = home.run("up", "--config", path)
        expect(done.returncode == 2 and f"{path}: notify.mail.server" in done.stderr and "api.yaml" not in done.stderr, done.stderr)
        expect(not home.left(), "something runs")


def who_listens_on_all_addresses_tells_the_advertised_one():
    """The api and Redis: an agent that was told 0.0.0.0 would find a certificate of another host there."""
    with Home() as home:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        home.up({**ONE, "listen": "0.0.0.0:0", "advertise": "127.0.0.1", "redis_port": port, "proxies": ["10.0.0.5"]})
        nodes = json.loads(home.run("nodes", "--json").stdout)["nodes"]
        expect([node["state"] for node in nodes] == ["alive"], f"{nodes}")
        # Redis with a port does not name the home in its title, and holds the port when its supervisor is killed.
        supervisor, redis = home.pid("supervisor"), home.pid("redis")
        os.kill(supervisor, signal.SIGKILL)
        until("the supervisor is gone", lambda: supervisor not in [p["pid"] for p in home.processes()])
        home.up()
        expect(home.pid("redis") != redis, f"{home.processes()}")


def two_ups_of_one_home_at_once_are_one():
    with Home() as home:
        words = [os.path.join(BIN, "motley"), "up", "--config", home.config(ONE), "--home", home.path]
        both = [subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) for _ in range(2)]
        for one in both:
            error = one.communicate(timeout=90)[1]
            expect(one.returncode == 0, f"up: status {one.returncode}: {error}")
        expect(sorted(p["role"] for p in home.processes()) == ROLES, "not one of each runs")


def a_home_that_cannot_be_written_is_named():
    with Home() as home:
        with open(os.path.join(home.base, "home"), "w", encoding="utf-8"):
            pass
        done = home.run("up")
        expect(done.returncode == 1 and "--home" in done.stderr and home.path in done.stderr, f"{done.returncode}: {done.stderr}")


def a_port_that_is_taken_is_named():
    with Home() as home, socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        port = taken.getsockname()[1]
        done = home.run("up", "--config", home.config({"agents": [], "listen": f"127.0.0.1:{port}"}))
        expect(done.returncode == 1 and str(port) in done.stderr, f"status {done.returncode}: {done.stderr}")
        expect(not home.left(), "something runs")


def an_unusable_configuration_is_named_and_nothing_starts():
    with Home() as home:
        bad = {"agents": [{"name": "left", "devices": [{"kind": "cpu", "memory": "lots"}]}]}
        done = home.run("up", "--config", home.config(bad))
        expect(done.returncode == 2 and "agents[0].devices[0].memory" in done.stderr, f"{done.returncode}: {done.stderr}")
        done = home.run("up", "--config", os.path.join(home.base, "absent.yaml"))
        expect(done.returncode != 0 and "absent.yaml" in done.stderr, f"{done.returncode}: {done.stderr}")
        expect(not home.left(), "something runs")


def a_full_disk_is_named_and_nothing_starts():
    if os.getuid() != 0 or subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode != 0:
        return "SKIP: needs root and mount namespaces"
    base = tempfile.mkdtemp(prefix="motley-up-")
    script = f'mount -t tmpfs -o size=16m none {base} && exec {os.path.join(BIN, "motley")} up --home {base}/home'
    done = subprocess.run(["unshare", "-m", "sh", "-c", script], capture_output=True, text=True, timeout=60, check=False)
    shutil.rmtree(base, ignore_errors=True)
    if "mount" in done.stderr and "permission" in done.stderr:
        return "SKIP: mounting is not allowed here"
    expect(done.returncode == 1 and "free" in done.stderr and base in done.stderr, f"{done.returncode}: {done.stderr}")
    return None


def a_disk_that_fills_up_is_named():
    if os.getuid() != 0 or subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode != 0:
        return "SKIP: needs root and mount namespaces"
    base = tempfile.mkdtemp(prefix="motley-up-")
    script = ('mount -t tmpfs -o size=400m,mode=0755 none "$1" || exit 3; "$0" up --home "$1/h" || exit 4\n'
              'dd if=/dev/zero of="$1/fill" bs=1M 2>/dev/null; "$0" status --home "$1/h"; "$0" doctor --home "$1/h"; "$0" group set vision --home "$1/h"; "$0" down --home "$1/h"; umount -l "$1"')
    done = subprocess.run(["unshare", "-m", "sh", "-c", script, os.path.join(BIN, "motley"), base], capture_output=True, text=True,
                          timeout=90, check=False)
    shutil.rmtree(base, ignore_errors=True)
    if done.returncode == 3:
        return "SKIP: mounting is not allowed here"
    expect("warning: the disk of" in done.stderr and base in done.stderr, f"{done.returncode}: {done.stderr}")
    expect("needed: motley df" in done.stdout and "not once the disk is full" in done.stdout, f"doctor: {done.stdout}")
    expect("it takes no change until its disk has room" in done.stderr, f"a change: {done.stderr}")
    return None


if __name__ == "__main__":
    if not os.path.exists(os.path.join(BIN, "motley")):
        print(f"SKIP: {BIN}/motley is not built")
        sys.exit(SKIP)
    main(as_this_user_all_is_started_survives_and_is_stopped, as_a_plain_user_all_is_started_survives_and_is_stopped,
         a_home_of_any_name_and_length_works, a_start_that_is_cut_is_finished, a_home_that_was_moved_has_its_agents,
         a_home_that_postgres_cannot_reach_is_moved_and_stopped_with_its_database, somebodys_way_to_another_server_is_kept, a_limit_that_is_too_low_is_named_and_nothing_starts,
         a_key_that_the_api_alone_checks_is_told_of_the_file_that_has_it,
         who_listens_on_all_addresses_tells_the_advertised_one, two_ups_of_one_home_at_once_are_one, a_home_that_cannot_be_written_is_named,
         a_port_that_is_taken_is_named, an_unusable_configuration_is_named_and_nothing_starts,
         a_full_disk_is_named_and_nothing_starts, a_disk_that_fills_up_is_named)
