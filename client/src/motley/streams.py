"""Server-Sent Events that go on after a cut, with no event lost and none twice."""
from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

from .errors import BadAnswer, Unreachable
from ._wire import Exchange, Reply, Retry, problem, retry_after


@dataclass(frozen=True)
class Event:
    """`data` is what the service says with it. `id` is None where the stream gives none (queue, devices)."""

    id: int | None
    type: str
    data: dict[str, Any]


class Parser:
    """Bytes of a stream to events, by the rules of the HTML standard. Lines end with LF, CR LF or CR alone, and with no
    other character that Unicode takes for the end of a line: texts of training data have those."""

    def __init__(self) -> None:
        self._rest = b""
        self._after_cr = False
        self._type = ""
        self._data: list[str] = []
        self._id: int | None = None
        self._fresh = False  # the event has an id of its own
        self.last: int | None = None
        self.retry_s: float | None = None

    def feed(self, piece: bytes) -> Iterator[Event]:
        if not piece:
            return
        if self._after_cr and piece.startswith(b"\n"):
            piece = piece[1:]
        self._after_cr = piece.endswith(b"\r")
        lines = (self._rest + piece).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            event = self._line(line.decode(errors="replace"))
            if event:
                yield event

    def _line(self, line: str) -> Event | None:
        if not line:
            return self._dispatch()
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._type = value
        elif name == "id" and value.isdecimal():
            self._id, self._fresh = int(value), True
        elif name == "retry" and value.isdecimal():
            self.retry_s = int(value) / 1000
        return None

    def _dispatch(self) -> Event | None:
        """An event counts, and so does its id, once its empty line has come: one that was cut is sent again."""
        kind, data, fresh = self._type or "message", self._data, self._fresh
        self._type, self._data, self._fresh = "", [], False
        if fresh:
            self.last = self._id
        if not data:
            return None
        try:
            document: Any = json.loads("\n".join(data))
        except ValueError:
            raise BadAnswer(f"the data of an event {kind} is no JSON: {data[0][:80]!r}") from None
        return Event(self._id if fresh else None, kind, cast("dict[str, Any]", document) if isinstance(document, dict) else {"value": document})


class Following:
    """Where a follower stands: what it asks for next, which events are new, when it gives up. Without any I/O."""

    def __init__(self, path: str, query: dict[str, Any], last: int | None, retry: Retry) -> None:
        self._path = path
        self._query = query
        self._retry = retry
        self._parser = Parser()
        self._failures = 0
        self._why = ""
        self.last = last
        self.over = False

    def request(self) -> Exchange:
        self._parser = Parser()
        headers = {"Accept": "text/event-stream"}
        if self.last is not None:
            headers["Last-Event-ID"] = str(self.last)
        return Exchange("GET", self._path, self._query, headers)

    def feed(self, piece: bytes) -> Iterator[Event]:
        """The new events in these bytes. `last` moves before an event is handed out."""
        for event in self._parser.feed(piece):
            if event.type == "end":
                self.over = True
            elif event.id is not None and self.last is not None and event.id <= self.last:
                continue
            self._failures = 0
            if event.id is not None:
                self.last = event.id
            yield event
            if self.over:
                return
        if self._parser.last is not None:
            self.last = max(self._parser.last, self.last or 0)

    def refused(self, reply: Reply) -> float:
        """The pause after an answer that is no stream; raises what repeating does not change."""
        if reply.status not in (429, 502, 503, 504) or self._failures + 1 >= self._retry.tries:
            raise problem(reply)
        return max(self.cut(f"status {reply.status}"), retry_after(reply) or 0)

    def cut(self, why: str) -> float:
        """The pause after a cut; raises Unreachable after so many without an event between."""
        self._failures += 1
        if self._failures >= self._retry.tries:
            raise Unreachable(f"{self._path}: the stream was cut {self._failures} times without an event: {why}")
        return max(self._parser.retry_s or 0.0, self._retry.after(self._failures)) if self._failures > 1 else self._retry.after(1)
