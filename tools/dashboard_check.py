#!/usr/bin/env python3
"""Checks deploy/prometheus: that the dashboard is one that Grafana shows as it is meant, that every alert has a test, and that
dashboard and alerts ask only for metrics, labels and label values that exist.

usage: dashboard_check.py METRICS     METRICS: what GET /metrics answered, with at least one device
Expressions are parsed by promtool, which must be on the PATH. One line a finding; exits 1 if there is any.
"""
import json
import os
import re
import subprocess
import sys
import tempfile

import yaml

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "deploy", "prometheus")
OF_PROMETHEUS = {"up": {"job", "instance"}, "ALERTS": {"alertname", "alertstate"}}
ADDED_BY_PROMETHEUS = {"job", "instance"}
COLUMNS = 24  # of Grafana's grid
UNITS = {"short", "reqps", "ops", "Bps", "bytes", "celsius", "percentunit", "s", "watt", "hertz"}
# Grafana's variables, as values that promtool parses.
VARIABLES = {"$__rate_interval": "5m", "$instance": ".*", "$device": ".*"}


def exposed(text):
    """{metric: its labels} of an answer of /metrics."""
    found = {name: set() for name in re.findall(r"^# TYPE (\w+)", text, re.M)}
    for name, labels in re.findall(r"^(\w+)(?:\{(.*?)\})? ", text, re.M):
        found.setdefault(name, set()).update(re.findall(r"(\w+)=", labels))
    return found


def check_names(where, expression, metrics, report):
    """A selector asks for what exists: a misspelt label makes an alert that never fires."""
    plain = re.sub(r'"[^"]*"', '""', expression)
    for name in set(re.findall(r"\b(motley_\w+|up|ALERTS)\b", plain)):
        if name not in metrics:
            report(where, f"there is no metric {name}")
    for name, labels in re.findall(r"\b(\w+)\{([^}]*)\}", plain):
        for label in re.findall(r"(\w+)\s*[=!]", labels):
            if label not in metrics.get(name, set()) | ADDED_BY_PROMETHEUS:
                report(where, f"{name} has no label {label}")


def check_grid(panels, report):
    taken = {}
    for panel in panels:
        grid = panel["gridPos"]
        if grid["x"] + grid["w"] > COLUMNS:
            report(panel["title"], f"it ends at column {grid['x'] + grid['w']} of {COLUMNS}")
        for cell in ((x, y) for x in range(grid["x"], grid["x"] + grid["w"]) for y in range(grid["y"], grid["y"] + grid["h"])):
            if cell in taken:
                report(panel["title"], f"it lies over {taken[cell]}")
                return
            taken[cell] = panel["title"]


def check_panel(panel, variables, report):
    if panel["type"] == "row":
        return []
    for key in ("title", "description", "datasource", "targets"):
        if not panel.get(key):
            report(panel.get("title", panel["id"]), f"it has no {key}")
    if panel["fieldConfig"]["defaults"].get("unit") not in UNITS:
        report(panel["title"], "it has no unit that is known here")
    if panel["datasource"].get("uid") != "${datasource}":
        report(panel["title"], "its data source is fixed; ${datasource} lets every lab choose its own")
    identities = [target["refId"] for target in panel["targets"]]
    if len(set(identities)) != len(identities):
        report(panel["title"], "two of its queries have one refId")
    for target in panel["targets"]:
        for name in re.findall(r"\$(\w+)", target["expr"]):
            if not name.startswith("__") and name not in variables:
                report(panel["title"], f"there is no variable ${name}")
        if "rate(" in target["expr"] and "$__rate_interval" not in target["expr"]:
            report(panel["title"], "a rate over a fixed time is empty when one zooms in: $__rate_interval")
        if len(panel["targets"]) > 1 and not target["legendFormat"]:
            report(panel["title"], "several queries, and one has no legend")
    return [(panel["title"], target["expr"]) for target in panel["targets"]]


def check_parsed(expressions, report):
    """promtool reads them all, as recording rules."""
    rules = []
    for i, (where, text) in enumerate(expressions):
        for name, value in VARIABLES.items():
            text = text.replace(name, value)
        rules.append({"record": f"panel:{i}", "expr": text, "labels": {"where": where}})
    with tempfile.NamedTemporaryFile("w", suffix=".yml") as handle:
        yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}, handle)
        handle.flush()
        done = subprocess.run(["promtool", "check", "rules", handle.name], capture_output=True, text=True, check=False)
    if done.returncode != 0 or f"{len(rules)} rules found" not in done.stdout:
        report("dashboard.json", done.stderr.strip() or done.stdout.strip())


def check_promtool(words, report):
    done = subprocess.run(["promtool", *words], cwd=FOLDER, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        report(" ".join(words), (done.stdout + done.stderr).strip())


def main():
    findings = []
    with open(sys.argv[1], encoding="utf-8") as handle:
        metrics = {**exposed(handle.read()), **OF_PROMETHEUS}
    with open(os.path.join(FOLDER, "dashboard.json"), encoding="utf-8") as handle:
        dashboard = json.load(handle)
    with open(os.path.join(FOLDER, "alerts.yml"), encoding="utf-8") as handle:
        rules = [rule for group in yaml.safe_load(handle)["groups"] for rule in group["rules"]]
    tests, cases = sorted(name for name in os.listdir(FOLDER) if name.endswith("_test.yml")), []
    for name in tests:
        with open(os.path.join(FOLDER, name), encoding="utf-8") as handle:
            cases += [case for test in yaml.safe_load(handle)["tests"] for case in test["alert_rule_test"]]

    def report(where, what):
        findings.append(f"{where}: {what}")

    variables = {variable["name"] for variable in dashboard["templating"]["list"]}
    panels = dashboard["panels"]
    if len({panel["id"] for panel in panels}) != len(panels):
        report("dashboard.json", "two panels have one id")
    check_grid(panels, report)
    expressions = [found for panel in panels for found in check_panel(panel, variables, report)]
    expressions += [(one["name"], one["expr"]) for one in dashboard["annotations"]["list"]]
    check_parsed(expressions, report)
    for where, text in expressions + [(rule["alert"], rule["expr"]) for rule in rules]:
        check_names(where, text, metrics, report)
    shown = " ".join(text for _, text in expressions)
    for name in metrics:
        if name.startswith("motley_") and not re.search(rf"\b{name}\b", shown) and name != "motley_api_requests_total":
            report("dashboard.json", f"no panel shows {name}")
    for rule in rules:
        if set(rule["annotations"]) != {"summary", "description"} or rule["labels"].get("severity") not in ("critical", "warning", "info"):
            report(rule["alert"], "an alert has a summary, a description and a severity")
        fires = [bool(case.get("exp_alerts")) for case in cases if case["alertname"] == rule["alert"]]
        if not (True in fires and False in fires):
            report(rule["alert"], f"{' and '.join(tests)} have it fire and be silent once each, at least")
    check_promtool(["check", "rules", "alerts.yml"], report)
    check_promtool(["test", "rules", *tests], report)
    for line in findings:
        print(line)
    print(f"dashboard_check: {len(findings)} findings in {len(expressions)} queries and {len(rules)} alerts")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
