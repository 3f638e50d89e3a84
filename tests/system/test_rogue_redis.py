#!/usr/bin/env python3
"""A Redis that lies: it drops, delays, reorders, repeats and makes up entries. The job's losses are the undisturbed run's."""
import asyncio
import os
import random
import threading
import time

from motley import Motley, expect, llama_spec, main, two_unlike
from rogue import RedisError, admin, pack

STEPS = 60


class Liar:
    """Stands where Redis's socket was. Commands that add to a stream are tampered with, the rest passes as it is: what is
    dropped or held back becomes a PING whose answer looks like an entry's id."""

    def __init__(self, motley, seed):
        self.motley, self.random = motley, random.Random(seed)
        self.front = os.path.join(motley.home, "run", "redis.sock")
        self.real = os.path.join(motley.home, "run", "real.sock")
        self.told = {"dropped": 0, "held back": 0, "repeated": 0, "forged": 0}
        self.seen = []  # (stream, the fields' words)
        self.later = []  # (when, stream, words)
        self.loop = asyncio.new_event_loop()
        self.over = self.loop.create_future()
        self.ready = threading.Event()
        self.thread = threading.Thread(target=self.loop.run_until_complete, args=(self.serve(),))

    def __enter__(self):
        os.rename(self.front, self.real)
        with admin(self.motley, "real.sock") as redis:
            redis.say("CLIENT", "KILL", "TYPE", "normal")  # everybody comes in through us now
        self.thread.start()
        self.ready.wait(10)
        return self

    def __exit__(self, kind, value, trace):
        self.loop.call_soon_threadsafe(self.over.set_result, None)
        self.thread.join(10)
        os.rename(self.real, self.front)

    async def serve(self):
        server = await asyncio.start_unix_server(self.client, self.front)
        lying = asyncio.ensure_future(self.lie())
        self.ready.set()
        await asyncio.wait([self.over, lying], return_when=asyncio.FIRST_COMPLETED)
        server.close()
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)

    async def client(self, reader, writer):
        down, up = await asyncio.open_unix_connection(self.real)
        answers = asyncio.ensure_future(self.copy(down, writer))
        try:
            while True:
                up.write(await self.command(reader))
                await up.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        answers.cancel()
        up.close()
        writer.close()

    async def copy(self, reader, writer):
        while True:
            data = await reader.read(1 << 16)
            if not data:
                writer.close()
                return
            writer.write(data)
            await writer.drain()

    async def command(self, reader):
        """The next command's bytes, perhaps of another command."""
        head = await reader.readuntil(b"\r\n")
        words, raw = [], [head]
        for _ in range(int(head[1:])):
            size = await reader.readuntil(b"\r\n")
            word = await reader.readexactly(int(size[1:]) + 2)
            words.append(word[:-2])
            raw += (size, word)
        if words[0] == b"XADD":
            fields = words[words.index(b"*") + 1:]
            self.seen.append((words[1], fields))
            luck = self.random.random()
            if luck < 0.03:
                return self.instead("dropped")
            if luck < 0.07:
                self.later.append((time.monotonic() + self.random.random(), words[1], fields))
                return self.instead("held back")
            if luck < 0.15:
                self.told["repeated"] += 1
                self.later.append((time.monotonic() + self.random.random() * 3, words[1], fields))
        return b"".join(raw)

    def instead(self, what):
        self.told[what] += 1
        answer = b"%d-0" % int(time.time() * 1000)
        return b"*2\r\n$4\r\nPING\r\n$%d\r\n%s\r\n" % (len(answer), answer)

    def forge(self, run):
        """An entry that nobody sealed: changed, redirected, sent back, or made up."""
        stream, fields = self.random.choice(self.seen)
        fields = list(fields)
        kind = self.random.randrange(5)
        if kind == 0:
            at = self.random.randrange(len(fields[1]))
            fields[1] = fields[1][:at] + bytes([fields[1][at] ^ 1 << self.random.randrange(8)]) + fields[1][at + 1:]
        elif kind == 1:
            left = stream.endswith(b":left")
            stream = stream.replace(b":left", b":right") if left else stream.replace(b":right", b":left")
        elif kind == 2:
            events = stream.startswith(b"motley:events:")
            stream = stream.replace(b":events:", b":agent:") if events else stream.replace(b":agent:", b":events:")
        else:
            of_run = {"run": run["id"], "epoch": run["epoch"], "rank": 0}
            event, message = self.random.choice([
                ({"type": "done", "node": "left", "seq": 5, **of_run}, {"type": "stop", "id": 1 << 40, "kill": True, **of_run}),
                ({"type": "failed", "node": "left", "seq": 5, "code": "x", "text": "x", "own_fault": True, **of_run},
                 {"type": "assign", "id": 1 << 41, "assignment": 1, "device": "left/cpu0", **of_run, "epoch": 1 << 40}),
                ({"type": "node_hello", "node": "left", "boot": "g", "beat": 1 << 40, "seq": 0, "devices": []},
                 {"type": "ack", **of_run, "seq": 1 << 40})])
            way, body = self.random.choice([(b"events", event), (b"agent", message)])
            stream = b"motley:" + way + b":" + self.random.choice([b"left", b"right"])
            fields = [b"m", pack(body), b"a", self.random.randbytes(32)]
            if kind == 4:
                fields = fields[:2]
        return stream, fields

    async def lie(self):
        with admin(self.motley, "real.sock") as redis:
            while True:
                await asyncio.sleep(0.02)
                now = time.monotonic()
                due = [entry for entry in self.later if entry[0] <= now]
                self.later = [entry for entry in self.later if entry[0] > now]
                self.random.shuffle(due)
                run = getattr(self, "run", None)
                if run and self.seen:
                    self.told["forged"] += 1
                    due.append((now, *self.forge(run)))
                    due.append((now, *self.random.choice(self.seen)))  # however old
                    self.told["repeated"] += 1
                for _, stream, fields in due:
                    try:
                        redis.say("XADD", stream, "*", *fields)
                    except RedisError:
                        pass


def spec_for(motley, name):
    return llama_spec(motley, name, STEPS, 2, every=20, placement={"kind": "pipeline", "stages": 2, "micro_batch_rows": 1, "move": "never"})


def a_lying_redis_starts_stops_and_reports_nothing():
    # One instruction set: what the first run measures may give the second another cut, which must not change a bit.
    with Motley(two_unlike(isa_right="native")) as motley:
        first = motley.submit(spec_for(motley, "undisturbed"), wait=True)
        expect(first["state"] == "succeeded", f"undisturbed: {first['state']}")
        reference = [m["loss"] for m in motley.metrics(first["id"])[0]]
        began = time.monotonic()
        with Liar(motley, 22) as liar:
            ident = motley.submit(spec_for(motley, "lied to"))["id"]
            motley.wait_state(ident, ("starting", "running", "succeeded", "failed"))
            liar.run = motley.job(ident)["run"]
            state = motley.wait_state(ident, ("succeeded", "failed", "cancelled"))
            told = ", ".join(f"{count} {what}" for what, count in liar.told.items())
            nodes = {node["name"]: node for node in motley.run("nodes", parse=True)["nodes"]}
        expect(state["state"] == "succeeded" and state["attempt"] == 1, f"{state['state']}: {state.get('error')} ({told})")
        lines = motley.metrics(ident)[0]
        expect([m["step"] for m in lines] == list(range(STEPS)), f"steps {[m['step'] for m in lines]}")
        expect([m["loss"] for m in lines] == reference, "losses differ from the undisturbed run's")
        expect(all(count > 10 for count in liar.told.values()), told)
        expect(sum(node["refused"] for node in nodes.values()) > 5, f"{nodes}")
        expect(all(node["state"] == "alive" for node in nodes.values()), f"{nodes}")
        expect(len(motley.run("devices", parse=True)["devices"]) == 2, "no device was made up")
        return f"{time.monotonic() - began:.1f} s; {told}"


if __name__ == "__main__":
    main(a_lying_redis_starts_stops_and_reports_nothing)
