#!/usr/bin/env python3
"""The units of deploy/: confined, no token on a command line, and a restart of the agent leaves its workers alone.

The restart is systemd's own: one is booted in namespaces of its own, with the real unit around a stand-in for the agent that does
what the agent does (ends its worker on SIGTERM, not on SIGUSR2; divides its control group)."""
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


def unit_around(standin, folder):
    """The agent's unit as it is, but for what it starts, as whom, and what a boot without a target tree lacks."""
    with open(os.path.join(DEPLOY, "motley-agent.service"), encoding="utf-8") as handle:
        text = handle.read()
    for pattern, by in ((r"^After=.*$", "DefaultDependencies=no"), (r"^Wants=.*\n", ""), (r"^EnvironmentFile=.*\n", ""),
                        (r"^User=.*$", "User=nobody"), (r"^ExecStart=.*$", f"ExecStart={standin} /run/standin"),
                        (r"^UMask=.*$", "RuntimeDirectory=standin\nRuntimeDirectoryPreserve=yes")):
        text = re.sub(pattern, by, text, flags=re.M)
    with open(os.path.join(folder, "motley-agent.service"), "w", encoding="utf-8") as handle:
        handle.write(text)
    with open(os.path.join(folder, "motley-test.target"), "w", encoding="utf-8") as handle:
        handle.write("[Unit]\nDefaultDependencies=no\n")


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


def a_restart_of_the_agent_leaves_its_workers_alone():
    if os.geteuid() != 0 or not os.path.exists(SYSTEMD) or not shutil.which("unshare"):
        return "SKIP: no systemd can be booted here"
    group, memory = own_group()
    if not group:
        return "SKIP: no cgroup v2 group can be made here"
    folder = tempfile.mkdtemp(prefix="motley-units-")
    os.chmod(folder, 0o755)
    standin = os.path.join(folder, "standin.sh")
    with open(standin, "w", encoding="utf-8") as handle:
        handle.write(STANDIN)
    os.chmod(standin, 0o755)
    unit_around(standin, folder)
    systemd = Systemd(folder, group)
    try:
        if not systemd.ready():
            return "SKIP: systemd does not boot in namespaces here"
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
    finally:
        systemd.stop()
        group_remove(group)
        shutil.rmtree(folder, ignore_errors=True)
    return "with groups for devices" if memory else "without groups for devices: cgroup v2 has no memory controller here"


SYSTEMD = "/lib/systemd/systemd"
main(each_unit_is_confined, nothing_runs_as_root_and_no_token_is_on_a_command_line, a_restart_of_the_agent_leaves_its_workers_alone)
