"""The two clients: what both can do, and how each carries it out on httpx."""
from __future__ import annotations

import json
import os
import ssl
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import anyio
import anyio.to_thread
import httpx

from . import files
from ._call import Call, Numbered, job_segment
from ._wire import Broken, Effect, Exchange, Pause, Reply, Retry, Steps, perform
from .errors import JobFailed, Unreachable
from .jobs import RunningJob
from .models import Job, Specification, Submitted
from .operations import AsyncOperations, Operations
from .streams import Event, Following

T = TypeVar("T")
SILENCE_S = 45.0  # a stream beats every 15 s
ANSWER_S = 120.0
MODEL_S = 6 * 3600.0  # registering a model: all of its bytes are hashed before the answer


@dataclass(frozen=True)
class Server:
    """Where the service is, and with which token it is asked. `ca`: a file with the CA of its certificate."""

    address: str
    token: str
    ca: str | None = None

    @classmethod
    def of_home(cls, home: str | os.PathLike[str] | None = None) -> Server:
        """The one that `motley up` started (client.json in the home: `home`, else MOTLEY_HOME, else ~/.motley)."""
        path = Path(home or os.environ.get("MOTLEY_HOME") or Path.home() / ".motley") / "client.json"
        try:
            document = json.loads(path.read_text())
        except FileNotFoundError:
            raise Unreachable(f"{path} is not there: `motley up` starts a service and writes it") from None
        if "socket" in document:
            raise Unreachable(f"{path} names a unix socket, which this client does not speak to: motley login ADDRESS --socket "
                              f"{document['socket']}")
        return cls(document["address"], document["token"], document.get("ca"))

    def options(self) -> dict[str, Any]:
        """What both of httpx's clients are made with. A proxy is never asked for a loopback address, and no other is sent
        the token in clear."""
        url = httpx.URL(self.address)
        local = url.host in ("localhost", "::1") or url.host.startswith("127.")
        if url.scheme != "https" and not local:
            raise Unreachable(f"{self.address} is not this machine, and a token is sent to others through https:// alone")
        return {"base_url": url, "headers": {"Authorization": f"Bearer {self.token}", "User-Agent": "motley-python"},
                "verify": ssl.create_default_context(cafile=self.ca) if url.scheme == "https" else True,
                "trust_env": not local,
                "timeout": httpx.Timeout(ANSWER_S, connect=10.0), "follow_redirects": False}


def _timeout(wire: Exchange) -> httpx.Timeout:
    return httpx.Timeout(MODEL_S if wire.path == "/v1/models" and wire.content else ANSWER_S, connect=10.0)


def _broken(error: httpx.TransportError) -> Broken:
    sent = not isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout))
    return Broken(str(error) or type(error).__name__, sent)


def _reply(response: httpx.Response, body: bytes) -> Reply:
    return Reply(response.status_code, {name.lower(): value for name, value in response.headers.items()}, body)


def _server(address: str | Server | None, token: str | None, ca: str | None) -> Server:
    if isinstance(address, Server):
        return address
    if address is None:
        return Server.of_home()
    if token is None:
        raise ValueError("an address needs a token: `motley token make` prints one")
    return Server(address, token, ca)


def _follow_job(job: int | Numbered, after: int, type: str | None, retry: Retry) -> Following:
    return Following(f"/v1/jobs/{job_segment(job)}/events", {"type": type} if type else {}, after, retry)


class Client(Operations):
    """A synchronous client. Without an address it speaks to the service that `motley up` started on this machine.

    Methods of the service's operations are named after them (`client.get_job(17)`); lists are iterated page by page;
    refusals are raised as errors.Refused. It may be used by several threads."""

    def __init__(self, address: str | Server | None = None, token: str | None = None, ca: str | None = None, *,
                 retry: Retry | None = None) -> None:
        self.server = _server(address, token, ca)
        self.retry = retry or Retry()
        self._http = httpx.Client(**self.server.options())

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    # ---- how it is carried out ----

    def send(self, call: Call[T]) -> T:
        return self.run(perform(call, self.retry))

    def run(self, steps: Steps[T]) -> T:
        outcome: Any = None
        while True:
            try:
                effect = steps.send(outcome)
            except StopIteration as stop:
                return stop.value
            outcome = self._carry_out(effect)

    def _carry_out(self, effect: Effect) -> Any:
        if isinstance(effect, Exchange):
            return self._exchange(effect)
        return time.sleep(effect.seconds) if isinstance(effect, Pause) else effect.run()

    def _exchange(self, wire: Exchange) -> Reply | Broken:
        try:
            with self._http.stream(wire.method, wire.path, params=wire.query, headers=wire.headers, content=wire.content,
                                   timeout=_timeout(wire)) as response:
                if wire.sink is None or response.status_code not in (200, 206):
                    return _reply(response, response.read())
                wire.sink.begin(response.status_code)
                for piece in response.iter_raw():
                    wire.sink.write(piece)
                return _reply(response, b"")
        except httpx.TransportError as error:
            return _broken(error)

    def _events(self, following: Following) -> Iterator[Event]:
        while not following.over:
            pause = 0.0
            try:
                wire = following.request()
                with self._http.stream("GET", wire.path, params=wire.query, headers=wire.headers,
                                       timeout=httpx.Timeout(SILENCE_S, connect=10.0)) as response:
                    if response.status_code != 200:
                        pause = following.refused(_reply(response, response.read()))
                    else:
                        for piece in response.iter_bytes():
                            yield from following.feed(piece)
                            if following.over:
                                return
                        pause = following.cut("it ended without its last event")
            except httpx.TransportError as error:
                pause = following.cut(_broken(error).text)
            time.sleep(pause)

    # ---- what is more than one request ----

    def follow(self, job: int | Numbered, *, after: int = 0, type: str | None = None) -> Iterator[Event]:
        """All events of a job with an id above `after`, past and future, until the job is over. Cuts are mended: no event
        is lost, none comes twice. The last one has the type `end`."""
        return self._events(_follow_job(job, after, type, self.retry))

    def follow_cluster(self, *topics: str, after: int | None = None) -> Iterator[Event]:
        """What happens in the cluster, without end, by `queue`, `devices` and `job:ID`. Events with an id are mended as
        those of `follow` are; after a cut the whole of queue and devices comes once more."""
        return self._events(Following("/v1/events", {"topics": list(topics)}, after, self.retry))

    def submit(self, spec: Mapping[str, Any] | Specification, *, folder: str | os.PathLike[str] = ".") -> RunningJob:
        """Submits a job. Files and folders that the specification names (relative to `folder`) are uploaded first."""
        return self.job(self.run(files.submit(spec, Path(folder), self.server.address, self.retry)).id)

    def job(self, job: int | Numbered) -> RunningJob:
        """A handle of a job: to watch, wait, draw and fetch."""
        return RunningJob(self, job if isinstance(job, int) else job.id)

    def put_file(self, source: str | os.PathLike[str] | bytes) -> str:
        """Uploads a file, in parts that are resumed, unless the service has it. Returns its SHA-256."""
        return self.run(files.put(source if isinstance(source, bytes) else Path(source), self.retry))

    def get_file(self, sha256: str, to: str | os.PathLike[str]) -> Path:
        """Writes a file of the service to `to`: resumed after a cut, checked by its hash, there whole or not at all."""
        return self.run(files.get(f"/v1/blobs/{sha256}", sha256, Path(to), self.retry))

    def fetch(self, job: int | Numbered, folder: str | os.PathLike[str]) -> Path:
        """Writes what a job made to a folder, as `motley get` does."""
        return self.run(files.fetch(job, Path(folder), self.retry))

    def wait(self, job: int | Numbered) -> Job:
        """The job once it is over; raises JobFailed unless it succeeded."""
        for _ in self.follow(job, type="state"):
            pass
        return _succeeded(self.get_job(job))


class AsyncClient(AsyncOperations):
    """The same client for asyncio."""

    def __init__(self, address: str | Server | None = None, token: str | None = None, ca: str | None = None, *,
                 retry: Retry | None = None) -> None:
        self.server = _server(address, token, ca)
        self.retry = retry or Retry()
        self._http = httpx.AsyncClient(**self.server.options())

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.aclose()

    async def send(self, call: Call[T]) -> T:
        return await self.run(perform(call, self.retry))

    async def run(self, steps: Steps[T]) -> T:
        outcome: Any = None
        while True:
            try:
                effect = steps.send(outcome)
            except StopIteration as stop:
                return stop.value
            if isinstance(effect, Exchange):
                outcome = await self._exchange(effect)
            elif isinstance(effect, Pause):
                outcome = await anyio.sleep(effect.seconds)
            else:
                outcome = await anyio.to_thread.run_sync(effect.run)

    async def _exchange(self, wire: Exchange) -> Reply | Broken:
        try:
            async with self._http.stream(wire.method, wire.path, params=wire.query, headers=wire.headers, content=wire.content,
                                         timeout=_timeout(wire)) as response:
                if wire.sink is None or response.status_code not in (200, 206):
                    return _reply(response, await response.aread())
                wire.sink.begin(response.status_code)
                async for piece in response.aiter_raw():
                    wire.sink.write(piece)
                return _reply(response, b"")
        except httpx.TransportError as error:
            return _broken(error)

    async def _events(self, following: Following) -> AsyncIterator[Event]:
        while not following.over:
            pause = 0.0
            try:
                wire = following.request()
                async with self._http.stream("GET", wire.path, params=wire.query, headers=wire.headers,
                                             timeout=httpx.Timeout(SILENCE_S, connect=10.0)) as response:
                    if response.status_code != 200:
                        pause = following.refused(_reply(response, await response.aread()))
                    else:
                        async for piece in response.aiter_bytes():
                            for event in following.feed(piece):
                                yield event
                            if following.over:
                                return
                        pause = following.cut("it ended without its last event")
            except httpx.TransportError as error:
                pause = following.cut(_broken(error).text)
            await anyio.sleep(pause)

    def follow(self, job: int | Numbered, *, after: int = 0, type: str | None = None) -> AsyncIterator[Event]:
        return self._events(_follow_job(job, after, type, self.retry))

    def follow_cluster(self, *topics: str, after: int | None = None) -> AsyncIterator[Event]:
        return self._events(Following("/v1/events", {"topics": list(topics)}, after, self.retry))

    async def submit(self, spec: Mapping[str, Any] | Specification, *, folder: str | os.PathLike[str] = ".") -> Submitted:
        return await self.run(files.submit(spec, Path(folder), self.server.address, self.retry))

    async def put_file(self, source: str | os.PathLike[str] | bytes) -> str:
        return await self.run(files.put(source if isinstance(source, bytes) else Path(source), self.retry))

    async def get_file(self, sha256: str, to: str | os.PathLike[str]) -> Path:
        return await self.run(files.get(f"/v1/blobs/{sha256}", sha256, Path(to), self.retry))

    async def fetch(self, job: int | Numbered, folder: str | os.PathLike[str]) -> Path:
        return await self.run(files.fetch(job, Path(folder), self.retry))

    async def wait(self, job: int | Numbered) -> Job:
        async for _ in self.follow(job, type="state"):
            pass
        return _succeeded(await self.get_job(job))


def _succeeded(job: Job) -> Job:
    if job.state != "succeeded":
        raise JobFailed(f"job {job.id} ({job.name}) is {job.state}: {job.why or 'no reason was given'}", job.state)
    return job
