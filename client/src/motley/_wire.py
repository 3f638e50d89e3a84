"""What clients do, as generators that yield what is to be carried out: written once, driven by both clients.

A generator yields an Exchange, a Pause or a Work and is sent the Reply or Broken, None, or the work's result.
"""
from __future__ import annotations

import email.utils
import json
import random
import time
import uuid
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, cast

from ._call import Call
from ._json import UNSET, decode, encode
from .errors import BadAnswer, Refused, Unreachable, refused
from .models import Problem

T = TypeVar("T")


class Sink(Protocol):
    """Takes a body that is too long for memory. `begin` comes first, with 200 (the whole) or 206 (the rest)."""

    def begin(self, status: int) -> None: ...
    def write(self, piece: bytes) -> None: ...


@dataclass(frozen=True)
class Exchange:
    method: str
    path: str
    query: Mapping[str, Any] = field(default_factory=dict[str, Any])
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    content: bytes | None = None
    sink: Sink | None = None


@dataclass(frozen=True)
class Reply:
    status: int
    headers: Mapping[str, str]  # names in lower case
    body: bytes


@dataclass(frozen=True)
class Broken:
    """No whole answer came. `sent`: the service may have read the request."""

    text: str
    sent: bool


@dataclass(frozen=True)
class Pause:
    seconds: float


@dataclass(frozen=True)
class Work:
    """What takes a while on this machine: files, hashes."""

    run: Callable[[], Any]


Effect = Exchange | Pause | Work
Steps = Generator[Effect, Any, T]


@dataclass(frozen=True)
class Retry:
    """How often a request is sent at most, and how long the pauses between are: doubled each time, by chance between
    half and the whole."""

    tries: int = 6
    pause: float = 0.25
    longest: float = 20.0

    def after(self, attempt: int) -> float:
        return min(self.longest, self.pause * 2.0 ** (attempt - 1)) * random.uniform(0.5, 1.0)


def retry_after(reply: Reply) -> float | None:
    text = reply.headers.get("retry-after", "")
    if text.isdigit():
        return float(text)
    try:
        when = email.utils.parsedate_to_datetime(text)
    except ValueError:
        return None
    return max(0.0, when.timestamp() - time.time())


def exchange(wire: Exchange, again: bool, retry: Retry) -> Steps[Reply]:
    """Sends a request until it is answered. `again`: doing it twice is doing it once."""
    attempt = 0
    while True:
        attempt += 1
        outcome: Reply | Broken = yield wire
        last = attempt >= retry.tries
        if isinstance(outcome, Broken):
            if last or (outcome.sent and not again):
                raise Unreachable(f"{wire.method} {wire.path}: {outcome.text}")
            yield Pause(retry.after(attempt))
        elif last or not (outcome.status == 429 or (again and outcome.status in (502, 503, 504))):
            return outcome
        else:
            yield Pause(min(retry.longest, retry_after(outcome) or retry.after(attempt)))


def problem(reply: Reply) -> Refused | BadAnswer:
    """The error that an answer other than 2xx means."""
    text = reply.body.decode(errors="replace")
    if reply.headers.get("content-type", "").startswith("application/problem+json"):
        try:
            return refused(decode(Problem, json.loads(text), "problem"), retry_after(reply))
        except (ValueError, BadAnswer):
            pass
    return BadAnswer(f"an answer with status {reply.status} that is no problem document: {text[:200]!r}")


def perform(call: Call[T], retry: Retry) -> Steps[T]:
    """Sends a call and reads its answer."""
    headers = {name: str(value) for name, value in call.headers.items() if value is not UNSET}
    if call.keyed:
        headers["Idempotency-Key"] = call.key or str(uuid.uuid4())
    content = None
    if call.body is not None:
        content = json.dumps(encode(call.body), ensure_ascii=False, allow_nan=False).encode()
        headers["Content-Type"] = "application/json"
    query = cast("dict[str, Any]", encode(call.query))
    again = call.method in ("GET", "HEAD") or call.keyed
    reply = yield from exchange(Exchange(call.method, call.path, query, headers, content), again, retry)
    if not 200 <= reply.status < 300:
        raise problem(reply)
    if call.answer is None or call.answer is type(None):
        return cast(T, None)
    if call.answer is str:
        return cast(T, reply.body.decode())
    try:
        document = json.loads(reply.body)
    except ValueError:
        raise BadAnswer(f"{call.method} {call.path}: the answer is no JSON: {reply.body[:200]!r}") from None
    return decode(call.answer, document, f"{call.method} {call.path}")
