#!/usr/bin/env python3
"""Who may do what to which object: one's own, one's group's, everyone's, and nothing else."""
import hashlib
import json
import os
import random

from api import LLAMA, Api, agent_token, expect, main, spec, token_rows

PEOPLE = ["jobs:read", "jobs:write", "models:read", "models:write", "nodes:read"]


def noise(seed, size=100000):
    return random.Random(seed).randbytes(size)


def upload_model(name, token, **more):
    """The tiny model from uploaded files, as people register theirs."""
    files = []
    for file in ("config.json", "model.safetensors"):
        with open(os.path.join(LLAMA, file), "rb") as handle:
            files.append({"name": file, "sha256": api.upload(handle.read(), token=token)})
    return api.call("POST", "/v1/models", {"name": name, "files": files, **more}, token=token)


def one_user_neither_replaces_nor_removes_anothers_model():
    made = upload_model("shared", ada)
    expect(made.status == 201, f"{made.status} {made.body[:300]}")
    api.psql("UPDATE models SET info = '{\"mark\": \"ada''s\"}'")
    again = upload_model("shared", bob)
    expect(again.status == 201 and again.json.get("owner") == "bob", f"bob's own: {again.status} {again.body[:300]}")
    names = [(m["owner"], m["name"]) for m in api.good("GET", "/v1/models", token=ada)["models"]]
    expect(("ada", "shared") in names and ("bob", "shared") not in names, f"ada sees {names}")
    for path in ("/v1/models/ada%2Fshared", "/v1/models/ada%2Fnothing"):
        api.refused(404, "GET", path, token=bob)
        api.refused(404, "DELETE", path, token=bob)
    api.good("DELETE", "/v1/models/shared", token=bob)
    api.refused(404, "DELETE", "/v1/models/shared", token=bob)
    expect(api.good("GET", "/v1/models/shared", token=ada)["owner"] == "ada", "ada's is still there")


def an_agents_token_lists_no_tokens():
    api.refused(403, "GET", "/v1/tokens", token=agent)


def knowing_a_hash_is_not_seeing_the_file():
    data = noise(1)
    sha256 = api.upload(data, token=ada)
    for path in (f"/v1/blobs/{sha256}", f"/v1/blobs/{sha256}/manifest"):
        expect(api.call("GET", path, token=ada).status == 200, f"ada's own {path}")
        for token in (bob, agent):
            there = api.refused(404, "GET", path, token=token)
            absent = api.refused(404, "GET", path.replace(sha256, "0" * 64), token=token)
            expect(json.dumps(there).replace(sha256, "0" * 64) == json.dumps(absent), f"{there} is not {absent}")
            expect(api.call("HEAD", path, token=token).status == 404, "HEAD")


with Api() as api:
    ada, bob = (api.token_for(name, PEOPLE) for name in ("ada", "bob"))
    agent = agent_token(api, "left")
    main(one_user_neither_replaces_nor_removes_anothers_model, an_agents_token_lists_no_tokens,
         knowing_a_hash_is_not_seeing_the_file)
