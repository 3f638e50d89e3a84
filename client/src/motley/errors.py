"""What can go wrong, as types. All are MotleyError."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .models import PlanAnswer, Problem, ProblemError


class MotleyError(Exception):
    """Anything that this package raises on its own."""


class Unreachable(MotleyError):
    """The service could not be reached, or did not answer in time, also after repeats."""


class BadAnswer(MotleyError):
    """The answer is none of Motley's: a proxy's page, say, or a document of another shape."""


class Corrupt(MotleyError):
    """Bytes that came do not have the hash that they should have."""


class JobFailed(MotleyError):
    """A job that was waited for did not succeed."""

    def __init__(self, text: str, state: str) -> None:
        super().__init__(text)
        self.state = state


class Refused(MotleyError):
    """The service refused the request; `problem` says what, where and the limit (RFC 9457)."""

    def __init__(self, problem: Problem, retry_after: float | None = None) -> None:
        places = "".join(f"\n  {error.pointer}: {error.detail}" for error in problem.errors or [])
        super().__init__(f"{problem.detail} ({problem.status}, {problem.code}){places}")
        self.problem = problem
        self.retry_after = retry_after

    @property
    def status(self) -> int:
        return self.problem.status

    @property
    def code(self) -> str:
        return self.problem.code

    @property
    def detail(self) -> str:
        return self.problem.detail

    @property
    def errors(self) -> list[ProblemError]:
        """Where a body is wrong: JSON pointers, each with a sentence."""
        return self.problem.errors or []

    @property
    def request_id(self) -> str:
        """Under which the service's log has the request."""
        return self.problem.instance.removeprefix("urn:motley:request:")


class Invalid(Refused):
    """400, 405, 415, 422: the request or its content is not valid."""


class NoFit(Invalid):
    """No placement fits; `plan` shows by how much."""

    @property
    def plan(self) -> PlanAnswer | None:
        return self.problem.plan


class Unauthenticated(Refused):
    """401: no valid token."""


class Denied(Refused):
    """403: a token without the scope, or another's object."""


class NotFound(Refused):
    """404: not there, or not to be seen."""


class Conflict(Refused):
    """409: in conflict with the present state."""


class Limited(Conflict):
    """The queue has as many jobs of the user or group as it may: `retry_after` says when to look again."""


class Stale(Refused):
    """412: what it was meant for has changed."""


class TooBig(Refused):
    """413, 414, 431: over a limit."""


class Busy(Refused):
    """429, 503: try again after `retry_after` seconds, as this package did several times."""


class Fault(Refused):
    """500, 507: a mistake or a full disk of the service."""


_BY_STATUS: dict[int, type[Refused]] = {
    401: Unauthenticated, 403: Denied, 404: NotFound, 409: Conflict, 412: Stale, 413: TooBig, 414: TooBig, 431: TooBig, 429: Busy, 503: Busy}


def refused(problem: Problem, retry_after: float | None) -> Refused:
    """The error that a problem document means."""
    by_code: dict[str, type[Any]] = {"no-fit": NoFit, "limit": Limited}
    kind: type[Any] = by_code.get(problem.code) or _BY_STATUS.get(problem.status, Fault if problem.status >= 500 else Invalid)
    return kind(problem, retry_after)
