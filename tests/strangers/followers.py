"""Pages that stay open while a round is played: what their event streams told must be what is read afterwards."""
import asyncio
import json

from wire import Closed, Http

KEYS = {"job", "state", "owner", "at"}


class Follower:
    def __init__(self, machine, by):
        self.machine, self.by = machine, by
        self.states, self.counts, self.devices = {}, {}, {}  # as told last
        self.last = None           # id of the last event
        self.is_open = False       # the stream has begun and has not ended
        self.is_whole = True       # no event was missed
        self.task = asyncio.ensure_future(self.follow())

    async def follow(self):
        while True:
            try:
                await Http(self.machine.service).stream("/v1/events?topics=queue,devices", self.machine.tokens[self.by], self.take, self.last)
            except (OSError, Closed, asyncio.IncompleteReadError):
                pass
            self.is_open = False
            self.is_whole = self.is_whole and self.last is not None
            await asyncio.sleep(0.2)

    def take(self, ident, kind, data):
        if ident is not None:
            if self.last is not None and ident <= self.last:
                self.machine.found("a stream repeats an event or goes back", f"{kind} {ident} after {self.last}: {data[:300]}")
            self.last = ident
        document = json.loads(data)
        if kind == "queue":
            self.counts = {state: n for state, n in document["jobs"].items() if n}
        elif kind == "devices":
            self.devices.update({device["name"]: device["state"] for device in document["devices"]})
        elif kind == "state" and set(document) == KEYS:
            self.states[document["job"]] = document["state"]
        else:
            self.machine.found("a stream tells everybody too much, or what it should not", f"{kind} {data[:600]}")
        self.is_open = True

    def close(self):
        self.task.cancel()

    async def differs(self):
        """What was told and is not so, in words; None: nothing, or the stream is not open."""
        if not self.is_open:
            return None
        service, first = self.machine.service, self.machine.first_job
        jobs = {job["id"]: job["state"] for job in await service.rows(f"SELECT id, state FROM jobs WHERE id > {first}")}
        counts = {row["state"]: row["n"] for row in await service.rows("SELECT state, sum(n) AS n FROM job_counts GROUP BY state HAVING sum(n) > 0")}
        devices = {line["name"]: line["state"] for line in await self.machine.invariants.pages(-1, "/v1/devices", "devices") or []}
        wrong = {ident: (state, jobs[ident]) for ident, state in self.states.items() if ident in jobs and state != jobs[ident]}
        if self.is_whole:  # a submit is no event, so that what was never told is as it was submitted
            wrong.update({ident: (None, state) for ident, state in jobs.items() if ident not in self.states and state not in ("queued", "held")})
        if wrong:
            return f"jobs (told, real): {dict(list(wrong.items())[:5])}"
        if self.counts != counts:
            return f"counts: told {self.counts}, and they are {counts}"
        wrong = {name: (self.devices.get(name), state) for name, state in devices.items() if self.devices.get(name) != state and name.startswith(self.machine.lab + "-")}
        return f"devices (told, real): {wrong}" if wrong else None
