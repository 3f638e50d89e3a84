"""A job as something to hold: to watch, wait, draw and fetch."""
from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from . import picture, progress
from .models import Commanded, Job, Metric
from .streams import Event

if TYPE_CHECKING:
    from .client import Client


class RunningJob:
    """A job of a synchronous client. In a notebook it shows its loss curve."""

    def __init__(self, client: Client, id: int) -> None:
        self.client = client
        self.id = id

    def __repr__(self) -> str:
        return f"<motley job {self.id} of {self.client.server.address}>"

    def _repr_svg_(self) -> str:
        return self.picture().svg

    def get(self) -> Job:
        """The job as it is now."""
        return self.client.get_job(self.id)

    @property
    def state(self) -> str:
        return self.get().state

    def events(self, after: int = 0, type: str | None = None) -> Iterator[Event]:
        return self.client.follow(self.id, after=after, type=type)

    def watch(self) -> Job:
        """Shows the job's progress, in a terminal or a notebook, until it is over; raises JobFailed unless it succeeded."""
        job = self.get()
        progress.show(self.events(), job)
        return self.client.wait(self.id)

    def wait(self) -> Job:
        return self.client.wait(self.id)

    def cancel(self) -> Commanded:
        return self.client.cancel_job(self.id)

    def metrics(self) -> Iterator[Metric]:
        """A line a step."""
        return iter(self.client.list_metrics(self.id, kind="step", limit=10000))

    def losses(self) -> list[float | None]:
        """The loss of each step; None where it was not finite."""
        return [line.loss for line in self.metrics()]

    def picture(self) -> picture.Picture:
        """The loss curve: at most 400 buckets of steps, so a spike of one step shows in a run of any length."""
        page = self.client.list_metrics(self.id, kind="step", buckets=400).first()
        held_out = self.client.list_metrics(self.id, kind="eval", buckets=400).first()
        return picture.Picture(self.get().name, page.buckets or [], held_out.buckets or [])

    def fetch(self, folder: str | os.PathLike[str]) -> Path:
        """Writes what the job made to a folder, as `motley get` does."""
        return self.client.fetch(self.id, folder)
