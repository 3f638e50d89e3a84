"""What must hold of every service, whatever strangers did to it. What does not is a finding."""
import asyncio
import json
import random
import re
import time
from collections import Counter

from agents import loss
from operations import ADMIN, USERS
from service import SLOW

ENDED = "('succeeded', 'failed', 'cancelled')"
ACTIVE = ("starting", "running", "stopping")
LIMITED = ("user-devices", "user-running", "user-month", "account-devices", "account-running", "account-month")
# What daemons write at the level warn or error although nothing is wrong with them: nodes that lie, vanish or are slow to
# answer, and connections that this machine cut itself.
EXPECTED = {"event_refused", "events_unreadable", "node_unreachable", "wrong_tokens", "node_barred"}
TROUBLE = {"redis_lost", "database_trouble", "lead_lost", "load_failed", "pass_failed", "request_failed", "decision_failed", "ingest_failed", "redis_users", "redis_user",
           "leader_note", "marks_unwritten", "decision_divided", "set_aside", "health_untold", "prune_failed", "sweep_failed"}
VIEWERS = 4


class Invariants:
    MADE = ("job", "lease", "token")

    def __init__(self, machine):
        self.machine, self.service = machine, machine.service
        self.refused = 0        # submits that made no job

    def found(self, what, text, number=None):
        self.machine.found(what, text, number)

    # ---- each answer ----

    def answered(self, operation, path, body, answer, began, headers):
        number = operation["n"]
        self.machine.counts[answer.status] = self.machine.counts.get(answer.status, 0) + 1
        asked = f"{operation['method']} {path} {json.dumps(body)[:600] if not isinstance(body, bytes) else body}"
        route = f"{operation['method']} {operation['path'].split('?')[0].split('@')[0]}"
        if answer.status >= 500:
            slow = operation["path"] == "/readyz" and b'"code":"timeout"' in answer.body  # it is there to say that the database is slow
            if not slow and not self.machine.in_trouble(began):
                self.found(f"http {answer.status} {route}", f"{asked}: {answer.body[:400]}", number)
            return
        self.conditions(route, asked, answer, number, headers)
        if answer.status >= 400 and operation["method"] != "HEAD":
            self.refusal(route, asked, answer, number)
        elif "json" in answer.headers.get("content-type", "") and answer.body:
            try:
                answer.json
            except ValueError as problem:
                self.found(f"json {route}", f"{asked}: {problem}", number)
        if operation["path"] == "/v1/jobs" and operation["method"] == "POST" and answer.status != 201:
            self.refused += 1

    def conditions(self, route, asked, answer, number, headers):
        """What If-Match, If-None-Match and Content-Encoding promise."""
        told = f"{asked} {headers}: {answer.status} {answer.headers.get('etag')} {answer.body[:300]}"
        if answer.status < 300 and headers.get("If-Match") == '"never"' and ("etag" in answer.headers or not asked.startswith("GET")):
            self.found(f"a version that never was is taken: {route}", told, number)
        if answer.status == 200 and "If-None-Match" in headers and answer.headers.get("etag") == headers["If-None-Match"]:
            self.found(f"what has not changed is sent again: {route}", told, number)
        if answer.status == 304 and ("If-None-Match" not in headers or answer.body):
            self.found(f"304 out of place: {route}", told, number)
        if headers.get("Content-Encoding", "identity") != "identity" and answer.status not in (415, 401, 403, 413, 429):
            self.found(f"a body in a coding that is not read: {route}", told, number)

    def refusal(self, route, asked, answer, number):
        try:
            problem = answer.json
        except ValueError:
            problem = None
        if not isinstance(problem, dict) or not problem.get("code") or not str(problem.get("detail") or "").strip():
            self.found(f"problem {route}", f"{asked}: {answer.status} {answer.body[:300]}", number)
        elif problem["code"] == "internal":
            self.found(f"internal {route}", f"{asked}: {problem['detail']}", number)
        elif "no profile, and no `like`" in problem["detail"]:
            self.found("a plan ends at one device that cannot be priced", f"{asked}: {problem['detail']}", number)

    # ---- rest ----

    async def queue(self):
        return await self.service.rows(
            "SELECT j.id, j.state, coalesce(p.code, j.wait_code) AS wait_code, CASE WHEN p.code IS NULL THEN j.wait_subject ELSE p.subject END AS wait_subject, p.place, "
            "coalesce(p.why, j.why) AS why, j.depends, j.begin_at > now() AS later, j.not_before > now() AS pauses, "
            "j.array_size, j.array_of, u.disabled, a.at_most, j.array_made, u.name AS owner, j.account "
            "FROM jobs j JOIN users u ON u.id = j.owner LEFT JOIN jobs a ON a.id = j.array_of LEFT JOIN LATERAL motley_place(j.id) p ON j.state = 'queued' "
            f"WHERE j.id > {self.machine.first_job} AND j.state NOT IN {ENDED} ORDER BY j.id")

    async def moving(self):
        """Jobs that must still move, each with the reason."""
        jobs = await self.queue()
        known = {job["id"]: job for job in jobs}
        poisoned = {ident for _, _, ident in self.machine.poisoned}
        found = []
        for job in jobs:
            if job["id"] in poisoned or job["array_of"] in poisoned or job["state"] == "held" or job["array_size"]:
                continue
            if job["state"] in ACTIVE:
                found.append((job, f"it is {job['state']}"))
            else:
                why = self.wrong_wait(job, known)
                if why:
                    found.append((job, why))
        self.known = known
        return found

    def wrong_wait(self, job, known):
        """Why this wait is none that may last; None: it is."""
        code, subject = job["wait_code"], job["wait_subject"]
        if job["depends"]:
            return None  # judged when all must end
        if job["later"] or job["disabled"]:
            return None
        if job["pauses"]:
            return "it pauses after a loss"
        if code in LIMITED or code in ("no-fit", "absent", "interval") or code == "behind" and len(known) > 64:
            return None
        if code == "slow" and "(leased by" in (job["why"] or ""):
            return None  # it ends earlier there once the lease is over
        if code == "reserved":
            return None if subject in known and known[subject]["state"] == "queued" else f"it waits behind job {subject}, which does not wait"
        if not code and not job["why"]:
            return "nobody says why it waits"
        return f"it waits for {code}, and nothing runs: {job['why']}"

    async def still(self):
        """Views and limits while jobs hold devices: no worker takes a step, so that soon nothing changes."""
        before, deadline = None, time.monotonic() + 4
        while time.monotonic() < deadline:
            await asyncio.sleep(0.3)
            jobs = await self.queue()
            if jobs == before:
                break
            before = jobs
        await self.views()
        await self.limits()

    def searched(self, jobs):
        """Seconds that the scheduler computed, if one of these jobs waits for the search of its plan, which moves meanwhile: over
        all devices it takes many seconds on a busy machine."""
        if any("plan is being searched for" in (job["why"] or "") for job in jobs):
            return int(self.service.weight().get("scheduler", {}).get("cpu_s", 0))
        return 0

    async def rest(self, seconds):
        """Waits until all is at rest; what has not changed for so many seconds, or goes on for thirty times as long, never will be."""
        began = changed = time.monotonic()
        quiet, moving, before = 0, [], None
        while quiet < 2:
            moving = await self.moving()
            quiet = 0 if moving or not await self.confirmed() else quiet + 1
            now = time.monotonic()
            seen = (self.known, self.searched(job for job, _ in moving))
            if before != seen:
                before, changed = seen, now
            if now > min(changed + seconds, began + 30 * seconds):
                break
            await asyncio.sleep(0.15)
        kinds = {}
        for job, why in moving:
            kinds.setdefault("wait: " + why.split(":")[0].split(", which")[0], []).append((job, why))
        for kind, jobs in kinds.items():
            words = "".join(c for c in kind if not c.isdigit())
            self.found(words, f"{len(jobs)} of {len(self.known)} jobs after {time.monotonic() - began:.0f} s; {jobs[0][1]}; {jobs[0][0]}")
        if not moving and quiet < 2:
            self.found("messages are not confirmed", await self.service.rows(
                "SELECT o.id, o.node, o.run, o.type, o.created_at FROM outbox o JOIN nodes n ON n.name = o.node AND n.state = 'alive' LIMIT 5"))
        await self.settled()

    async def confirmed(self):
        there = [node.name for node in self.machine.nodes if node.is_there]
        names = ", ".join(f"'{name}'" for name in there) or "''"
        rows = await self.service.rows(f"SELECT count(*) AS n FROM outbox WHERE node IN ({names})")
        return rows[0]["n"] == 0

    async def settled(self):
        """What holds at any moment of rest."""
        for check in (self.machines_of_states, self.ledger, self.steps, self.counts_of_states, self.ids, self.limits, self.views, self.reasons, self.streams,
                      self.followers, self.clocks, self.promises, self.shares):
            await check()
        self.logs()

    async def expect_none(self, what, query):
        rows = await self.service.rows(query + " LIMIT 5")
        if rows:
            self.found(what, json.dumps(rows))

    async def machines_of_states(self):
        of_lab = f"j.id > {self.machine.first_job}"
        await self.expect_none("a job is active without an active run",
            f"SELECT j.id, j.state, r.state AS run FROM jobs j LEFT JOIN runs r ON r.id = j.run WHERE {of_lab} AND j.array_size = 0 AND j.state IN ('starting', 'running', 'stopping') "
            "AND coalesce(r.state, '') NOT IN ('starting', 'running', 'stopping')")
        await self.expect_none("a run is active and its job is not",
            f"SELECT j.id, j.state, r.id AS run, r.state AS run_state FROM jobs j JOIN runs r ON r.job = j.id WHERE {of_lab} AND r.state IN ('starting', 'running', 'stopping') "
            "AND (j.state NOT IN ('starting', 'running', 'stopping') OR j.run <> r.id)")
        await self.expect_none("an assignment outlives its run",
            f"SELECT j.id, r.id AS run, r.state AS run_state, a.rank, a.state FROM jobs j JOIN runs r ON r.job = j.id JOIN assignments a ON a.run = r.id WHERE {of_lab} "
            "AND a.state IN ('sent', 'ready', 'running') AND r.state NOT IN ('starting', 'running', 'stopping')")
        await self.expect_none("a job has succeeded and its last run is not done",
            f"SELECT j.id, j.step, j.steps, r.state FROM jobs j LEFT JOIN runs r ON r.id = j.run WHERE {of_lab} AND j.state = 'succeeded' AND j.array_size = 0 "
            "AND j.ended_by IS NULL AND (r.state IS DISTINCT FROM 'done' OR j.step < j.steps)")
        await self.expect_none("a job has ended without a time or a reason",
            f"SELECT j.id, j.state, j.ended_at, j.code, j.why FROM jobs j WHERE {of_lab} AND (j.state IN {ENDED}) AND (j.ended_at IS NULL OR j.state = 'failed' AND coalesce(j.why, '') = '')")

    async def ledger(self):
        await self.expect_none("the ledger has intervals of one device that overlap",
            f"SELECT a.device, a.assignment, b.assignment AS other, a.begins, a.ends, b.begins AS other_begins, b.ends AS other_ends FROM ledger a JOIN ledger b ON a.device = b.device AND a.assignment < b.assignment "
            f"WHERE a.device LIKE '{self.machine.lab}-%' AND tstzrange(a.begins, a.ends) && tstzrange(b.begins, b.ends)")
        await self.expect_none("the ledger charges for what nobody holds",
            f"SELECT l.assignment, l.job, l.device, l.begins, a.state FROM ledger l LEFT JOIN assignments a ON a.id = l.assignment LEFT JOIN leases s ON s.id = -l.assignment "
            f"WHERE l.device LIKE '{self.machine.lab}-%' AND l.ends IS NULL AND coalesce(a.state, '') NOT IN ('sent', 'ready', 'running') AND coalesce(s.ends < now() - interval '3 s', true)")
        await self.expect_none("the ledger lacks an assignment",
            f"SELECT a.id, r.job, a.device, a.state FROM assignments a JOIN runs r ON r.id = a.run LEFT JOIN ledger l ON l.assignment = a.id WHERE r.job > {self.machine.first_job} AND l.assignment IS NULL")

    async def steps(self):
        lying = [number for number, hows in self.machine.hows.items() if "lies" in hows]
        ids = [str(self.machine.made[n].result()) for n in lying if n in self.machine.made and self.machine.made[n].done() and self.machine.made[n].result()]
        liars = f"AND j.id NOT IN ({', '.join(ids)}) AND coalesce(j.array_of, 0) NOT IN ({', '.join(ids)})" if ids else ""
        # Lines are lost with their node after the last step, or where the database refused them; then the job says so.
        told = ("AND coalesce(j.why, '') NOT LIKE '%was lost after the last step%' AND NOT EXISTS (SELECT FROM events e WHERE e.job = j.id AND e.type = 'log' "
                "AND e.body ->> 'text' LIKE 'the event step of this worker was refused%')")
        await self.expect_none("steps of a job are missing or more than they are",
            "SELECT j.id, j.step, j.steps, count(m.step) AS lines, min(m.step) AS first, max(m.step) AS last FROM jobs j LEFT JOIN metrics m ON m.job = j.id AND m.kind = 'step' "
            f"WHERE j.id > {self.machine.first_job} AND j.state = 'succeeded' AND j.array_size = 0 {liars} {told} GROUP BY j.id HAVING count(m.step) <> j.step OR max(m.step) <> j.step - 1")
        rows = await self.service.rows(f"SELECT m.job, m.step, m.document ->> 'loss' AS loss FROM metrics m JOIN jobs j ON j.id = m.job WHERE m.job > {self.machine.first_job} AND m.kind = 'step' {liars} "
                                       f"AND abs((m.document ->> 'loss')::float8 - 5.0 / (m.step + 1)) > 1e-9 LIMIT 5")
        if rows:
            self.found("a step has another loss than was told", f"{rows}, not {loss(rows[0]['step'])}")

    async def counts_of_states(self):
        await self.expect_none("the counts of jobs are wrong",
            "SELECT * FROM (SELECT state, count(*) AS n FROM jobs GROUP BY state) j FULL JOIN (SELECT state, sum(n) AS n FROM job_counts GROUP BY state) c USING (state) WHERE coalesce(j.n, 0) <> coalesce(c.n, 0)")

    async def ids(self):
        if self.machine.trouble_until:
            return  # transactions that were rolled back took their numbers with them
        rows = await self.service.rows(f"SELECT last_value - {self.machine.first_job} AS taken, (SELECT count(*) FROM jobs WHERE id > {self.machine.first_job}) AS jobs FROM jobs_id_seq")
        burned = rows[0]["taken"] - rows[0]["jobs"]
        if burned > self.refused + 20:
            self.found("ids of jobs are burned", f"{rows[0]} with {self.refused} refused submits")

    async def limits(self):
        """No start took more devices or jobs than a person's or group's limit at that time. The audit says since when each
        limit is what it is; a start is judged when none was changed since."""
        since = "(SELECT coalesce(max(at), '-infinity') FROM audit WHERE what LIKE 'user%' OR what LIKE 'group%')"
        for kind, members, table in (("u", "ARRAY[x.id]", "users"), ("g", "ARRAY(SELECT motley_below(x.id))", "groups")):
            of = "l.user_id = ANY (m.ids)" if kind == "u" else "EXISTS (SELECT 1 FROM jobs j WHERE j.id = l.job AND j.account = ANY (m.ids))"
            await self.expect_none(f"more devices or jobs at once than a {table[:-1]}'s limit",
                f"SELECT * FROM (SELECT x.name, x.devices_max, x.running_max, l.assignment, l.job, count(*) AS devices, count(DISTINCT o.job) AS jobs FROM {table} x, LATERAL (SELECT {members} AS ids) m, "
                f"ledger l JOIN ledger o ON o.job > 0 AND o.begins <= l.begins AND coalesce(o.ends, 'infinity') > l.begins "
                f"WHERE x.name LIKE '{self.machine.lab}-%' AND x.devices_max + x.running_max > 0 AND l.job > 0 AND {of} AND {of.replace('l.', 'o.')} AND l.begins > {since} GROUP BY x.name, x.devices_max, x.running_max, l.assignment) q "
                "WHERE devices_max > 0 AND devices > devices_max OR running_max > 0 AND jobs > running_max")

    async def streams(self):
        for node in self.machine.nodes:
            if not node.is_there:
                continue
            for stream in (f"motley:agent:{node.name}", f"motley:events:{node.name}"):
                length = await self.service.redis_say("XLEN", stream)
                if length > 20000:
                    self.found("a stream grows", f"{stream}: {length} entries")

    async def soon(self, question, seconds=5 * SLOW):
        """The answer of a question as soon as it is None; what it still is after a while otherwise."""
        deadline = time.monotonic() + seconds
        while True:
            answer = await question()
            if answer is None or time.monotonic() > deadline:
                return answer
            await asyncio.sleep(0.3)

    async def followers(self):
        for follower in self.machine.followers:
            wrong = await self.soon(follower.differs)
            if wrong:
                self.found("a stream told something else than what is read", f"{self.machine.user_name(follower.by) if follower.by != ADMIN else 'admin'}: {wrong}")
        rows = await self.service.rows("SELECT j.id, j.array_of, u.name AS owner FROM jobs j JOIN users u ON u.id = j.owner "
                                       f"WHERE j.id > {self.machine.first_job} AND j.visibility = 'mine'")
        hidden = {row["id"]: row["owner"] for row in rows if not {row["id"], row["array_of"]} & self.machine.shared}
        for by, job in self.machine.seen:
            if by != ADMIN and job in hidden and hidden[job] != self.machine.user_name(by):
                self.found("a stream told of a job that one may not see", f"{self.machine.user_name(by)}: job {job} of {hidden[job]}")

    async def clocks(self):
        """A clock that is off is named where people look, and how far."""
        async def differs():
            wrong = {}
            told = {line["name"]: line for line in await self.pages(ADMIN, "/v1/nodes", "nodes") or []}
            for node in self.machine.nodes:
                line = told.get(node.name)
                if node.is_there and line and line["state"] == "alive" and (
                        abs((line["clock_ahead_s"] or 0) - node.clock_s) > 10 or (abs(node.clock_s) > 60) != ("clock" in (line["why"] or ""))):
                    wrong[node.name] = (node.clock_s, line["clock_ahead_s"], line["why"])
            return wrong or None
        wrong = await self.soon(differs)
        if wrong:
            self.found("a clock that is off is not named, or one that is right is", f"(real, told, why): {wrong}")

    async def promises(self):
        """No range without its start in it; no start that was promised for a time that has passed long ago."""
        await self.expect_none("a promised start is out of its range, or has passed",
            f"SELECT id, starts_at, starts_from, starts_to, now() FROM jobs WHERE id > {self.machine.first_job} AND state = 'queued' "
            "AND (starts_from > starts_to OR starts_at < now() - interval '30 s')")

    async def shares(self):
        """Parts of a whole: what all are due is no more than everything, and so is what they used; ranks are by what they are below."""
        answer = await self.machine.ask(ADMIN, "GET", "/v1/shares?limit=1000")
        lines = answer.json["shares"] if answer.status == 200 else []
        due, used = sum(line["due"] for line in lines), sum(line["used"] for line in lines)
        if due > 1 + 1e-6 or not (used < 1e-6 or abs(used - 1) < 1e-6) or any(line["due"] < 0 or line["used"] < 0 or line["used_s"] < 0 for line in lines):
            self.found("shares are not parts of a whole", f"due {due}, used {used}: {lines[:4]}")

    def logs(self):
        machine, lines = self.machine, {}
        for daemon in ("api", "scheduler", "signer"):
            for level, event, line in self.service.log_lines(daemon):
                if level in ("debug", "info") or event in EXPECTED:
                    continue
                if "could be changed (SQLSTATE MO002)" in line:
                    continue  # a person changed the job while it was decided about; it is decided again
                if (event in TROUBLE or level == "other") and (machine.trouble_until or machine.poisoned):
                    continue
                words = re.sub(r"[0-9]+|s_-\S+", "", line.partition('why="')[2])[:90]
                lines.setdefault(f"log {daemon} {event} {words}", []).append(line)
        for what, of_kind in lines.items():
            self.found(what, f"{len(of_kind)} lines: {of_kind[0]}")

    # ---- views ----

    async def pages(self, by, path, key):
        items, after = [], None
        while True:
            answer = await self.machine.ask(by, "GET", path + (("&" if "?" in path else "?") + f"after={after}" if after else ""))
            if answer.status != 200:
                return None
            document = answer.json
            items += document[key]
            after = document.get("next")
            if not after:
                return items

    async def truth(self):
        jobs = await self.service.rows(
            "SELECT j.id, j.name, j.state, j.attempt, u.name AS owner, j.visibility, g.name AS grp, r.devices FROM jobs j JOIN users u ON u.id = j.owner LEFT JOIN groups g ON g.id = j.grp "
            "LEFT JOIN LATERAL (SELECT json_agg(a.device ORDER BY a.rank) AS devices FROM assignments a WHERE a.run = j.run AND a.state IN ('sent', 'ready', 'running')) r ON j.state IN ('starting', 'running', 'stopping') "
            f"WHERE j.id > {self.machine.first_job}")
        members = await self.service.rows("SELECT u.name AS person, g.name AS grp FROM group_members m JOIN users u ON u.id = m.user_id JOIN groups g ON g.id = m.grp")
        devices = await self.service.rows("SELECT d.name, d.drained, d.present, n.state, n.barred, (SELECT r.job FROM assignments a JOIN runs r ON r.id = a.run WHERE a.device = d.name AND a.state IN ('sent', 'ready', 'running')) AS job "
                                          f"FROM devices d JOIN nodes n ON n.name = d.node WHERE d.name LIKE '{self.machine.lab}-%' AND n.removed_at IS NULL")
        return {job["id"]: job for job in jobs}, {(row["person"], row["grp"]) for row in members}, {device["name"]: device for device in devices}

    async def views(self):
        """Each view of each person beside the database; nothing moves meanwhile, or the comparison is left out."""
        before = await self.truth()
        viewers = [ADMIN, *random.Random(f"{self.machine.seed} {self.machine.done}").sample(range(USERS), VIEWERS)]
        told = []
        for by in viewers:
            told.append((by, await self.pages(by, "/v1/jobs?limit=500", "jobs"), await self.pages(by, "/v1/queue?limit=1000", "queue"),
                         await self.pages(by, "/v1/devices", "devices")))
        if before != await self.truth():
            return
        jobs, members, devices = before
        for by, listed, queue, shown in told:
            name = self.machine.user_name(by) if by != ADMIN else "admin"
            if listed is None or queue is None or shown is None:
                continue  # a person who is disabled
            self.view_of_jobs(name, by == ADMIN, jobs, members, listed)
            self.view_of_queue(name, by == ADMIN, jobs, members, queue)
            for device in shown:
                real = devices.get(device["name"])
                if real and ((device.get("job") is not None and device["job"] != real["job"]) or (device["state"] in ("busy", "draining")) != (
                        real["job"] is not None and device["state"] not in ("gone", "unreachable"))):
                    self.found("a view of devices differs", f"{name} is told {device}, and it is {real}")

    @staticmethod
    def may_see(name, is_admin, job, members):
        return is_admin or job["owner"] == name or job["visibility"] == "everyone" or job["visibility"] == "group" and (name, job["grp"]) in members

    def view_of_jobs(self, name, is_admin, jobs, members, listed):
        shown = {line["id"]: line for line in listed if line["id"] > self.machine.first_job}
        for ident, job in jobs.items():
            sees = self.may_see(name, is_admin, job, members)
            if sees != (ident in shown):
                self.found("the list of jobs shows too much" if ident in shown else "the list of jobs lacks one", f"{name}: {job}")
            elif sees and shown[ident]["state"] != job["state"]:
                self.found("the list of jobs has another state", f"{name}: {shown[ident]}, and it is {job}")

    def view_of_queue(self, name, is_admin, jobs, members, queue):
        shown = {line["id"]: line for line in queue if line["id"] > self.machine.first_job}
        for ident, job in jobs.items():
            if (job["state"] in ("queued", *ACTIVE)) != (ident in shown):
                self.found("the queue has a job that it should not, or lacks one", f"{name}: {job}")
                continue
            if ident not in shown:
                continue
            line = shown[ident]
            if line["state"] != job["state"] or line["devices"] != (job["devices"] or []):
                self.found("the queue differs", f"{name}: {line}, and it is {job}")
            if (line["name"] is not None) != self.may_see(name, is_admin, job, members):
                self.found("the queue names too much or too little", f"{name}: {line}, and it is {job}")

    async def reasons(self):
        waiting = [job for job in self.known.values() if job["state"] == "queued" and not job["array_size"]]
        for job in random.Random(self.machine.done).sample(waiting, min(8, len(waiting))):
            answer = await self.machine.ask(ADMIN, "GET", f"/v1/jobs/{job['id']}/why")
            why = answer.json.get("why") if answer.status == 200 else answer.body
            if answer.status != 200 or not why or "is queued: the job is queued" in why:
                self.found("`why` says nothing", f"job {job}: {answer.status} {why}")

    # ---- the end ----

    async def all_end(self, seconds):
        """With everything free that could be free, all jobs end, but those that fit nowhere."""
        began = changed = time.monotonic()
        before = None
        while True:
            queue = await self.queue()
            fits_nowhere = {job["id"]: job["array_of"] for job in queue if job["wait_code"] == "no-fit" and job["why"]}
            left = [job for job in queue if job["id"] not in fits_nowhere and job["id"] not in fits_nowhere.values()]
            now = time.monotonic()
            seen = (left, self.searched(left))
            if before != seen:
                before, changed = seen, now
            if not left or now > min(changed + seconds, began + 30 * seconds):
                break
            await asyncio.sleep(0.2)
        nodes = await self.service.rows("SELECT n.name, n.state, n.removed_at, n.barred, (SELECT json_agg(d.name) FROM devices d WHERE d.node = n.name AND d.present) AS devices "
                                        f"FROM nodes n WHERE n.name LIKE '{self.machine.lab}-%'") if left else []
        for job in left:
            if job["array_size"] and any(other["array_of"] == job["id"] for other in left):
                continue
            self.found(f"end: a job is {job['state']} and waits for {job['wait_code']}", f"{job} after {time.monotonic() - began:.0f} s, nothing to wait for; {dict(Counter(j['wait_code'] for j in left))}; {nodes}")
        self.known = {job["id"]: job for job in left}
        if left:
            self.logs()
        else:
            await self.settled()
