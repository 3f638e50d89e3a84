"""What strangers do, as a list of documents made from a seed alone: requests of people, faults of machines and processes.

An operation names others by `@KIND:NUMBER@`, which the machine replaces when it runs it: `@job:17@` is the job that
operation 17 submitted, `@user:3@`, `@group:1@`, `@node:2@` and `@device:5@` are those of the lab, `@lease:9@` and
`@token:4@` what those operations made, `@in:SECONDS@` a time from now. So any part of a list can be run by itself.
"""
import copy
import random

USERS, GROUPS = 20, 6
ADMIN = -1
# Twelve unlike devices on five nodes: (node, kind, like, memory in MB, speed).
DEVICES = [(0, "cuda", "a100x40", 4000, 8.0), (0, "cuda", "a100x40", 4000, 8.0), (0, "cuda", None, 1200, 3.0), (1, "cuda", "v100", 1600, 4.0),
           (1, "cuda", "t4", 900, 2.0), (2, "cpu", None, 450, 0.3), (2, "emulated", "v100", 600, 0.05), (3, "hip", None, 1600, 3.0),
           (3, "hip", None, 700, 1.5), (3, "cpu", None, 300, 0.5), (4, "cpu", None, 450, 0.2), (4, "cuda", "t4", 900, 2.0)]
NODES = 5
HOWS = ["no-memory", "stillborn", "own", "crash", "device-lost", "device-fault", "hang", "lies", "slow", "deaf"]
NONSENSE = [None, "", "x" * 300, -1, 0, 1 << 53, 1e308, [], {}, True, "\u0000", "\u202e\u2028", ["x"], {"x": 1}, "sha256:" + "0" * 64]


class Maker:
    """Makes the operations of one seed; `made` remembers which earlier ones later ones may name."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.made = {"job": [], "lease": [], "token": []}
        self.number = 0
        # Planning costs by the class of jobs, so that a lab has a few of them, as labs do.
        self.rank = self.pick([4, 8])
        self.placements = [self.some_placement() for _ in range(5)]

    def chance(self, share):
        return self.random.random() < share

    def pick(self, items):
        return self.random.choice(items)

    def one_of(self, kind):
        """An earlier object of that kind, mostly a young one; now and then one that never was."""
        known = self.made[kind]
        if not known or self.chance(0.02):
            return f"@{kind}:{1000000 + self.random.randrange(9)}@"
        return f"@{kind}:{known[-1 - min(int(self.random.expovariate(1 / 12)), len(known) - 1)]}@"

    def job(self):
        return self.one_of("job")

    def device(self):
        return f"@device:{self.random.randrange(len(DEVICES))}@"

    def group(self):
        return f"@group:{self.random.randrange(GROUPS)}@"

    def user(self):
        return f"@user:{self.random.randrange(USERS)}@"

    def node(self):
        return f"@node:{self.random.randrange(NODES)}@"

    def whoever(self, admin=0.1):
        return ADMIN if self.chance(admin) else self.random.randrange(USERS)

    # ---- specifications ----

    def some_placement(self):
        """Mostly of a few devices: a search over all twelve takes seconds."""
        few = {"devices": sorted({self.device() for _ in range(self.random.randint(1, 3))})}
        kind = self.random.randrange(24)
        if kind == 0:
            return {"kind": "single"}
        if kind == 1:
            return {"exclude": sorted({self.device() for _ in range(self.random.randint(1, 4))}), "count": {"most": 1}, "kind": "single"}
        if kind < 5:
            return {**few, "kind": self.pick(["pipeline", "data"]), "fallback": self.pick(["wait", "any"])}
        if kind < 9:
            return {**few, "move": self.pick(["auto", "never"])}
        return {**few, "kind": "single"}

    def spec(self):
        spec = {"name": f"j{self.number}", "model": "strangers", "labels": {"n": str(self.number)},
                "data": {"train": "@data:0@", "format": "tokens"}, "placement": self.pick(self.placements),
                "method": {"rank": self.rank}, "train": {"batch_rows": 2, "steps": self.random.randint(1, 8), "seed": self.random.randrange(3)}}
        for share, key, value in ((0.5, "checkpoint", lambda: {"every_steps": self.random.randint(1, 4)}), (0.2, "priority", lambda: self.random.randint(-20, 20)),
                                  (0.2, "limits", lambda: {"retries": self.random.randrange(4)}), (0.05, "limits", lambda: {"time": 1}),
                                  (0.1, "hold", lambda: True), (0.2, "account", self.group), (0.15, "service", lambda: "scavenger"),
                                  (0.1, "begin", lambda: f"@in:{self.random.randrange(3)}@"), (0.12, "after_any", lambda: [self.job()]),
                                  (0.08, "after", lambda: sorted({self.job(), self.job()}))):
            if self.chance(share):
                spec[key] = value()
        if self.chance(0.08):
            spec["array"] = self.pick([{"seed": [1, 2, 3]}, {"seed": [1, 2], "learning_rate": [0.001, 0.002]}, {"learning_rate": [0.1] * 5}])
            if self.chance(0.5):
                spec["at_most"] = self.random.randint(1, 3)
        return spec

    def nearly(self, body):
        """The body with one thing wrong, or not quite: a value of another kind, a key too few or too many."""
        body, places = copy.deepcopy(body), []  # placements are shared

        def walk(value):
            if isinstance(value, dict):
                for key in value:
                    places.append((value, key))
                    walk(value[key])
        walk(body)
        if not places or self.chance(0.1):
            return self.pick([{**body, "nobody": 1}, [], None, "x", {**body, "": {}}])
        where, key = self.pick(places)
        if self.chance(0.2):
            del where[key]
        else:
            where[key] = self.pick(NONSENSE)
        return body

    # ---- requests ----

    def submit(self):
        operation = {"method": "POST", "path": "/v1/jobs", "by": self.whoever(0.05), "body": self.spec(), "makes": "job"}
        if self.chance(0.3):
            operation["how"] = [self.pick(HOWS) for _ in range(self.random.randint(1, 2))]
        if self.chance(0.05):
            operation["key"] = f"k{self.random.randrange(50)}"
        return operation

    def command(self):
        what = self.pick(["cancel", "cancel", "hold", "release", "release", "resume", "extend", "share", "share", "cancel"])
        body = {"resume": lambda: self.pick([{}, {"steps": 3}]), "extend": lambda: {"seconds": self.pick([1, 60])},
                "share": lambda: self.pick([{"visibility": "everyone"}, {"visibility": "group", "group": self.group()}, {"visibility": "mine"}])}.get(what, dict)()
        return {"method": "POST", "path": f"/v1/jobs/{self.job()}/{what}", "body": body, "by": self.whoever(0.4)}

    def several(self):
        body = self.pick([{"ids": [self.job(), self.job()]}, {"state": ["held"]}, {"owner": self.user()}, {"labels": {"n": str(self.random.randrange(99))}}])
        return {"method": "POST", "path": "/v1/jobs:" + self.pick(["cancel", "hold", "release", "release"]), "body": body, "by": self.whoever(0.02)}

    def change(self):
        body = self.pick([{"priority": self.random.randint(-100, 100)}, {"begin": None}, {"begin": "@in:1@"}, {"at_most": self.random.randint(1, 4)}, {"at_most": None}])
        return {"method": "PATCH", "path": f"/v1/jobs/{self.job()}", "body": body, "by": self.whoever(0.4)}

    def look(self):
        job = self.job()
        path = self.pick([f"/v1/jobs/{job}", f"/v1/jobs/{job}/why", f"/v1/jobs/{job}/why", f"/v1/jobs/{job}/metrics", f"/v1/jobs/{job}/metrics?buckets=8",
                          f"/v1/jobs/{job}/logs", f"/v1/jobs/{job}/plan", f"/v1/jobs/{job}/runs", f"/v1/jobs/{job}/trace", f"/v1/jobs/{job}/lanes",
                          f"/v1/jobs/{job}/artifacts", f"/v1/jobs/{job}/artifacts/adapter%2Fadapter_model.safetensors", "/v1/queue", "/v1/queue?limit=3",
                          "/v1/jobs", "/v1/jobs?state=queued,running&limit=5", f"/v1/jobs?owner={self.user()}", f"/v1/jobs?group={self.group()}",
                          "/v1/nodes", "/v1/devices", "/v1/devices?limit=2", "/v1/load", "/v1/links", "/v1/leases", "/v1/profiles", "/v1/whoami", "/v1/users",
                          "/v1/groups", "/v1/usage", "/v1/usage?by=device", "/v1/shares", "/v1/records", "/v1/arrivals", "/v1/audit", "/v1/tokens",
                          "/v1/models", "/v1/models/strangers", "/healthz", "/readyz", "/metrics", "/v1/openapi.yaml", "/v1/jobs?limit=0",
                          "/v1/queue?after=x", "/v1/load?device=" + self.pick(["nothing", "%00", "a%2Fb"]), "/v1/jobs?from=yesterday"])
        return {"method": "GET", "path": path, "by": self.whoever(0.1)}

    def follow(self):
        if self.chance(0.2):
            return {"method": "GET", "stream": f"/v1/jobs/{self.job()}/events", "by": self.whoever(0.1), "seconds": 0.5}
        topics = self.pick(["queue", "devices", "queue,devices", f"job:{self.job()}", f"queue,job:{self.job()}", f"job:{self.job()},job:{self.job()}"])
        return {"stream": f"/v1/events?topics={topics}", "by": self.whoever(0.1), "seconds": self.pick([0.2, 1.0])}

    def plan(self):
        spec = self.spec()
        for key in ("after", "after_any", "array", "at_most"):
            spec.pop(key, None)
        path = self.pick(["/v1/jobs:validate", "/v1/jobs:validate?inputs=1", "/v1/plans", "/v1/plans", "/v1/plans:cluster"])
        body = spec
        if path.startswith("/v1/plans"):
            body = {"spec": spec}
            if path == "/v1/plans":
                body["brief"] = self.chance(0.8)
            if self.chance(0.3):
                body["cluster"] = {"nodes": [{"name": "x", "devices": [{"name": f"x/{n}", "like": self.pick(["v100", "t4", "a100x40"])} for n in range(2)]}]}
            elif self.chance(0.2):
                body["cluster"] = {"nodes": [{"name": self.node(), "devices": [{"name": self.device()}]}]}
        return {"method": "POST", "path": path, "body": body, "by": self.whoever()}

    def lease(self):
        if self.chance(0.4):
            return {"method": "DELETE", "path": f"/v1/leases/{self.one_of('lease')}", "by": self.whoever(0.5)}
        if self.chance(0.15):
            return {"method": "PATCH", "path": f"/v1/leases/{self.one_of('lease')}", "body": {"extend_seconds": 60}, "by": self.whoever(0.5)}
        body = {"seconds": self.pick([60, 3600])}
        body.update(self.pick([{"device": self.device()}, {"any": self.pick(["cuda", "t4", "n", "cpu"])}, {"device": self.device(), "begins": "@in:2@"},
                               {"device": self.device(), "kind": "maintenance"}]))
        return {"method": "POST", "path": "/v1/leases", "body": body, "by": self.whoever(0.3), "makes": "lease"}

    def limit(self):
        limits = self.pick([{"devices_max": self.pick([0, 1, 2])}, {"running_max": self.pick([0, 1, 3])}, {"queued_max": self.pick([0, 0, 5, 40])},
                            {"month_seconds_max": self.pick([0, 0, 1, 1000])}])
        if self.chance(0.5):
            return {"method": "PATCH", "path": f"/v1/users/{self.user()}", "body": self.pick([limits, limits, {"priority_max": 5}, {"account": self.group()}]), "by": ADMIN}
        body = self.pick([limits, limits, {"weight": self.pick([0.5, 2, 9])}, {"parent": self.pick([None, self.group()])}, {"slice_s": self.pick([0, 1])},
                          {"time_limit_s": self.pick([0, 0, 2])}])
        return {"method": "PATCH", "path": f"/v1/groups/{self.group()}", "body": body, "by": ADMIN}

    def person(self):
        kind = self.random.randrange(6)
        if kind == 0:
            return {"method": "PATCH", "path": f"/v1/users/{self.user()}", "by": ADMIN,
                    "body": {"disabled": True, **self.pick([{}, {"jobs": "hold"}, {"jobs": "cancel"}])}}
        if kind <= 2:
            return {"method": "PATCH", "path": f"/v1/users/{self.user()}", "by": ADMIN, "body": {"disabled": False}}
        if kind == 3:
            return {"method": "POST", "path": "/v1/groups", "by": ADMIN, "body": {"name": self.group(), "members": sorted({self.user() for _ in range(6)})}}
        if kind == 4:
            return {"method": "POST", "path": "/v1/tokens", "by": self.whoever(), "body": {"note": "n", "expires_in": "1h"}, "makes": "token"}
        return {"method": "DELETE", "path": f"/v1/tokens/{self.one_of('token')}", "by": self.whoever(0.4)}

    def drain(self):
        body = self.pick([{}, {}, {"after_jobs": True}, {"by": "@in:1@"}, {"reason": "a stranger cleans it"}])
        what = self.pick(["drain", "undrain", "undrain"])
        where = f"/v1/devices/{self.device()}" if self.chance(0.8) else f"/v1/nodes/{self.node()}"
        if self.chance(0.15):
            return {"method": "PATCH", "path": f"/v1/devices/{self.device()}", "body": {"group": self.pick([None, self.group()])}, "by": ADMIN}
        return {"method": "POST", "path": f"{where}/{what}", "body": body if what == "drain" else {}, "by": ADMIN}

    def rare(self):
        """What people do once: nodes, models, groups and files that come and go, measurements from elsewhere, sessions."""
        name, file = f"m{self.random.randrange(3)}", self.pick(["@rows:0@", "0" * 64])
        post = lambda path, body, by: {"method": "POST", "path": path, "body": body, "by": by}  # noqa: E731
        return self.pick([
            lambda: {"method": "DELETE", "path": f"/v1/nodes/{self.node()}", "by": self.whoever(0.7)},
            lambda: {"method": "DELETE", "path": f"/v1/groups/{self.group()}", "by": self.whoever(0.7)},
            lambda: post("/v1/models", self.pick([{"name": name, "path": "@golden:0@"}, {"name": name, "files": [{"name": "config.json", "sha256": file}]}]), self.whoever(0.7)),
            lambda: {"method": self.pick(["GET", "DELETE"]), "path": f"/v1/models/{name}", "by": self.whoever(0.7)},
            lambda: {"method": self.pick(["GET", "HEAD"]), "path": f"/v1/blobs/{file}", "by": self.whoever()},
            lambda: {"method": "GET", "path": f"/v1/blobs/{file}/manifest", "by": self.whoever()},
            lambda: {"method": "PUT", "path": f"/v1/blobs/{file}", "raw": "not these bytes", "by": self.whoever()},
            lambda: {**post("/v1/profiles", {"format": "motley-profiles", "version": 1}, self.whoever(0.7)), "copies": self.pick([None, self.random.randrange(10 ** 6)])},
            lambda: post(self.pick(["/v1/session-codes", "/v1/join-tokens"]), {}, self.whoever(0.3)),
            lambda: post("/v1/session", self.pick([{"token": "x"}, {"code": "x"}]), self.whoever()),
            lambda: post(self.pick(["/v1/enroll", "/v1/renew"]), {"token": "x" * 64, "node": self.node(), "csr": "x"}, self.whoever())])()

    # ---- machines and processes ----

    def machine(self):
        node, device = self.random.randrange(NODES), self.random.randrange(len(DEVICES))
        do = self.pick(["go", "come", "come", "come", "restart", "restart", "silence", "speak", "clock", "lose", "away", "back", "back", "heat", "heat",
                        "measure", "measure", "shrink", "kill-workers"])
        return {"node": node, "do": do, "device": device,
                "value": {"clock": self.pick([0, 0, 200, -200, 86400 * 365, -86400 * 365]), "lose": self.pick([0, 0, 10, 40]),
                          "heat": self.pick([1, 1, 0.5, 0.2]), "shrink": self.pick([1, 1, 0.01, 0.5]), "measure": self.pick(
                              ["good", "good", "fails", "busy", "doubtful", "nonsense", "never"])}.get(do)}

    def trouble(self):
        return {"fault": self.pick(["wipe", "wipe", "kill redis", "kill scheduler", "kill scheduler", "freeze scheduler", "kill api", "kill signer", "kill postgres"])}

    def statement(self):
        """A statement of the scheduler that fails: once, or for one job until all is lifted."""
        table, when = self.pick([("runs", "INSERT"), ("assignments", "INSERT"), ("jobs", "UPDATE"), ("outbox", "INSERT"), ("requests", "INSERT"),
                                 ("arrivals", "INSERT"), ("ledger", "INSERT"), ("events", "INSERT"), ("checkpoints", "INSERT"), ("metrics", "INSERT")])
        return {"fault": "statement", "table": table, "when": when,
                "job": self.job() if table in ("runs", "jobs", "arrivals", "ledger", "checkpoints", "metrics") and self.chance(0.7) else None}

    WEIGHTS = ((17, submit), (7, command), (2, several), (4, change), (32, look), (1, follow), (3, plan), (3, lease), (3, limit), (2, person), (4, drain), (2, rare),
               (6, machine), (0.12, trouble), (0.1, statement))

    def operation(self):
        make = self.random.choices([m for _, m in self.WEIGHTS], [w for w, _ in self.WEIGHTS])[0]
        made = make(self)
        if "body" in made and isinstance(made["body"], dict) and self.chance(0.15):
            made["body"] = self.nearly(made["body"])
        if made.get("by") == ADMIN and make in (Maker.limit, Maker.person, Maker.drain) and self.chance(0.08):
            made["by"] = self.random.randrange(USERS)  # who may not
        if made.get("method") in ("GET", "PATCH", "DELETE") and self.chance(0.04):
            made["match"] = self.pick(["read", "read", "never"])
        if "body" in made and self.chance(0.02):
            made["coding"] = self.pick(["gzip", "gzip", "br", "identity", "gzip, identity"])
        made["n"] = self.number
        if made.get("makes"):
            self.made[made["makes"]].append(self.number)
        self.number += 1
        return made


def operations(seed, count):
    maker = Maker(seed)
    return [maker.operation() for _ in range(count)]
