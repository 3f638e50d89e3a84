#!/usr/bin/env python3
"""Write the fuzz targets' seeds: small documents cut from tests/data, and some made here.

    tests/fuzz/seeds.py FOLDER      FOLDER/TARGET/N.json
"""
import gzip
import json
import os
import shutil
import struct
import subprocess
import sys
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
DATA = os.path.join(os.path.dirname(HERE), "data")


def load(*path):
    return json.load(open(os.path.join(DATA, *path), encoding="utf-8"))


def curves(latencies, model, gpus, length, dtypes):
    """The entries that a case needs, tables cut to eight points."""
    out = {}
    for gpu in gpus:
        for dtype in dtypes:
            entry = latencies.get(model, {}).get(gpu, {}).get(length, {}).get(dtype)
            if isinstance(entry, list):
                entry = [e[:8] if isinstance(e, list) else e for e in entry]
            if entry is not None:
                out.setdefault(model, {}).setdefault(gpu, {}).setdefault(length, {})[dtype] = entry
    return out


def cephalo():
    cases = load("planner", "cephalo", "cases.json")["cases"]
    latencies, memory = load("planner", "cephalo", "model_latencies.json"), load("planner", "cephalo", "model_memory.json")
    for case in sorted(cases, key=lambda c: c["inputs"]["batch_size"] * len(c["inputs"]["gpus"]))[:6]:
        i = case["inputs"]
        kept = {k: case[k] for k in ("id", "inputs")}
        kept["dp_ga"] = {k: case["dp_ga"].get(k) for k in ("num_microbatches", "microbatch_sizes", "layer_ms")}
        yield {"documents": {
            "model_latencies.json": curves(latencies, i["model"], i["gpus"], str(i["seq_length"]), [i["dtype"]]),
            "model_memory.json": {i["memory_cluster_key"]: {
                i["model"]: memory.get(i["memory_cluster_key"], {}).get(i["model"], {})}}}, "cases": [kept]}


def zorse():
    latencies = load("planner", "zorse", "model_latencies.json")
    for case in load("planner", "zorse", "cases.json")["cases"]:
        i = case["inputs"]
        gpus = [g for m in i["machines"] for g in m]
        if len(gpus) > 6:
            continue
        case = json.loads(json.dumps(case))
        case["inputs"]["global_batch_size"] = min(64, i["global_batch_size"])
        yield {"documents": {"model_latencies.json": curves(latencies, i["model"], gpus, str(i["sequence_length"]),
                                                            [i["autocast_dtype"]])}, "cases": [case]}


def sailor():
    profiles, network = load("planner", "sailor", "profiles.json"), load("planner", "sailor", "network.json")
    for plan in load("planner", "sailor", "plans.json")["plans"][::3]:
        model = profiles["models"][plan["model"]]
        members = [r for s in plan["stages"] for r in s["replicas"]]
        times = {r["gpu"]: {str(plan["mbs"]): {str(r["tp"]): model["times"][r["gpu"]][str(plan["mbs"])][str(r["tp"])]}}
                 for r in members}
        links = {a: {k: {b: v for b, v in to.items() if b in times} for k, to in network["inter_node"][a].items()}
                 for a in times}
        plan = json.loads(json.dumps(plan))
        for stage in plan["stages"]:
            stage["replicas"] = stage["replicas"][:2]
        plan["dp"] = len(plan["stages"][0]["replicas"])
        memory = {str(tp): model["memory"][str(tp)] for tp in {1, plan["tp"]}}
        yield {"documents": {"profiles.json": {"models": {plan["model"]: {"times": times, "memory": memory}}},
                             "network.json": {"inter_node": links}}, "cases": [plan]}


def point(block, tokens, seconds):
    return {"block": block, "rows": 1, "tokens": tokens, "labelled": tokens // 2, "sum_sq": tokens * tokens,
            "forward_s": seconds, "backward_s": 1.2 * seconds, "recompute_s": seconds}


def table(device):
    return {"device": device, "points": [point(b, t, t * 1e-5) for b in ("embedding", "layer", "head") for t in (16, 64, 256)],
            "base_process_bytes": 3e7, "step_s": {"layer": 1e-4}, "weights_bytes": {"layer": 1e5}, "origin": "imported"}


def cluster():
    card = {"name": "a/0", "like": "a100x40", "memory_bytes": 1 << 30, "speed": 1.5}
    other = {"name": "b/0", "like": "t4"}
    links = {"within": {"latency_s": 1e-5, "bytes_per_s": 1e10}, "between": {"latency_s": "1ms", "bytes_per_s": "1Gbit/s"},
             "pairs": [{"a": "a", "b": "b", "latency_s": 2e-4, "bytes_per_s": 1e8}]}
    yield {"nodes": [{"name": "a", "nic_bytes_per_s": 1.25e8, "devices": [card]}]}
    yield {"nodes": [{"name": "a", "nic_bytes_per_s": 1.25e8, "devices": [card]}, {"name": "b", "devices": [other]}],
           "links": links}
    yield {"nodes": [{"name": "a", "devices": [{"name": "a/0", "kind": "cpu", "threads": 4, "memory_bytes": "450MiB",
                                                "watts": 30, "price_per_hour": 0.1, "profile": table("a/0")}]}],
           "links": {"directed": [{"from": "a", "to": "a", "latency_s": 1e-5, "bytes_per_s": 1e9, "origin": "measured"}]}}


def profile():
    yield table("a/0")
    parts = table("b/0")
    parts["points"] += [point(b, t, t * 1e-6) for b in ("attention", "ffn", "router", "expert") for t in (16, 256)]
    yield parts


def config():
    for name in sorted(os.listdir(os.path.join(DATA, "configs"))):
        if name.startswith("tiny-"):
            yield load("configs", name)
    yield {"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
           "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 256, "rope_scaling": {
               "rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4,
               "original_max_position_embeddings": 8192}}


def spec():
    yield {"model": "m", "data": {"train": "d"}}
    yield {"name": "n", "model": "m", "priority": 3,
           "method": {"kind": "lora", "rank": 16, "alpha": 32, "dropout": 0.05, "targets": ["q_proj", "v_proj"],
                      "base": "nf4", "start_from": None},
           "data": {"train": "a", "eval": "b", "format": "alpaca", "sequence_tokens": 512, "shuffle": True,
                    "learn": "answer", "chat_template": "auto"},
           "train": {"batch_rows": 16, "epochs": 1, "learning_rate": 2e-4, "schedule": "cosine", "warmup_steps": 10,
                     "final_fraction": 0.1, "weight_decay": 0, "betas": [0.9, 0.95], "eps": 1e-8, "clip_norm": 1.0,
                     "seed": 1, "compute": "fp32", "recompute": "auto"},
           "placement": {"kind": "auto", "devices": None, "exclude": ["a/0"], "micro_batch_rows": "auto", "stages": 2},
           "checkpoint": {"every_steps": 50, "keep": 2}, "eval": {"every_steps": 50},
           "sample": {"prompt": "p", "tokens": 64}, "limits": {"time": "2h", "retries": 3}, "hold": False}


def inputs():
    yield {"version": 1, "spec": next(spec()), "config": list(config())[-1], "profile_key": "00" * 32,
           "rows": [[30, 10], [40, 20]], "eval_rows": None, "prompt_tokens": 8,
           "devices": [{"name": "a/0", "node": "a", "kind": "cpu", "memory_limit_bytes": 1 << 28, "threads": 1},
                       {"name": "b/0", "node": "b", "kind": "cpu", "memory_limit_bytes": 1 << 28, "threads": 1,
                        "speed": 2, "usable": True}],
           "profiles": [table("a/0"), table("b/0")],
           "links": [{"from": "a", "to": "b", "latency_s": 1e-4, "bytes_per_s": 1e8, "emulated": False}],
           "nodes": [{"name": "a", "nic_bytes_per_s": 1e9}],
           "defaults": {"within": {"latency_s": 1e-5, "bytes_per_s": 1e10},
                        "between": {"latency_s": 1e-4, "bytes_per_s": 1e8}}}


def packed(value):
    """The msgpack of small values."""
    if value is None or isinstance(value, bool):
        return {None: b"\xc0", False: b"\xc2", True: b"\xc3"}[value]
    if isinstance(value, dict):
        return bytes([0x80 | len(value)]) + b"".join(packed(k) + packed(v) for k, v in value.items())
    if isinstance(value, list):
        return bytes([0x90 | len(value)]) + b"".join(map(packed, value))
    if isinstance(value, str):
        return bytes([0xd9, len(value.encode())]) + value.encode()
    return b"\xcb" + struct.pack(">d", value) if isinstance(value, float) else b"\xd3" + struct.pack(">q", value)


STEP = {"type": "step", "node": "a", "run": 1, "epoch": 1, "rank": 0, "seq": 1, "at": 1, "step": 1, "loss": 2.5}


def http():
    yield b"GET /v1/models/a%2fb?limit=7&after=x HTTP/1.1\r\nHost: h\r\nRange: bytes=0-9\r\n\r\n"
    yield b"POST /v1/jobs HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\nAuthorization: Bearer x\r\n\r\n"
    yield b"PUT / HTTP/1.0\r\nContent-Length: 10\r\nConnection: keep-alive\r\n\r\n"
    yield from (b"bytes=0-", b"bytes=5-7", b"bytes=-3")


def anything():
    yield {"a": [1, -2.5e3, True, None, "\u00e9\n"], "b": {"c": {}}}
    yield b"a: 1\nb: [x, 'y', 0x1f, 1e3, ~]\nc:\n  - {d: \"\\t\"}\n  - |\n    text\n"


def frame():
    body = packed({"type": "assign", "list": [1, 2.5, None, True], "inner": {"a": "b"}})
    yield body
    yield struct.pack(">I", len(body)) + body + struct.pack(">I", 1) + b"\xc0"


def mesh():
    for kind in range(1, 8):
        yield struct.pack("<BBHIQQQQQBBBB4II", 1, kind, 0, 16, 1, 2, 0, 16, 0, 1, 1, 1, 0, 4, 0, 0, 0, 0)


def mesh_peer():
    yield bytes([0x80, 40, 1, 1, 0, 20, 0, 40, 0, 1, 0, 1, 20, 0, 20, 0, 40, 0, 1, 0, 6, 7])
    yield bytes([1, 0, 10, 0, 0, 0, 10, 0, 0, 0, 0x80, 40, 0, 0x80, 1, 0, 3, 4, 0, 5, 0, 0, 0, 0, 2, 0, 0, 0, 0])


def tensors(shapes):
    head, at = {}, 0
    for name, shape in shapes.items():
        size = 4
        for extent in shape:
            size *= extent
        head[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps({"__metadata__": {"format": "pt"}, **head}).encode()
    return struct.pack("<Q", len(text)) + text + bytes(at)


def safetensors():
    yield tensors({"a": [2, 3], "b": [4], "c": []})


def gguf():
    def text(value):
        return struct.pack("<Q", len(value.encode())) + value.encode()
    words = ["<s>", "</s>", "a", "b", "ab"]
    keys = [text("general.architecture") + struct.pack("<I", 8) + text("llama")]
    for name, value in {"block_count": 1, "embedding_length": 8, "feed_forward_length": 16, "context_length": 64,
                        "attention.head_count": 2, "attention.head_count_kv": 2, "vocab_size": 5}.items():
        keys.append(text("llama." + name) + struct.pack("<II", 4, value))
    keys.append(text("llama.attention.layer_norm_rms_epsilon") + struct.pack("<If", 6, 1e-5))
    yield open(os.path.join(DATA, "tokenizer", "sentencepiece.gguf"), "rb").read()
    keys.append(text("tokenizer.ggml.model") + struct.pack("<I", 8) + text("gpt2"))
    keys.append(text("tokenizer.ggml.pre") + struct.pack("<I", 8) + text("llama-bpe"))
    keys.append(text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, len(words)) + b"".join(map(text, words)))
    keys.append(text("tokenizer.ggml.merges") + struct.pack("<IIQ", 9, 8, 1) + text("a b"))
    keys.append(text("tokenizer.ggml.token_type") + struct.pack("<IIQ5i", 9, 5, 5, 3, 3, 1, 1, 1))
    shapes = {"token_embd.weight": [8, 5], "output_norm.weight": [8], "output.weight": [8, 5]}
    shapes.update({f"blk.0.{n}.weight": s for n, s in {
        "attn_q": [8, 8], "attn_k": [8, 8], "attn_v": [8, 8], "attn_output": [8, 8], "ffn_gate": [8, 16], "ffn_up": [8, 16],
        "ffn_down": [16, 8], "attn_norm": [8], "ffn_norm": [8]}.items()})
    listed, at = b"", 0
    for name, shape in shapes.items():
        listed += text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape) + struct.pack("<IQ", 0, at)
        at += (4 * shape[0] * (shape[1] if len(shape) > 1 else 1) + 31) // 32 * 32
    head = b"GGUF" + struct.pack("<IQQ", 3, len(shapes), len(keys)) + b"".join(keys) + listed
    yield head + bytes(-len(head) % 32) + bytes(at)
    part = (b"".join(keys[:1]) + text("tokenizer.ggml.model") + struct.pack("<I", 8) + text("gpt2")  # a token that is a part of €
            + text("tokenizer.ggml.pre") + struct.pack("<I", 8) + text("llama-bpe")
            + text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 3) + text("a") + text("b") + struct.pack("<Q", 2) + b"\x82\xac"
            + text("tokenizer.ggml.token_type") + struct.pack("<IIQ3i", 9, 5, 3, 1, 1, 4)
            + text("tokenizer.ggml.merges") + struct.pack("<IIQ", 9, 8, 0))
    yield b"GGUF" + struct.pack("<IQQ", 3, 0, 6) + part + bytes(64)


def pieces():
    for name in ("pieces", "pieces-user"):
        yield open(os.path.join(DATA, "tokenizer", name + ".model"), "rb").read()


def tokenizer():
    for name in ("gpt2", "llama3", "qwen2", "smollm", "llama2", "mistral", "gemma", "phi3", "metaspace"):
        yield load("tokenizer", name + ".json")


def chat():
    yield "chatml"
    yield {"system": "<s>{content}", "user": "U: {content}\n", "assistant": "A: {content}\n", "generation": "A: "}
    yield [{"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}]
    yield (b"{% for m in messages %}{{'<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
           b"{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")


    for name in sorted(os.listdir(os.path.join(DATA, "chat"))):
        if name.endswith(".jinja"):
            yield open(os.path.join(DATA, "chat", name), "rb").read()
    for case in load("chat", "cases.json")["snippets"]:
        yield case["template"].encode()
    yield b"{{ a" + b".a" * 100000 + b" }}"
    yield b"{% if false %}{{ 1" + b"+1" * 100000 + b" }}{% endif %}"
    yield (b"{% set ns = namespace(t=1) %}{% for i in range(15000) %}{% set ns.t = ((((((((((((ns.t,),),),),),),),),),),),) %}"
           b"{% endfor %}{% set d = {ns.t: 1} %}")
    yield (b"{% set ns = namespace(a={}, b={}) %}{% for i in range(30000) %}{% set ns.a = {ns.a.items: 1} %}"
           b"{% set ns.b = {ns.b.items: 1} %}{% endfor %}{{ ns.a == ns.b }}")
    yield b"{{ range(9223372036854775800, 9223372036854775807, 5)[0:2] }}"


def rows():
    yield b"\x01" + b'{"instruction": "a", "input": "b", "output": "c d"}\n\n{"instruction": "a", "output": "b"}\n'
    yield b"\x22" + b'{"messages": [{"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}]}\n'
    yield b"\x03" + b'{"text": "some text"}\n'
    yield b"\x04" + b'{"ids": [1, 2, 3], "labels": [-100, 2, 3]}\n'
    yield b"\x00" + b'{"text": "some text"}\n'
    yield b"\x20" + b' [{"text": "a", "x": NaN, "y": "\\ud83d"},\n {"text": "b\\u0000"}]'
    yield b"\x20" + gzip.compress(b'{"prompt": "a", "completion": "b"}\n{"prompt": "c", "completion": "d"}\n', mtime=0)
    yield b"\x20" + (b'{"conversations": [{"from": "human", "value": "q"}, {"from": "function_call", "value": '
                     b'"{\\"name\\": \\"w\\", \\"arguments\\": {}}"}, {"from": "gpt", "value": "a", "train": false}], '
                     b'"tools": "[{}]", "system": "s"}\n')
    yield b"\x20" + (b'{"prompt": [{"role": "user", "content": [{"type": "text", "text": "q"}]}], "completion": '
                     b'[{"role": "assistant", "content": "a", "weight": 0}], "chat_template_kwargs": {"a": 1}}')
    yield b"\x01" + b'{"instruction": "a", "output": "b", "system": "s", "history": [["q", "a"]]}'
    yield b"\x00" + b'{"input_ids": [1, 2], "attention_mask": [1, 1], "labels": null}'


def peft():
    config_ = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 2, "lora_alpha": 4, "lora_dropout": 0.0,
               "target_modules": ["q_proj", "v_proj"], "bias": "none", "inference_mode": True}
    names = {}
    for layer in (0, 1):
        for target, out in (("q_proj", 64), ("v_proj", 32)):
            key = f"base_model.model.model.layers.{layer}.self_attn.{target}.lora_"
            names.update({key + "A.weight": [2, 64], key + "B.weight": [out, 2]})
    yield json.dumps(config_).encode() + b"\0" + tensors(names)


def journal():
    records = b""
    for seq in (1, 2):
        body = packed({**STEP, "seq": seq})
        records += struct.pack(">IQB", len(body), seq, 0) + body
    yield records
    yield records + struct.pack(">IQB", 0, 2, 2)
    yield records[:-3]


def join():
    yield b"00112233445566778899aabbccddeeff." + b"ab" * 32
    if shutil.which("openssl"):
        made = subprocess.run(["openssl", "req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout",
                               "/dev/null", "-subj", "/CN=agent:a", "-addext", "subjectAltName=URI:agent:a"],
                              capture_output=True, check=False)
        yield made.stdout


def jwt():
    """The example of RFC 7515, appendix A.3, and an RSA key."""
    key = {"kty": "EC", "crv": "P-256", "x": "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU", "y": "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"}
    body = b".eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ."
    signature = b"DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8ISlSApmWQxfKTUJqPP3-Kg6NU1Q"
    yield b"eyJhbGciOiJFUzI1NiJ9" + body + signature + b"\n" + json.dumps({"keys": [key]}).encode()
    yield b"eyJhbGciOiJSUzI1NiIsImtpZCI6ImEifQ" + body + b"A" * 342 + b"\n" + json.dumps(
        {"keys": [{"kty": "RSA", "kid": "a", "use": "sig", "alg": "RS256", "n": "w" * 342, "e": "AQAB"}]}).encode()


def redis():
    def text(*lines):
        return b"".join(b"$%d\r\n%s\r\n" % (len(line), line) for line in lines)

    def entries(*bodies):
        return b"*1\r\n*2\r\n" + text(b"motley:events:a") + b"*%d\r\n" % len(bodies) + b"".join(
            b"*2\r\n" + text(b"%d-0" % (n + 1)) + b"*4\r\n" + text(b"m", body, b"a", b"\0" * 32) for n, body in enumerate(bodies))

    users = b"*3\r\n" + text(b"user default on nopass ~* +@all", b"user agent-a on #" + b"0" * 64 + b" %R~motley:agent:a +xread",
                             b"user agent-gone on nopass ~*")
    clients = text(b"id=7 addr=1.2.3.4:5 user=agent-a cmd=xread\nid=8 user=agent-a\n" * 9)
    boot = {**STEP, "type": "heartbeat", "boot": "b", "beat": 1}
    yield b"\0+PONG\r\n" + users + clients + b":100000000\r\n" + entries(packed({**STEP, "node": "a"}), packed(boot), packed(boot)) + \
          entries(packed({"node": "b"}), packed({"a": "\0"})) + b"*-1\r\n"
    yield b"\7+OK\r\n*0\r\n$0\r\n\r\n:1\r\n*1\r\n*2\r\n" + text(b"3-1") + b"*2\r\n" + text(b"x", b"y") + b"$-1\r\n-LOADING no\r\n"
    yield b"\1-NOAUTH no\r\n"
    yield b"\1+OK\r\n*5000\r\n"


def events():
    run = {"node": "a", "run": 1, "epoch": 1, "rank": 0, "at": 1}
    yield [{"type": "worker_ready", "seq": 1, "address": "1.2.3.4:5", "identity": "agent:a", **run},
           {"type": "started", "seq": 2, **run}, {**STEP, "seq": 3, "labelled_tokens": 4, "grad_norm": 1.0},
           {"type": "checkpoint", "seq": 4, "step": 1, "blobs": {"state.json": "0" * 64}, "best": False, **run},
           {"type": "memory", "seq": 5, "peak": {}, "predicted": {}, **run}, {"type": "log", "seq": 6, "level": "info", "text": "t", **run},
           {"type": "done", "seq": 7, "artifacts": {"a": "0" * 64}, **run}]
    yield [{"type": "node_hello", "node": "a", "seq": 0, "at": 1, "boot": "b", "machine_id": "m", "address": "1.2.3.4:5",
            "devices": [{"name": "a/cpu0", "kind": "cpu", "threads": 1, "isa": "avx2", "memory_limit_bytes": 1 << 28}],
            "workers": [{"run": 1, "epoch": 1, "rank": 0, "device": "a/cpu0"}]},
           {"type": "heartbeat", "node": "a", "seq": 0, "at": 2, "boot": "b"},
           {"type": "failed", "node": "a", "seq": 1, "boot": "b", "at": 2, "request": 1, "code": "no-fit", "text": "t", "own_fault": False}]


def profiles():
    yield {"format": "motley-profiles", "version": 1, "origin": "lab", "exported_at": "2026-01-01T00:00:00Z",
           "devices": [{"name": "a/0", "kind": "cpu", "memory_bytes": 1 << 30, "threads": 2}],
           "profiles": [{"key": "00", **table("a/0")}], "links": [{"from": "a", "to": "b", "latency_s": 1e-4, "bytes_per_s": 1e8}]}


def assign():
    yield {"type": "assign", "assignment": 1, "job": 1, "run": 1, "attempt": 1, "epoch": 1, "rank": 0, "device": "a/cpu0",
           "ranks": [{"rank": 0, "node": "a", "device": "a/cpu0"}], "plan": {}, "spec": next(spec()),
           "model": {"name": "m", "content": "0" * 64, "config": list(config())[-1],
                     "files": [{"name": "model.safetensors", "size": 8, "sha256": "0" * 64}]},
           "data": {"train": "0" * 64, "eval": None, "format": "text"}, "start": {"step": 0, "checkpoint": None, "adapter": None},
           "links": [], "limits": {"wait": 600}, "local": {
               "device": {"name": "a/cpu0", "kind": "cpu", "threads": 1, "memory_limit_bytes": 1 << 28}, "listen": "127.0.0.1:0",
               "advertise": "127.0.0.1", "identity": "agent:a", "cert": "c", "key": "k", "ca": "ca", "api": "https://h:1",
               "api_ca": "ca", "token": "t", "cache": "/tmp/c", "cache_limit_bytes": 1 << 30}}
    yield {"version": 1, "size": 8, "sha256": "0" * 64, "chunk_bytes": 4 << 20, "chunks": ["0" * 64]}


def body():
    yield b"\x05POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n4;x=y\r\nabcd\r\nA\r\n0123456789\r\n0\r\nT: v\r\n\r\n" \
          b"GET /next HTTP/1.1\r\nHost: h\r\n\r\n"
    yield b"\x03PUT /stream HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
    yield b"\x40PUT /unread HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nabcdePUT /stream HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nok"
    yield b"\x01POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n1389\r\nx"


def answer():
    def framed(value, more=b""):
        return b"\x07" + struct.pack(">I", len(packed(value))) + packed(value) + more
    yield framed({"answer": {"a": 1}, "bytes": 3}, b"xyz")
    yield framed({"answer": {}, "bytes": 0})
    yield framed({"error": {"code": "invalid", "text": "no"}})


def document():
    members = [{"members": [{"device": "a/0"}]}, {"members": [{"device": "b/0"}]}]
    yield {"version": 1, "placement": "pipeline", "stages": members}
    yield {"version": 1, "placement": "single", "stages": members[:1]}
    yield {"version": 1, "placement": "data", "micro_batch_rows": 2, "stages": [{"members": [
        {"device": "a/0", "rows": 2, "count": 1, "recompute": True}, {"device": "b/0", "rows": 4, "count": 1}]}]}
    yield {"version": 1, "placement": "pipeline", "schedule": "1f1b", "eager": False, "micro_batch_rows": 2, "stages": [
        {"blocks": [0, 2], "members": [{"device": "b/0", "window": 2, "delay": 0, "recompute": False}]},
        {"blocks": [2, 4], "members": [{"device": "a/0", "window": 1}]}]}


def state():
    yield {"version": 2, "step": 3, "updates": 3, "seed": 1, "ranks": 2}
    yield {"version": 2, "step": 0, "updates": 1 << 40, "seed": (1 << 63) - 1}


TARGETS = {"cephalo": cephalo, "zorse": zorse, "sailor": sailor, "cluster": cluster, "profile": profile,
           "config": config, "spec": spec, "inputs": inputs, "http": http, "json": anything, "frame": frame, "mesh": mesh,
           "safetensors": safetensors, "gguf": gguf, "tokenizer": tokenizer, "pieces": pieces, "chat": chat, "rows": rows, "peft": peft,
           "journal": journal, "join": join, "jwt": jwt, "redis": redis, "events": events, "profiles": profiles, "assign": assign,
           "body": body, "answer": answer, "document": document, "state": state, "mesh_peer": mesh_peer}


def strings(value, out):
    if isinstance(value, dict):
        for key, item in value.items():
            out.add(key)
            strings(item, out)
    elif isinstance(value, list):
        for item in value:
            strings(item, out)
    elif isinstance(value, str):
        out.add(value)


def main():
    folder = sys.argv[1]
    words = set()
    for name, make in TARGETS.items():
        os.makedirs(os.path.join(folder, name), exist_ok=True)
        for n, document in enumerate(make()):
            if isinstance(document, bytes):
                with open(os.path.join(folder, name, "%d" % n), "wb") as file:
                    file.write(document)
                continue
            strings(document, words)
            with open(os.path.join(folder, name, "%d.json" % n), "w", encoding="utf-8") as file:
                json.dump(document, file, separators=(",", ":"))
    for name in os.listdir(os.path.join(HERE, "corpus")):  # plans, and whatever once went wrong
        os.makedirs(os.path.join(folder, name), exist_ok=True)
        for file in os.listdir(os.path.join(HERE, "corpus", name)):
            shutil.copy(os.path.join(HERE, "corpus", name, file), os.path.join(folder, name, file))
    kept = os.path.join(HERE, "kept")  # by keep.py
    for name in os.listdir(kept) if os.path.isdir(kept) else ():
        with zipfile.ZipFile(os.path.join(kept, name)) as archive:
            for file in archive.namelist():
                with open(os.path.join(folder, name.removesuffix(".zip"), "kept-" + file), "wb") as seed:
                    seed.write(archive.read(file))
    with open(os.path.join(folder, "words.dict"), "w", encoding="utf-8") as file:
        for word in sorted(w for w in words if w.isascii() and w.isprintable() and '"' not in w and "\\" not in w):
            file.write('"\\"%s\\""\n' % word)


if __name__ == "__main__":
    main()
