#!/usr/bin/env python3
"""The units of deploy/: confined, no token on a command line, and a restart of the agent leaves its workers alone.

The restart is systemd's own: one is booted in namespaces of its own, with the real unit around a stand-in for the agent that does
what the agent does (ends its worker on SIGTERM, not on SIGUSR2; divides its control group)."""
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from claims import SOURCE, Failed, expect, main  # noqa: E402

BIN = os.environ.get("MOTLEY_BIN", os.path.join(SOURCE, "build", "bin"))
DEPLOY = os.path.join(SOURCE, "deploy")
UNITS = sorted(name for name in os.listdir(DEPLOY) if name.endswith(".service"))
EXPOSURE_MAX = 3.0

# Where cgroup v2 has the memory controller it divides its group, as the agent does.
STANDIN = """#!/bin/bash
said=$1; worker=$said/worker; own=/sys/fs/cgroup$(cut -d: -f3 /proc/self/cgroup)
own=${own%/agent}
mkdir -p "$own/agent" "$own/device-0" 2>/dev/null; echo $$ > "$own/agent/cgroup.procs"
if ! { [ -f "$worker" ] && kill -0 "$(cat "$worker")" 2>/dev/null; }; then
    setsid bash -c 'echo $$ > "$0/device-0/cgroup.procs"; exec sleep 1000' "$own" </dev/null >/dev/null 2>&1 & echo $! > "$worker"
fi
echo +memory > "$own/cgroup.subtree_control" && echo divided >> "$said/log"
trap 'echo TERM >> "$said/log"; kill "$(cat "$worker")"; exit 0' TERM
trap 'echo USR2 >> "$said/log"; exit 0' USR2
echo up >> "$said/log"
while :; do sleep 1 & wait $!; done
"""
BOOT = """set -e
mount --make-rprivate /
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /var/lib
while umount -R /sys/fs/cgroup 2>/dev/null; do :; done
mount -t cgroup2 none /sys/fs/cgroup
mkdir -p /run/systemd/system
cp "$0"/*.service "$0"/*.target /run/systemd/system/
export container=motley-test
exec SYSTEMD --system --unit=motley-test.target --log-target=console --log-level=warning
"""


def each_unit_is_confined():
    if not shutil.which("systemd-analyze"):
        return "SKIP: systemd-analyze is not installed"
    told = []
    for name in UNITS:
        done = subprocess.run(["systemd-analyze", "security", "--offline=true", "--no-pager", os.path.join(DEPLOY, name)],
                              capture_output=True, text=True, timeout=60, check=False)
        found = re.search(r"exposure level for .*: ([0-9.]+)", done.stdout)
        expect(found, f"{name}: {done.stdout[-300:]} {done.stderr[-300:]}")
        expect(float(found.group(1)) < EXPOSURE_MAX, f"{name}: exposure {found.group(1)}, at most {EXPOSURE_MAX}")
        told.append(f"{name} {found.group(1)}")
    return ", ".join(told)


def each_set_of_system_calls_is_known():
    """systemd passes over a set that it does not know, and what was to be allowed is not: Debian 12's has no @sandbox."""
    known = subprocess.run(["systemd-analyze", "syscall-filter"], capture_output=True, text=True, timeout=60, check=False).stdout
    if not known:
        return "SKIP: systemd-analyze is not installed"
    for name in UNITS:
        with open(os.path.join(DEPLOY, name), encoding="utf-8") as handle:
            for one in re.findall(r"@[a-z-]+", " ".join(re.findall(r"^SystemCallFilter=(.*)$", handle.read(), re.M))):
                expect(re.search(rf"^{one}$", known, re.M), f"{name}: {one} is no set of this systemd")
    return None


def nothing_runs_as_root_and_no_token_is_on_a_command_line():
    for name in UNITS:
        with open(os.path.join(DEPLOY, name), encoding="utf-8") as handle:
            text = handle.read()
        user = re.search(r"^User=(\S+)$", text, re.M)
        expect(user and user.group(1) not in ("root", "0"), f"{name}: User={user and user.group(1)}")
        for line in re.findall(r"^Exec\w+=(.*)$", text, re.M):
            expect(not re.search(r"TOKEN|--join[ =]|password", line), f"{name}: {line}")


class Systemd:
    """A systemd of our own: pid 1 of its namespaces, with the units of a folder."""

    def __init__(self, folder, group):
        def enter():
            with open(os.path.join(group, "cgroup.procs"), "w", encoding="ascii") as handle:
                handle.write("0")
        self.folder = folder
        self.log = open(os.path.join(folder, "log"), "w", encoding="utf-8")
        self.outer = subprocess.Popen(["unshare", "-m", "-p", "-f", "-C", "-u", "-n", "-i", "--kill-child", "--mount-proc", "bash", "-c",
                                       BOOT.replace("SYSTEMD", SYSTEMD), folder], stdout=self.log, stderr=self.log,
                                      stdin=subprocess.DEVNULL, preexec_fn=enter)
        self.pid = None

    def ready(self):
        """Its pid 1 answers systemctl."""
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and self.outer.poll() is None:
            with open(f"/proc/{self.outer.pid}/task/{self.outer.pid}/children", encoding="ascii") as handle:
                children = handle.read().split()
            if children:
                self.pid = int(children[0])
                if self.run("systemctl", "is-active", "motley-test.target").stdout.strip() == "active":
                    return True
            time.sleep(0.05)
        return False

    def run(self, *words):
        try:
            return subprocess.run(["nsenter", "-t", str(self.pid), "-m", "-p", "-C", "-u", "-n", "-i", *words], capture_output=True,
                                  text=True, timeout=30, check=False)
        except subprocess.TimeoutExpired as late:
            raise Failed(f"{words} took 30 s") from late

    def stop(self):
        for pid in (self.pid, self.outer.pid):
            if pid:
                try:
                    os.kill(pid, signal.SIGKILL)  # the end of a namespace's pid 1 is the end of all in it
                except ProcessLookupError:
                    pass
        self.outer.wait(10)
        self.log.close()


def unit_write(folder, name, changes):
    """A unit as it is, but for the changes, as whom it runs, and what a boot without a target tree lacks."""
    with open(os.path.join(DEPLOY, name), encoding="utf-8") as handle:
        text = handle.read()
    for pattern, by in ((r"^After=.*$", "DefaultDependencies=no"), (r"^Wants=.*\n", ""), (r"^User=.*$", "User=nobody"), *changes):
        text = re.sub(pattern, by, text, flags=re.M)
    with open(os.path.join(folder, name), "w", encoding="utf-8") as handle:
        handle.write(text)


def wait_log(systemd, word, count):
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        said = systemd.run("cat", "/run/standin/log").stdout.split()
        if said.count(word) >= count:
            return said
        time.sleep(0.05)
    raise Failed(f"\"{word}\" not said {count} times: {said}; {systemd.run('systemctl', 'status', 'motley-agent').stdout[-1500:]}")


def own_group():
    """A cgroup v2 group for the systemd to have as its root, and whether it has the memory controller."""
    for point in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified"):
        if os.path.exists(os.path.join(point, "cgroup.controllers")):
            group = os.path.join(point, f"motley-test-{os.getpid()}")
            try:
                os.mkdir(group)
            except OSError:
                return None, False
            with open(os.path.join(group, "cgroup.controllers"), encoding="ascii") as handle:
                return group, "memory" in handle.read().split()
    return None, False


def group_remove(group):
    deadline = time.monotonic() + 10
    while os.path.exists(group) and time.monotonic() < deadline:
        for folder, _, _ in os.walk(group, topdown=False):
            try:
                os.rmdir(folder)
            except OSError:
                time.sleep(0.02)  # its processes are still ending


@contextlib.contextmanager
def booted(name, changes=(), files=()):
    """(a systemd that knows this unit, whether its group has the memory controller); a text in its place says why there is none."""
    group, memory = (None, False) if os.geteuid() != 0 or not os.path.exists(SYSTEMD) or not shutil.which("unshare") else own_group()
    if not group:
        yield "SKIP: no systemd can be booted here, or no cgroup v2 group made", memory
        return
    folder = tempfile.mkdtemp(prefix="motley-units-")
    os.chmod(folder, 0o755)
    for path, text in files:
        with open(os.path.join(folder, path), "w", encoding="utf-8") as handle:
            handle.write(text)
        os.chmod(os.path.join(folder, path), 0o755)
    unit_write(folder, name, [(pattern, by.replace("FOLDER", folder)) for pattern, by in changes])
    with open(os.path.join(folder, "motley-test.target"), "w", encoding="utf-8") as handle:
        handle.write("[Unit]\nDefaultDependencies=no\n")
    systemd = Systemd(folder, group)
    try:
        yield (systemd if systemd.ready() else "SKIP: systemd does not boot in namespaces here"), memory
    finally:
        systemd.stop()
        group_remove(group)
        shutil.rmtree(folder, ignore_errors=True)


def a_restart_of_the_agent_leaves_its_workers_alone():
    changes = ((r"^EnvironmentFile=.*\n", ""), (r"^ExecStart=.*$", "ExecStart=FOLDER/standin.sh /run/standin"),
               (r"/etc/motley/join-token$", "/run/join-token"),
               (r"^UMask=.*$", "RuntimeDirectory=standin\nRuntimeDirectoryPreserve=yes"))
    with booted("motley-agent.service", changes, [("standin.sh", STANDIN)]) as (systemd, memory):
        if isinstance(systemd, str):
            return systemd
        systemd.run("systemctl", "start", "motley-agent")  # as the package does once it is there
        state = systemd.run("systemctl", "show", "--property=ActiveState,ConditionResult", "motley-agent").stdout
        expect("inactive" in state and "ConditionResult=no" in state, f"nothing starts without a token: {state}")
        systemd.run("touch", "/run/join-token")
        systemd.run("systemctl", "start", "motley-agent")
        wait_log(systemd, "up", 1)
        worker = systemd.run("cat", "/run/standin/worker").stdout.strip()
        systemd.run("systemctl", "restart", "motley-agent")
        said = wait_log(systemd, "up", 2)
        systemd.run("systemctl", "kill", "-s", "KILL", "--kill-who=main", "motley-agent")  # a crash
        said = wait_log(systemd, "up", 3)
        alive = systemd.run("kill", "-0", worker).returncode == 0
        expect(said.count("USR2") == 1 and "TERM" not in said, f"a restart is told by SIGUSR2: {said}")
        expect(alive and systemd.run("cat", "/run/standin/worker").stdout.strip() == worker, "the worker lives through both")
        expect(not memory or said.count("divided") == 3, f"each agent can divide the group: {said}")
        systemd.run("systemctl", "stop", "motley-agent")
        expect("TERM" in wait_log(systemd, "TERM", 1), "a stop is one")
        expect(systemd.run("kill", "-0", worker).returncode != 0, "and ends the worker")
    return "with groups for devices" if memory else "without groups for devices: cgroup v2 has no memory controller here"


def the_server_runs_within_its_unit():
    """The real programs, PostgreSQL and Redis among them, with each limit of the unit; once more when its main process was killed."""
    with open(os.path.join(DEPLOY, "etc", "up.yaml"), encoding="utf-8") as handle:
        config = handle.read()
    changes = ((r"/usr/bin/motley", "/var/lib/programs/motley"), (r"/etc/motley/up.yaml", "/var/lib/programs/up.yaml"))
    with booted("motley.service", changes, [("up.yaml", config)]) as (systemd, _):
        if isinstance(systemd, str):
            return systemd
        done = systemd.run("sh", "-c", f"ip link set lo up; mkdir /var/lib/programs && cp {BIN}/motley* {systemd.folder}/up.yaml /var/lib/programs/")
        expect(done.returncode == 0, done.stderr)
        def main_pid():
            return systemd.run("systemctl", "show", "--property=MainPID", "--value", "motley").stdout.strip()

        before = "0"
        for _ in ("begun", "begun again by systemd"):
            systemd.run("systemctl", "start", "--no-block", "motley")
            deadline = time.monotonic() + 60
            while systemd.run("systemctl", "is-active", "motley").stdout.strip() != "active" or main_pid() in (before, "0"):
                expect(time.monotonic() < deadline, systemd.run("journalctl", "-u", "motley").stdout[-1500:] +
                       systemd.run("systemctl", "status", "motley").stdout[-1500:])
                time.sleep(0.2)
            status = systemd.run("/var/lib/programs/motley", "status", "--home", "/var/lib/motley-server")
            expect(status.returncode == 0 and "scheduler" in status.stdout, status.stdout + status.stderr)
            before = main_pid()
            name = systemd.run("cat", f"/proc/{before}/comm").stdout.strip()
            expect(name == "motley-supervis", f"the unit's main process is {name}")
            systemd.run("systemctl", "kill", "-s", "KILL", "--kill-who=main", "motley")
        systemd.run("systemctl", "stop", "motley")
        expect(systemd.run("pgrep", "-u", "nobody").stdout == "", "something runs after a stop")
    return None


def containers_are_of_this_release_and_the_configuration_is_read():
    """The agent's file as it is shipped, all of it commented out, is one; images that manifests name are those that make image makes."""
    with open(os.path.join(SOURCE, "CMakeLists.txt"), encoding="utf-8") as handle:
        release = re.search(r"project\(motley VERSION (\S+)", handle.read())[1]
    named = []
    for folder, _, files in os.walk(DEPLOY):
        for name in files:
            with open(os.path.join(folder, name), encoding="utf-8") as handle:
                named += re.findall(r"^\s*image: (\S+)", handle.read(), re.MULTILINE)
    expect(set(named) == {f"localhost/motley-server:{release}", f"localhost/motley-agent:{release}"}, f"of release {release}: {named}")
    done = subprocess.run(["sh", "-n", os.path.join(DEPLOY, "image", "entrypoint")], capture_output=True, text=True, timeout=20, check=False)
    expect(done.returncode == 0, done.stderr)
    with tempfile.TemporaryDirectory() as home:
        done = subprocess.run([os.path.join(BIN, "motley-agent"), "--doctor=json", "--home", home, "--config", os.path.join(DEPLOY, "etc", "agent.yaml")],
                              capture_output=True, text=True, timeout=60, check=False)
    expect("configuration" not in done.stderr and done.stdout.startswith("["), done.stdout + done.stderr)


SYSTEMD = "/lib/systemd/systemd"
main(containers_are_of_this_release_and_the_configuration_is_read, each_unit_is_confined, each_set_of_system_calls_is_known, nothing_runs_as_root_and_no_token_is_on_a_command_line, a_restart_of_the_agent_leaves_its_workers_alone,
     the_server_runs_within_its_unit)
