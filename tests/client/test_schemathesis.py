#!/usr/bin/env python3
"""schemathesis asks a live service what api/openapi.yaml allows and what it forbids, and finds nothing that they disagree in.

MOTLEY_EXAMPLES (2) requests an operation are drawn, by MOTLEY_SEED (1). Where MOTLEY_EXAMPLES is set (make schema-check), each
boundary of the description is asked for, too, which is 5,000 requests more. Event streams have no end and are left to
test_client.py. It lies in .cache/client (tools/pypi_packages.sh); a visible skip without it."""
import os
import re
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "api"))
from api import SLOW, Api, expect, main, skip, spec, token_rows  # noqa: E402

SOURCE = os.environ.get("MOTLEY_SOURCE") or os.path.join(HERE, "..", "..")
PACKAGES = os.path.join(SOURCE, ".cache", "client")
SCOPES = ["admin", "jobs:read", "jobs:write", "nodes:read", "nodes:write", "models:read", "models:write", "leases:write"]


def nothing_is_found():
    # ignored_auth is left out: wrong tokens are answered 429 once an address has shown too many, so it cannot go on.
    # tests/api/test_matrix.py and test_wrong.c have what is refused without a token.
    # The token that asks has a number that nothing draws: DELETE /v1/tokens/1 is a good request, too.
    api.psql("ALTER SEQUENCE tokens_id_seq RESTART 987654321")
    token = api.good("POST", "/v1/tokens", {"note": "asks", "scopes": SCOPES})["token"]
    done = subprocess.run(
        [sys.executable, "-m", "schemathesis.cli", "--config-file", os.path.join(HERE, "schemathesis.toml"), "run", f"http://{api.address}/v1/openapi.yaml", "--header", f"Authorization: Bearer {token}",
         "--phases", "examples,coverage,fuzzing" if "MOTLEY_EXAMPLES" in os.environ else "fuzzing", "--checks", "all", "--exclude-checks", "ignored_auth", "--max-examples", os.environ.get("MOTLEY_EXAMPLES", "2"), "--seed",
         os.environ.get("MOTLEY_SEED", "1"), "--generation-database", "none", "--continue-on-failure", "--exclude-operation-id", "followJob",
         "--exclude-operation-id", "followCluster", "--workers", "2"],
        cwd=api.base, env={**os.environ, "PYTHONPATH": PACKAGES, "NO_COLOR": "1", "COLUMNS": "150", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True, text=True, timeout=1500 * SLOW, check=False)
    with open(os.environ.get("MOTLEY_REPORT", os.devnull), "w", encoding="utf-8") as report:
        report.write(done.stdout + done.stderr)
    expect(done.returncode == 0, done.stdout[-12000:] + done.stderr[-2000:])
    counted = re.search(r"(\d+) generated, (\d+) passed", done.stdout)
    expect(counted and int(counted[1]) > 100, done.stdout[-2000:])
    return f"{counted[1]} requests"


if not os.path.isdir(os.path.join(PACKAGES, "schemathesis")):
    skip("schemathesis is not in .cache/client: tools/pypi_packages.sh client fetches it")
with Api() as api:
    api.tiny_model()
    for name in ("a", "b"):
        api.good("POST", "/v1/jobs", spec(api.upload_rows(token_rows()), name=name, hold=True))
    api.psql("INSERT INTO nodes (name) VALUES ('n'); INSERT INTO devices (name, node, kind, inventory, digest, memory_limit_bytes) "
             "VALUES ('n/cpu0', 'n', 'cpu', '{}', 'x', 1000000000)")
    main(nothing_is_found)
