#!/usr/bin/env python3
"""Tests what `motley` fetches of a Hub (tests/support/hub.py), beside the Hub's own client where that is installed (.cache/hub)."""
import fcntl
import json
import os
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from claims import BIN, DATA, SOURCE, expect, main  # noqa: E402
from hub import TOKEN, Hub, Repository  # noqa: E402
from terminal import Terminal  # noqa: E402

CLIENT = os.path.join(SOURCE, ".cache", "hub")
NAME = "Acme/Tiny-1"
CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
          "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 259, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5}
WEIGHTS = bytes(range(256)) * 4096  # 1 MiB
with open(os.path.join(DATA, "rows", "bytes.json"), "rb") as file:
    TOKENIZER = file.read()
SMALL = {"config.json": json.dumps(CONFIG).encode(), "tokenizer.json": TOKENIZER, "tokenizer_config.json": b"{}"}
NEEDED = {**SMALL, "additional_chat_templates/tools.jinja": b"x", "model.safetensors": WEIGHTS}
UNNEEDED = {"README.md": b"# Tiny", ".gitattributes": b"", "pytorch_model.bin": b"p" * 999, "onnx/model.onnx": b"o", "tokenizer.model": b"t",
            "model.safetensors.index.json": b"{ }"}


class User:
    """Somebody with an own cache who runs `motley`."""

    def __init__(self, hub, **env):
        self.home = tempfile.TemporaryDirectory(prefix="motley-hub-")
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGING", "TRANSFORMERS", "http", "HTTP", "XDG"))}
        self.env.update(HF_ENDPOINT=hub.url, HF_HOME=self.path("hf"), HOME=self.home.name, MOTLEY_HOME=self.path("none"), **env)

    def path(self, *names):
        return os.path.join(self.home.name, *names)

    def cache(self, *names, name=NAME):
        return self.path("hf", "hub", "models--" + name.replace("/", "--"), *names)

    def run(self, *words, status=0, **env):
        """Returns stdout and stderr."""
        done = subprocess.run([os.path.join(BIN, "motley"), *words], capture_output=True, text=True, timeout=60, check=False,
                              cwd=self.home.name, env={**self.env, **env})
        expect(done.returncode == status, f"{words}: status {done.returncode}, not {status}\n{done.stdout}{done.stderr}")
        return done.stdout, done.stderr

    def get(self, word=NAME, **more):
        return json.loads(self.run("model", "get", word, "--json", **more)[0])

    def files(self, name=NAME):
        """What the snapshots hold: path in a snapshot -> bytes."""
        found = {}
        for folder, _, names in os.walk(self.cache("snapshots", name=name)):
            for each in names:
                path = os.path.join(folder, each)
                with open(path, "rb") as handle:
                    found["/".join(os.path.relpath(path, self.cache("snapshots", name=name)).split("/")[1:])] = handle.read()
        return found

    def spec(self, model):
        with open(self.path("spec.json"), "w", encoding="utf-8") as handle:
            json.dump({"name": "x", "model": model, "data": {"train": "rows"}, "train": {"steps": 1}}, handle)
        with open(self.path("rows"), "w", encoding="utf-8") as handle:
            handle.write('{"ids": [5, 6, 7]}\n')
        return "spec.json"


def only_what_a_model_needs_is_fetched_into_the_tools_cache():
    with Hub() as hub:
        hub.repositories[NAME] = Repository({**NEEDED, **UNNEEDED})
        user = User(hub, HF_TOKEN=TOKEN)
        told = user.get()
        commit = hub.repositories[NAME].revisions["main"]
        expect(user.files() == NEEDED, f"{sorted(user.files())}")
        expect(told["commit"] == commit and told["path"] == user.cache("snapshots", commit) and told["files"] == len(NEEDED) and
               told["bytes"] == told["fetched_bytes"] == sum(len(d) for d in NEEDED.values()), f"{told}")
        with open(user.cache("refs", "main"), encoding="utf-8") as handle:
            expect(handle.read() == commit, "refs/main")
        for path, data in hub.repositories[NAME].commits[commit].items():
            link = user.cache("snapshots", commit, path)
            expect(path not in NEEDED or os.readlink(link) == "../" * (2 + path.count("/")) + "blobs/" + data.etag, f"{path}")
        to_cdn = [h for _, path, h in hub.asked if path.startswith("/cdn/")]
        expect(to_cdn and not any("Authorization" in h for h in to_cdn), "the token went to the host of the files")
        expect(all("Authorization" in h for _, path, h in hub.asked if "/cdn/" not in path), "the token did not go to the Hub")
        expect(user.get()["fetched_bytes"] == 0 and len(hub.asked) == 2 * len(NEEDED) + 2, f"{len(hub.asked)} requests")
        hub.repositories[NAME].push({**NEEDED, "config.json": b"{  }"})
        expect(user.get()["fetched_bytes"] == 4, "of a new commit only what changed")
        found, said = user.run("model", "get", NAME, HF_ENDPOINT="http://127.0.0.1:9")
        expect(found.strip() == user.get()["path"] and "could not reach the Hub" in said and "the cache has it whole" in said, f"{found}{said}")
        hub.repositories["Acme/Shards"] = Repository({**SMALL, "model-b.safetensors": b"b", "model-a.safetensors": b"a", "other.safetensors": b"o",
                                                      "model.safetensors.index.json": b'{"weight_map":{"x":"model-a.safetensors","y":"model-b.safetensors"}}'})
        user.get("Acme/Shards")
        expect({"model-a.safetensors", "model-b.safetensors"} < set(user.files("Acme/Shards")) and
               "other.safetensors" not in user.files("Acme/Shards"), "shards")
        hub.repositories["Acme/Packed"] = Repository({"a.Q4.gguf": b"GGUF4", "sub/a.Q8.gguf": b"GGUF8", "b.gguf": b"GGUF", "config.json": b"{}"})
        _, why = user.run("model", "get", "Acme/Packed", status=2)
        expect('holds 2 .gguf files (a.Q4.gguf, b.gguf): name one of them, as Acme/Packed:FILE' in why, why)
        told = user.get("hf:Acme/Packed@main:sub/a.Q8.gguf", HF_ENDPOINT="http://hub.example", HF_TOKEN="", http_proxy=hub.url)
        expect(told["path"].endswith("/sub/a.Q8.gguf") and told["bytes"] == 5, f"{told}")


def a_cut_fetch_goes_on_where_it_was():
    with Hub() as hub:
        hub.repositories[NAME] = Repository(NEEDED)
        user = User(hub)
        hub.cut[".safetensors"] = 700000
        told = user.get()
        spans = [h["Range"] for _, path, h in hub.asked if path.startswith("/cdn/")]
        expect(spans == ["bytes=0-1048575", "bytes=700000-1048575"] and told["fetched_bytes"] == told["bytes"], f"{spans} {told}")
        for kept, ranges, fetched in ((WEIGHTS[:300000], True, 748576), (WEIGHTS[:300000], False, 1048576),
                                      (b"?" * 300000, True, 748576 + 1048576), (WEIGHTS + b"?", True, 1048576)):
            user = User(hub)
            hub.ranges = ranges
            blob = user.cache("blobs", hub.repositories[NAME].commits[told["commit"]]["model.safetensors"].etag)
            os.makedirs(user.cache("blobs"))
            with open(blob + ".incomplete", "wb") as handle:
                handle.write(kept)
            got = user.get()["fetched_bytes"] - sum(len(d) for p, d in NEEDED.items() if p != "model.safetensors")
            expect(got == fetched and user.files() == NEEDED and os.listdir(user.cache("blobs")).count(os.path.basename(blob)) == 1,
                   f"{len(kept)} kept, ranges {ranges}: {got}")


class Always(dict):
    def pop(self, key):
        return self[key]


def a_server_without_ranges_that_breaks_each_time_is_given_up():
    with Hub() as hub:
        hub.repositories[NAME] = Repository(NEEDED)
        hub.ranges, hub.cut = False, Always({".safetensors": 300000})
        _, why = User(hub).run("model", "get", NAME, status=3)
        expect(f"model.safetensors of {NAME} was cut 5 times, and the server sends no part of a file" in why and hub.url in why, why)
        begun = sum("/cdn/" in path for path in hub.paths())
        expect(5 < begun < 15, f"begun {begun} times")


def a_token_goes_to_no_other_host_however_it_redirects():
    with Hub() as hub, Hub() as mirror:
        hub.repositories[NAME] = mirror.repositories[NAME] = Repository(NEEDED)
        hub.renamed["Old/Tiny"] = NAME
        for files_at in (hub.files_at, mirror.url):  # another name, another port
            hub.files_at = files_at
            for status in (301, 302, 303, 307, 308):
                hub.redirects = dict.fromkeys(hub.redirects, status)
                del hub.asked[:], mirror.asked[:]
                user = User(hub, HF_TOKEN=TOKEN)
                user.get("Old/Tiny")
                large = [h for _, path, h in hub.asked + mirror.asked if path.startswith("/cdn/")]
                rest = [h for _, path, h in hub.asked if not path.startswith("/cdn/")]
                expect(user.files("Old/Tiny") == NEEDED and len(large) == 1 and len(rest) > 2 * len(SMALL), f"{status}: {hub.paths()}")
                expect("Authorization" not in large[0], f"{status}: the token went to {files_at}")
                expect(all("Authorization" in h for h in rest), f"{status}: no token for the Hub")


def who_comes_second_waits():
    with Hub() as hub:
        hub.repositories[NAME] = Repository(NEEDED)
        user = User(hub)
        lock = user.path("hf", "hub", ".locks", "models--Acme--Tiny-1", hub.repositories[NAME].commits[hub.repositories[NAME].revisions["main"]]["config.json"].etag + ".lock")
        os.makedirs(os.path.dirname(lock))
        with open(lock, "w", encoding="utf-8") as held:  # as huggingface_hub does
            fcntl.flock(held, fcntl.LOCK_EX)
            with subprocess.Popen([os.path.join(BIN, "motley"), "model", "get", NAME], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=user.env) as second:
                said, before = second.stderr.readline() + second.stderr.readline(), user.files()
                fcntl.flock(held, fcntl.LOCK_UN)
                said += second.stderr.read()
        expect("another process fetches a file of it, too" in said and "config.json" not in before, said)
        expect(second.returncode == 0 and user.files() == NEEDED, said)


def a_terminal_shows_how_far_it_is():
    with Hub() as hub:
        hub.repositories[NAME] = Repository(NEEDED)
        user = User(hub)
        command = ["env", *(f"{key}={value}" for key, value in user.env.items()), os.path.join(BIN, "motley"), "model", "get", NAME]
        with Terminal(command) as terminal:
            terminal.end()
            expect(re.search(r"\r\x1b\[K  \S+: [\d.]+ \w+ of [\d.]+ KiB, ", terminal.seen), repr(terminal.seen))
            lines = [line for line in terminal.lines() if line.strip()]
            expect([line[:9] for line in lines[:3]] == ["fetching ", "  commit ", user.home.name[:9]], f"{lines}")


def other_bytes_than_the_hub_says_are_refused():
    with Hub() as hub:
        hub.repositories[NAME] = Repository(NEEDED)
        for spoilt in ("model.safetensors", "config.json"):
            user = User(hub)
            hub.spoil = {spoilt}
            _, why = user.run("model", "get", NAME, status=1)
            expect(f"{spoilt} of {NAME} arrived with other bytes than the Hub says" in why, why)
            expect(not os.path.exists(user.cache("refs", "main")) and spoilt not in user.files(), "it was kept")


def refusals_say_what_to_do():
    with Hub() as hub:
        hub.repositories.update({NAME: Repository(NEEDED), "Acme/Private": Repository(NEEDED, private=True), "Acme/Gated": Repository(NEEDED, gated=True),
                                 "Acme/Adapter": Repository({**SMALL, "adapter_model.safetensors": b"a"}), "Acme/Text": Repository(SMALL),
                                 "Acme/Torch": Repository({**SMALL, "pytorch_model.bin": b"p"})})
        user = User(hub)
        os.makedirs(user.path("token-home"))
        with open(user.path("token-home", "token"), "w", encoding="utf-8") as handle:
            handle.write(TOKEN + "\n")
        logged_in = {"HF_HOME": user.path("token-home")}
        for word, env, status, words in (
                ("Acme/Private", {}, 1, f"the Hub ({hub.url}) has no public model Acme/Private: check the spelling; if it is private, set HF_TOKEN"),
                ("Acme/Nothing", logged_in, 1, f"or the token in {user.path('token-home', 'token')} may not see it"),
                ("Acme/Gated", {}, 6, f"Acme/Gated is gated: accept its terms at {hub.url}/Acme/Gated, and set HF_TOKEN"),
                ("Acme/Gated", logged_in, 6, "has no access: accept its terms at"),
                (NAME, {"HF_TOKEN": "hf_old"}, 6, "does not know the token in HF_TOKEN"),
                (NAME + "@v9", {}, 1, f"{NAME} has no revision v9: give a branch, a tag or a commit"),
                (NAME + ":x.gguf", {}, 1, f"{NAME}@main has no file x.gguf; it has "),
                ("Acme/Adapter", {}, 2, "holds an adapter: name it under method.start_from"),
                ("Acme/Text", {}, 2, "holds no weights"),
                ("Acme/Torch", {}, 2, "holds weights as pytorch_model.bin alone"),
                ("Tiny", {}, 2, "is no name of a hub"), ("a/b/c", {}, 2, "is no name of a hub"), ("a/..", {}, 2, "is no name of a hub"),
                ("a/b@../x", {}, 2, "is no name of a hub"), ("a/b:../x", {}, 2, "is no name of a hub"), ("a--b/c", {}, 2, "is no name of a hub"),
                (NAME, {"HF_ENDPOINT": "http://127.0.0.1:9"}, 3, "could not reach the Hub"), (NAME, {"HF_ENDPOINT": "ftp://x"}, 2, "HF_ENDPOINT: "),
                (NAME, {"HF_HUB_OFFLINE": "1"}, 1, "is not in the cache"),
                # a token is not sent in clear, nor by a proxy: the name stands for an address that is not this machine's
                (NAME, {"HF_ENDPOINT": "http://192.0.2.1", "HF_TOKEN": TOKEN, "http_proxy": hub.url}, 2, "a token is sent to others through https:// alone")):
            _, why = user.run("model", "get", word, status=status, **env)
            expect(words in why and "motley: " in why, f"{word}: {why}")
        expect(user.get("Acme/Private", **logged_in)["files"] == len(NEEDED), "with a token")
        hub.answers = [(429, [("Retry-After", "1")])]
        out, said = user.run("model", "get", NAME)
        expect("the Hub was asked too often (429): waiting the 1 s that it wants" in said and out.startswith(user.cache()), said)
        for answer in ((429, [("Retry-After", "3600")]), (503, [("RateLimit", '"api";r=0;t=3600')])):
            hub.answers = [answer]
            expect("wants 3600 s without requests: try again then" in user.run("model", "get", NAME, status=1)[1], "a long wait")
        for answers, status, words in (([(403, [])], 6, f"the Hub ({hub.url}) forbids {NAME}"), ([(404, [])], 1, f"has no public model {NAME}"),
                                       ([(500, [])] * 99, 3, "status 500"), ([(502, [])] * 99, 3, "status 502"), ([(418, [])], 2, "status 418")):
            hub.answers = answers
            _, why = User(hub).run("model", "get", NAME, status=status)
            expect(words in why and why.count("motley: ") == 1, why)
        hub.answers = [(500, []), (503, []), (504, [])]
        User(hub).get()
        hub.sizes = {"model.safetensors": len(WEIGHTS) + 9}
        _, why = User(hub).run("model", "get", NAME, status=1)
        expect(f"fetching {NAME}: model.safetensors: " in why and "the server sent 1048576 of 1048585 bytes" in why, why)
        hub.sizes = {"model.safetensors": len(WEIGHTS) - 9}
        _, why = User(hub).run("model", "get", NAME, status=1)
        expect("model.safetensors" in why and "arrived with other bytes than the Hub says" in why, why)
        hub.sizes = {"model.safetensors": 1 << 60}
        _, why = User(hub).run("model", "get", NAME, status=1)
        expect(f"{NAME} needs 1.00 EiB more and the disk of" in why and "free some, or set HF_HOME" in why, why)
        hub.sizes, full = {}, User(hub)
        os.makedirs(full.cache("blobs"))
        blob = full.cache("blobs", hub.repositories[NAME].commits[hub.repositories[NAME].revisions["main"]]["model.safetensors"].etag)
        os.symlink("/dev/full", blob + ".incomplete")
        _, why = full.run("model", "get", NAME, status=1)
        expect("No space left on device" in why and not os.path.exists(full.cache("refs", "main")), why)
        hub.renamed["Old/Tiny"] = NAME
        expect(f"Old/Tiny is called {NAME} by now" in user.run("model", "get", "Old/Tiny")[1], "renamed")


def a_specification_may_name_it():
    with Hub() as hub:
        hub.repositories[NAME] = Repository(NEEDED)
        user = User(hub)
        out, said = user.run("rows", user.spec(NAME))
        expect("1 row of format tokens" in out and f"fetching {NAME}@main from {hub.url}" in said, out + said)
        expect(not any("safetensors" in path for path in hub.paths()), "rows need no weights")
        asked = len(hub.asked)
        _, said = user.run("rows", user.spec("hf:" + NAME), HF_ENDPOINT="http://127.0.0.1:9")
        expect(f"{NAME}@main is the Hub's, commit " in said and len(hub.asked) == asked, "the cache needs no network")
        with open(user.path("cluster.json"), "w", encoding="utf-8") as handle:
            json.dump({"nodes": [{"name": "n", "devices": [{"name": "0", "like": "rtx-3090"}]}]}, handle)
        user.run("plan", user.spec(NAME), "--cluster", "cluster.json", HF_HUB_OFFLINE="1")
        _, why = user.run("rows", user.spec("models/llama"), status=2)
        expect("model: there is no path models/llama here, so it is read as a name on the Hub: " in why and "has no public model" in why, why)
        os.makedirs(user.path("Acme", "Tiny-1"))
        for path, data in SMALL.items():
            with open(user.path("Acme", "Tiny-1", path), "wb") as handle:
                handle.write(data)
        _, said = user.run("rows", user.spec(NAME))
        expect(said == "", f"a path that is there is meant: {said}")
        expect("no path x/y.gguf" not in user.run("rows", user.spec("x/y.gguf"), status=2)[1], "a file's name is no name of the Hub")


def a_data_set_may_be_named_too():
    row = b'{"ids": [5, 6, 7]}\n'
    with Hub() as hub:
        hub.repositories.update({NAME: Repository(NEEDED), "datasets/Acme/Rows": Repository({
            "README.md": b"#", "dataset_infos.json": b"{}", "data/train.jsonl": row, "data/test.jsonl": row * 2, "data/other.jsonl": row * 3}),
            "datasets/Acme/One": Repository({"all.json": b"[" + row + b"]", "all.parquet": b"PAR1"}),
            "datasets/Acme/Two": Repository({"a.jsonl": row, "b.jsonl": row}), "datasets/Acme/Parquet": Repository({"data/train-0.parquet": b"PAR1"})})
        user = User(hub)

        def rows(train, evaluation=None, **more):
            user.spec(NAME)
            with open(user.path("spec.json"), encoding="utf-8") as handle:
                document = json.load(handle)
            document["data"] = {"train": train, **({"eval": evaluation} if evaluation else {})}
            with open(user.path("spec.json"), "w", encoding="utf-8") as handle:
                json.dump(document, handle)
            return user.run("rows", "spec.json", "--json", **more)

        told = json.loads(rows("hf:Acme/Rows", "hf:Acme/Rows")[0])
        expect((told["train"]["rows"], told["eval"]["rows"]) == (1, 2) and "/datasets--Acme--Rows/snapshots/" in told["train"]["file"], f"{told}")
        expect(json.loads(rows("hf:Acme/Rows:data/other.jsonl")[0])["train"]["rows"] == 3, "the file that is named")
        expect(json.loads(rows("hf:Acme/One")[0])["train"]["rows"] == 1, "the only one")
        for word, evaluation, why in (
                ("hf:Acme/Two", None, "Acme/Two holds more than one file of rows, or none for this (a.jsonl, b.jsonl): name one, as hf:Acme/Two:FILE"),
                ("hf:Acme/Rows", "hf:Acme/One", "data.eval: Acme/One holds more than one file of rows, or none for this (all.json)"),
                ("hf:Acme/Parquet", None, "holds its rows as Parquet alone, which is not read"), ("hf:Acme/No", None, "has no public data set Acme/No"),
                ("Acme/Rows", None, "data.train: there is no file Acme/Rows")):
            said = rows(word, evaluation, status=2)[1]
            expect(why in said, f"{word}: {said}")


PROGRAM = """
import sys
from huggingface_hub import hf_hub_download, snapshot_download, scan_cache_dir
name, here, step = sys.argv[1:]
if step == "read":
    print(snapshot_download(name, local_files_only=True))
    print(hf_hub_download(name, "config.json"))
    print(snapshot_download(name, allow_patterns=["*.json", "*.safetensors", "*/*.jinja"]))
    info = scan_cache_dir()
    print(len(info.warnings), [sorted(f.file_name for f in r.files) for repo in info.repos for r in repo.revisions])
else:
    print(snapshot_download(name, ignore_patterns=["onnx/*"]))
"""


def the_hubs_own_client_finds_ours_and_we_its():
    if not os.path.isdir(CLIENT):
        return "SKIPPED: huggingface_hub is not installed (tools/pypi_packages.sh hub)"
    with Hub() as hub:
        hub.repositories[NAME] = Repository({**NEEDED, **UNNEEDED})

        def client(user, step):
            done = subprocess.run([sys.executable, "-c", PROGRAM, NAME, user.cache(), step], capture_output=True, text=True, timeout=60,
                                  check=False, env={**user.env, "PYTHONPATH": CLIENT, "HF_HUB_DISABLE_TELEMETRY": "1"})
            expect(done.returncode == 0, f"{step}: {done.stderr[-2000:]}")
            return done.stdout.splitlines()

        user = User(hub)
        path = user.get()["path"]
        asked = len(hub.asked)
        lines = client(user, "read")
        sent = [p for m, p, _ in hub.asked[asked:] if m == "GET" and ("/cdn/" in p or "/resolve-cache/" in p)]
        expect(lines[0] == path and lines[1] == os.path.join(path, "config.json"), f"{lines}")
        expect(lines[2] == path and lines[3].startswith("0 [["), f"{lines}")
        expect(len(sent) == 1, f"it fetched {sent} of {hub.paths()[asked:]}, not the index alone that we leave out")
        other = User(hub)
        folder = client(other, "write")[0]
        asked = len(hub.asked)
        _, said = other.run("rows", other.spec(NAME), HF_ENDPOINT="http://127.0.0.1:9")
        expect("from the cache" in said, said)
        told = other.get()
        expect(told["path"] == folder and told["fetched_bytes"] == 0 and len(hub.asked) == asked + 1, f"{told}")


if __name__ == "__main__":
    main(only_what_a_model_needs_is_fetched_into_the_tools_cache, a_cut_fetch_goes_on_where_it_was, a_server_without_ranges_that_breaks_each_time_is_given_up,
         a_token_goes_to_no_other_host_however_it_redirects, who_comes_second_waits, a_terminal_shows_how_far_it_is,
         other_bytes_than_the_hub_says_are_refused, refusals_say_what_to_do, a_specification_may_name_it, a_data_set_may_be_named_too,
         the_hubs_own_client_finds_ours_and_we_its)
