"""JSON documents to dataclasses and back."""
from __future__ import annotations

import dataclasses
import enum
import functools
import sys
import types
import typing
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, TypeVar, Union, cast

from .errors import BadAnswer


class Unset(enum.Enum):
    """UNSET is what was not said, where None says null."""

    UNSET = "unset"

    def __repr__(self) -> str:
        return "UNSET"

    def __bool__(self) -> bool:
        return False


UNSET: Literal[Unset.UNSET] = Unset.UNSET


class Answered:
    """What the service answered: the document is `raw`, the members of it that this release does not know `unknown`."""

    _raw: Mapping[str, Any] = {}

    @property
    def raw(self) -> Mapping[str, Any]:
        """The document as it came."""
        return self._raw

    @property
    def unknown(self) -> dict[str, Any]:
        known = {alias for _, alias, _, _ in _fields(type(self))}
        return {key: value for key, value in self._raw.items() if key not in known}


class Sent:
    """What the service is sent. Members that are UNSET are left out."""


T = TypeVar("T")


@functools.cache
def _fields(kind: type) -> list[tuple[str, str, Any, bool]]:
    """(name, name in JSON, type, is needed) of each field of a dataclass."""
    hints = typing.get_type_hints(kind, vars(sys.modules[kind.__module__]))
    return [(field.name, field.metadata.get("name", field.name), hints[field.name],
             field.default is dataclasses.MISSING) for field in dataclasses.fields(kind)]


def decode(kind: type[T], value: Any, place: str = "answer") -> T:
    """`value` as `kind`, or BadAnswer with the place that is something else. Unknown members and texts are taken."""
    return cast(T, _decode(kind, value, place))


def _decode(kind: Any, value: Any, place: str) -> Any:
    origin: Any = typing.get_origin(kind)
    if kind is Any:
        return value
    if origin in (Union, types.UnionType):
        return _decode_union(kind, value, place)
    if origin is list and isinstance(value, list):
        (item,) = typing.get_args(kind)
        return [_decode(item, one, f"{place}[{i}]") for i, one in enumerate(cast("list[Any]", value))]
    if origin is dict and isinstance(value, dict):
        item = typing.get_args(kind)[1]
        return {key: _decode(item, one, f"{place}.{key}") for key, one in cast("dict[str, Any]", value).items()}
    if origin is Literal and isinstance(value, (str, int)):
        return value  # another one may have come since
    if kind is datetime and isinstance(value, str):
        return _decode_time(value, place)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if kind is int and isinstance(value, float) and value.is_integer():
        return int(value)  # 19.0 is an integer in JSON Schema
    if isinstance(kind, type) and dataclasses.is_dataclass(kind) and isinstance(value, dict):
        return _decode_model(kind, cast("dict[str, Any]", value), place)
    if origin is None and isinstance(value, kind) and not (kind is int and isinstance(value, bool)):
        return value
    raise BadAnswer(f"{place} is {value!r:.80}, not {kind}")


def _decode_union(kind: Any, value: Any, place: str) -> Any:
    kinds = typing.get_args(kind)
    if value is None and type(None) in kinds:
        return None
    first: BadAnswer | None = None
    for one in kinds:
        if one is not type(None):
            try:
                return _decode(one, value, place)
            except BadAnswer as bad:
                first = first or bad
    raise first or BadAnswer(f"{place} is {value!r:.80}")


def _decode_time(value: str, place: str) -> datetime:
    try:
        return datetime.fromisoformat(value)
    except ValueError:
        raise BadAnswer(f"{place} is {value!r:.80}, not a time") from None


def _decode_model(kind: type, value: dict[str, Any], place: str) -> Any:
    given: dict[str, Any] = {}
    for name, alias, hint, needed in _fields(kind):
        if alias in value:
            given[name] = _decode(hint, value[alias], f"{place}.{alias}")
        elif needed:
            raise BadAnswer(f"{place} has no {alias}")
    made = kind(**given)
    object.__setattr__(made, "_raw", value)
    return made


def encode(value: Any) -> Any:
    """What json.dumps takes: dataclasses as objects, times as RFC 3339, without what is UNSET."""
    if isinstance(value, (str, int, float)) or value is None:
        return value
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise ValueError(f"{value} has no time zone: datetime.now(timezone.utc) has one")
        return value.isoformat()
    if isinstance(value, Sent):
        pairs = ((alias, getattr(value, name)) for name, alias, _, _ in _fields(type(value)))
        return {alias: encode(one) for alias, one in pairs if one is not UNSET}
    if isinstance(value, Mapping):
        return {key: encode(one) for key, one in cast("Mapping[str, Any]", value).items() if one is not UNSET}
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray)):
        return [encode(one) for one in cast("Sequence[Any]", value)]
    raise TypeError(f"{type(value).__name__} cannot be sent as JSON")
