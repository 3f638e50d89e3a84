"""One request as a value, and the descriptors that make a client's method of the function that builds it."""
from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, ParamSpec, Protocol, TypeVar
from urllib.parse import quote

from .errors import BadAnswer

P = ParamSpec("P")
T = TypeVar("T")
Item = TypeVar("Item")


class Numbered(Protocol):
    """A job as an answer (Job, JobLine, Submitted) or a handle (RunningJob) has it."""

    @property
    def id(self) -> int: ...


def segment(value: int | str) -> str:
    """A value as one segment of a path."""
    return quote(str(value), safe="")


def job_segment(job: int | Numbered) -> str:
    """A job, or its id, as one segment of a path."""
    number: Any = getattr(job, "id", job)
    return segment(number)


@dataclass(frozen=True)
class Call(Generic[T]):
    """A request that is answered by a `T`. `keyed`: it takes an Idempotency-Key, so it may be sent again."""

    method: str
    path: str
    answer: type[T] | None
    query: Mapping[str, Any] = field(default_factory=dict[str, Any])
    headers: Mapping[str, Any] = field(default_factory=dict[str, Any])
    body: Any = None
    keyed: bool = False
    key: str | None = None


@dataclass(frozen=True)
class Listing(Generic[T, Item]):
    """A request for a page, and where a page has its items and the next page's `after`."""

    call: Call[T]
    items: Callable[[T], list[Item]]
    next: Callable[[T], str | None]

    def following(self, page: T, here: str | None) -> tuple[Call[T], str] | None:
        """The next page's request. A server that names the same page again is refused, not asked for ever."""
        after = self.next(page)
        if after is None:
            return None
        if after == here:
            raise BadAnswer(f"{self.call.path}: the page after {after!r} is itself")
        return replace(self.call, query={**self.call.query, "after": after}), after


class Sender(Protocol):
    def send(self, call: Call[T]) -> T: ...


class AsyncSender(Protocol):
    def send(self, call: Call[T]) -> Awaitable[T]: ...


class Pages(Generic[T, Item]):
    """All items of a list, fetched a page at a time while it is iterated. `limit` is the size of a page."""

    def __init__(self, sender: Sender, listing: Listing[T, Item]) -> None:
        self._sender = sender
        self._listing = listing

    def first(self) -> T:
        """The first page, with all that it says beside its items."""
        return self._sender.send(self._listing.call)

    def pages(self) -> Iterator[T]:
        call, here = self._listing.call, None
        while True:
            page = self._sender.send(call)
            yield page
            following = self._listing.following(page, here)
            if following is None:
                return
            call, here = following

    def __iter__(self) -> Iterator[Item]:
        for page in self.pages():
            yield from self._listing.items(page)


class APages(Generic[T, Item]):
    """The same for `async for`."""

    def __init__(self, sender: AsyncSender, listing: Listing[T, Item]) -> None:
        self._sender = sender
        self._listing = listing

    async def first(self) -> T:
        return await self._sender.send(self._listing.call)

    async def pages(self) -> AsyncIterator[T]:
        call, here = self._listing.call, None
        while True:
            page = await self._sender.send(call)
            yield page
            following = self._listing.following(page, here)
            if following is None:
                return
            call, here = following

    async def __aiter__(self) -> AsyncIterator[Item]:
        async for page in self.pages():
            for item in self._listing.items(page):
                yield item


class SyncCall(Generic[P, T]):
    def __init__(self, build: Callable[P, Call[T]]) -> None:
        self._build = build

    def __get__(self, sender: Sender, owner: Any = None) -> Callable[P, T]:
        @functools.wraps(self._build)
        def method(*args: P.args, **kwargs: P.kwargs) -> T:
            return sender.send(self._build(*args, **kwargs))
        return method


class AsyncCall(Generic[P, T]):
    def __init__(self, build: Callable[P, Call[T]]) -> None:
        self._build = build

    def __get__(self, sender: AsyncSender, owner: Any = None) -> Callable[P, Awaitable[T]]:
        @functools.wraps(self._build)
        def method(*args: P.args, **kwargs: P.kwargs) -> Awaitable[T]:
            return sender.send(self._build(*args, **kwargs))
        return method


class SyncPages(Generic[P, T, Item]):
    def __init__(self, build: Callable[P, Listing[T, Item]]) -> None:
        self._build = build

    def __get__(self, sender: Sender, owner: Any = None) -> Callable[P, Pages[T, Item]]:
        @functools.wraps(self._build)
        def method(*args: P.args, **kwargs: P.kwargs) -> Pages[T, Item]:
            return Pages(sender, self._build(*args, **kwargs))
        return method


class AsyncPages(Generic[P, T, Item]):
    def __init__(self, build: Callable[P, Listing[T, Item]]) -> None:
        self._build = build

    def __get__(self, sender: AsyncSender, owner: Any = None) -> Callable[P, APages[T, Item]]:
        @functools.wraps(self._build)
        def method(*args: P.args, **kwargs: P.kwargs) -> APages[T, Item]:
            return APages(sender, self._build(*args, **kwargs))
        return method
