#!/usr/bin/env python3
"""Write the fuzz targets' seeds: small documents cut from tests/data, and a few made here.

    tests/fuzz/seeds.py FOLDER      FOLDER/TARGET/N.json
"""
import json
import os
import shutil
import sys

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


TARGETS = {"cephalo": cephalo, "zorse": zorse, "sailor": sailor, "cluster": cluster, "profile": profile,
           "config": config, "spec": spec, "inputs": inputs}


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
            strings(document, words)
            with open(os.path.join(folder, name, "%d.json" % n), "w", encoding="utf-8") as file:
                json.dump(document, file, separators=(",", ":"))
    for name in os.listdir(os.path.join(HERE, "corpus")):  # plans, and whatever once went wrong
        os.makedirs(os.path.join(folder, name), exist_ok=True)
        for file in os.listdir(os.path.join(HERE, "corpus", name)):
            shutil.copy(os.path.join(HERE, "corpus", name, file), os.path.join(folder, name, file))
    with open(os.path.join(folder, "words.dict"), "w", encoding="utf-8") as file:
        for word in sorted(w for w in words if w.isascii() and w.isprintable() and '"' not in w and "\\" not in w):
            file.write('"\\"%s\\""\n' % word)


if __name__ == "__main__":
    main()
