"""Files to the service and back, and what is made of several requests: submits with their files, results as folders."""
from __future__ import annotations

import copy
import hashlib
import io
import json
import os
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Literal, TypeVar, cast
from urllib.parse import quote, urlsplit

from . import operations
from ._call import Call, Listing, Numbered, job_segment
from ._json import decode, encode
from ._wire import Broken, Exchange, Pause, Reply, Retry, Steps, Work, exchange, perform, problem
from .errors import BadAnswer, Corrupt, Denied, NotFound, Unreachable
from .models import AddModelBase, Job, ListArtifactsAnswerArtifact, Model, Specification, Submitted

T = TypeVar("T")
Item = TypeVar("Item")
PART_BYTES = 16 << 20
BUSY_PAUSES = 120  # of a second each, while another request sends the same file
MODEL_FILES = ("*.safetensors", "*.json", "*.jinja", "tokenizer.model", "*.gguf")


def digest(path: Path) -> tuple[str, int]:
    sha, size = hashlib.sha256(), 0
    with open(path, "rb") as handle:
        while piece := handle.read(1 << 20):
            sha.update(piece)
            size += len(piece)
    return sha.hexdigest(), size


def read_part(source: Path | bytes, offset: int) -> bytes:
    if isinstance(source, bytes):
        return source[offset:offset + PART_BYTES]
    with open(source, "rb") as handle:
        handle.seek(offset)
        return handle.read(PART_BYTES)


def put(source: Path | bytes, retry: Retry) -> Steps[str]:
    """Uploads a file unless it is there. What arrived before a cut is not sent again."""
    if isinstance(source, bytes):
        sha256, size = hashlib.sha256(source).hexdigest(), len(source)
    else:
        sha256, size = yield Work(lambda: digest(source))
    path = f"/v1/blobs/{sha256}"
    there = yield from exchange(Exchange("HEAD", path), True, retry)
    offset, busy = 0, 0
    headers = {"Content-Type": "application/octet-stream"}
    while there.status != 200:
        part: bytes = yield Work(lambda at=offset: read_part(source, at))
        query = {"offset": offset, "size": size} if size > PART_BYTES else {}
        reply = yield from exchange(Exchange("PUT", path, query, headers, part), True, retry)
        if reply.status in (200, 201):
            break
        if reply.status != 202:
            raise problem(reply)
        offset, busy = (yield from after_part(reply, path, offset, busy))
    return sha256


def after_part(reply: Reply, path: str, offset: int, busy: int) -> Steps[tuple[int, int]]:
    """Where the next part begins; waits while somebody else sends the same file."""
    document = json.loads(reply.body)
    received = int(document["received"])
    if received > offset:
        return received, 0
    if busy >= BUSY_PAUSES:
        raise Unreachable(f"PUT {path}: no byte was taken for {BUSY_PAUSES} s")
    yield Pause(1.0)
    return received, busy + 1


class HashedSink:
    """Takes a body into a file and its hash, and can begin again where it was cut."""

    def __init__(self, out: BinaryIO) -> None:
        self.out = out
        self.sha = hashlib.sha256()
        self.got = 0

    def begin(self, status: int) -> None:
        if status == 200 and self.got:
            self.out.seek(0)
            self.out.truncate()
            self.sha, self.got = hashlib.sha256(), 0

    def write(self, piece: bytes) -> None:
        self.out.write(piece)
        self.sha.update(piece)
        self.got += len(piece)


def receive(path: str, sha256: str | None, sink: HashedSink, retry: Retry) -> Steps[None]:
    """Reads a file into the sink. Tries count anew whenever bytes came."""
    failures = 0
    while True:
        before = sink.got
        headers = {"Accept-Encoding": "identity"}
        if before:
            headers["Range"] = f"bytes={before}-"
        outcome: Reply | Broken = yield Exchange("GET", path, headers=headers, sink=sink)
        if isinstance(outcome, Reply) and outcome.status in (200, 206):
            break
        if isinstance(outcome, Reply) and outcome.status not in (429, 502, 503, 504):
            raise problem(outcome)
        failures = 1 if sink.got > before else failures + 1
        if failures >= retry.tries:
            raise problem(outcome) if isinstance(outcome, Reply) else Unreachable(f"GET {path}: {outcome.text}")
        yield Pause(retry.after(failures))
    if sha256 and sink.sha.hexdigest() != sha256:
        raise Corrupt(f"{path}: the bytes that came have the hash {sink.sha.hexdigest()}, not {sha256}")


def get(path: str, sha256: str | None, to: Path, retry: Retry) -> Steps[Path]:
    """Writes a file beside its name first, so that it is there whole or not at all."""
    to.parent.mkdir(parents=True, exist_ok=True)
    part = to.with_name(to.name + ".part")
    try:
        with open(part, "w+b") as out:
            yield from receive(path, sha256, HashedSink(out), retry)
        os.replace(part, to)
    finally:
        part.unlink(missing_ok=True)
    return to


def read(path: str, sha256: str | None, retry: Retry) -> Steps[bytes]:
    out = io.BytesIO()
    yield from receive(path, sha256, HashedSink(out), retry)
    return out.getvalue()


def everything(listing: Listing[T, Item], retry: Retry) -> Steps[list[Item]]:
    found: list[Item] = []
    call, here = listing.call, None
    while True:
        page = yield from perform(call, retry)
        found += listing.items(page)
        following = listing.following(page, here)
        if following is None:
            return found
        call, here = following


# ---- results ----

def place_of(name: str, folder: Path) -> Path:
    """Where a file of a job goes. The service's names are not trusted."""
    path = PurePosixPath(name)
    if not name or path.is_absolute() or ".." in path.parts or any(character in name for character in "\\:\0"):
        raise BadAnswer(f"a job's file is called {name!r}, which is no relative path")
    return folder / ("adapter" if name.startswith("adapter_") else "") / path


def fetch_artifacts(job: int | Numbered, folder: Path, retry: Retry) -> Steps[list[ListArtifactsAnswerArtifact]]:
    found = yield from everything(operations.list_artifacts(job), retry)
    for artifact in found:
        url = f"/v1/jobs/{job_segment(job)}/artifacts/{quote(artifact.name, safe='')}"
        yield from get(url, artifact.sha256, place_of(artifact.name, folder), retry)
    return found


def record_of(made: Job, folder: Path) -> dict[str, Any]:
    """Which job's results a folder holds, as `motley get` writes it; FileExistsError where they are another's."""
    path = folder / "fetched.json"
    record: dict[str, Any] = {"id": made.id, "name": made.raw["name"], "created": made.raw["created"], "files": []}
    if path.exists():
        before = json.loads(path.read_text())
        if (before.get("id"), before.get("created")) != (record["id"], record["created"]):
            raise FileExistsError(f"{folder} holds the results of job {before.get('id')} ({before.get('name')}): remove them, or give another folder")
        record["files"] = before.get("files", [])
    elif (folder / "metrics.jsonl").exists():
        raise FileExistsError(f"{folder} holds results that do not say whose they are (there is no fetched.json): remove them, or give another folder")
    return record


def fetch(job: int | Numbered, folder: Path, retry: Retry) -> Steps[Path]:
    """What a job made, laid out as `motley get` does it."""
    folder.mkdir(parents=True, exist_ok=True)
    record = record_of((yield from perform(operations.get_job(job), retry)), folder)
    (folder / "fetched.json").write_text(json.dumps(record))
    found = yield from fetch_artifacts(job, folder, retry)
    names = [str(place_of(artifact.name, folder).relative_to(folder)) for artifact in found]
    written: dict[str, tuple[Literal["step", "eval", "sample"], ...]] = {"metrics.jsonl": ("step", "eval"), "samples.jsonl": ("sample",)}
    for name, kinds in written.items():
        lines: list[Mapping[str, Any]] = []
        for kind in kinds:
            lines += [line.raw for line in (yield from everything(operations.list_metrics(job, kind=kind), retry))]
        lines.sort(key=lambda line: (line.get("step", 0), "eval" not in line))
        (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
        names.append(name)
    for name, call in (("plan.json", operations.get_job_plan(job)), ("trace.json", operations.get_trace(job))):
        try:
            document = yield from perform(cast("Call[Any]", call), retry)
            (folder / name).write_text(json.dumps(document.raw))
            names.append(name)
        except NotFound:  # a job that never started has neither
            pass
    record["files"] += [name for name in names if name not in record["files"]]
    (folder / "fetched.json").write_text(json.dumps(record))
    return folder


# ---- submits ----

def find(word: str, folder: Path) -> Path | None:
    path = folder / Path(word).expanduser()
    return path if path.exists() else None


def reference(word: Any, name: str, folder: Path, retry: Retry) -> Steps[Any]:
    """A file that a specification names, as its reference by content."""
    if not isinstance(word, str) or word.startswith("sha256:"):
        return word
    path = find(word, folder)
    if path is None:
        raise FileNotFoundError(f"{name}: there is no file {folder / word}")
    return "sha256:" + (yield from put(path, retry))


def adapter_reference(word: Any, folder: Path, retry: Retry) -> Steps[Any]:
    """A peft folder, as the reference of a document that names its two files."""
    if not isinstance(word, str) or word.startswith("sha256:"):
        return word
    names = ("adapter_config.json", "adapter_model.safetensors")
    made: dict[str, str] = {}
    for name in names:
        path = find(os.path.join(word, name), folder)
        if path is None:
            raise FileNotFoundError(f"method.start_from: {folder / word} has no {name}, so it is no peft adapter's folder")
        made[name] = yield from put(path, retry)
    return "sha256:" + (yield from put(json.dumps(made).encode(), retry))


def add_model(path: Path, address: str, retry: Retry) -> Steps[Model]:
    """Registers a model. On its own machine the service reads it where it is, if it may."""
    path = path.resolve()
    name = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in path.name)[:50]
    base = AddModelBase(name=str(path))  # of a snapshot in a hub's cache, the service makes OWNER/NAME
    host = urlsplit(address).hostname or ""
    if host == "localhost" or host.startswith("127."):
        try:
            return (yield from perform(operations.add_model(name=name, path=str(path), base=base), retry))
        except (Denied, NotFound):
            pass
    found = sorted({one for kind in MODEL_FILES for one in path.glob(kind)}) if path.is_dir() else [path]
    sent: list[Any] = []
    for one in found:
        sent.append({"name": one.name, "sha256": (yield from put(one, retry)), "size": one.stat().st_size})
    return (yield from perform(operations.add_model(name=name, files=sent, base=base), retry))


def submit(given: Mapping[str, Any] | Specification, folder: Path, address: str, retry: Retry) -> Steps[Submitted]:
    spec: dict[str, Any] = copy.deepcopy(dict(encode(given)))
    model, data, method = spec.get("model", ""), spec.get("data", {}), spec.get("method")
    path = find(model, folder) if isinstance(model, str) and model else None
    if path is not None:
        spec["model"] = (yield from add_model(path, address, retry)).content
    for key in ("train", "eval"):
        if isinstance(data, dict) and key in data:
            data[key] = yield from reference(cast("dict[str, Any]", data)[key], f"data.{key}", folder, retry)
    if isinstance(method, dict) and "start_from" in method:
        method["start_from"] = yield from adapter_reference(cast("dict[str, Any]", method)["start_from"], folder, retry)
    return (yield from perform(operations.submit_job(spec), retry))


def model_files(content: str, folder: Path, retry: Retry) -> Steps[Path]:
    """A registered model's files, those that are there left alone."""
    model = yield from perform(operations.get_model(content), retry)
    for file in model.files or []:
        if not file.name or not file.sha256:
            raise BadAnswer(f"model {content}: a file without a name or a hash")
        to = place_of(file.name, folder)
        if not (to.exists() and to.stat().st_size == file.size):
            yield from get(f"/v1/blobs/{file.sha256}", file.sha256, to, retry)
    return folder


def adapter_config(folder: Path) -> dict[str, Any]:
    return decode(dict[str, Any], json.loads((folder / "adapter" / "adapter_config.json").read_text()), "adapter_config.json")
