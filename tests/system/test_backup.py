#!/usr/bin/env python3
"""A server is copied into a folder while a job runs on it, destroyed, and made again from the folder under another path and
another name: the job goes on from its checkpoint and makes the adapter that the undisturbed run made, byte for byte. A folder
that is damaged or was not finished is refused by name, and nothing is made of it."""
import contextlib
import glob
import hashlib
import json
import os
import shutil
import stat
import subprocess
import time

from motley import GOLDEN, SLOW, Motley, expect, llama_spec, main, poll, two_paced

STEPS = 240


def two_of_one_kind(**extra):
    """One instruction set: what runs measure may give the restored ones another cut, which must not change a bit."""
    return two_paced(tls=True, **extra)


def adapter(motley, ident, name):
    path = os.path.join(motley.get(ident, name), "adapter", "adapter_model.safetensors")
    with open(path, "rb") as handle:
        return hashlib.sha256(handle.read()).hexdigest()


def files_of(folder):
    return sorted(os.path.join(parent, name) for parent, _, names in os.walk(folder) for name in names)


def secrets_are_the_owners_alone(folder):
    for path in [folder] + [os.path.join(parent, name) for parent, folders, names in os.walk(folder) for name in folders + names]:
        mode = stat.S_IMODE(os.stat(path).st_mode)
        expect(mode == (0o700 if os.path.isdir(path) else 0o600), f"{path} has mode {mode:o}")


def the_list_is_what_sha256sum_says(folder):
    done = subprocess.run(["sha256sum", "-c", "manifest.sha256"], cwd=folder, capture_output=True, text=True, check=False)
    expect(done.returncode == 0, f"sha256sum: {done.stdout}{done.stderr}")
    with open(os.path.join(folder, "manifest.json"), encoding="utf-8") as handle:
        listed = {entry["path"]: entry for entry in json.load(handle)["files"]}
    there = {os.path.relpath(path, folder) for path in files_of(folder)} - {"manifest.json", "manifest.sha256"}
    expect(set(listed) == there, f"the list has {len(listed)} files, the folder {len(there)}")
    lines = "".join(f"{entry['sha256']}  {name}\n" for name, entry in listed.items())
    done = subprocess.run(["sha256sum", "-c", "--quiet"], cwd=folder, input=lines, capture_output=True, text=True, check=False)
    expect(done.returncode == 0, f"sha256sum: {done.stdout}{done.stderr}")


@contextlib.contextmanager
def changed(path, change):
    """The file after change(handle), and as it was afterwards; without change it is missing meanwhile."""
    os.rename(path, path + ".kept")
    if change:
        shutil.copy(path + ".kept", path)
        with open(path, "r+b") as handle:
            change(handle)
    yield
    os.replace(path + ".kept", path)


def cut(handle):
    handle.truncate(os.fstat(handle.fileno()).st_size - 1)


def flip(handle):
    handle.seek(os.fstat(handle.fileno()).st_size // 2)
    byte = handle.read(1)
    handle.seek(-1, os.SEEK_CUR)
    handle.write(bytes([byte[0] ^ 1]))


def damage_is_refused_by_name(motley, folder):
    blob = glob.glob(os.path.join(folder, "blobs", "*", "*"))[0]
    dump = os.path.join(folder, "database.dump")
    cases = [(blob, cut, "bytes, not"), (blob, flip, "another content"), (dump, flip, "another content"), (dump, cut, "bytes, not"),
             (dump, None, "No such file"), (os.path.join(folder, "home", "ca", "ca.key"), flip, "another content"),
             (os.path.join(folder, "manifest.json"), flip, "damaged"), (os.path.join(folder, "manifest.json"), None, "manifest.json"),
             (os.path.join(folder, "manifest.sha256"), None, "was not finished")]
    for path, change, words in cases:
        with changed(path, change):
            motley.run("restore", folder, status=1)
        named = folder if path.endswith("manifest.sha256") else path
        expect(named in motley.last_error and words in motley.last_error, f"{path}: {motley.last_error}")
        expect(not os.path.exists(motley.home), f"{path} is damaged, and {motley.home} was made")


def it_is_put_into_a_database_of_its_own(motley, folder):
    """What a server with a PostgreSQL of its own does: here another database of the same one, and another folder of files."""
    with open(os.path.join(motley.home, "run", "api.yaml"), encoding="utf-8") as handle:
        config = json.load(handle)
    kept = motley.path("lab-configuration")
    os.makedirs(kept)
    with open(os.path.join(kept, "agent.yaml"), "w", encoding="utf-8") as handle:
        handle.write("name: second\n")
    motley.run("backup", folder, "--config", os.path.join(motley.home, "run", "api.yaml"), "--with", kept)
    expect(os.path.exists(os.path.join(folder, "with") + os.path.join(kept, "agent.yaml")), files_of(os.path.join(folder, "with")))
    rows = motley.sql("SELECT count(*), (SELECT count(*) FROM blobs) FROM jobs")
    motley.sql("CREATE DATABASE other")
    other = motley.write("api-other.yaml", {**config, "listen": "127.0.0.1:0", "tls": None, "address_file": None,
                                            "postgres": config["postgres"].replace("dbname=postgres", "dbname=other"),
                                            "blobs": motley.path("other-blobs")})
    motley.run("restore", folder, status=1)
    expect("--config" in motley.last_error, motley.last_error)
    motley.run("restore", folder, "--config", other)
    done = subprocess.run(["psql", "-X", "-q", "-A", "-t", "-d", json.load(open(other, encoding="utf-8"))["postgres"], "-c",
                           "SELECT count(*), (SELECT count(*) FROM blobs WHERE path IS NULL) FROM jobs"],
                          capture_output=True, text=True, check=True)
    expect(done.stdout.strip() == rows, f"{done.stdout} jobs and files, not {rows}")
    expect(len(glob.glob(motley.path("other-blobs/*/*"))) == int(rows.split("|")[1]), "files are missing")
    motley.run("restore", folder, "--config", other, status=1)
    expect("not empty" in motley.last_error, motley.last_error)


def what_is_lost_is_named(motley):
    """Of a home that is down, of whose files one is gone and one is damaged."""
    gone, damaged = sorted(glob.glob(os.path.join(motley.home, "blobs", "??", "*")))[:2]
    os.remove(gone)
    with open(damaged, "r+b") as handle:
        flip(handle)
    told = motley.run("backup", motley.path("backup-down"), parse=True)
    expect({entry["sha256"] for entry in told["missing"]} == {os.path.basename(gone), os.path.basename(damaged)}, told["missing"])
    expect(gone in motley.last_error and damaged in motley.last_error, motley.last_error)
    expect(not glob.glob(motley.path("backup-down/blobs/??/" + os.path.basename(damaged))), "a damaged file was kept")


class Agent:
    """A machine of its own, which joins the first server."""

    def __init__(self, motley):
        self.home = motley.path("third")
        self.config = motley.write("third.yaml", {"name": "third", "devices": [{"kind": "cpu", "threads": 1, "memory": "450MiB"}]})
        self.process = self.start(motley, motley.run("join-token", "--node", "third").split()[0])
        self.await_alive(motley)

    def start(self, motley, token):
        with open(os.path.join(motley.home, "client.json"), encoding="utf-8") as handle:
            api = json.load(handle)["address"]
        command = [motley.program("motley-agent"), "--api", api, "--home", self.home, "--config", self.config]
        return subprocess.Popen(command, env={**os.environ, "MOTLEY_JOIN": token}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    @staticmethod
    def await_alive(motley):
        deadline = time.monotonic() + 30 * SLOW
        while not any(node["name"] == "third" and node["state"] == "alive" for node in motley.run("nodes", parse=True)["nodes"]):
            expect(time.monotonic() < deadline, motley.run("nodes"))
            poll()

    def end(self):
        self.process.terminate()
        self.process.wait(timeout=30 * SLOW)

    def finds_the_server_again(self, motley):
        """At another address and with another Redis, by its old certificate and without a token."""
        self.end()
        self.process = self.start(motley, "")
        self.await_alive(motley)
        self.end()
        self.process = self.start(motley, "")  # it has learnt both
        self.await_alive(motley)
        self.end()


def a_server_made_again_elsewhere_goes_on():
    with Motley(two_of_one_kind()) as first, Motley(two_of_one_kind(advertise="localhost")) as second:
        # Both were started; the second is to be made of a backup instead.
        second.run("down")
        before = second.path("before")
        os.rename(second.home, before)
        model = first.path("model")
        shutil.copytree(os.path.join(GOLDEN, "llama"), model)
        spec = llama_spec(first, "running", STEPS, 4, repeat=8, warmup=1,
                          placement={"devices": ["left/paced0", "right/paced0"], "kind": "pipeline", "stages": 2, "micro_batch_rows": 1, "move": "never"})
        spec["model"] = model
        third = Agent(first)
        ident = first.submit(spec)["id"]
        first.wait_steps(ident, 11)
        deadline = time.monotonic() + 60 * SLOW
        while not first.job(ident)["checkpoints"]:  # it is stored beside the steps that follow
            expect(time.monotonic() < deadline, "no checkpoint was stored")
            poll()
        folder = second.path("backup")
        told = first.run("backup", folder, parse=True)
        expect(told["missing"] == [] and told["files"] >= 3, told)
        expect(first.job(ident)["state"] == "running", "the job ended before the backup did")
        first.run("backup", folder, status=1)
        expect("not an empty folder" in first.last_error, first.last_error)
        secrets_are_the_owners_alone(folder)
        the_list_is_what_sha256sum_says(folder)
        expect(first.wait_state(ident, ("succeeded", "failed"))["state"] == "succeeded", "the undisturbed job failed")
        reference = adapter(first, ident, "undisturbed")
        losses = [m["loss"] for m in first.metrics(ident)[0]]
        it_is_put_into_a_database_of_its_own(first, first.path("backup-lab"))
        first.run("down")
        what_is_lost_is_named(first)
        shutil.rmtree(first.home)
        shutil.rmtree(model)
        damage_is_refused_by_name(second, folder)
        second.run("restore", folder)
        second.run("restore", folder, status=1)
        expect("is not empty" in second.last_error, second.last_error)
        second.up()
        second.run("restore", folder, status=1)
        expect("is up" in second.last_error, second.last_error)
        job = second.wait_state(ident, ("succeeded", "failed"))
        expect(job["state"] == "succeeded" and job["attempt"] == 2, f"{job['state']}, attempt {job['attempt']}: {job.get('why')}")
        start = int(second.sql(f"SELECT start_step FROM runs WHERE job = {ident} AND attempt = 2"))
        expect(start > 0, "the job began anew")
        expect([m["loss"] for m in second.metrics(ident)[0]] == losses, "the losses differ")
        expect(adapter(second, ident, "restored") == reference, "the adapters differ")
        nodes = second.run("nodes", parse=True)["nodes"]
        expect({"left", "right"} <= {node["name"] for node in nodes if node["state"] == "alive"}, nodes)
        third.finds_the_server_again(second)
    return f"went on from step {start} of {STEPS}"


if __name__ == "__main__":
    main(a_server_made_again_elsewhere_goes_on)
