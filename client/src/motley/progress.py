"""A job's progress for people: one line that changes in a terminal, a table that changes in a notebook, lines elsewhere."""
from __future__ import annotations

import html
import importlib
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Protocol, TextIO

from .models import Job
from .streams import Event

QUIET_S = 10.0   # between lines where nothing can be overwritten
REDRAW_S = 0.1
REMEMBERED = 20  # steps whose mean time says how long the rest takes


class Screen(Protocol):
    def note(self, text: str) -> None: ...
    def update(self, progress: Progress) -> None: ...
    def end(self, progress: Progress) -> None: ...


def duration(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


class Progress:
    """What is known of a job from its events."""

    def __init__(self, job: Job) -> None:
        self.name = f"job {job.id} ({job.name})"
        self.state = job.state
        self.steps = job.steps or 0
        self.step = 0
        self.loss: float | None = None
        self.held_out: float | None = None
        self.tokens_per_s: float | None = None
        self._seconds: deque[float] = deque(maxlen=REMEMBERED)

    def take(self, event: Event) -> str | None:
        """A sentence where something happened that is worth a line of its own."""
        data = event.data
        if event.type == "step":
            self.step = int(data.get("step", 0)) + 1
            self.loss = data.get("loss")
            seconds = float(data.get("seconds") or 0)
            self._seconds.append(seconds)
            self.tokens_per_s = data.get("tokens", 0) / seconds if seconds > 0 else None
        elif event.type == "eval" and isinstance(data.get("loss"), (int, float)):
            self.held_out = float(data["loss"])
            return f"held-out loss {self.held_out:.4f} after {data.get('step', '?')} steps"
        elif event.type in ("state", "end"):
            before, self.state = self.state, str(data.get("state", self.state))
            if self.state != before:
                return f"{self.name} is {self.state}" + (f": {data['why']}" if data.get("why") else "")
        elif event.type == "log":
            return f"log {data['device']}: {data.get('text', '')}" if data.get("device") else f"log {data.get('text', '')}"
        return None

    @property
    def left_s(self) -> float | None:
        if not self._seconds or self.steps <= self.step:
            return None
        return (self.steps - self.step) * sum(self._seconds) / len(self._seconds)

    @property
    def share(self) -> float:
        return min(1.0, self.step / self.steps) if self.steps else 0.0

    def facts(self) -> dict[str, str]:
        found = {"state": self.state, "step": f"{self.step}/{self.steps}"}
        for name, value, text in (("loss", self.loss, "{:.4f}"), ("held-out", self.held_out, "{:.4f}"),
                                  ("tokens/s", self.tokens_per_s, "{:.0f}")):
            if value is not None:
                found[name] = text.format(value)
        if self.left_s is not None:
            found["left"] = duration(self.left_s)
        return found

    def line(self) -> str:
        full = round(self.share * 24)
        return f"{self.name} {'█' * full}{'░' * (24 - full)} " + "  ".join(f"{name} {value}" for name, value in self.facts().items())

    def html(self) -> str:
        cells = "".join(f"<td><b>{html.escape(name)}</b> {html.escape(value)}</td>" for name, value in self.facts().items())
        return (f"<div>{html.escape(self.name)} <progress max='1' value='{self.share:.4f}'></progress>"
                f"<table><tr>{cells}</tr></table></div>")


class Terminal:
    """A line that is overwritten; on what is no terminal, a line every ten seconds."""

    def __init__(self, out: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._out = out
        self._clock = clock
        self._live = out.isatty()
        self._drawn = -QUIET_S

    def _clear(self) -> None:
        if self._live:
            self._out.write("\r\x1b[K")

    def note(self, text: str) -> None:
        self._clear()
        # What a job logs may hold anything: nothing of it moves the cursor.
        print("".join(c if c.isprintable() else "·" for c in text), file=self._out, flush=True)

    def update(self, progress: Progress) -> None:
        if self._clock() - self._drawn < (REDRAW_S if self._live else QUIET_S):
            return
        self._drawn = self._clock()
        self._clear()
        print(progress.line(), end="" if self._live else "\n", file=self._out, flush=True)

    def end(self, progress: Progress) -> None:
        self._clear()
        print(progress.line(), file=self._out, flush=True)


class Notebook:
    """A table that is replaced in a cell's output."""

    def __init__(self, display: Callable[..., Any], markup: Callable[[str], Any], clock: Callable[[], float] = time.monotonic) -> None:
        self._markup = markup
        self._clock = clock
        self._drawn = 0.0
        self._handle = display(markup("<div>…</div>"), display_id=True)

    def note(self, text: str) -> None:
        """Logs are for terminals: the table has the state."""

    def update(self, progress: Progress) -> None:
        if self._clock() - self._drawn >= REDRAW_S * 5:
            self._drawn = self._clock()
            self._handle.update(self._markup(progress.html()))

    def end(self, progress: Progress) -> None:
        self._handle.update(self._markup(progress.html()))


def screen() -> Screen:
    """A notebook where IPython runs one, else the standard error stream."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    if shell is not None and hasattr(shell, "kernel"):
        show = importlib.import_module("IPython.display")
        return Notebook(show.display, show.HTML)
    return Terminal(sys.stderr)


def show(events: Iterable[Event], job: Job, on: Screen | None = None) -> Progress:
    """Shows events until they end."""
    progress, target = Progress(job), on or screen()
    try:
        for event in events:
            note = progress.take(event)
            if note:
                target.note(note)
            target.update(progress)
    finally:
        target.end(progress)
    return progress
