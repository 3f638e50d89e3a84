#!/usr/bin/env python3
"""What GET /metrics says is what Prometheus takes, and alerts and dashboard of deploy/prometheus ask for nothing else.

promtool is on the PATH or in .cache/promtool (tools/take_program.sh), PyYAML in .cache/client; a visible skip without them."""
import os
import re
import shutil
import subprocess
import sys

from api import Api, expect, main, skip
from limited import certificate

SOURCE = os.environ.get("MOTLEY_SOURCE") or os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
PACKAGES = os.path.join(SOURCE, ".cache", "client")
os.environ["PATH"] += os.pathsep + os.path.join(SOURCE, ".cache", "promtool", "usr", "bin")
# promtool's taste, not a rule: dashboards out there use these names.
KNOWN_REMARKS = {'motley_device_clock_khz use base unit "hertz" instead of "khz"'}
HEALTH = '{"temperature_c": 61, "power_w": 80, "clock_khz": 1410000, "heat": 0.9, "others_bytes": 5, "ecc_uncorrected": 0}'


def gauge(name):
    lines = api.call("GET", "/metrics", token=None).body.decode().splitlines()
    return [float(line.split()[1]) for line in lines if line.split()[0] == name]


def a_scheduler_that_decides_nothing_is_told():
    """Its row is written here as a scheduler writes it; in scheduler/statements a real one does."""
    def told(state, words):
        queue, ready = api.good("GET", "/v1/queue")["scheduler"], api.good("GET", "/readyz", token=None)
        expect(queue["state"] == state and words in queue.get("why", ""), f"{state}: {queue}")
        expect(ready["status"] == "ready" and ready["scheduler"]["state"] == state and "why" not in ready["scheduler"], f"{state}: {ready}")
        expect(gauge("motley_scheduler_deciding") == [float(state == "deciding")], f"{state}: the metric")

    told("absent", "no scheduler has led yet")
    api.psql("INSERT INTO scheduler_health (name, failing_since, failures, task, why, asides, aside_count) VALUES ('s', now() - interval '3 s', 9, "
             "'passes', 'decide_runs: wrong', '[{\"part\": \"job 7\", \"job\": 7, \"until\": \"then\", \"until_us\": 1, \"why\": \"no\"}]', 1)")
    told("failing", "cannot decide, and nothing starts: since ")
    expect("(decide_runs: wrong)" in api.good("GET", "/v1/queue")["scheduler"]["why"], "the error is named")
    expect(gauge("motley_scheduler_set_aside") == [1], "the metric of what is set aside")
    api.psql("UPDATE scheduler_health SET failing_since = NULL, good_at = now() - interval '11 s'")
    told("silent", "has decided nothing since ")
    expect(11 <= gauge("motley_scheduler_pass_age_seconds")[0] < 60, "the metric of the age")
    api.psql("UPDATE scheduler_health SET good_at = now() + interval '1 h'")
    told("deciding", "")


def metrics_are_what_prometheus_takes():
    api.psql("INSERT INTO nodes (name) VALUES ('n'); INSERT INTO devices (name, node, kind, inventory, digest, memory_limit_bytes, health) "
             f"VALUES ('n/cuda0', 'n', 'cuda', '{{}}', 'x', 1000000, '{HEALTH}'); "
             "INSERT INTO devices (name, node, kind, inventory, digest, memory_limit_bytes) "
             "VALUES (E'n/\"} 1\\nmotley_forged{x=\"', 'n', 'cuda', '{}', 'x', 1000000); "
             "INSERT INTO refused_events (reason, n) VALUES ('mac', 2)")
    text = api.call("GET", "/metrics", token=None).body
    with open(api.path("metrics"), "wb") as handle:
        handle.write(text)
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, timeout=60, check=False)
    remarks = set((done.stdout + done.stderr).decode().splitlines()) - KNOWN_REMARKS
    expect(not remarks, f"promtool check metrics: {sorted(remarks)}")
    expect(b'motley_device_heat{device="n/cuda0"} 0.9' in text and b'motley_refused_events_total{reason="mac"} 2' in text, text.decode())
    expect(b"\nmotley_forged" not in text, "a device's name makes no line")


def machines_and_waits_are_told():
    """Rows as agents' messages and a submit make them; that a silent agent's node becomes unreachable is in scheduler's tests."""
    api.psql("INSERT INTO nodes (name, state, last_seen, certified_until) VALUES ('here', 'alive', now() - interval '2 s', now() + interval '1 d'), "
             "('lost', 'unreachable', now() - interval '1 h', now() + interval '2 d')")
    api.psql("INSERT INTO nodes (name, state, last_seen, leaves_at) VALUES ('went', 'unreachable', now() - interval '1 d', now() - interval '1 d')")
    expect(gauge('motley_node_alive{node="here"}') == [1] and gauge('motley_node_alive{node="lost"}') == [0], "who is there")
    expect(2 <= gauge('motley_node_heard_seconds{node="here"}')[0] < 60 and 3600 <= gauge('motley_node_heard_seconds{node="lost"}')[0] < 3660, "heard")
    expect(86340 < gauge('motley_node_certificate_seconds{node="here"}')[0] <= 86400, "its certificate")
    expect(not gauge('motley_node_alive{node="went"}'), "a node that left in good order is not missed")
    expect(gauge("motley_queue_oldest_seconds") == [0], "nothing waits")
    left = int(gauge("motley_api_certificate_seconds")[0])
    ends = [subprocess.run(["openssl", "x509", "-in", tls["cert"], "-noout", "-checkend", str(left + off)], capture_output=True, timeout=30,
                           check=False).returncode for off in (-60, 60)]
    expect(ends == [0, 1], f"the api's own certificate ends in {left} s: {ends}")


def check(folder=None):
    tool = os.path.join(folder or SOURCE, "tools", "dashboard_check.py")
    return subprocess.run([sys.executable, tool, api.path("metrics")], capture_output=True, text=True, timeout=120, check=False,
                          env={**os.environ, "PYTHONPATH": PACKAGES})


def alerts_and_dashboard_ask_for_what_there_is():
    done = check()
    expect(done.returncode == 0 and " 0 findings" in done.stdout, done.stdout + done.stderr)
    return done.stdout.strip()


def the_documented_configuration_is_taken():
    with open(os.path.join(SOURCE, "deploy", "README.md"), encoding="utf-8") as handle:
        text = re.search(r"```yaml\n(rule_files:.*?)```", handle.read(), re.DOTALL).group(1)
    for name, there in (("motley-alerts.yml", os.path.join(SOURCE, "deploy", "prometheus", "alerts.yml")), ("motley-ca.crt", tls["ca"])):
        expect(text.count("/etc/prometheus/" + name) == 1, f"the sample names no {name}")
        text = text.replace("/etc/prometheus/" + name, there)
    with open(api.path("prometheus.yml"), "w", encoding="utf-8") as handle:
        handle.write(text)
    done = subprocess.run(["promtool", "check", "config", api.path("prometheus.yml")], capture_output=True, text=True, timeout=60, check=False)
    expect(done.returncode == 0 and "rules found" in done.stdout, done.stdout + done.stderr)
    expect("job_name: motley " in text, "the alerts ask for the job motley")


def mistakes_in_them_are_found():
    copy = api.path("copy")
    for name, old, new, finding in (
            ("alerts.yml", "motley_database_up == 0", "motley_database == 0", "there is no metric motley_database"),
            ("alerts.yml", 'state="queued"', 'stat="queued"', "motley_jobs has no label stat"),
            ("alerts.yml", "for: 30m", "for: 90m", "test rules alerts_days_test.yml alerts_test.yml"),
            ("dashboard.json", "max by (state)", "max by state", "parse error"),
            ("dashboard.json", '"x": 8,', '"x": 9,', "it lies over"),
            ("dashboard.json", "rate(motley_api_submits_total{instance=~\\\"$instance\\\"}[$__rate_interval])", "motley_api_requests_total",
             "no panel shows motley_api_submits_total")):
        shutil.copytree(os.path.join(SOURCE, "deploy", "prometheus"), os.path.join(copy, "deploy", "prometheus"))
        shutil.copytree(os.path.join(SOURCE, "tools"), os.path.join(copy, "tools"))
        path = os.path.join(copy, "deploy", "prometheus", name)
        with open(path, encoding="utf-8") as handle:
            text = handle.read()
        expect(old in text, f"{name} has no {old}")
        with open(path, "w", encoding="utf-8") as handle:
            handle.write(text.replace(old, new, 1))
        done = check(copy)
        expect(done.returncode == 1 and finding in done.stdout, f"{name}, {old} → {new}: {done.stdout}{done.stderr}")
        shutil.rmtree(copy)


if not shutil.which("promtool"):
    skip("promtool is not there: tools/take_program.sh takes it out of Debian's package prometheus")
if not os.path.isdir(os.path.join(PACKAGES, "yaml")):
    skip("PyYAML is not in .cache/client: tools/pypi_packages.sh client fetches it")
api = Api()
tls = api.config["tls"] = certificate(api.base)
with api:
    main(a_scheduler_that_decides_nothing_is_told, machines_and_waits_are_told, metrics_are_what_prometheus_takes, alerts_and_dashboard_ask_for_what_there_is,
         the_documented_configuration_is_taken, mistakes_in_them_are_found)
