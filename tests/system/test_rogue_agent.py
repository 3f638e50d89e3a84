#!/usr/bin/env python3
"""A rogue with a real node's credentials tries everything that goes over Redis; another node's job goes on undisturbed."""
import os
import shutil
import signal
import time

from motley import Failed, Motley, SLOW, expect, llama_spec, main, poll, two_paced
from rogue import Node, RedisError, admin, pack

STEPS = 500  # it must be under way as long as the rogue tries
HIGHEST = "18446744073709551615-18446744073709551615"


def spec_for(motley, name, steps=STEPS):
    return llama_spec(motley, name, steps, 2, repeat=4, every=50, placement={"devices": ["left/paced0"], "micro_batch_rows": 1, "move": "never"})


def node_of(motley, name):
    return next(node for node in motley.run("nodes", parse=True)["nodes"] if node["name"] == name)


def wait_refused(motley, count, words):
    deadline = time.monotonic() + 10 * SLOW
    while time.monotonic() < deadline:
        node = node_of(motley, "right")
        if node["refused"] >= count and words in (node["why"] or ""):
            return node["refused"]
        poll()
    raise Failed(f"node right says {node['refused']} refused, \"{node['why']}\", not {count} or more, \"{words}\"")


def it_reaches_its_own_two_streams_only(right):
    with right.connect() as redis:
        for words in (("XREAD", "STREAMS", "motley:events:left", "0"), ("XREAD", "STREAMS", "motley:agent:left", "0"),
                      ("XREAD", "STREAMS", right.stream, "0"), ("XRANGE", right.inbox, "-", "+"), ("GET", "motley:instance"),
                      ("XADD", "motley:events:left", "*", "m", "x"), ("XADD", "motley:events", "*", "m", "x"),
                      ("XADD", right.inbox, "*", "m", "x"), ("XADD", "motley:agent:left", "*", "m", "x"), ("DEL", right.stream),
                      ("XTRIM", right.stream, "MAXLEN", "0"), ("ACL", "LIST"), ("CONFIG", "GET", "*"), ("CLIENT", "LIST"),
                      ("CLIENT", "KILL", "TYPE", "normal"), ("EVAL", "return 1", "0"), ("SUBSCRIBE", "x"), ("MONITOR",),
                      ("FLUSHALL",), ("SHUTDOWN",), ("KEYS", "*"), ("SCRIPT", "FLUSH"), ("FUNCTION", "LIST")):
            try:
                answer = redis.say(*words)
            except RedisError as error:
                expect("NOPERM" in str(error), f"{words}: {error}")
            else:
                raise Failed(f"{words}: {answer}")
        expect(redis.say("XREAD", "STREAMS", right.inbox, "0") is not None, "its inbox is its own")


def words_in_anothers_name(run, sane):
    """Each is sealed by right and stands in right's stream: (event, what the refusal says)."""
    of_run = {"run": run["id"], "epoch": run["epoch"], "rank": 0, "seq": 1}
    hello = {"type": "node_hello", "seq": 0, "beat": 1 << 40, "boot": "ffff", "devices": []}
    return [
        ({**hello, "node": "left"}, "in the name of node 'left'"),
        ({**hello, "node": 7}, "in the name of node"),
        ({"type": "heartbeat", "node": "left", "boot": "ffff", "beat": 1 << 40, "seq": 0}, "in the name of node 'left'"),
        ({"type": "failed", **of_run, "code": "x", "text": "x", "own_fault": True}, "which node right does not hold"),
        ({"type": "done", "node": "right", **of_run}, "which node right does not hold"),
        ({"type": "step", **of_run, "seq": sane, "step": 3, "loss": 1.0}, "which node right does not hold"),
        ({"type": "checkpoint", **of_run, "epoch": run["epoch"] + 1, "step": 3, "blobs": {}}, "which node right does not hold"),
        ({"type": "stopped", **of_run, "rank": 1}, "which node right does not hold"),
        ({**hello, "devices": [{"name": "left/paced0", "memory_limit_bytes": 5}]}, "is not one of node right"),
        ({**hello, "beat": (1 << 40) + 1, "devices": [{"name": 'right/"} 1\nmotley_jobs{state="failed"} 9', "memory_limit_bytes": 5}]}, "a device's name may hold"),
        ({"type": "no such type", "seq": 0}, "run"),
    ]


def it_speaks_for_nobody_else(motley, right, run):
    count = node_of(motley, "right")["refused"]
    with right.connect() as redis:
        for event, words in words_in_anothers_name(run, 5):
            redis.say("XADD", right.stream, "*", *right.entry(event))
            count += 1
            wait_refused(motley, count, words)
    return count


def malformed_entries_are_refused(motley, right, count):
    deep = pack({"type": "log"})
    for _ in range(100):
        deep = b"\x91" + deep
    entries = [("m", pack({"type": "heartbeat"})), ("x", "y"), ("m", pack({"type": "heartbeat"}), "a", b"\0" * 32),
               right.entry(b""), right.entry(b"\xc1"), right.entry(b"\xdf\xff\xff\xff\xff"), right.entry(deep),
               right.entry([1, 2]), right.entry(b"\x80" * 1000), right.entry(b"x" * (9 << 20))]
    with right.connect() as redis:
        for words in entries:
            redis.say("XADD", right.stream, "*", *words)
    return wait_refused(motley, count + len(entries), "")


def a_stream_that_cannot_go_on_is_emptied(motley, right, count):
    for name, words in (("the id 18446744073709551615", (HIGHEST, "m", "x")),
                        ("cannot be read", ("*", *(["f"] * 100000)))):
        with right.connect() as redis:
            redis.say("XADD", right.stream, *words)
        count = wait_refused(motley, count + 1, name)
        deadline = time.monotonic() + 10 * SLOW
        while True:  # the node's agent goes on afterwards, and so does anybody who has its credentials
            expect(time.monotonic() < deadline, "nothing can be added to its stream any more")
            try:
                with right.connect() as redis:
                    redis.say("XADD", right.stream, "*", *right.entry({"type": "received", "message": 1, "seq": 0}))
                break
            except RedisError:
                poll()
    return count


def too_many_connections_are_ended(motley, right, count):
    many = [right.connect() for _ in range(40)]
    count = wait_refused(motley, count + 1, "connections to Redis were ended, the limit is 16")
    for redis in many:
        try:
            redis.say("PING")
        except (OSError, RedisError):
            redis.__exit__(None, None, None)
        else:
            raise Failed("a connection beyond the limit is open")
    return count


def a_flood_bars_the_node(motley, right):
    block = b"x" * (1 << 20)
    sent = 0
    deadline = time.monotonic() + 30 * SLOW
    try:
        with right.connect() as redis:
            while time.monotonic() < deadline:
                try:
                    redis.say("XADD", right.stream, "*", "m", block)
                    sent += 1
                except RedisError as error:
                    expect("OOM" in str(error), f"{error}")
    except (ConnectionError, OSError):
        pass  # its user is gone, and its connections with it
    except RedisError as error:
        expect("WRONGPASS" in str(error), f"{error}")
    try:
        right.connect()
        raise Failed(f"after {sent} MiB it still may speak to Redis")
    except RedisError as error:
        expect("WRONGPASS" in str(error), f"{error}")
    deadline = time.monotonic() + 10 * SLOW
    while node_of(motley, "right")["state"] != "barred":
        expect(time.monotonic() < deadline, f"{node_of(motley, 'right')}")
        poll()
    with admin(motley) as redis:
        expect(redis.say("EXISTS", right.stream) == 0, "what it left behind is gone")
    node = node_of(motley, "right")
    expect("MiB" in node["why"], f"{node['why']}")
    return sent


def redis_comes_back_with_nothing(motley):
    redis = next(p for p in motley.processes() if p["role"] == "redis")["pid"]
    os.kill(redis, signal.SIGKILL)
    shutil.rmtree(os.path.join(motley.home, "redis"))
    began = time.monotonic()
    while True:
        expect(time.monotonic() - began < 20 * SLOW, "node left's Redis user is not back")
        try:
            with Node(motley, "left").connect():
                return time.monotonic() - began
        except (RedisError, OSError):
            poll()


def users_are_those_of_the_database(motley):
    left = Node(motley, "left")
    with admin(motley) as redis:
        def rules():
            return next((line for line in redis.say("ACL", "LIST") if line.startswith(b"user agent-left ")), b"").decode()
        right = rules()
        for word in ("%R~motley:agent:left", "%W~motley:events:left", "-@all"):
            expect(word in right, right)
        expect(sorted(word for word in right.split() if word.startswith("+")) ==
               ["+auth", "+client|setname", "+hello", "+ping", "+xadd", "+xread"] and right.count("~") == 2, right)
        redis.say("ACL", "SETUSER", "agent-left", "+@all", "~*")
        redis.say("ACL", "SETUSER", "agent-stranger", "on", "nopass", "~*", "+@all")
        deadline = time.monotonic() + 10 * SLOW
        while rules() != right or any(b"agent-stranger" in line for line in redis.say("ACL", "LIST")):
            expect(time.monotonic() < deadline, f"{redis.say('ACL', 'LIST')}")
            poll()
        redis.say("ACL", "DELUSER", "agent-left")
        while rules() != right:
            expect(time.monotonic() < deadline, "agent-left is not made again")
            poll()
    with left.connect():
        pass


def a_rogue_agent_harms_its_own_node_alone():
    with Motley(two_paced()) as motley:
        motley.submit(spec_for(motley, "warm", 2), wait=True)  # measured, and the model is there
        first = motley.submit(spec_for(motley, "undisturbed"), wait=True)
        expect(first["state"] == "succeeded", f"undisturbed: {first['state']}")
        reference = [m["loss"] for m in motley.metrics(first["id"])[0]]
        users_are_those_of_the_database(motley)
        ident = motley.submit(spec_for(motley, "beside"))["id"]
        motley.wait_steps(ident, 3)
        right = Node(motley, "right")
        run = motley.job(ident)["run"]
        it_reaches_its_own_two_streams_only(right)
        count = it_speaks_for_nobody_else(motley, right, run)
        count = malformed_entries_are_refused(motley, right, count)
        count = a_stream_that_cannot_go_on_is_emptied(motley, right, count)
        count = too_many_connections_are_ended(motley, right, count)
        during = len(motley.metrics(ident)[0])
        sent = a_flood_bars_the_node(motley, right)
        late = motley.submit(spec_for(motley, "during the flood's end", 5))["id"]
        for job, steps in ((ident, STEPS), (late, 5)):
            state = motley.wait_state(job, ("succeeded", "failed", "cancelled"))
            lines = motley.metrics(job)[0]
            expect(state["state"] == "succeeded" and state["attempt"] == 1, f"{job}: {state['state']}: {state.get('error')}")
            expect([m["step"] for m in lines] == list(range(steps)), f"{job}: steps {[m['step'] for m in lines][:20]}")
            if steps == STEPS:
                expect([m["loss"] for m in lines] == reference, "losses differ from the undisturbed run's")
        left = node_of(motley, "left")
        expect((left["state"], left["refused"], left["why"]) == ("alive", 0, None), f"{left}")
        table = motley.run("nodes")
        expect("barred" in table and "MiB" in table, table)
        seconds = redis_comes_back_with_nothing(motley)
        again = motley.submit(spec_for(motley, "after the wipe", 5), wait=True)
        expect(again["state"] == "succeeded" and again["attempt"] == 1, f"{again['state']}")
        return f"{count} refused at {during} of {STEPS} steps, {sent} MiB of flood; users back {seconds:.1f} s after Redis's death"


if __name__ == "__main__":
    main(a_rogue_agent_harms_its_own_node_alone)
