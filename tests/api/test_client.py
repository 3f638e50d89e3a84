#!/usr/bin/env python3
"""Tests that a client generated from openapi.yaml by openapi-python-client uploads, submits, follows and fetches, and that the
schemas list every field that is sent. The generator lies in .cache/client (tools/pypi_packages.sh); a visible skip without it."""
import json
import os
import subprocess
import sys

from api import SLOW, Api, expect, main, skip, spec, token_rows

PACKAGES = os.path.join(os.environ.get("MOTLEY_SOURCE") or os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."), ".cache", "client")

USES = '''
import io, hashlib, json, sys
from motley_client import AuthenticatedClient
from motley_client.api.files import get_file, put_file
from motley_client.api.jobs import cancel_job, follow_job, get_job, list_jobs, list_runs, submit_job
from motley_client.models import Problem, Specification
from motley_client.types import File

address, token, document, rows = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), sys.argv[4].encode()
client = AuthenticatedClient(base_url=address, token=token)
sha256 = hashlib.sha256(rows).hexdigest()
kept = put_file.sync(sha256, client=client, body=File(payload=io.BytesIO(rows)))
assert kept.sha256 == sha256, kept
assert get_file.sync(sha256, client=client).payload.read() == rows, "the file comes back"
document["data"]["train"] = "sha256:" + sha256
made = submit_job.sync(client=client, body=Specification.from_dict(document), idempotency_key="k")
assert submit_job.sync(client=client, body=Specification.from_dict(document), idempotency_key="k").id == made.id, "once"
with client.get_httpx_client().stream(**follow_job._get_kwargs(made.id)) as stream:
    assert cancel_job.sync(made.id, client=client, body=cancel_job.CancelJobBody()).state == "cancelled"
    lines = list(stream.iter_lines())
assert "event: end" in lines, lines
assert "event: end" in follow_job.sync(made.id, client=client), "a job that is over"
job = get_job.sync(made.id, client=client)
assert job.state == "cancelled" and job.name == document["name"], job
assert not job.additional_properties, f"Job does not list {job.additional_properties}"
for page in (list_jobs.sync(client=client, state=["cancelled"], label=["a=b"]),):
    assert [line.id for line in page.jobs] == [made.id] and page.next_ is None, page
    assert not page.jobs[0].additional_properties, f"JobLine does not list {page.jobs[0].additional_properties}"
job = get_job.sync(int(sys.argv[5]), client=client)
assert not job.run.additional_properties, f"JobRun does not list {job.run.additional_properties}"
runs = list_runs.sync(int(sys.argv[5]), client=client).runs
assert len(runs) == 1 and not runs[0].additional_properties, f"Run does not list {runs}"
wrong = submit_job.sync(client=client, body=Specification.from_dict(dict(document, model="none")))
assert isinstance(wrong, Problem) and wrong.errors[0].pointer == "/model" and not wrong.additional_properties, wrong
'''


def a_generated_client_submits_follows_and_fetches():
    folder = api.path("client")
    with open(api.path("openapi.yaml"), "wb") as handle:
        handle.write(api.call("GET", "/v1/openapi.yaml").body)
    done = subprocess.run([sys.executable, "-m", "openapi_python_client", "generate", "--path", api.path("openapi.yaml"), "--output-path", folder],
                          capture_output=True, text=True, timeout=120 * SLOW, check=False, env={
                              **os.environ, "PYTHONPATH": PACKAGES, "PATH": os.path.join(PACKAGES, "bin") + os.pathsep + os.environ["PATH"]})
    expect(done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:])
    refused = [line for line in (done.stdout + done.stderr).splitlines() if line.startswith(("WARNING", "ERROR")) and "/v1/openapi.yaml" not in line]
    expect(not refused, f"what the generator leaves out: {refused}")
    ran = api.good("POST", "/v1/jobs", spec(api.upload_rows(token_rows())))["id"]
    api.psql(f"WITH r AS (INSERT INTO runs (job, attempt, epoch, state, plan, answer) VALUES ({ran}, 1, 1, 'failed', '{{}}', "
             f"'{{\"verdict\": \"fits\"}}') RETURNING id) UPDATE jobs SET run = r.id FROM r WHERE jobs.id = {ran}")
    rows = "".join(str(row).replace("'", '"') + "\n" for row in token_rows(5))
    document = spec("", name="n" * 127, labels={"a": "b"})
    done = subprocess.run([sys.executable, "-c", USES, f"http://{api.address}", api.token, json.dumps(document), rows, str(ran)], capture_output=True,
                          text=True, timeout=60, check=False, env={**os.environ, "PYTHONPATH": folder + os.pathsep + PACKAGES})
    expect(done.returncode == 0, done.stderr[-3000:])


if not os.path.isdir(os.path.join(PACKAGES, "openapi_python_client")):
    skip("openapi-python-client is not in .cache/client: tools/pypi_packages.sh client fetches it")
with Api() as api:
    api.tiny_model()
    main(a_generated_client_submits_follows_and_fetches)
