#!/usr/bin/env python3
"""What the owner of a few unlike cards waits for: `motley plan` on seeded clusters of catalogue cards and published model
shapes, CPU seconds from reading the files to the answer. With another motley beside it (an older one), both plan every
cluster in turn, and the steps that they answer stand beside each other.
  bench/plan_few.py [clusters, default 24] [first seed, default 0] [devices, default 3-6] [another motley]
"""
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile

from harness import SOURCE, expect, report

CARDS = "rtx4090 rtx4080 rtx3090 rtx2080ti gtx1080ti a100 v100 p100 p40 t4 m40".split()
# hidden, FFN, layers, heads, key-value heads, vocabulary, tied: from the models' published config.json
LLAMA = {"Llama-3.2-1B": (2048, 8192, 16, 32, 8, 128256, True), "Llama-3.2-3B": (3072, 8192, 28, 24, 8, 128256, True),
         "Llama-3-8B": (4096, 14336, 32, 32, 8, 128256, False), "Llama-2-7B": (4096, 11008, 32, 32, 32, 32000, False),
         "SmolLM2-1.7B": (2048, 8192, 24, 32, 32, 49152, True)}
NETWORKS = (1.2e8, 3e8, 1.2e9)  # bytes a second between machines


def write(path, document):
    with open(path, "w", encoding="utf-8") as handle:
        json.dump(document, handle)
    return path


def model(folder, name):
    hidden, ffn, layers, heads, kv_heads, vocabulary, tied = LLAMA[name]
    at = os.path.join(folder, name)
    os.makedirs(at, exist_ok=True)
    write(os.path.join(at, "config.json"), {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "rms_norm_eps": 1e-05,
        "hidden_size": hidden, "intermediate_size": ffn, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "vocab_size": vocabulary, "max_position_embeddings": 8192,
        "tie_word_embeddings": tied, "rope_theta": 10000.0, "torch_dtype": "bfloat16"})
    return at


def scene(folder, seed, least, most):
    draw = random.Random(seed)
    devices, a_node = least + seed % (most - least + 1), draw.choice((1, 1, 2, 3))
    nodes = {}
    for d in range(devices):
        name = f"n{d // a_node}"
        nodes.setdefault(name, []).append({"name": f"{name}/{d % a_node}", "like": draw.choice(CARDS)})
    cluster = {"nodes": [{"name": name, "devices": own} for name, own in nodes.items()],
               "links": {"within": {"latency_s": 1e-5, "bytes_per_s": 1e10},
                         "between": {"latency_s": 2e-4, "bytes_per_s": draw.choice(NETWORKS)}}}
    name = draw.choice(sorted(LLAMA))
    rows = draw.choice((8, 16, 24, 32, 64))
    spec = {"name": "few", "model": model(folder, name), "method": {"kind": "lora", "rank": 16},
            "data": {"train": os.path.join(folder, "none.jsonl"), "format": "alpaca",
                     "sequence_tokens": draw.choice((256, 512, 1024))},
            "train": {"batch_rows": rows, "steps": 100}}
    return (write(os.path.join(folder, f"{seed}.spec.json"), spec), write(os.path.join(folder, f"{seed}.cluster.json"), cluster),
            {"seed": seed, "devices": devices, "model": name, "rows": rows})


def plan(program, spec, cluster):
    """CPU seconds, and the answer; a status of 4 says that nothing fits."""
    with tempfile.TemporaryFile() as out:
        child = subprocess.Popen([program, "plan", spec, "--cluster", cluster, "--json"], stdout=out)
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        expect(child.returncode in (0, 4), f"{program} plan {spec}: status {child.returncode}")
        out.seek(0)
        answer = json.load(out)
    fits = answer["verdict"] == "fits"
    with_s = {line["device"]: line["step_s_with"] for line in answer.get("left_out", []) if fits and line.get("step_s_with")}
    return used.ru_utime + used.ru_stime, answer["placement"] if fits else None, answer.get("step_s"), with_s


def ratios(pairs):
    """Of one number over another."""
    each = [a / b for a, b in pairs]
    return {"mean": round(statistics.mean(each), 5), "least": round(min(each), 5), "most": round(max(each), 5),
            "above": sum(r > 1.001 for r in each), "below": sum(r < 0.999 for r in each), "of": len(each)} if each else None


def summary(seconds):
    return {"mean": round(statistics.mean(seconds), 3), "median": round(statistics.median(seconds), 3),
            "most": round(max(seconds), 3)}


def survey(benchmark, draw, count, first, other):
    """Plans draw(folder, seed) of every seed, with another motley beside ours if there is one, and reports."""
    each = []
    ours = os.path.join(SOURCE, "build", "bin", "motley")
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(first, first + count):
            spec, cluster, told = draw(folder, seed)
            told["seconds"], told["placement"], told["step_s"], told["with_s"] = plan(ours, spec, cluster)
            if other:
                (told["other_seconds"], told["other_placement"], told["other_step_s"],
                 told["other_with_s"]) = plan(other, spec, cluster)
            each.append(told)
            beside = f"   other {told['other_seconds']:.2f} s, {told['other_placement']}" if other else ""
            if other and told["step_s"] and told["other_step_s"]:
                beside += f", step {told['other_step_s'] / told['step_s']:.4f} of ours"
            print(f"seed {seed}: {told['devices']} cards, {told['model']}, {told['rows']} rows: {told['seconds']:.2f} s, "
                  f"{told['placement'] or 'does not fit'}{beside}", flush=True)
    document = {"seconds": {n: summary([e["seconds"] for e in each if e["devices"] == n])
                            for n in sorted({e["devices"] for e in each})},
                "all": summary([e["seconds"] for e in each]), "each": each,
                "with_over_step": ratios([(s, e["step_s"]) for e in each for s in e["with_s"].values()])}
    if other:
        document["other_all"] = summary([e["other_seconds"] for e in each])
        document["other_step_over_ours"] = ratios([(e["other_step_s"], e["step_s"]) for e in each if e["step_s"] and e["other_step_s"]])
        document["other_with_over_ours"] = ratios([(e["other_with_s"][d], e["with_s"][d]) for e in each for d in e["with_s"]
                                                   if d in e["other_with_s"]])
    report(benchmark, document)


def main():
    if len(sys.argv) > 5:
        CARDS[:] = sys.argv[5].split(",")
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 24
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    least, most = (int(n) for n in (sys.argv[3] if len(sys.argv) > 3 else "3-6").split("-"))
    survey(f"plan-few-{least}-{most}", lambda folder, seed: scene(folder, seed, least, most), count, first,
           sys.argv[4] if len(sys.argv) > 4 else None)


if __name__ == "__main__":
    main()
