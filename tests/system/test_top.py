#!/usr/bin/env python3
"""`motley top` and `motley watch` on a pseudo-terminal, and without one, against a live service with real jobs."""
import os
import re
import signal
import subprocess
import time

from motley import SLOW, Motley, expect, llama_spec, main, pids, two_unlike
from terminal import Terminal

HOSTILE = "\u202eevil\u200b日本 <b>"
LINKS = [{"between": ["left", "right"], "rate": "200Mbit/s", "latency": "20ms"}]


def spec(name, steps, **placement):
    return llama_spec(motley, name, steps, 16, repeat=8, every=100000, placement=placement)


def start(*words, **size):
    return Terminal([motley.program("motley"), *words, "--home", motley.home], **size)


def steps_of(terminal, name):
    found = re.search(rf"{name}.*? (\d+)/\d+ ", terminal.text())
    return int(found.group(1)) if found else -1


def it_says_once_how_things_are_where_there_is_no_terminal():
    text = motley.run("top")
    lines = text.splitlines()
    expect(re.match(r"1 runs, 1 waits, 1 held; yours is next", lines[0]), lines[0])
    expect("\033" not in text and "grows" in text and "waits" in text and "?evil?日本" in text, text)
    for title in ("Running", "Devices", "Queue"):
        expect(title in lines, f"no {title} in\n{text}")
    document = motley.run("top", parse=True)
    row = next(row for row in document["jobs"] if row["id"] == grows)
    expect(row["measured_s"] > 0 and row["predicted_s"] > 0 and row["left_s"] > 0 and row["step"] > 0, row)
    expect(abs(row["ratio"] - row["measured_s"] / row["predicted_s"]) < 1e-9, row)
    expect({device["name"] for device in document["devices"]} == {"left/cpu0", "right/cpu0"}, document["devices"])
    expect({row["id"] for row in document["queue"]} >= {grows, waits}, document["queue"])


def it_lives_on_a_terminal_and_keys_move_between_views():
    with start("top") as terminal:
        terminal.shows(r"^1 runs, 1 waits, 1 held; yours is next")
        terminal.shows(r"\[1 all\].*q quits +live")
        first = terminal.until("the job's steps", lambda t: steps_of(t, "grows") + 1)
        terminal.until("the steps do not grow", lambda t: steps_of(t, "grows") > first + 3)
        terminal.until("no device's use", lambda t: re.search(r"left/cpu0 .* \d+ % .* limit ", t.text()))
        for key, there, gone in (("4", "Queue", "Devices"), ("3", "Devices", "Queue"), ("2", "MEASURED", "HOUR"), ("\t", "HOUR", "MEASURED"), ("1", "MEASURED", None)):
            terminal.type(key)
            terminal.until(f"the view of key {key!r}", lambda t: there in t.text() and (gone is None or gone not in t.text()))
        terminal.type("q")
        terminal.end()
        expect(terminal.seen.endswith("\033[?25h\033[?1049l"), repr(terminal.seen[-40:]))


def what_others_do_comes_by_the_stream():
    with start("top") as terminal:
        terminal.shows("live")
        ident = motley.submit(spec("comes", 20, kind="single", devices=["left/cpu0"]))["id"]
        terminal.shows(rf"{ident} +queued .*comes")
        terminal.shows(r"^1 runs, 2 wait, 1 held")
        motley.run("cancel", str(ident))
        terminal.shows(r"^1 runs, 1 waits, 1 held")
        terminal.until("a cancelled job is shown", lambda t: "comes" not in t.text())
        os.kill(terminal.process.pid, signal.SIGTERM)
        terminal.end()


def another_size_is_drawn_anew_and_hostile_names_are_texts():
    with start("top", columns=140, rows=40) as terminal:
        terminal.shows(r"\?evil\?日本 <b>")
        terminal.resize(48, 12)
        terminal.until("the smaller one is not filled", lambda t: t.lines()[0].startswith("1 runs") and "[1 all]" in t.lines()[11])
        terminal.type("4")
        terminal.shows("Queue")
        terminal.resize(30, 5)
        terminal.until("the smallest", lambda t: t.lines()[0].startswith("1 runs") and "1 all" in t.lines()[4])
        terminal.type("jjjjjj")
        terminal.until("it does not move", lambda t: "Queue" not in t.text() and re.search("held|queued", t.text()))
        terminal.resize(140, 40)
        terminal.shows(r"(?s)Queue\n.*\?evil\?日本 <b>")
        terminal.type("\x03")
        terminal.end()


def a_server_that_goes_is_waited_for_and_no_step_is_missed():
    with start("top") as terminal:
        terminal.shows("q quits +live")
        for pid in pids(motley, "api"):
            os.kill(pid, signal.SIGKILL)
        terminal.shows("connecting")
        first = steps_of(terminal, "grows")
        terminal.shows("q quits +live", timeout=60)
        terminal.until("the steps do not grow again", lambda t: steps_of(t, "grows") > first + 3, timeout=60)
        terminal.type("q")
        terminal.end()


def status_answers_where_the_api_does_not():
    frozen = pids(motley, "api")
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    began = time.monotonic()
    answer = motley.run("status", parse=True)
    took = time.monotonic() - began
    for pid in frozen:
        os.kill(pid, signal.SIGCONT)
    expect(took < 10 * SLOW and len(answer["processes"]) > 5, f"{took:.1f} s for {answer}")
    expect("the api does not say how the scheduler is" in motley.last_error, motley.last_error)


def watch_draws_the_loss_on_a_terminal_and_plain_lines_elsewhere():
    plain = motley.run("watch", str(done))
    expect(plain.splitlines()[-1] == "job succeeded" and not re.search("[\u2800-\u28ff\x1b]", plain), plain)
    with start("watch", str(done), columns=70, rows=36) as terminal:
        terminal.end()
        text = terminal.text()
        expect("loss └ step 1 to 30" in text and "job succeeded" in text, text)
        losses = [m["loss"] for m in motley.metrics(done)[0]]
        high, low = re.findall(r"^ *(\d\S*) ┤", text, re.M)
        expect(abs(float(high) / max(losses) - 1) < 1e-3 and abs(float(low) / min(losses) - 1) < 1e-3, f"{high} {low} {max(losses)} {min(losses)}")
        rows = [line for line in terminal.lines() if "┤" in line]
        expect(len(rows) == 9 and all(re.search("[\u2801-\u28ff]", row) for row in rows), text)
    with start("watch", str(grows), columns=70, rows=20) as terminal:
        first = int(terminal.shows(r"loss └ step 1 to (\d+)").group(1))
        terminal.until("the curve does not grow", lambda t: int((re.search(r"step 1 to (\d+)", t.text()) or [0, 0])[1]) > first + 3)
        expect(sum("┤" in line for line in terminal.lines()) == 5, terminal.text())
    with start("watch", str(waits), columns=140, rows=10) as terminal:
        terminal.shows("job queued: waits for left/cpu0")


def it_stands_in_the_help_and_needs_a_server():
    text = subprocess.run([motley.program("motley"), "--help"], capture_output=True, text=True, check=True).stdout
    look = text[text.index("Look:"):text.index("Plan:")]
    expect(re.search(r"^  top ", look, re.M), look)
    gone = subprocess.run([motley.program("motley"), "top", "--home", motley.path("nothing")], capture_output=True, text=True, check=False)
    expect(gone.returncode == 3 and gone.stdout == "", gone)


with Motley(two_unlike(links=LINKS)) as motley:
    done = motley.submit(spec("done", 30), wait=True)["id"]
    grows = motley.submit({**spec("grows", 1000000, kind="pipeline", move="never")})["id"]
    waits = motley.submit(spec("waits", 20, kind="single", devices=["left/cpu0"]))["id"]
    motley.submit({**spec(HOSTILE, 20), "hold": True})
    motley.wait_steps(grows, 12)
    main(it_says_once_how_things_are_where_there_is_no_terminal, it_lives_on_a_terminal_and_keys_move_between_views,
         what_others_do_comes_by_the_stream, another_size_is_drawn_anew_and_hostile_names_are_texts,
         a_server_that_goes_is_waited_for_and_no_step_is_missed, status_answers_where_the_api_does_not,
         watch_draws_the_loss_on_a_terminal_and_plain_lines_elsewhere, it_stands_in_the_help_and_needs_a_server)
