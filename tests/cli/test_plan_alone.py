#!/usr/bin/env python3
"""Tests `motley plan --cluster` and `--draw` without a server: bad files are refused by the path inside them."""
import contextlib
import http.server
import itertools
import json
import math
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import xml.etree.ElementTree as xml

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from claims import BIN, expect, main  # noqa: E402

MOTLEY = os.path.join(BIN, "motley")
SVG = "{http://www.w3.org/2000/svg}"
COMMANDS = ("up down status run submit rows plan simulate web change extend device jobs job queue top usage shares why compare watch logs cancel hold release resume metrics get join-token drain "
            "undrain node nodes links devices lease leases model share token group user audit replay profile rm df backup restore doctor notify upgrade slurm ca login wireguard").split()

PROGRAMS = ("motley", "motley-api", "motley-scheduler", "motley-agent", "motley-worker", "motley-signer", "motley-supervisor")

LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192,
         "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
         "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "tie_word_embeddings": True,
         "hidden_act": "silu", "bos_token_id": 128000, "eos_token_id": 128001}
CLUSTER = {"nodes": [{"name": "a", "devices": [{"name": "a/0", "like": "rtx-3090"}, {"name": "a/1", "like": "t4"}]},
                     {"name": "b", "nic_bytes_per_s": 1.25e9, "devices": [{"name": "b/0", "like": "p40"}]}],
           "links": {"between": {"latency_s": 1e-4, "bytes_per_s": 1e9}}}


class Folder:
    def __init__(self, path):
        self.path = path
        os.mkdir(os.path.join(path, "model"))
        self.write("model/config.json", LLAMA)
        self.spec = self.write("spec.json", self.spec_of())
        self.cluster = self.write("cluster.json", CLUSTER)

    @staticmethod
    def spec_of(**changes):
        spec = {"name": "try", "model": "model", "data": {"train": "rows.jsonl"}, "train": {"batch_rows": 8, "steps": 4, "warmup_steps": 0, "compute": "fp32"}}
        for key, value in changes.items():
            spec[key] = {**spec.get(key, {}), **value}
        return spec

    def write(self, name, document):
        path = os.path.join(self.path, name)
        with open(path, "w", encoding="utf-8") as handle:
            handle.write(document if isinstance(document, str) else json.dumps(document))
        return path

    def run(self, *words, status=0, path=None):
        env = dict(os.environ, HOME=self.path, MOTLEY_HOME=os.path.join(self.path, "no-server"))
        if path is not None:
            env["PATH"] = path
        done = subprocess.run([MOTLEY, *words], capture_output=True, text=True, timeout=120, check=False, env=env, cwd=self.path)
        expect(done.returncode == status, f"{words}: status {done.returncode}, not {status}\n{done.stdout}\n{done.stderr}")
        return done

    def plan(self, *words, **keywords):
        return json.loads(self.run("plan", self.spec, "--cluster", self.cluster, "--json", *words, **keywords).stdout)


@contextlib.contextmanager
def folder():
    with tempfile.TemporaryDirectory(prefix="motley-test-") as path:
        yield Folder(path)


def texts(root):
    return " ".join("".join(element.itertext()) for element in root.iter(SVG + "text"))


def every_command_tells_its_usage():
    with folder() as f:
        for command in COMMANDS:
            done = f.run(command, "--help")
            expect(done.stdout.startswith(f"usage: motley {command}"), f"{command} --help: {done.stdout[:80]}")
            done = f.run(command, "--no-such-option", status=2)
            expect("--no-such-option" in done.stderr, f"{command}: {done.stderr}")
        expect(f.run("help", "run").stdout == f.run("run", "--help").stdout, "help COMMAND")
        columns = {line.index(about) for line, about in zip(f.run("help").stdout.splitlines()[5:], ("start the whole", "stop all of it"))}
        columns |= {line.index("do not start queued") for line in f.run("help").stdout.splitlines() if "hold ID…" in line}
        expect(len(columns) == 1, f"columns are wide in characters: {columns}")
        for name in PROGRAMS:
            program = os.path.join(BIN, name)
            said = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=60, check=True).stdout
            expect(re.fullmatch(rf"{name} \d+\.\d+\.\d+ \(protocol \d+\)\n", said), f"{name} --version: {said}")
            said = subprocess.run([program, "--help"], capture_output=True, text=True, timeout=60, check=True).stdout
            expect(said.startswith(f"usage: {name} "), f"{name} --help: {said[:80]}")
    return f"{len(COMMANDS)} commands"


def help_lists_every_command_once_in_a_group():
    with folder() as f:
        parts = f.run("--help").stdout.split("\n\n")
        groups = [part.splitlines() for part in parts if part.startswith(("Run:", "Look:", "Plan:", "Share:", "Administer:"))]
        expect(len(groups) == 5, f"{[group[0] for group in groups]}")
        listed = [line.split()[0] for group in groups for line in group[1:] if line[2] != " "]
        expect(sorted(listed) == sorted(COMMANDS), f"listed {listed}")


def a_plan_needs_no_server_and_no_weights():
    with folder() as f:
        answer = f.plan()
        expect(answer["verdict"] == "fits" and answer["step_s"] > 0, f"{answer['verdict']}")
        expect(answer["rows"]["from"] is None and "rows.jsonl" in answer["rows"]["why"], f"{answer['rows']}")
        expect(answer["model"] == {"parameters": 1235814400, "trained": 3407872, "method": "lora of rank 16, base fp32, computed in fp32"}, f"{answer['model']}")  # Llama 3.2 1B, as published
        expect("model: 1,235,814,400 parameters, 3,407,872 trained" in f.run("plan", f.spec, "--cluster", f.cluster).stdout, "the model")
        expect(answer["tokens_per_s"] * answer["step_s"] > 0.99 * 8 * 512, "rows are not taken at full length")
        return f"{answer['placement']}, {answer['step_s']:.3f} s"


def a_plan_says_where_the_job_may_not_run_on_so_many_devices():
    with folder() as f:
        for count, says in (({"least": 9}, "placement.count.least is 9, and the fastest plan here uses "),
                            ({"most": 1}, "placement.count.most is 1, and this plan uses 2 devices"), ({"least": 1, "most": 3}, None)):
            placement = {"kind": "pipeline", "stages": 2} if "most" in count and says else {}
            f.write("spec.json", f.spec_of(placement={**placement, "count": count}))
            warnings = [text for text in f.plan()["warnings"] if "placement.count" in text]
            expect(len(warnings) == (says is not None) and all(text.startswith(says) for text in warnings), f"{count}: {warnings}")


def gguf_of(path, wide, types):
    """Writes a Llama's GGUF with a whole header and a hole in place of the values. Returns the bytes of its tensors."""
    numbers = {"F32": (0, 1, 4), "Q4_K": (12, 256, 144), "Q6_K": (14, 256, 210)}

    def text(value):
        return struct.pack("<Q", len(value)) + value.encode()

    hidden, ffn, layers, vocab = 2048, 8192, 4, 32000
    keys = {"block_count": layers, "embedding_length": hidden, "feed_forward_length": ffn, "attention.head_count": 32,
            "attention.head_count_kv": 8, "context_length": 4096}
    tensors = [("token_embd.weight", (hidden, vocab), wide), ("output_norm.weight", (hidden,), "F32")]
    for i in range(layers):
        shapes = {"attn_norm": (hidden,), "ffn_norm": (hidden,), "attn_q": (hidden, hidden), "attn_k": (hidden, hidden // 4),
                  "attn_v": (hidden, hidden // 4), "attn_output": (hidden, hidden), "ffn_gate": (hidden, ffn),
                  "ffn_up": (hidden, ffn), "ffn_down": (ffn, hidden)}
        tensors += [(f"blk.{i}.{name}.weight", dims, "F32" if "norm" in name else types(i, name))
                    for name, dims in shapes.items()]
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys) + 2) + text("general.architecture") + \
        struct.pack("<I", 8) + text("llama")
    for key, value in keys.items():
        head += text("llama." + key) + struct.pack("<II", 4, value)
    head += text("llama.attention.layer_norm_rms_epsilon") + struct.pack("<If", 6, 1e-5)
    at = 0
    for name, dims, kind in tensors:
        number, block, size = numbers[kind]
        head += text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, number, at)
        at += (math.prod(dims) // block * size + 31) // 32 * 32
    with open(path, "wb") as handle:
        handle.write(head)
        handle.truncate((len(head) + 31) // 32 * 32 + at)
    return at


def the_blocks_of_a_gguf_are_planned_as_they_lie_in_the_file():
    with folder() as f:
        mixed = os.path.join(f.path, "mixed.gguf")
        size = gguf_of(mixed, "Q6_K", lambda i, name: "Q6_K" if i % 2 and name in ("attn_v", "ffn_down") else "Q4_K")
        f.spec = f.write("spec.json", {**f.spec_of(method={"base": "packed"}, placement={"kind": "single"}), "model": "mixed.gguf"})
        answer = f.plan()
        expect(answer["verdict"] == "fits" and answer["runnable"], answer)
        weights = answer["ranks"][0]["memory"]["weights"]
        expect(size <= weights <= size + 64 * 4 * 10 + 4096 * 8 + 4 * 512 * 64, f"{weights} bytes, {size} in the file")
        expect("base packed" in answer["model"]["method"], answer["model"])
        gguf_of(mixed, "F32", lambda i, name: "F32")
        done = f.run("plan", f.spec, "--cluster", f.cluster, status=2)
        expect("method.base: packed" in done.stderr, done.stderr)
        f.spec = f.write("spec.json", f.spec_of(method={"base": "packed"}))
        done = f.run("plan", f.spec, "--cluster", f.cluster, status=2)
        expect("method.base: packed" in done.stderr, done.stderr)
    return f"{weights} bytes for {size}"


def rows_that_are_at_hand_are_planned_with_their_own_lengths():
    with folder() as f:
        rows = [{"ids": list(range(1, 65)), "labels": list(range(1, 65))}] * 16
        f.write("rows.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
        f.write("spec.json", f.spec_of(data={"format": "tokens"}))
        answer = f.plan()
        expect(answer["rows"]["count"] == 16 and answer["warnings"] == [], f"{answer['rows']} {answer['warnings']}")
        f.write("rows.jsonl", "".join(json.dumps(row) + "\n" for row in [*rows, {"ids": [1, 2], "labels": [-100, -100]}]))
        expect(f.plan()["warnings"] == ["data.train: dropped with nothing to learn: 1 of 17 rows, first line 17"], f.plan())
        f.write("rows.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
        tokens = answer["tokens_per_s"] * answer["step_s"]
        expect(abs(tokens - 8 * 64) < 1, f"{tokens} tokens a step, not 512")
        f.write("rows.jsonl", "{this is no JSON}\n")
        answer = f.plan()
        expect(answer["rows"]["count"] == 0 and "line 1" in answer["rows"]["why"], f"{answer['rows']}")


def the_picture_shows_each_rank_its_memory_and_the_step_time():
    with folder() as f:
        f.write("spec.json", f.spec_of(placement={"kind": "pipeline", "micro_batch_rows": 1}))
        for path in (None, "/nonexistent"):  # the path with Graphviz, if it is installed, and one without it
            answer = f.plan("--draw", "out.svg", path=path)
            expect(answer["drawn"] == "out.svg", "the answer does not say where the picture is")
            root = xml.parse(os.path.join(f.path, "out.svg")).getroot()
            words = texts(root)
            for rank in answer["ranks"]:
                expect(f"{rank['rank']} {rank['device']}" in words, f"{rank['device']} has no lane")
            expect(words.count("GiB of") >= len(answer["ranks"]), "memory is not written against its limit")
            for name in ("forward", "backward", "idle", "Gbit/s", "per step"):
                expect(name in words, f"\"{name}\" is not in the picture")
            shapes = [e for e in root.iter(SVG + "rect") if e.get("class") == "f"]
            expect(len(shapes) >= 8 * len(answer["ranks"]), f"{len(shapes)} forward shapes")
            wide = float(root.get("width"))
            for shape in root.iter(SVG + "rect"):
                expect(float(shape.get("x", 0)) + float(shape.get("width", 0)) <= wide + 1, "a shape lies outside")


def a_legend_of_many_kinds_does_not_run_into_what_stands_beside_it():
    lab = {"n1": ("rtx-4090", "rtx-3090"), "n2": ("rtx-3070", "rtx-2080ti"), "n3": ("t4", "v100x32"), "n4": ("a6000", "gtx-1080ti")}
    with folder() as f:
        f.write("model/config.json", {**LLAMA, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
                                      "tie_word_embeddings": False})
        f.write("cluster.json", {"nodes": [{"name": n, "devices": [{"name": f"{n}/{i}", "like": k} for i, k in enumerate(kinds)]}
                                           for n, kinds in lab.items()],
                                 "links": {"between": {"latency_s": 1e-4, "bytes_per_s": 1.17e8}}})
        f.write("spec.json", f.spec_of(train={"batch_rows": 32, "compute": "bf16"}, method={"base": "bf16"},
                                       placement={"kind": "pipeline"}))
        f.plan("--draw", "out.svg")
        root = xml.parse(os.path.join(f.path, "out.svg")).getroot()
        marks = [(float(e.get("x")), float(e.get("y")), "".join(e.itertext())) for e in root.iter(SVG + "text")]
        memory = next(m for m in marks if m[2] == "Memory")
        row = [m for m in marks if m[1] == memory[1] and m[0] < memory[0]]
        expect(len(row) >= 5, f"{row}")
        for x, _, name in row:
            expect(x + 6.1 * len(name) <= memory[0], f"\"{name}\" lies over \"Memory\"")
        expect(any(m[2] == "idle" for m in marks), "the legend is not whole")
        return f"{len(row)} kinds beside Memory"


def links_of_equal_figures_are_told_once_and_others_each():
    with folder() as f:
        links = {"between": {"latency_s": 1e-4, "bytes_per_s": 1.17e8}}
        cluster = {"nodes": [{"name": n, "devices": [{"name": f"{n}/0", "like": "rtx-3090"}]} for n in "abcd"], "links": links}
        f.write("spec.json", f.spec_of(placement={"kind": "data"}))
        told = []
        unlike = [{"a": a, "b": b, "latency_s": 1e-4, "bytes_per_s": 1e8 + 1e6 * i} for i, (a, b) in enumerate(itertools.combinations("abcd", 2))]
        for pairs in ([], unlike):
            f.write("cluster.json", {**cluster, "links": {**links, "pairs": pairs}})
            answer = f.plan("--draw", "out.svg")
            expect(len(answer["ranks"]) == 4, f"{answer['ranks']}")
            words = texts(xml.parse(os.path.join(f.path, "out.svg")).getroot())
            told.append((words.count("every link: 936 Mbit/s, 100 us"), words.count("Mbit/s")))
        expect(told[0] == (1, 1) and told[1][0] == 0 and told[1][1] == 3, f"{told}")


def large_plans_stay_below_two_megabytes_and_say_what_is_cut():
    with folder() as f:
        f.write("model/config.json", {**LLAMA, "num_hidden_layers": 126, "hidden_size": 8192, "intermediate_size": 28672,
                                      "num_attention_heads": 64, "tie_word_embeddings": False})
        kinds = ("rtx-3090", "a6000", "v100x32", "a100x40", "l40s", "rtx-4090")
        f.write("cluster.json", {"nodes": [{"name": f"n{i}", "devices": [{"name": f"n{i}/0", "like": kinds[i % 6]}]}
                                           for i in range(64)], "links": {"between": {"latency_s": 1e-4, "bytes_per_s": 1e9}}})
        f.write("spec.json", f.spec_of(train={"batch_rows": 256}, placement={"kind": "pipeline", "micro_batch_rows": 1}))
        answer = f.plan("--draw", "out.svg")
        size = os.path.getsize(os.path.join(f.path, "out.svg"))
        expect(size < 2_000_000, f"{size} bytes")
        expect(answer["micro_batches"] == 256 and len(answer["ranks"]) > 32, "not the plan that was meant")
        words = texts(xml.parse(os.path.join(f.path, "out.svg")).getroot())
        expect("is not drawn" in words, "the cut is not marked")
        return f"{len(answer['ranks'])} ranks, {size} bytes"


def layers_of_a_tensor_group_are_drawn_as_turns_of_micro_batches_and_nothing_is_cut():
    with folder() as f:
        f.write("cluster.json", {"nodes": [{"name": n, "devices": [{"name": f"{n}/{i}", "like": "rtx-3090"} for i in range(2)]}
                                           for n in "ab"], "links": {"within": {"latency_s": 1e-5, "bytes_per_s": 5e10}}})
        f.write("spec.json", f.spec_of(train={"batch_rows": 16}, placement={"kind": "tensor", "micro_batch_rows": 1}))
        answer = f.plan("--draw", "out.svg", "--evaluations", "50")
        words = texts(xml.parse(os.path.join(f.path, "out.svg")).getroot())
        expect("is not drawn" not in words and len(answer["ranks"]) > 1, words)
        expect(f"{answer['micro_batches']} micro-batches of 1 row" in words, words)


def a_saved_plan_is_a_start_and_never_made_worse():
    with folder() as f:
        first = f.plan("--save", "p.json")
        again = f.plan("--from", "p.json", "--evaluations", "1")
        expect(again["step_s"] <= first["step_s"] * (1 + 1e-9), f"{again['step_s']} after {first['step_s']}")
        f.write("bad.json", {"version": 1})
        expect("bad.json" in f.run("plan", f.spec, "--cluster", f.cluster, "--from", "bad.json", status=2).stderr, "--from")
        expect("--from" not in f.run("plan", f.spec, "--cluster", f.cluster, "--from", "none.json", status=2).stdout, "--from")


def whether_a_running_job_should_move_is_answered_with_what_it_saves_and_costs():
    def cluster(*old):
        return {"nodes": [{"name": "new", "devices": [{"name": "new/0", "like": "rtx-4090"}]},
                          {"name": "old", "devices": [{"name": f"old/{i}", **card} for i, card in enumerate(old)]}],
                "links": {"between": {"latency_s": 1e-4, "bytes_per_s": 1.25e8}}}

    with folder() as f:
        f.write("cluster.json", cluster({"like": "rtx-2080ti"}))
        f.plan("--save", "p.json", "--runnable")
        same = f.plan("--from", "p.json", "--steps-left", "1000")["replan"]
        expect(same["verdict"] == "stay" and same["gain"] == 0 and "nothing faster" in same["words"], same)
        f.write("cluster.json", cluster({"like": "rtx-2080ti"}, {"like": "rtx-4090"}))
        long = f.plan("--from", "p.json", "--steps-left", "100000", "--restart", "7")
        move = long["replan"]
        expect(move["verdict"] == "move" and move["words"].startswith("Move: "), move)
        expect(abs(move["costs_s"] - move["migration_s"] - 7) < 1e-6 and move["migration_bytes"] > 0, move)
        expect(abs(move["saves_s"] - 1e5 * (move["old_step_s"] - move["new_step_s"])) < 1e-6 * move["saves_s"], move)
        expect(move["old_step_s"] == long["from"]["step_s"] and move["new_step_s"] == long["step_s"], move)
        last = f.plan("--from", "p.json", "--steps-left", "1")["replan"]
        expect(last["verdict"] == "stay" and last["saves_s"] < last["costs_s"] > 30, last)
        told = f.run("plan", f.spec, "--cluster", f.cluster, "--from", "p.json", "--steps-left", "1").stdout
        expect(told.rstrip().endswith(last["words"]), told)
        f.write("cluster.json", {"nodes": [{"name": "x", "devices": [{"name": "x/0", "like": "rtx-4090"}]}]})
        gone = f.plan("--from", "p.json", "--steps-left", "1")["replan"]
        expect(gone["verdict"] == "must" and "no longer there" in gone["words"], gone)
        for words, named in ((("--steps-left", "9"), "--from"), (("--restart", "9"), "--steps-left"),
                             (("--from", "p.json", "--steps-left", "-1"), "--steps-left"),
                             (("--from", "p.json", "--steps-left", "9", "--restart", "1e9"), "--restart"),
                             (("--from", "p.json", "--steps-left", "9", "--objective", "cost"), "--objective")):
            done = f.run("plan", f.spec, "--cluster", f.cluster, *words, status=2)
            expect(named in done.stderr and not done.stdout, f"{words}: {done.stderr}")


def what_the_time_rests_on_is_not_said_to_be_nothing():
    with folder() as f:
        f.write("cluster.json", {"nodes": [{"name": n, "devices": [{"name": n + "/0", "like": "rtx-4090"}]} for n in "ab"],
                                 "links": {"between": {"latency_s": 20, "bytes_per_s": 1e9}}})
        f.write("spec.json", f.spec_of(placement={"kind": "pipeline", "stages": 2}))
        told = f.run("plan", f.spec, "--cluster", f.cluster).stdout
        expect("100 % of the time is from published figures" in told and " 0 % of the time is" not in told, told)


def options_out_of_range_are_refused_by_name():
    with folder() as f:
        for words in (("--objective", "beauty"), ("--evaluations", "0"), ("--evaluations", "many"), ("--seed", "-1")):
            done = f.run("plan", f.spec, "--cluster", f.cluster, *words, status=2)
            expect(words[0] in done.stderr, f"{words}: {done.stderr}")


def a_plan_that_fits_nowhere_has_status_4():
    with folder() as f:
        f.write("cluster.json", {"nodes": [{"name": "a", "devices": [{"name": "a/0", "like": "t4", "memory_bytes": 1000000}]}]})
        answer = f.plan(status=4)
        expect(answer["verdict"] == "does not fit", answer["verdict"])
        expect("out.svg was not written" in f.run("plan", f.spec, "--cluster", f.cluster, "--draw", "out.svg", status=4).stdout,
               "a picture of no plan")


def what_is_lacking_on_one_device_is_enough_when_it_is_added():
    told = []
    with folder() as f:
        usable = {e["name"]: e["usable_bytes"] for e in json.loads(f.run("devices", "--catalogue", "--json").stdout)["devices"]}
        f.write("model/config.json", {**LLAMA, "hidden_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 24})
        for kind, method, cards in (("server", "full", ("rtx-3060", "v100")), ("server", "lora", ("gtx-1060", "rtx-2060", "gtx-1060")),
                                    ("single", "full", ("t4",)), ("auto", "full", ("t4", "rtx-3070", "p100")),
                                    ("pipeline", "full", ("t4", "rtx-3070"))):
            devices = [{"name": f"a/{i}", "like": like} for i, like in enumerate(cards)]
            f.write("cluster.json", {"nodes": [{"name": "a", "devices": devices}]})
            f.write("spec.json", f.spec_of(method={"kind": method}, placement={"kind": kind}))
            short = f.plan(status=4)
            for device in devices:
                if f" on {device['name']}, which has" in short["words"]:
                    device["memory_bytes"] = usable[device["like"]] + short["shortfall_bytes"]
                    told.append(kind)
            f.write("cluster.json", {"nodes": [{"name": "a", "devices": devices}]})
            if any("memory_bytes" in device for device in devices):
                expect(f.plan()["verdict"] == "fits", f"not enough: {short['words']}")
            else:
                expect(short["shortfall_bytes"] > 0, short["words"])
    expect(told.count("server") == 2 and len(told) >= 4, f"{told}")
    return ", ".join(told)


def the_documents_own_examples_are_planned_as_they_stand():
    source = os.environ.get("MOTLEY_SOURCE") or os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
    with open(os.path.join(source, "docs", "INTERFACES.md"), encoding="utf-8") as handle:
        text = handle.read()

    def example(heading, kind):
        return text.split(f"\n## {heading}")[1].split(f"```{kind}\n")[1].split("```")[0]
    with folder() as f:
        spec = example("A job's specification", "yaml").replace("model: smollm2 ", "model: model ")
        answer = json.loads(f.run("plan", f.write("spec.yaml", spec), "--cluster",
                                  f.write("cluster.json", example("A cluster file", "json")), "--json").stdout)
        expect(answer["verdict"] == "fits" and answer["warnings"] == [], f"{answer['words']} {answer['warnings']}")


def a_head_of_its_own_is_counted_whatever_the_tie_flag_says():
    source = os.environ.get("MOTLEY_SOURCE") or os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
    with folder() as f:
        model = os.path.join(f.path, "model")
        for name in ("config.json", "model.safetensors"):
            shutil.copy(os.path.join(source, "tests/data/wild/models/tied", name), os.path.join(model, name))
        whole = f.plan()["model"]["parameters"]
        os.remove(os.path.join(model, "model.safetensors"))
        flag = f.plan()["model"]["parameters"]
        expect(whole == flag + 320 * 32, f"{whole} parameters with the file's own head, {flag} by the flag alone")


def broken(change):
    document = json.loads(json.dumps(CLUSTER))
    change(document)
    return document


def an_excluded_device_that_the_file_lacks_changes_nothing():
    """POST /v1/plans takes it, too (tests/api/test_plans.py); a name in placement.devices must be there."""
    with folder() as f:
        before = f.plan()
        f.write("spec.json", f.spec_of(placement={"exclude": ["moon/0"]}))
        expect(f.plan()["ranks"] == before["ranks"], "another plan")
        f.plan("--problem", "problem.json")
        left = before["ranks"][0]["device"]
        f.write("spec.json", f.spec_of(placement={"exclude": ["moon/0", left, "sun/0"]}))
        expect(left not in [rank["device"] for rank in f.plan()["ranks"]], f"{left} is used")
        f.write("spec.json", f.spec_of(placement={"devices": ["moon/0"]}))
        expect("moon/0" in f.run("plan", f.spec, "--cluster", f.cluster, status=2).stderr, "a device to be used that is not there")


def bad_cluster_files_are_refused_by_their_path():
    def device(key, value):
        return lambda c: c["nodes"][0]["devices"][1].__setitem__(key, value)
    cases = [
        (device("speed", -1), "nodes[0].devices[1].speed"),
        (device("speed", 0), "nodes[0].devices[1].speed"),
        (device("memory_bytes", -5), "nodes[0].devices[1].memory_bytes"),
        (device("like", "abacus"), "nodes[0].devices[1].like"),
        (device("name", "a/0"), "a/0"),
        (device("colour", "red"), "nodes[0].devices[1]"),
        (lambda c: c["nodes"][0]["devices"][1].pop("name"), "nodes[0].devices[1].name"),
        (lambda c: c["nodes"][1].__setitem__("name", "a"), "nodes[1].name"),
        (lambda c: c["nodes"][1].__setitem__("nic_bytes_per_s", 0), "nodes[1].nic_bytes_per_s"),
        (lambda c: c["links"].__setitem__("pairs", [{"a": "a", "b": "moon", "latency_s": 1e-3, "bytes_per_s": 1e8}]),
         "links.pairs[0].b"),
        (lambda c: c["links"]["between"].__setitem__("bytes_per_s", -1), "links.between.bytes_per_s"),
        (lambda c: c.__setitem__("nodes", []), "nodes"),
        (device("profile", "nowhere.json"), "nodes[0].devices[1].profile"),
        (device("profile", {"points": []}), "nodes[0].devices[1]: profile.points"),
        (device("kind", "toaster"), "nodes[0].devices[1].kind"),
        (device("like", "rtx-3091"), "nearest is rtx-3090"),
        (device("heat", 2), "nodes[0].devices[1].heat"),
        (device("threads", 0), "nodes[0].devices[1].threads"),
        (device("price_per_hour", -1), "nodes[0].devices[1].price_per_hour"),
        (device("watts", -1), "nodes[0].devices[1].watts"),
        (lambda c: c["nodes"][1]["devices"][0].__setitem__("name", "a/1"), "nodes[1].devices[0]"),
        (lambda c: c["links"]["between"].pop("latency_s"), "links.between.latency_s"),
        (lambda c: c["links"].__setitem__("within", {"latency_s": -1, "bytes_per_s": 1}), "links.within.latency_s"),
        (lambda c: c["links"].__setitem__("pairs", [{"a": "a", "b": "a", "latency_s": 1e-3, "bytes_per_s": 1e8}]),
         "links.pairs[0].b"),
        (lambda c: c["links"].__setitem__("directed", [{"from": "a", "to": "moon", "latency_s": 0, "bytes_per_s": 1}]),
         "links.directed[0]"),
        (lambda c: c["links"].__setitem__("directed", [{"from": "a", "to": "b", "latency_s": 0, "bytes_per_s": 1e9}] * 2),
         "links.directed[1]: the link from a to b is given twice"),
        (device("name", "a/1\nb"), "nodes[0].devices[1].name"),
        (device("name", " a/1"), "nodes[0].devices[1].name"),
        (lambda c: c["nodes"][1].__setitem__("name", "\t"), "nodes[1].name"),
    ]
    with folder() as f:
        for change, path in cases:
            f.write("cluster.json", broken(change))
            done = f.run("plan", f.spec, "--cluster", f.cluster, status=2)
            expect(path in done.stderr, f"{path}: {done.stderr}")
            expect(done.stderr.startswith(f"motley: {f.cluster}: "), f"the file is not named: {done.stderr}")
        for text, word in (('{"nodes": [}', "cluster.json"), ('{"nodes": [{"name": "a", "devices": [{"name": "x", "like": "t4", '
                           '"speed": NaN}]}]}', "cluster.json"), ("[]", "cluster")):
            f.write("cluster.json", text)
            expect(word in f.run("plan", f.spec, "--cluster", f.cluster, status=2).stderr, text)
        f.write("cluster.json", CLUSTER)
        expect("none.json" in f.run("plan", f.spec, "--cluster", "none.json", status=2).stderr, "a missing cluster file")
        expect(f.path in f.run("plan", f.spec, "--cluster", f.path, status=2).stderr, "a folder")
        f.write("cluster.json", broken(lambda c: c["links"].__setitem__("within", None)))
        f.run("plan", f.spec, "--cluster", f.cluster)  # null means the same as absence
        f.write("cluster.json", broken(lambda c: c["links"].__setitem__("within", [])))
        expect("links.within: must be an object" in f.run("plan", f.spec, "--cluster", f.cluster, status=2).stderr, "a list")
        with open(f.cluster, "w", encoding="utf-8-sig") as handle:
            json.dump(CLUSTER, handle)
        f.run("plan", f.spec, "--cluster", f.cluster)  # a byte order mark is skipped
        with open(f.cluster, "w", encoding="utf-16") as handle:
            json.dump(CLUSTER, handle)
        expect("UTF-16" in f.run("plan", f.spec, "--cluster", f.cluster, status=2).stderr, "UTF-16")
        f.write("cluster.json", CLUSTER)
        expect("none.json" in f.run("plan", "none.json", "--cluster", f.cluster, status=2).stderr, "a missing specification")
    return f"{len(cases) + 5} files"


def bad_models_and_requests_are_refused_by_their_path():
    configs = [({"hidden_size": None}, "config.json: hidden_size"), ({"num_hidden_layers": 0}, "num_hidden_layers"),
               ({"num_key_value_heads": 7}, "num_key_value_heads"), ({"intermediate_size": -1}, "intermediate_size"),
               ({"vocab_size": 1.5}, "vocab_size"), ({"head_dim": 63}, "head_dim"), ({"model_type": "gpt2"}, "model_type"),
               ({"layer_types": ["full_attention"]}, "layer_types")]
    asked = [({"placement": {"kind": "magic"}}, 2, "placement.kind"), ({"placement": {"devices": ["x"]}}, 2, "placement.devices[0]"),
             ({"train": {"batch_rows": 0}}, 2, "train.batch_rows"), ({"placement": {"micro_batch_rows": 9}}, 2, "micro_batch_rows"),
             ({"placement": {"kind": "expert"}}, 2, "expert"), ({"placement": {"stages": 9}}, 4, "placement.stages is 9"),
             ({"placement": {"stages": 30}}, 2, "16 layers, which with embedding and head make at most 18 stages"),
             ({"placement": {"kind": "hybrid"}, "train": {"batch_rows": 1}}, 4, "train.batch_rows is 1")]
    with folder() as f:
        for change, path in configs:
            f.write("model/config.json", {k: v for k, v in {**LLAMA, **change}.items() if v is not None})
            done = f.run("plan", f.spec, "--cluster", f.cluster, status=2)
            expect(path in done.stderr and len(done.stderr.splitlines()) == 1, f"{path}: {done.stderr}")
            expect("model/config.json: " in done.stderr, f"the file is not named: {done.stderr}")
        f.write("model/config.json", LLAMA)
        for change, status, path in asked:
            f.write("spec.json", f.spec_of(**change))
            done = f.run("plan", f.spec, "--cluster", f.cluster, status=status)
            expect(path in (done.stderr if status == 2 else done.stdout), f"{path}: {done.stdout}{done.stderr}")
            expect(status == 4 or f"{f.spec}: " in done.stderr, f"the file is not named: {done.stderr}")
    return f"{len(configs) + len(asked)} files"


def amounts_in_other_units_are_warned_of():
    def device(**keys):
        return lambda c: c["nodes"][0]["devices"][0].update(keys)

    def link(**keys):
        return lambda c: c["links"]["between"].update(keys)
    cases = [(device(memory_bytes=24 << 40), "memory_bytes of a/0: 24.0 TiB, and rtx-3090 has 24.0 GiB"),
             (device(memory_bytes=24000), "memory_bytes of a/0"), (device(speed=1000), "speed of a/0"),
             (device(speed=0.001), "speed of a/0"), (device(watts=350000), "watts of a/0"),
             (device(watts=100, idle_watts=200), "idle_watts of a/0"), (link(bytes_per_s=1.25e12), "links.between"),
             (link(bytes_per_s=10), "links.between"), (link(latency_s=1), "links.between: a latency of 1.00 s"),
             (lambda c: c["nodes"][1].update(nic_bytes_per_s=1.25e12), "nic_bytes_per_s of b")]
    with folder() as f:
        f.write("spec.json", f.spec_of(placement={"kind": "single"}, train={"warmup_steps": 2}))
        expect(any("train.warmup_steps is 2 and the job has 4 steps" in one for one in f.plan()["warnings"]), f"{f.plan()['warnings']}")
        f.write("spec.json", f.spec_of(placement={"kind": "single"}))
        expect(f.plan()["warnings"] == [], f"{f.plan()['warnings']}")
        f.write("model/config.json", {"model_type": "gemma2", "num_hidden_layers": 4})
        expect(any("config.json lacks hidden_size (2304), num_attention_heads (8)" in one for one in f.plan()["warnings"]), f"{f.plan()['warnings']}")
        f.write("model/config.json", LLAMA)
        for change, words in cases:
            f.write("cluster.json", broken(change))
            done = f.run("plan", f.spec, "--cluster", f.cluster)
            expect(f"warning: {words}" in done.stdout, f"{words}: {done.stdout}")
    return f"{len(cases)} files"


def the_answer_reads_like_one():
    with folder() as f:
        f.write("model/config.json", {**LLAMA, "num_hidden_layers": 6})
        f.write("cluster.json", {"nodes": CLUSTER["nodes"][:1]})
        text = f.run("plan", f.spec, "--cluster", f.cluster, "--insight").stdout
        for part in ("times as fast as a/0 (rtx-3090) alone", "holds", "what each device brings", "without a/1 (t4)",
                     "rows taken to be full, 512 tokens each"):
            expect(part in text, f"\"{part}\" is not in\n{text}")
        answer = f.plan("--insight")
        expect(answer["ranks"][0]["like"] and all(line["step_s"] >= answer["step_s"] for line in answer["without"]),
               f"{answer['without']}")
        for line in f.run("devices", "--catalogue").stdout.splitlines()[:-5]:
            expect("e+1" not in line, line)


def many_cards_are_told_apart_by_what_they_can_and_their_lines_folded():
    """Each of thirty cards of four kinds can hold the model, so no card is said not to fit. The cards left out are too many to be tried one by one."""
    with folder() as f:
        likes = [like for like, count in (("a100x80", 4), ("rtx-3090", 9), ("t4", 9), ("m40", 8)) for _ in range(count)]
        f.write("cluster.json", {"nodes": [{"name": f"n{i}", "devices": [{"name": f"n{i}/0", "like": like}]} for i, like in enumerate(likes)],
                                 "links": {"between": {"latency_s": 1e-4, "bytes_per_s": 1.2e8}}})
        answer = f.plan()
        alone = [line for line in answer["alternatives"] if line["placement"] == "single"]
        expect(len(alone) == 30 and all(line["verdict"] == "fits" and line["step_s"] > 0 for line in alone), f"{alone}")
        left = answer["left_out"]
        expect(len(left) >= 4 and all(line["step_s_with"] is None and "not tried" in line["why"] for line in left), f"{left}")
        text = f.run("plan", f.spec, "--cluster", f.cluster).stdout
        told = text.split("\nleft out\n")[1].split("\n\n")[0].split("\n")
        count = sum(1 + (int(line.split("; ")[1].split()[0]) if "more like it" in line else 0) for line in told)
        expect("not asked for" not in text and count == len(left) and len(told) < len(left), text)
        for line in told:  # the same reason is not given twice for one kind of card
            said = (line.split("(")[1].split(")")[0], line.split("  ")[-1].split(";")[0])
            expect(sum(said[0] + ")" in other and said[1] in other for other in told) == 1, text)
    return f"{len(left)} of 30 cards are left out, told in {len(told)} lines"


def what_each_device_brings_is_told_of_placements_that_need_several():
    with folder() as f:
        for kind, least in (("pipeline", 2), ("data", 2), ("tensor", 2), ("server", 2), ("hybrid", 3)):
            f.write("spec.json", f.spec_of(placement={"kind": kind}))
            f.write("cluster.json", {"nodes": [{"name": "a", "devices": [{"name": f"a/{i}", "like": "rtx-3090"} for i in range(least)]}],
                                     "links": {"within": {"latency_s": 1e-5, "bytes_per_s": 1e10}}})
            answer = f.plan("--insight", "--evaluations", "200")
            expect(answer["without"] and all(line["step_s"] is None for line in answer["without"]), f"{kind}: {answer['without']}")
        text = f.run("plan", f.spec, "--cluster", f.cluster, "--insight", "--evaluations", "200").stdout
        expect("nothing fits" in text, text)
        f.write("spec.json", f.spec_of(placement={"kind": "tensor"}))
        expect(f.plan("--runnable")["placement"] == "tensor", "workers run tensor groups")


def too_few_devices_do_not_fit_and_stages_that_a_kind_never_has_are_refused():
    with folder() as f:
        f.write("cluster.json", {"nodes": [{"name": "a", "devices": [{"name": "a/0", "like": "rtx-3090"}]}]})
        for kind, least in (("pipeline", 2), ("data", 2), ("tensor", 2), ("server", 2), ("hybrid", 3)):
            f.write("spec.json", f.spec_of(placement={"kind": kind}))
            told = f.run("plan", f.spec, "--cluster", f.cluster, status=4).stdout
            expect(told.startswith(f"Does not fit: placement.kind is {kind}, and "), told)
            expect(f"take {least} devices" in told or f"takes {least} devices" in told, told)
            expect("\n  single    a/0 (rtx-3090)" in told, told)
        for kind, stages in (("single", 2), ("data", 2), ("server", 3), ("pipeline", 1), ("hybrid", 1)):
            f.write("spec.json", f.spec_of(placement={"kind": kind, "stages": stages}))
            told = f.run("plan", f.spec, "--cluster", f.cluster, status=2).stderr
            expect(f"placement.kind: {kind}: placement.stages is {stages}" in told and told.count("placement.kind") == 1, told)


def a_lack_of_memory_is_not_taken_for_rows_that_cannot_be_shared():
    with folder() as f:
        for memory, fits in ((700 << 20, False), (24 << 30, True)):
            f.write("cluster.json", {"nodes": [{"name": "a", "devices": [
                {"name": f"a/{i}", "like": "rtx-3090", "memory_bytes": memory} for i in range(3)]}]})
            for kind, batch, micro, able in (("server", 1, "auto", True), ("server", 4, 4, True), ("data", 4, 4, True),
                                             ("data", 1, "auto", False), ("hybrid", 1, "auto", False), ("hybrid", 4, 4, False)):
                f.write("spec.json", f.spec_of(placement={"kind": kind, "micro_batch_rows": micro}, train={"batch_rows": batch}))
                told = f.run("plan", f.spec, "--cluster", f.cluster, status=0 if fits and able else 4).stdout
                rows = "cannot be split over devices" in told or "share out whole ones" in told
                expect(rows != able and (fits or not able or "too little" in told), f"{kind}, {batch} rows, {memory} bytes: {told}")


def points_of(speed):
    out = []
    for tokens in (64, 256, 1024, 4096, 16384):
        out.append({"block": "embedding", "rows": 1, "tokens": tokens, "forward_s": 1e-7 * tokens / speed, "backward_s": 0})
        out.append({"block": "layer", "rows": 1, "tokens": tokens, "labelled": tokens, "forward_s": 1e-5 * tokens / speed,
                    "backward_s": 2e-5 * tokens / speed})
        out.append({"block": "head", "rows": 1, "tokens": tokens, "labelled": tokens, "forward_s": 2e-5 * tokens / speed,
                    "backward_s": 2e-5 * tokens / speed})
    return out


def tables_of_another_lab_serve_a_what_if_and_are_marked_imported():
    with folder() as f:
        wrong = {"device": "lab/0", "key": "0" * 64, "points": points_of(1), "measured_at": "2026-01-01T00:00:00Z"}
        tables = {"format": "motley-profiles", "version": 1, "origin": "another lab", "exported_at": "2026-01-02T00:00:00Z",
                  "devices": [{"name": "lab/0", "node": "lab", "kind": "cuda", "memory_limit_bytes": 24 << 30}],
                  "profiles": [wrong], "links": []}
        cluster = {"nodes": [{"name": "a", "devices": [{"name": "a/0", "profile": "tables.json"}]}]}
        f.write("cluster.json", cluster)
        f.write("tables.json", tables)
        done = f.run("plan", f.spec, "--cluster", f.cluster, status=2)
        expect("nodes[0].devices[0].profile" in done.stderr and "1 others" in done.stderr, done.stderr)
        cluster["nodes"][0]["devices"][0]["profile"] = "tables.json#lab/7"
        f.write("cluster.json", cluster)
        expect("lab/7" in f.run("plan", f.spec, "--cluster", f.cluster, status=2).stderr, "an unknown device of the tables")
        for change, path in ((lambda t: t.__setitem__("version", 2), "version"),
                             (lambda t: t["profiles"][0]["points"][3].__setitem__("forward_s", -1), "profiles[0]"),
                             (lambda t: t["profiles"][0].__setitem__("key", "short"), "profiles[0].key"),
                             (lambda t: t["devices"][0].pop("node"), "devices[0].node"),
                             (lambda t: t["profiles"].append(t["profiles"][0]), "profiles[1].device: lab/0 has another"),
                             (lambda t: t.__setitem__("links", [{"from": "lab", "to": "moon", "latency_s": 0, "bytes_per_s": 1}]),
                              "links[0]")):
            bad = json.loads(json.dumps(tables))
            change(bad)
            f.write("tables.json", bad)
            for command in (("plan", f.spec, "--cluster", f.cluster), ("profile", "import", "tables.json")):
                done = f.run(*command, status=2)
                expect(path in done.stderr and "tables.json" in done.stderr, f"{path}: {done.stderr}")
        f.write("tables.json", {**tables, "profiles": []})
        expect("tables.json: profiles: there is none" in f.run("profile", "import", "tables.json", status=2).stderr, "no profiles")
        # A file is looked for beside the cluster file that names it, not where the command runs.
        os.mkdir(os.path.join(f.path, "other"))
        f.write("tables.json", "this is no JSON")
        f.write("other/tables.json", tables)
        f.write("other/cluster.json", {"nodes": [{"name": "a", "devices": [{"name": "a/0", "profile": "tables.json#lab/0"}]}]})
        done = f.run("plan", f.spec, "--cluster", "other/cluster.json", status=2)
        expect("1 others" in done.stderr, done.stderr)
        # An inline profile needs no key: it belongs to the device, whatever was measured.
        inline = {"device": "a/0", "points": points_of(1), "origin": "imported"}
        f.write("cluster.json", {"nodes": [{"name": "a", "devices": [{"name": "a/0", "memory_bytes": 24 << 30, "kind": "cuda",
                                                                      "profile": inline}]}]})
        answer = f.plan()
        expect(answer["rests_on"]["imported"] > 0.99, f"{answer['rests_on']}")
        f.write("cluster.json", {"nodes": [{"name": "a", "devices": [{"name": "a/0", "memory_bytes": 24 << 30, "kind": "cuda",
                                                                      "profile": {**inline, "key": "0" * 64}}]}]})
        done = f.run("plan", f.spec, "--cluster", f.cluster, status=2)
        expect("nodes[0].devices[0].profile: it was measured for another model" in done.stderr, done.stderr)


def tables_say_the_same_in_whatever_order_their_points_stand_and_however_fast_the_device():
    """A device twice as fast takes half the time. This also holds where times are exactly proportional to tokens, and only rounding decides the coefficient of tokens squared."""
    found = []
    with folder() as f:
        for speed in (1, 1.7, 3.3, 6.1):
            points = points_of(speed)
            steps = []
            for order in (points, points[::-1], points[7:] + points[:7], sorted(points, key=lambda p: p["block"])):
                device = {"name": "a/0", "memory_bytes": 24 << 30, "kind": "cuda", "profile": {"device": "a/0", "points": order}}
                f.write("cluster.json", {"nodes": [{"name": "a", "devices": [device]}]})
                steps.append(f.plan()["step_s"])
            expect(max(steps) - min(steps) < 1e-9 * steps[0], f"{steps}")
            found.append(steps[0] * speed)
        expect(max(found) - min(found) < 1e-6 * found[0], f"{found} at speed 1")


def a_forecast_says_what_can_be_run_today_as_runnable_finds_it():
    big = {**LLAMA, "num_hidden_layers": 32, "hidden_size": 4096, "intermediate_size": 14336, "tie_word_embeddings": False}
    old = [{"name": f"old/{i}", "like": "gtx-1080ti"} for i in range(2)]
    told = []
    with folder() as f:
        f.write("cluster.json", {"nodes": [{"name": "new", "devices": [{"name": "new/0", "like": "rtx-4090"}]},
                                           {"name": "old", "devices": old}],
                                 "links": {"within": {"latency_s": 1e-5, "bytes_per_s": 1e10},
                                           "between": {"latency_s": 1e-4, "bytes_per_s": 1.17e8}}})
        f.write("spec.json", f.spec_of(train={"batch_rows": 16}))
        for config in (big, LLAMA):
            f.write("model/config.json", config)
            answer, today = f.plan(), f.plan("--runnable")
            told.append(answer["placement"])
            if answer["runnable"]:
                expect(abs(answer["step_s"] - today["step_s"]) < 1e-9 * today["step_s"], f"{answer['step_s']}, {today['step_s']} found")
                continue
            best = min(a["step_s"] for a in answer["alternatives"] if a["runnable"])
            expect(abs(best - today["step_s"]) < 1e-9 * best, f"{best} is told, {today['step_s']} found")
            expect("(--runnable) takes at most" in answer["words"], answer["words"])
    return ", ".join(told)


def devices_without_kernels_are_marked_and_never_run_on():
    """The catalogue's entries, a plan's and its refusal rest on the architectures that this build's compiler makes code for."""
    with folder() as f:
        objects = json.loads(f.run("devices", "--code", "--json").stdout)["objects"]
        if all(o["why"] for o in objects):
            return "SKIP: this build has no code for cards"
        code = {o["arch"] for o in objects if "does not know" not in (o["why"] or "")}
        oldest = min(int(arch[3:]) for arch in code if arch.startswith("sm_"))
        entries = {e["name"]: e for e in json.loads(f.run("devices", "--catalogue", "--json").stdout)["devices"]}
        for name, entry in entries.items():
            there = entry["arch"] in code or (entry["kind"] == "cuda" and int(entry["arch"][3:]) >= oldest)
            expect((entry["runs"] == "planned only") == (not there and entry["arch"] != "x86-64"), f"{name}: {entry}, code for {sorted(code)}")
        expect(all(any(e["arch"] == arch for e in entries.values()) or arch.startswith("gfx") for arch in code - {"sm_52"}), f"{sorted(code)}")
        devices = [("a/0", "arc-a770"), ("a/1", "k80"), ("a/2", "gtx-1060")]
        f.write("cluster.json", {"nodes": [{"name": "a", "devices": [{"name": n, "like": like} for n, like in devices]}]})
        forecast, today = f.plan(), f.plan("--runnable")
        expect(not forecast["runnable"] and forecast["ranks"][0]["runs"] == "planned only", f"{forecast['ranks']}")
        expect("No worker of this release runs on a/0 (arc-a770): it is a forecast" in forecast["words"], forecast["words"])
        expect([r["device"] for r in today["ranks"]] == ["a/2"] and today["runnable"], f"{today['ranks']}")
        expect({left["device"]: left["why"] for left in today["left_out"]} == {
            "a/0": "no worker of this release runs on arc-a770 (xe-hpg): planned only",
            "a/1": "no worker of this release runs on k80 (sm_37): planned only"}, f"{today['left_out']}")
        expect("a/0 (arc-a770, planned only)" in f.run("plan", f.spec, "--cluster", f.cluster).stdout, "the table does not mark it")
        f.write("cluster.json", {"nodes": [{"name": "a", "devices": [{"name": n, "like": like} for n, like in devices[:2]]}]})
        refused = f.run("plan", f.spec, "--cluster", f.cluster, "--runnable", status=4)
        expect("a/0: no worker of this release runs on arc-a770" in refused.stderr, f"{refused}")
    return f"{len(entries)} entries, {sum(e['runs'] == 'planned only' for e in entries.values())} planned only"


def cases_that_are_nonsense_fail_with_the_file_and_the_case():
    curve = [[7.0, 1.0], [11.0, 5.0]]
    inputs = {"gpus": ["l4", "l4"], "model": "m", "memory_cluster_key": "k", "batch_size": 8, "seq_length": 512,
              "dtype": "float16", "gpu_memory_gib": [22.5, 22.5], "parameters": 1e9, "num_layers": 32}
    with folder() as f:
        f.write("model_latencies.json", {"m": {"l4": {"512": {"float16": curve}}}})
        f.write("model_memory.json", {"k": {"m": {"profiled_compute_memory": {"float16": [1.0, 1.5]}}}})
        words = ("replay", "--from", "cephalo", "--data", ".", "--cases", "cases.json", "--json")
        f.write("cases.json", {"cases": [{"id": "good", "inputs": inputs}]})
        expect(json.loads(f.run(*words).stdout)["status"] == "ok", "a good case")
        f.write("cases.json", {"cases": [{"id": "good", "inputs": inputs}, {"id": "bad", "inputs": {**inputs, "gpus": []}},
                                         {"id": "worse", "inputs": {**inputs, "batch_size": -1}}]})
        done = f.run(*words, status=2)
        expect([json.loads(line)["status"] for line in done.stdout.splitlines()] == ["ok", "error", "error"], done.stdout)
        expect("cases.json: cases[1].inputs.gpus: " in done.stderr and "1 more case" in done.stderr, done.stderr)
        f.write("cases.json", {"cases": [{"id": "other", "inputs": {**inputs, "model": "n"}}]})
        expect("./model_latencies.json: nothing at n.l4.512.float16" in f.run(*words, status=2).stderr, "the data's file")
        f.write("cases.json", {"cases": []})
        expect("cases.json: cases: there is none" in f.run(*words, status=2).stderr, "no cases")


def members_that_were_not_asked_for_are_not_sent():
    """A server of the release before refuses members that it does not know."""
    asked = []

    class Server(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            answer = b'{"token": "t", "expires": "2027-01-01T00:00:00Z"}'
            self.send_response(201)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *words):
            pass
    with folder() as f, http.server.HTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        os.mkdir(os.path.join(f.path, "no-server"))
        os.chmod(f.write("no-server/client.json", {"address": f"http://127.0.0.1:{server.server_port}", "token": "t", "ca": None}), 0o600)
        f.run("join-token")
        f.run("join-token", "--uses", "2", "--node", "n-*")
        server.shutdown()
    expect(asked == [{}, {"node": "n-*", "uses": 2}], asked)


def without_a_server_other_commands_say_so():
    with folder() as f:
        for words in (("plan", f.spec), ("replay", "1"), ("profile", "export"), ("jobs",)):
            done = f.run(*words, status=3)
            expect("no server" in done.stderr, f"{words}: {done.stderr}")
        for words in (("--json", "--home", "./elsewhere", "jobs"), ("--home=./elsewhere", "jobs", "--json")):
            done = f.run(*words, status=3)
            expect("elsewhere" in done.stderr, f"options before the command: {done.stderr}")
        os.mkdir(os.path.join(f.path, "no-server"))
        f.write("no-server/client.json", {"address": "http://127.0.0.1:1", "token": "t", "ca": None})
        done = f.run("run", f.spec, status=3)
        expect("127.0.0.1:1" in done.stderr and "client.json names" in done.stderr and "motley up" not in done.stderr, done.stderr)
        expect("JOB" in f.run("replay", status=2).stderr, "replay without a job")
        expect("\"x\"" in f.run("replay", "x", status=2).stderr, "replay of no number")
        expect("export" in f.run("profile", "burn", status=2).stderr, "an unknown word")


if __name__ == "__main__":
    main(every_command_tells_its_usage, help_lists_every_command_once_in_a_group, a_plan_needs_no_server_and_no_weights, a_plan_says_where_the_job_may_not_run_on_so_many_devices, the_blocks_of_a_gguf_are_planned_as_they_lie_in_the_file,
         rows_that_are_at_hand_are_planned_with_their_own_lengths,
         the_picture_shows_each_rank_its_memory_and_the_step_time, a_legend_of_many_kinds_does_not_run_into_what_stands_beside_it,
         links_of_equal_figures_are_told_once_and_others_each, large_plans_stay_below_two_megabytes_and_say_what_is_cut,
         layers_of_a_tensor_group_are_drawn_as_turns_of_micro_batches_and_nothing_is_cut, a_saved_plan_is_a_start_and_never_made_worse,
         whether_a_running_job_should_move_is_answered_with_what_it_saves_and_costs, what_the_time_rests_on_is_not_said_to_be_nothing, options_out_of_range_are_refused_by_name, a_plan_that_fits_nowhere_has_status_4, what_is_lacking_on_one_device_is_enough_when_it_is_added,
         the_documents_own_examples_are_planned_as_they_stand, a_head_of_its_own_is_counted_whatever_the_tie_flag_says,
         an_excluded_device_that_the_file_lacks_changes_nothing, bad_cluster_files_are_refused_by_their_path, bad_models_and_requests_are_refused_by_their_path,
         amounts_in_other_units_are_warned_of, the_answer_reads_like_one, many_cards_are_told_apart_by_what_they_can_and_their_lines_folded,
         what_each_device_brings_is_told_of_placements_that_need_several,
         too_few_devices_do_not_fit_and_stages_that_a_kind_never_has_are_refused,
         a_lack_of_memory_is_not_taken_for_rows_that_cannot_be_shared,
         tables_of_another_lab_serve_a_what_if_and_are_marked_imported, tables_say_the_same_in_whatever_order_their_points_stand_and_however_fast_the_device,
         a_forecast_says_what_can_be_run_today_as_runnable_finds_it, devices_without_kernels_are_marked_and_never_run_on, cases_that_are_nonsense_fail_with_the_file_and_the_case,
         members_that_were_not_asked_for_are_not_sent, without_a_server_other_commands_say_so)
