#!/usr/bin/env python3
"""Tests a client behind a link that is slow and breaks: it sends nothing again that the server has, and in the end all is there."""
import contextlib
import hashlib
import json
import os
import random
import select
import signal
import socket
import subprocess
import threading
import time

from api import BIN, LLAMA, Api, expect, main, spec, token_rows, wait_for
from hub import Hub, Repository

MIB = 1 << 20


class Link:
    """A proxy in front of the api, with bytes_per_second towards it; each connection ends after cut_bytes."""

    def __init__(self, address, cut_bytes, bytes_per_second):
        host, port = address.rsplit(":", 1)
        self.target = (host, int(port))
        self.cut_bytes, self.rate = cut_bytes, bytes_per_second
        self.cuts = self.sent = 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = "http://127.0.0.1:%d" % self.listener.getsockname()[1]
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.forward, args=(client,), daemon=True).start()

    def forward(self, client):
        with contextlib.suppress(OSError):  # either end may have closed
            self.pass_on(client)

    def pass_on(self, client):
        left = self.cut_bytes
        with client, socket.create_connection(self.target) as server:
            while True:
                ready, _, _ = select.select([client, server], [], [], 30)
                if not ready:
                    return
                for end in ready:
                    data = end.recv(65536)
                    if not data:
                        return
                    if end is client:
                        data = data[:left]
                        left -= len(data)
                        self.sent += len(data)
                        time.sleep(len(data) / self.rate)
                    (server if end is client else client).sendall(data)
                if left == 0:
                    self.cuts += 1
                    return


def a_large_file_passes_a_link_that_breaks_again_and_again():
    with Api() as api:
        link = Link(api.address, 3 * MIB, 40 * MIB)
        home = api.path("home")
        os.makedirs(home)
        with open(os.path.join(home, "client.json"), "w", encoding="utf-8") as handle:
            json.dump({"address": link.address, "token": api.token}, handle)
        data = random.Random(7).randbytes(20 * MIB + 11)
        rows = api.path("held-out.jsonl")
        with open(rows, "wb") as handle:
            handle.write(data)
        words = {"model": "none", "data": {"train": rows}, "train": {"batch_rows": 2, "steps": 1}}
        with open(api.path("spec.yaml"), "w", encoding="utf-8") as handle:
            json.dump(words, handle)
        done = subprocess.run([os.path.join(BIN, "motley"), "submit", api.path("spec.yaml"), "--home", home], capture_output=True,
                              text=True, timeout=60, check=False)
        sha256 = hashlib.sha256(data).hexdigest()
        there = api.call("HEAD", f"/v1/blobs/{sha256}")
        expect(there.status == 200, f"not there after {link.cuts} cuts: {done.stderr[-500:]}")
        expect(api.call("GET", f"/v1/blobs/{sha256}").body == data, "it comes back")
        expect(link.cuts >= 5, f"the link broke {link.cuts} times")
        expect(link.sent < 1.7 * len(data), f"{link.sent} bytes were sent for {len(data)}")
        return f"{link.cuts} cuts, {link.sent / len(data):.2f} times the bytes"


def the_server_fetches_of_the_hub_for_whom_it_may():
    name, files = "Acme/Tiny-1", {}
    for each in os.listdir(LLAMA):
        if each in ("config.json", "model.safetensors", "tokenizer.json"):
            with open(os.path.join(LLAMA, each), "rb") as handle:
                files[each] = handle.read()
    with Hub() as hub:
        hub.repositories.update({name: Repository(files), "Acme/Gated": Repository(files, gated=True), "Acme/Text": Repository({"config.json": b"{}"})})
        os.environ.update(HF_ENDPOINT=hub.url, HF_HUB_CACHE="/nowhere", HF_TOKEN_PATH="/nowhere")
        asked = {"name": "tiny", "hub": name}
        with Api(limits={"model": "64MiB", "idle_seconds": 1}) as api:
            ada = api.token_for("ada", ["models:read", "models:write", "jobs:read", "jobs:write"])
            api.refused(403, "POST", "/v1/models", asked, "this server fetches no models", "motley model get")
            api.stop()
            api.config["hub"] = {"fetch": "administrators", "cache": api.path("hub")}
            api.start()
            api.refused(403, "POST", "/v1/models", asked, "only an administrator", token=ada)
            for word, why in (("Acme/Gated", "is gated"), ("Acme/None", "no public model"), ("Acme/Text", "holds no weights"), ("x", "is no name of a hub")):
                api.refused(422, "POST", "/v1/models", {"name": "x", "hub": word}, "hub: ", why)
            api.refused(422, "POST", "/v1/models", {**asked, "path": "/x"}, "give one of")
            hub.answers = [(429, [("Retry-After", "2")])]  # longer than a connection may be idle
            made = api.good("POST", "/v1/models", asked)
            commit = hub.repositories[name].revisions["main"]
            expect(made["base"] == {"name": name, "revision": commit} and made["visibility"] == "mine" and
                   os.path.exists(api.path(f"hub/models--Acme--Tiny-1/snapshots/{commit}/config.json")), f"{made}")
            home = api.path("far")
            os.mkdir(home)
            words = [os.path.join(BIN, "motley"), "submit", api.path("spec.json"), "--home", home, "--json"]
            blind = api.token_for("ada", ["jobs:write"])  # may not ask whether a model is registered

            def ask_as(token, model):
                with open(os.path.join(home, "client.json"), "w", encoding="utf-8") as handle:  # 127.0.0.1, but no name of this machine's
                    json.dump({"address": "http://2130706433:" + api.address.rsplit(":", 1)[1], "token": token}, handle)
                with open(api.path("spec.json"), "w", encoding="utf-8") as handle:
                    lines = "".join(json.dumps(row) + "\n" for row in token_rows()).encode()
                    json.dump(spec("sha256:" + api.upload(lines, token=ada), model=model, train={"batch_rows": 2, "steps": 3, "warmup_steps": 0}), handle)

            for who in ("users", "nobody"):
                api.stop()
                api.config["hub"]["fetch"] = who
                api.start()
                ask_as(ada, name)
                done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False, env={**os.environ, "HF_HUB_CACHE": api.path("own")})
                expect(done.returncode == 0 and api.good("GET", f"/v1/jobs/{json.loads(done.stdout)['id']}")["spec"]["model"] == made["content"],
                       done.stdout + done.stderr)
                expect(("it does not, so it is fetched here" in done.stderr, os.path.exists(api.path("own"))) == (who == "nobody",) * 2, done.stderr)
            ask_as(blind, "ada/Tiny-1")
            done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
            expect(done.returncode == 0 and done.stderr == "", f"a registered name that the token may not look up: {done.stderr}")


class Person:
    """Somebody at a terminal: a home with a client.json, and a folder with a small model beside the job."""

    def __init__(self, api, name, scopes, seed):
        self.home, self.folder = api.path(f"home-{name}"), api.path(f"work-{name}")
        os.makedirs(self.home)
        os.makedirs(os.path.join(self.folder, "tiny"))
        self.connect("http://2130706433:" + api.address.rsplit(":", 1)[1], api.token_for(name, scopes))  # 127.0.0.1, but no name of this machine's
        for each in ("config.json", "model.safetensors"):
            with open(os.path.join(LLAMA, each), "rb") as handle:
                self.write(os.path.join("tiny", each), handle.read() + b" " * (seed if each == "config.json" else 0))
        self.write("rows.jsonl", "".join(json.dumps(row) + "\n" for row in token_rows()).encode())

    def connect(self, address, token):
        with open(os.path.join(self.home, "client.json"), "w", encoding="utf-8") as handle:
            json.dump({"address": address, "token": token}, handle)

    def write(self, name, data):
        with open(os.path.join(self.folder, name), "wb") as handle:
            handle.write(data)

    def type(self, *words, status=0, seconds=60):
        """What `motley WORDS` prints, standard output before standard error."""
        done = subprocess.run([os.path.join(BIN, "motley"), *words, "--home", self.home], cwd=self.folder, capture_output=True, text=True,
                              timeout=seconds, check=False)
        expect(done.returncode == status, f"motley {words}: {done.returncode}: {done.stdout}{done.stderr}")
        return done.stdout + done.stderr

    def submit(self, status=0, **changes):
        train = {"steps": 1, "warmup_steps": 0}
        self.write("job.json", json.dumps({"model": "tiny", "data": {"train": "rows.jsonl", "format": "tokens"}, "train": train, **changes}).encode())
        return self.type("submit", "job.json", status=status).strip()


def read_config():
    with open(os.path.join(LLAMA, "config.json"), "rb") as handle:
        return handle.read()


def a_folder_beside_the_job_is_no_other_persons_model_of_that_name():
    with Api() as api:
        usual = ["jobs:read", "jobs:write", "models:read", "models:write"]
        ada, root = Person(api, "ada", usual, 0), Person(api, "root", [*usual, "admin"], 1)
        models = [api.good("GET", f"/v1/jobs/{person.submit()}")["inputs"]["model"] for person in (ada, root)]
        expect(models[0] != models[1], "an administrator's job got the model of somebody else")
        ada.write(os.path.join("tiny", "config.json"), read_config() + b"  ")
        changed = api.good("GET", f"/v1/jobs/{ada.submit()}")["inputs"]
        expect(changed["model"] not in models and changed["base"]["name"] == os.path.join(ada.folder, "tiny"), f"a folder that was changed: {changed}")
        ada.type("model", "add", "shared", "tiny", "--visibility", "everyone")
        os.makedirs(os.path.join(root.folder, "shared"))
        shared = api.good("GET", f"/v1/jobs/{root.submit(model='shared')}")["inputs"]
        expect(shared["model"] == changed["model"], "a model that is shared goes before a folder of its name")
        ada.type("model", "add", "own", "tiny")
        os.makedirs(os.path.join(ada.folder, "own"))
        own = api.good("GET", f"/v1/jobs/{ada.submit(model='own')}")["inputs"]
        expect(own["model"] == changed["model"], "one's own registered model goes before a folder of its name")


def what_a_terminal_says_names_the_thing_and_the_place():
    with Api() as api:
        ada = Person(api, "ada", ["jobs:read", "jobs:write", "models:read", "models:write"], 0)
        said = ada.submit(status=2, train={"steps": "x", "batch": 2}, wrong=1)
        expect(all(f"job.json: {key}" in said for key in ("train.steps: must be", "train.batch: unknown key", "wrong: unknown key")), said)
        ada.write("rows.jsonl", b'{"input_ids": [1, 2]}\n{"input_ids": [1,\n')
        said = ada.submit(status=2)
        expect("data.train (rows.jsonl): line 2: " in said, said)
        ada.write("rows.jsonl", b'{"input_ids": [1, 2, 3]}\n')
        said = ada.submit(status=2, model="tinny")
        expect('no model is registered as "tinny" (motley model list), and no folder or .gguf' in said, said)
        held = ada.submit(hold=True)
        try:
            said = ada.type("watch", held, seconds=4)
        except subprocess.TimeoutExpired as waited:
            said = (waited.stdout or b"").decode()
        expect(f"job held: until motley release {held}" in said, f"watch says of a held job: {said!r}")
        expect(f"job {held} is seen by everyone" in ada.type("share", held, "everyone"), "share")
        expect(f"there is no job {10 ** 9} that you may see" in ada.type("why", str(10 ** 9), status=1), "a job that is not there")
        expect("lacks the scope admin: an administrator can make one" in ada.type("user", "list", status=6), "a scope that is lacking")
        ada.type("cancel", held)
        said = ada.type("hold", held, status=1)
        expect("hold is not possible: the job's state is cancelled" in said, said)
        expect("nothing runs in" in (said := ada.type("status")) and "which answers ada" in said, said)
        ada.connect("http://2130706433:" + api.address.rsplit(":", 1)[1], "x")
        said = ada.type("jobs", status=6)
        expect(f"(the token of {ada.home}/client.json)" in said, said)
        ada.connect("http://127.0.0.1:1", "")
        said = ada.type("jobs", status=2)
        expect(f"{ada.home}/client.json: " in said and "token" in said, said)


def a_job_names_a_model_that_the_server_then_fetches():
    name, files = "Acme/Tiny-1", {}
    for each in ("config.json", "model.safetensors"):
        with open(os.path.join(LLAMA, each), "rb") as handle:
            files[each] = handle.read()
    size = sum(len(data) for data in files.values())
    with Hub() as hub:
        hub.repositories.update({name: Repository(files), "Acme/Other": Repository({**files, "config.json": files["config.json"] + b" "}),
                                 "Acme/Gated": Repository(files, gated=True)})
        os.environ.update(HF_ENDPOINT=hub.url, HF_TOKEN_PATH="/nowhere")
        with Api() as api:
            ada = api.token_for("ada", ["jobs:read", "jobs:write", "models:read", "models:write"])
            blind = api.token_for("ada", ["jobs:write"])
            rows = "sha256:" + api.upload("".join(json.dumps(row) + "\n" for row in token_rows()).encode(), token=ada)

            def restart(**config):
                api.stop()
                api.config.update(config)
                api.start()

            def submit(model, **changes):
                return api.good("POST", "/v1/jobs", spec(rows, model=model, **changes), token=ada)["id"]

            def job(ident):
                return api.good("GET", f"/v1/jobs/{ident}", token=ada)

            def why(ident, *words):
                said = api.good("GET", f"/v1/jobs/{ident}/why", token=ada)["why"]
                return all(word in said for word in words) and said

            def queued(ident):
                return wait_for(lambda: job(ident)["state"] == "queued" and job(ident), f"{job(ident)['why']}: job {ident} was not queued")

            # who may, and how else
            api.refused(422, "POST", "/v1/jobs", spec(rows, model=name), f'model: no model is registered as "{name}", and it is not fetched from the Hub: '
                        "this server fetches no models (hub.fetch in its configuration); fetch it yourself (motley model get)")
            restart(hub={"fetch": "administrators", "cache": api.path("hub")})
            api.refused(422, "POST", "/v1/jobs", spec(rows, model="hf:" + name), "here only an administrator may have models fetched", token=ada)
            restart(hub={"fetch": "users", "cache": api.path("hub")})
            api.refused(422, "POST", "/v1/jobs", spec(rows, model=name), "lacks the scope models:write", token=blind)
            api.refused(422, "POST", "/v1/jobs", spec("rows.jsonl", model=name), "data.train: the server takes uploaded files", token=ada)
            api.refused(422, "POST", "/v1/jobs:validate", spec(rows, model=name), "a plan needs the model", token=ada)
            expect(hub.asked == [], "the Hub was asked")

            # two jobs, one fetch; how far it is; the api dies in between, and the next one goes on where it was
            release = threading.Event()
            hub.stalls[".safetensors"] = (5000, release)
            one, two = submit("hf:" + name), submit(name, hold=True, name="second")
            held = job(one)
            expect((held["state"], held["inputs"]["model"]) == ("held", None), f"{held}")
            for ident in (one, two):
                said = wait_for(lambda ident=ident: why(ident, f"its model hf:{name}@main is being fetched from the Hub: ", " are here"), "no word of the fetch")
                expect("KiB of" in said, said)
                api.refused(409, "POST", f"/v1/jobs/{ident}/release", None, "its model is still to be fetched", token=ada)
            api.process.send_signal(signal.SIGKILL)
            api.process.wait()
            hub.stalls.clear()
            api.psql("UPDATE job_fetches SET until = now()")  # so long the next one would wait
            api.start()
            first, second = queued(one), wait_for(lambda: job(two)["inputs"]["model"] and job(two), "the second was not ready")
            release.set()
            spans = [h["Range"] for _, p, h in hub.asked if "/cdn/" in p]
            expect(len(spans) == 2 and spans[0].startswith("bytes=0-") and not spans[1].startswith("bytes=0-"), f"fetched twice, or from the beginning: {spans}")
            expect(second["state"] == "held" and second["spec"]["model"] == first["spec"]["model"] == first["inputs"]["model"] and
                   first["steps"] == 3 and second["name"] == "second", f"{first} {second}")
            expect(first["inputs"]["base"] == {"name": name, "revision": hub.repositories[name].revisions["main"]}, f"{first['inputs']}")
            api.good("POST", f"/v1/jobs/{two}/release", token=ada)

            # what fails, fails alone, with the sentence
            for model, changes, words in (("hf:Acme/None", {}, "no public model Acme/None"), ("Acme/Gated", {}, "is gated: accept its terms at"),
                                          (name, {"data": {"train": rows, "format": "chat"}}, "data.train"),
                                          (name + ":config.json", {}, "model: ")):
                bad = submit(model, **changes)
                failed = wait_for(lambda bad=bad: job(bad)["state"] == "failed" and job(bad), f"{model} did not fail")
                expect(words in failed["why"] and failed["code"] and failed["ended"], f"{failed['code']}: {failed['why']}")
                api.refused(409, "POST", f"/v1/jobs/{bad}/resume", {}, "its model was not fetched: submit the job again", token=ada)
            expect(job(one)["state"] == job(two)["state"] == "queued", "others failed, too")

            # a cancel is seen though no byte comes: both threads are free again
            hub.stalls[".safetensors"] = (0, threading.Event())
            hub.repositories["Acme/Third"] = Repository({**files, "model.safetensors": files["model.safetensors"][:-1] + b"?"})
            hub.repositories["Acme/Fourth"] = Repository({**files, "model.safetensors": files["model.safetensors"][:-1] + b"!"})
            stuck = [submit("hf:Acme/Third"), submit("hf:Acme/Fourth")]
            wait_for(lambda: all(why(ident, "is being fetched") for ident in stuck), "they are not fetched")
            for ident in stuck:
                expect(api.good("POST", f"/v1/jobs/{ident}/cancel", token=ada)["state"] == "cancelled", "no cancel")
            hub.stalls.clear()
            queued(submit("hf:Acme/Other"))
            hub.stalls[".safetensors"] = (0, threading.Event())
            last = submit("hf:Acme/Fourth")
            wait_for(lambda: why(last, "is being fetched"), "it is not fetched")
            began = time.monotonic()
            api.stop()  # as is a stop of the api
            expect(time.monotonic() - began < 10, "the api waited for the Hub")
            hub.stalls.clear()

            # the bytes count as stored by who wanted them, once
            restart(limits={"user": size + 3000})
            api.good("DELETE", "/v1/models/Other", token=ada)
            queued(submit(name))
            bad = submit("Acme/Third")
            failed = wait_for(lambda: job(bad)["state"] == "failed" and job(bad), "beyond the limit")
            expect("ada may have" in failed["why"] and "of files here, and has" in failed["why"], failed["why"])
            data = os.urandom(4000)
            api.refused(413, "PUT", f"/v1/blobs/{hashlib.sha256(data).hexdigest()}", data, "ada may have", token=ada)
            api.good("DELETE", "/v1/models/Tiny-1", token=ada)
            api.upload(data, token=ada)


main(a_large_file_passes_a_link_that_breaks_again_and_again, the_server_fetches_of_the_hub_for_whom_it_may,
     a_job_names_a_model_that_the_server_then_fetches, a_folder_beside_the_job_is_no_other_persons_model_of_that_name,
     what_a_terminal_says_names_the_thing_and_the_place)
