"""Planning cases for the tools that set two planners, or two clusters, side by side: seeded, varied on purpose, and
sized so that most of them fit. A case is three documents (specification, config.json, cluster file) and perhaps rows
of unlike lengths; the same seed and number give the same documents everywhere."""
import hashlib
import json
import math
import os
import random

# GiB of the catalogue entries that are drawn from
CARDS = {
    "gaming": {"rtx-3060": 12, "rtx-3070": 8, "rtx-3080": 10, "rtx-3090": 24, "rtx-4060tix16": 16, "rtx-4070ti-super": 16,
               "rtx-4080": 16, "rtx-4090": 24, "rtx-5080": 16, "rtx-5090": 32, "rtx-2080ti": 11, "rx-7900xtx": 24,
               "arc-a770": 16},
    "old": {"k80": 12, "m40": 24, "p40": 22.5, "p100": 12, "p100x16": 16, "gtx-1080ti": 11, "v100": 16, "v100x32": 32,
            "t4": 15, "titan-rtx": 24, "mi50x32": 32},
    "centre": {"a100x40": 40, "a100x80": 80, "h100": 80, "h200": 139, "l40s": 45, "a40": 48, "a6000": 48, "v100x32": 32,
               "a30": 24, "mi250": 64, "mi300x": 192, "a10g": 22.5, "l4": 22.5, "b200": 180},
    "cloud": {"t4": 15, "a10g": 22.5, "l4": 22.5, "v100": 16, "a100x40": 40, "p100": 12, "h100": 80},
    "processors": {"cpu-sse42": 8, "cpu-avx2": 8, "cpu-avx512": 8, "cpu-amx": 8}}
EVERY = {name: size for pool in ("gaming", "old", "centre") for name, size in CARDS[pool].items()}
# hidden, FFN, layers, heads, key-value heads, vocabulary, tied: from the models' published config.json
DENSE = {"SmolLM2-135M": (576, 1536, 30, 9, 3, 49152, True), "SmolLM2-360M": (960, 2560, 32, 15, 5, 49152, True),
         "SmolLM2-1.7B": (2048, 8192, 24, 32, 32, 49152, True), "TinyLlama-1.1B": (2048, 5632, 22, 32, 4, 32000, False),
         "Llama-3.2-1B": (2048, 8192, 16, 32, 8, 128256, True), "Llama-3.2-3B": (3072, 8192, 28, 24, 8, 128256, True),
         "Llama-2-7B": (4096, 11008, 32, 32, 32, 32000, False), "Llama-3-8B": (4096, 14336, 32, 32, 8, 128256, False),
         "Llama-2-13B": (5120, 13824, 40, 40, 40, 32000, False), "Yi-34B": (7168, 20480, 60, 56, 8, 64000, False),
         "Llama-3-70B": (8192, 28672, 80, 64, 8, 128256, False), "Llama-2-70B": (8192, 28672, 80, 64, 8, 32000, False),
         "Llama-3.1-405B": (16384, 53248, 126, 128, 8, 128256, False)}
EXPERTS = {
    "Mixtral-8x7B": {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "hidden_size": 4096,
                     "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
                     "num_key_value_heads": 8, "vocab_size": 32000, "num_local_experts": 8, "num_experts_per_tok": 2},
    "Mixtral-8x22B": {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "hidden_size": 6144,
                      "intermediate_size": 16384, "num_hidden_layers": 56, "num_attention_heads": 48,
                      "num_key_value_heads": 8, "vocab_size": 32768, "num_local_experts": 8, "num_experts_per_tok": 2},
    "Mixtral-tiny": {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "hidden_size": 1024,
                     "intermediate_size": 2816, "num_hidden_layers": 12, "num_attention_heads": 16,
                     "num_key_value_heads": 4, "vocab_size": 32000, "num_local_experts": 4, "num_experts_per_tok": 2},
    "Qwen3-30B-A3B": {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 2048,
                      "intermediate_size": 6144, "moe_intermediate_size": 768, "num_hidden_layers": 48,
                      "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 151936,
                      "num_experts": 128, "num_experts_per_tok": 8, "decoder_sparse_step": 1, "mlp_only_layers": [],
                      "norm_topk_prob": True},
    "Qwen3-235B-A22B": {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 4096,
                        "intermediate_size": 12288, "moe_intermediate_size": 1536, "num_hidden_layers": 94,
                        "num_attention_heads": 64, "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 151936,
                        "num_experts": 128, "num_experts_per_tok": 8, "decoder_sparse_step": 1, "mlp_only_layers": [],
                        "norm_topk_prob": True},
    "OLMoE-1B-7B": {"architectures": ["OlmoeForCausalLM"], "model_type": "olmoe", "hidden_size": 2048,
                    "intermediate_size": 1024, "num_hidden_layers": 16, "num_attention_heads": 16,
                    "num_key_value_heads": 16, "vocab_size": 50304, "num_experts": 64, "num_experts_per_tok": 8,
                    "norm_topk_prob": False}}
COMMON = {"hidden_act": "silu", "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "max_position_embeddings": 32768,
          "tie_word_embeddings": False, "torch_dtype": "bfloat16"}
METHODS = ("lora fp32", "lora bf16", "lora nf4", "full fp32", "full bf16")
STATE_BYTES = {"lora fp32": 4.1, "lora bf16": 2.1, "lora nf4": 0.65, "full fp32": 16, "full bf16": 18}
CLASSES = ("2-6", "7-16", "17-63", "64")
GBIT = 1.2e8  # bytes a second that are left of one
BETWEEN = {"100 Mbit": 0.1 * GBIT, "1 Gbit": GBIT, "2.5 Gbit": 2.5 * GBIT, "10 Gbit": 10 * GBIT, "25 Gbit": 25 * GBIT,
           "100 Gbit": 100 * GBIT, "400 Gbit": 400 * GBIT}
BETWEEN_WEIGHTS = (6, 22, 8, 28, 10, 20, 6)
WITHIN = {"nvlink": (2e11, 4.5e11), "pcie": (1e10, 2.5e10), "old pcie": (3e9, 6e9)}


def class_of(devices):
    return CLASSES[0] if devices <= 6 else CLASSES[1] if devices <= 16 else CLASSES[2] if devices < 64 else CLASSES[3]


def config_of(name):
    if name in EXPERTS:
        return {**COMMON, **EXPERTS[name]}
    hidden, ffn, layers, heads, kv_heads, vocabulary, tied = DENSE[name]
    return {**COMMON, "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": hidden,
            "intermediate_size": ffn, "num_hidden_layers": layers, "num_attention_heads": heads,
            "num_key_value_heads": kv_heads, "vocab_size": vocabulary, "tie_word_embeddings": tied}


def parameters(config):
    hidden, layers = config["hidden_size"], config["num_hidden_layers"]
    head = config.get("head_dim", hidden // config["num_attention_heads"])
    kv, q = head * config["num_key_value_heads"], head * config["num_attention_heads"]
    experts = config.get("num_local_experts", config.get("num_experts", 1))
    ffn = config.get("moe_intermediate_size", config["intermediate_size"])
    edges = config["vocab_size"] * hidden * (1 if config["tie_word_embeddings"] else 2)
    return edges + layers * (2 * hidden * q + 2 * hidden * kv + 3 * hidden * ffn * experts + 2 * hidden)


def need_bytes(name, method):
    """Of weights and their state, all devices together; rough."""
    return STATE_BYTES[method] * parameters(config_of(name)) * 1.1


def limit_bytes(gib):
    return 0.92 * gib * 2**30 - 0.5e9


class Case:
    """Documents of a case, and words for the table; `group`: of CLASSES, instead of by its number."""
    def __init__(self, seed, number, group=None):
        self.seed, self.number, self.group = seed, number, group
        self.draw = random.Random(f"motley planner case {seed} {number}")
        self.words, self.rows = {}, None
        self.hardware()
        self.network()
        self.job()
        self.placement()

    def log_uniform(self, least, most):
        return math.exp(self.draw.uniform(math.log(least), math.log(most)))

    def hardware(self):
        draw = self.draw
        group = (0, 0, 0, 1, 1, 2, 2, 3)[self.number % 8]  # of eight cases three are small and one is of 64
        group = group if self.group is None else self.group
        self.devices = (draw.randint(2, 6), draw.randint(7, 16), draw.randint(17, 63), 64)[group]
        pools = ["gaming", "old", "centre", "centre", "cloud", "every", "every"] + (["processors"] if group < 2 else [])
        self.pool = draw.choice(pools)
        cards = EVERY if self.pool == "every" else CARDS[self.pool]
        kinds = draw.choices((1, 2, 3, 4, 6), (25, 30, 20, 15, 10))[0]
        kinds = draw.sample(sorted(cards), min(kinds, len(cards)))
        alike, sizes = draw.random() < 0.6, draw.choice(((1,), (2,), (4,), (8,), (1, 2, 4), (2, 3, 8), (self.devices if self.devices <= 16 else 8,)))
        speeds, tightness = draw.random() < 0.2, draw.choice((1, 1, 1, 0.75, 0.5, (0.4, 1)))
        self.nodes, left = [], self.devices
        self.memory = []
        while left:
            count, name = min(left, draw.choice(sizes)), f"n{len(self.nodes)}"
            left -= count
            card, own = draw.choice(kinds), []
            for d in range(count):
                like = card if alike else draw.choice(kinds)
                device, limit = {"name": f"{name}/{d}", "like": like}, limit_bytes(cards[like])
                if self.pool == "processors":
                    limit = device["memory_bytes"] = int(self.log_uniform(1, 24) * 2**30)
                elif tightness != 1:
                    limit *= tightness if isinstance(tightness, float) else draw.uniform(*tightness)
                    limit = device["memory_bytes"] = int(limit)
                if speeds:
                    device["speed"] = round(draw.uniform(0.4, 1.3), 3)
                own.append(device)
                self.memory.append(limit)
            self.nodes.append({"name": name, "devices": own})
        self.words["devices"], self.words["nodes"] = self.devices, len(self.nodes)
        self.words["cards"] = "+".join(sorted({d["like"] for n in self.nodes for d in n["devices"]}))

    def network(self):
        draw = self.draw
        within = draw.choice(list(WITHIN))
        between = draw.choices(list(BETWEEN), BETWEEN_WEIGHTS)[0]
        rate = BETWEEN[between]
        links = {"within": {"latency_s": round(self.log_uniform(2e-6, 3e-5), 9),
                            "bytes_per_s": round(draw.uniform(*WITHIN[within]))},
                 "between": {"latency_s": round(self.log_uniform(1e-5, 6e-4), 8), "bytes_per_s": round(rate)}}
        shape = draw.choices(("even", "cards", "sites", "pairs"), (55, 15, 15, 15))[0] if len(self.nodes) > 2 else "even"
        names = [node["name"] for node in self.nodes]
        if shape == "cards":
            for node in self.nodes:
                node["nic_bytes_per_s"] = round(rate * draw.choice((0.5, 1, 1.5)))
        elif shape in ("sites", "pairs"):
            cut, delay, slower = draw.randint(1, len(names) - 1), round(self.log_uniform(1e-3, 2e-2), 6), draw.choice((3, 10))
            links["pairs"] = []
            for a in range(len(names)):
                for b in range(a + 1, len(names)):
                    pair = {"a": names[a], "b": names[b], **links["between"]}
                    if shape == "pairs":
                        pair["bytes_per_s"] = round(rate * draw.uniform(0.3, 1.5))
                    elif a < cut <= b:
                        pair["latency_s"], pair["bytes_per_s"] = delay, round(rate / slower)
                    else:
                        continue
                    links["pairs"].append(pair)
        self.cluster = {"nodes": self.nodes, "links": links}
        self.words["links"] = f"{within}, {between}" + ("" if shape == "even" else f", {shape}")
        if len(self.nodes) == 1:
            self.words["links"] = within

    def model(self):
        """A model and a method that fill the memory as far as is drawn."""
        draw, room = self.draw, sum(self.memory)
        low, high = draw.choices(((0.002, 0.03), (0.02, 0.2), (0.15, 0.6), (0.55, 0.88)), (10, 28, 37, 25))[0]
        aim = self.log_uniform(low, high)
        names = draw.sample(sorted(DENSE), 5) + (draw.sample(sorted(EXPERTS), 3) if draw.random() < 0.5 else [])
        if draw.random() < 0.22:
            names = sorted(EXPERTS)
        methods = draw.sample(METHODS, 3)
        choices = [(n, m) for n in names for m in methods if need_bytes(n, m) < 0.92 * room]
        choices = choices or [(n, m) for n in sorted(DENSE) for m in METHODS if need_bytes(n, m) < 0.8 * room]
        choices = choices or [("SmolLM2-135M", "lora nf4")]
        return min(choices, key=lambda c: abs(math.log(need_bytes(*c) / room / aim)))

    def job(self):
        draw = self.draw
        name, method = self.model()
        self.config = config_of(name)
        if draw.random() < 0.12 and name in DENSE:  # a shape that nobody published
            self.config["num_hidden_layers"] = max(2, round(self.config["num_hidden_layers"] * draw.uniform(0.6, 1)))
            name += f" of {self.config['num_hidden_layers']}"
        few = self.devices <= 6
        rows = draw.choice((4, 8, 12, 16, 24, 32, 64, 128)) if few else int(self.devices * draw.choice((0.5, 1, 2, 3, 4, 8)))
        rows = min(512, max(2, rows)) + (draw.randint(1, 7) if draw.random() < 0.2 else 0)
        tokens = draw.choice((128, 256, 512, 512, 1024, 1024, 2048, 4096))
        compute = "fp32" if self.pool == "processors" or method.endswith("fp32") and draw.random() < 0.6 else "bf16"
        if self.pool == "processors":
            rows, tokens = min(rows, 64), min(tokens, 1024)
        if method.startswith("full"):
            kind, compute = {"kind": "full"}, method.split()[1] if self.pool != "processors" else "fp32"
        else:
            kind = {"kind": "lora", "rank": draw.choice((4, 8, 16, 16, 32, 64)), "base": method.split()[1]}
            targets = draw.random()
            if targets < 0.2:
                kind["targets"] = ["q_proj", "v_proj"]
            elif targets < 0.4 and name not in EXPERTS:
                kind["targets"] = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
        self.spec = {"name": "case", "model": "case-model", "method": kind,
                     "data": {"train": "case-rows.jsonl", "format": "tokens", "sequence_tokens": tokens},
                     "train": {"batch_rows": rows, "steps": 100, "compute": compute}}
        recompute = draw.random()
        if recompute < 0.12:
            self.spec["train"]["recompute"] = recompute < 0.06
        if draw.random() < 0.1:
            self.spec["sample"] = {"prompt": "Once", "tokens": 64}
        uneven = tokens <= 1024 and draw.random() < 0.35
        if uneven:
            self.uneven(rows, tokens)
        self.words.update(model=name, method=method if kind["kind"] == "full" else f"{method} r{kind['rank']}",
                          rows=f"{rows}x{tokens}" + (" uneven" if uneven else ""))

    def uneven(self, rows, tokens):
        draw, spread = self.draw, self.draw.uniform(0.3, 1)
        count, lines = min(512, max(48, 3 * rows)), []
        for _ in range(count):
            length = min(tokens, max(8, round(tokens * draw.uniform(0.2, 0.5) * math.exp(draw.gauss(0, spread)))))
            asked = draw.randint(1, length - 4)
            lines.append('{"ids":[' + ",".join(["7"] * length) + '],"labels":['
                         + ",".join(["-100"] * asked + ["7"] * (length - asked)) + "]}")
        self.rows = "\n".join(lines) + "\n"

    def placement(self):
        draw, words = self.draw, []
        place, asked, sparse = {}, draw.random(), "num_experts_per_tok" in self.config
        names = [d["name"] for n in self.nodes for d in n["devices"]]
        if asked < 0.07:
            kinds = ["pipeline", "hybrid", "data", "pipeline", "server"] + (["expert"] * 4 if sparse else ["tensor"])
            place["kind"] = draw.choice(kinds)
            words.append(place["kind"])
        elif asked < 0.10:
            place["micro_batch_rows"] = draw.choice((1, 2, 4))
            words.append(f"{place['micro_batch_rows']} rows")
        elif asked < 0.12:
            place["stages"] = draw.randint(2, min(self.devices, 4))
            words.append(f"{place['stages']} stages")
        elif asked < 0.15 and len(names) > 2:
            place["exclude"] = draw.sample(names, draw.randint(1, max(1, len(names) // 8)))
            words.append(f"without {len(place['exclude'])}")
        elif asked < 0.17 and len(names) > 3:
            place["devices"] = sorted(draw.sample(names, draw.randint(2, len(names) - 1)), key=names.index)
            words.append(f"only {len(place['devices'])}")
        if place:
            self.spec["placement"] = place
        self.words["asked"] = ", ".join(words)

    def digest(self):
        text = json.dumps([self.spec, self.config, self.cluster, self.rows], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:24]

    def write(self, folder):
        """Writes the documents; returns the paths of specification and cluster."""
        os.makedirs(os.path.join(folder, "case-model"), exist_ok=True)
        paths = {name: os.path.join(folder, name) for name in ("spec.json", "cluster.json", "case-model/config.json")}
        for name, document in (("spec.json", self.spec), ("cluster.json", self.cluster), ("case-model/config.json", self.config)):
            with open(paths[name], "w", encoding="utf-8") as handle:
                json.dump(document, handle, indent=1)
        if self.rows:
            with open(os.path.join(folder, "case-rows.jsonl"), "w", encoding="utf-8") as handle:
                handle.write(self.rows)
        return paths["spec.json"], paths["cluster.json"]


def cases(seed, count):
    return [Case(seed, number) for number in range(count)]


def told(case):
    w = case.words
    return f"{w['devices']:3d} of {w['nodes']:2d}  {w['model'][:20]:20s} {w['method']:12s} {w['rows']:15s} {w['links'][:26]:26s} {w['asked'][:12]:12s}"
