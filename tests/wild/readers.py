#!/usr/bin/env python3
"""What jobs leave is loaded by transformers and peft of this year and of two years ago, and computes what Motley computes.

    readers.py [--only WORD]                  jobs, then readers: the Pythons that WILD_PYTHON and WILD_PYTHON_OLD name
    readers.py --read INDEX                   one reader (run by the first form with each Python)

Every family of tests/data/folders is trained for two steps by real jobs, in each way that leaves other files (METHODS).
For each outcome each reader computes the logits of two rows; they must be within LOGITS_TOLERANCE of the largest logit of
those that Motley computes from the same files, and the loss within LOSS_TOLERANCE of the job's own last evaluation.
A family is skipped, visibly, with a reader that does not know its model_type, and with the old one where that computes
something else than Motley from the base itself (features that are younger than it).
"""
import json
import os
import pathlib
import random
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
FOLDERS = HERE.parent / "data" / "folders"
# Relative, to the largest logit and to the loss. Both sides compute in fp32, in other orders; of the tiny models here,
# trained at a high rate, the worst (qwen2-window) makes 2e-5 of that, the others at most 6e-6.
LOGITS_TOLERANCE, LOSS_TOLERANCE = 1e-4, 1e-5
MOVED = 50  # times LOGITS_TOLERANCE: so far at least must training move the logits, or the comparison says nothing
DRAW = random.Random(5)
ROWS = [[DRAW.randrange(3, 40) for _ in range(14)] for _ in range(2)]
STEPS = 2
ATTENTION, MLP = ["q_proj", "k_proj", "v_proj", "o_proj"], ["gate_proj", "up_proj", "down_proj"]
SCALINGS = {  # families that are Llama with another rotary scaling, as transformers 4 writes it
    "llama-linear": {"rope_type": "linear", "factor": 4.0}, "llama-dynamic": {"rope_type": "dynamic", "factor": 4.0},
    "llama-yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}}  # 4.46 takes max_position_embeddings


# ---- one reader: runs with each of the Pythons ----

def logits_of(model):
    import torch
    with torch.no_grad():
        return [model(input_ids=torch.tensor([row]), use_cache=False).logits[0].float().flatten().tolist() for row in ROWS]


def read_case(case):
    import torch
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    model_type = json.loads((pathlib.Path(case["config"]) / "config.json").read_text())["model_type"]
    if model_type not in CONFIG_MAPPING:
        return {"unknown": f"transformers {transformers.__version__} does not know {model_type}"}
    model, said = transformers.AutoModelForCausalLM.from_pretrained(
        case.get("model") or case["base"], torch_dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    wrong = {key: sorted(map(str, said[key]))[:3] for key in ("missing_keys", "unexpected_keys", "mismatched_keys") if said.get(key)}
    if wrong:
        return {"error": f"keys: {wrong}"}
    if "adapter" in case:
        import peft
        model = peft.PeftModel.from_pretrained(model, case["adapter"])
    return {"logits": logits_of(model.eval())}


def read_all(index):
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")
    import warnings
    import peft
    import torch
    import transformers
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    print(json.dumps({"versions": f"transformers {transformers.__version__}, peft {peft.__version__}, torch {torch.__version__}"}))
    for case in json.loads(pathlib.Path(index).read_text()):
        try:
            answer = read_case(case)
        except Exception as problem:  # whatever a library raises is a finding
            answer = {"error": f"{type(problem).__name__}: {' '.join(str(problem).split())[:300]}"}
        print(json.dumps({"name": case["name"], **answer}), flush=True)


# ---- the jobs ----

def config_of(folder):
    return json.loads((folder / "config.json").read_text())


def is_mixture(config):
    return any(config.get(key) for key in ("num_local_experts", "num_experts"))


def is_tied(folder):
    config = config_of(folder)
    return config.get("text_config", config).get("tie_word_embeddings", "gemma" in config["model_type"] or
                                                 config["model_type"] == "smollm3")


def methods_of(family, folder):
    """{kind: (method, result or none)} of one family."""
    mixture, phi = is_mixture(config_of(folder)), family.startswith("phi3")
    targets = ["qkv_proj", "o_proj"] if phi else ATTENTION
    values = "qkv_proj" if phi else "v_proj"
    saved = ["embed_tokens"] if is_tied(folder) else ["embed_tokens", "lm_head"]
    lora = {"kind": "lora", "rank": 4, "alpha": 8, "dropout": 0, "targets": targets if mixture else "all-linear"}
    patterns = {**lora, "targets": targets, "rslora": True, "exclude_modules": r".*\.1\.self_attn\.o_proj",
                "rank_pattern": {r"layers\.0\..*" + values: 6}, "alpha_pattern": {values: 5}}
    merged = {"kind": "merged", "dtype": "fp32"}
    methods = {"lora": (lora, None), "saved": ({**lora, "modules_to_save": saved}, None), "patterns": (patterns, None),
               "merged": (lora, merged), "merged-saved": ({**lora, "modules_to_save": saved}, merged),
               "merged-as-base": (lora, {"kind": "merged"}), "full": ({"kind": "full"}, {"dtype": "fp32"})}
    if mixture:
        experts = {**lora, "targets": ATTENTION + MLP}
        if config_of(folder).get("mlp_only_layers"):
            experts["exclude_modules"] = r".*\.1\.mlp\..*"
        methods.update({"experts": (experts, None), "experts-merged": (experts, merged)})
    return methods


def plan_cases(scratch, only):
    """[{name, family, base, method, result}]: adapters on folders as transformers 4 wrote them, since those are what both readers
    read alike; models of folders as transformers 5 wrote them, of its own layout of experts, and of GGUF files."""
    cases = []
    for old in sorted((FOLDERS / "transformers4").iterdir()):
        new = FOLDERS / "transformers5" / old.name
        for kind, (method, result) in methods_of(old.name, old).items():
            bases = [("", new), ("-old", old)] if method["kind"] == "full" or result else [("", old)]
            cases += [{"name": f"{old.name}{mark} {kind}", "family": old.name, "base": str(base), "method": method,
                       "result": result} for mark, base in bases]
    for special in sorted((FOLDERS / "transformers5").glob("*-own")) + sorted((FOLDERS / "transformers5").glob("*-gguf")):
        family = special.name.rsplit("-", 1)[0]
        lora = {"kind": "lora", "rank": 4, "alpha": 8, "dropout": 0, "targets": methods_of(family, special.parent / family)["lora"][0]["targets"]}
        base = special / "model.gguf" if special.name.endswith("gguf") else special
        cases.append({"name": f"{special.name} merged", "family": family, "base": str(base), "method": lora,
                      "result": {"kind": "merged", "dtype": "fp32"}})
    for family, scaling in SCALINGS.items():
        base = scratch / family
        base.mkdir()
        config = config_of(FOLDERS / "transformers4" / "llama") | {"rope_scaling": scaling}
        (base / "config.json").write_text(json.dumps(config))
        (base / "model.safetensors").symlink_to(FOLDERS / "transformers4" / "llama" / "model.safetensors")
        cases += [{"name": f"{family} {kind}", "family": family, "base": str(base), "method": method, "result": result}
                  for kind, (method, result) in methods_of(family, base).items() if kind in ("lora", "merged")]
    return [case for case in cases if only in case["name"]]


def specification(motley, case):
    rows = [{"ids": row, "labels": row} for row in ROWS]
    spec = {"name": "reader", "model": case["base"], "method": case["method"],
            "data": {"train": motley.write_rows("train.jsonl", rows), "eval": motley.write_rows("eval.jsonl", rows),
                     "format": "tokens", "sequence_tokens": 16, "shuffle": False},
            "train": {"batch_rows": 2, "steps": STEPS, "learning_rate": 0.05, "schedule": "constant", "warmup_steps": 0},
            "eval": {"every_steps": STEPS}, "placement": {"kind": "single"}}
    return spec | ({"result": case["result"]} if case["result"] else {})


def run_jobs(motley, cases):
    """Fills in what each job left: adapter or model, and the loss of its last evaluation."""
    for case in cases:
        try:
            case["id"] = motley.submit(specification(motley, case))["id"]
        except Exception as problem:
            case["error"] = str(problem)[-400:]
    for number, case in enumerate(cases):
        if "error" in case:
            continue
        job = motley.wait_state(case["id"], ("succeeded", "failed", "cancelled"), timeout=600)
        if job["state"] != "succeeded":
            case["error"] = f"{job['state']}: {job.get('why')}"
            continue
        case["eval_loss"] = motley.metrics(case["id"])[1][-1]["loss"]
        out = pathlib.Path(motley.get(case["id"], f"got-{number}"))
        left = "model" if (out / "model").is_dir() else "adapter"
        case[left] = str(out / left)
        case["config"] = case["model"] if left == "model" else case["base"]


def ours(answerer, case):
    question = {"do": "loss", "logits": True, "folder": case.get("model") or case["base"]}
    if "adapter" in case:
        question["adapter"] = case["adapter"]
    answers = [answerer.ask(question | {"ids": row, "labels": row}) for row in ROWS]
    bad = [answer for answer in answers if "logits" not in answer]
    return {"error": str(bad[0])} if bad else {"logits": [answer["logits"] for answer in answers]}


# ---- the comparison ----

def loss_of(logits):
    import math
    total = count = 0
    for row, values in zip(ROWS, logits):
        vocab = len(values) // len(row)
        for at in range(len(row) - 1):
            scores = values[at * vocab:(at + 1) * vocab]
            top = max(scores)
            total += top + math.log(sum(math.exp(score - top) for score in scores)) - scores[row[at + 1]]
            count += 1
    return total / count


def apart(a, b):
    """The largest difference, relative to the largest logit."""
    flat_a, flat_b = sum(a, []), sum(b, [])
    if len(flat_a) != len(flat_b):
        return float("inf")
    return max(abs(x - y) for x, y in zip(flat_a, flat_b)) / max(map(abs, flat_b))


def judge(case, mine, read):
    """(whether it is right, words) of one reader's answer."""
    if "error" in read:
        return False, read["error"]
    logits, loss = apart(read["logits"], mine["logits"]), abs(loss_of(read["logits"]) / case["eval_loss"] - 1)
    rounded = case["name"].endswith("as-base")  # to the base's dtype: not what the job evaluated
    return logits <= LOGITS_TOLERANCE and (loss <= LOSS_TOLERANCE or rounded), f"logits {logits:.0e}, loss {loss:.0e}"


def unknown_to(which, read, base_mine, base_read):
    """Why this reader cannot be held to a family's outcomes, or None."""
    if "unknown" in read:
        return read["unknown"]
    if which == "old" and ("error" in base_read or apart(base_read["logits"], base_mine["logits"]) > LOGITS_TOLERANCE):
        return "the base itself is not read as today: " + base_read.get("error", "other logits")[:60]
    return None


def bases_of(cases):
    """The folder of each family that both readers should know how to read, as a case."""
    folders = {case["family"]: case["base"] for case in cases}
    folders |= {family: str(FOLDERS / "transformers4" / family) for family in folders if (FOLDERS / "transformers4" / family).is_dir()}
    return [{"name": family, "family": family, "base": base, "config": base} for family, base in folders.items()]


def readings(python, cases, index):
    """{name: answer} of one Python, and its versions."""
    index.write_text(json.dumps([case for case in cases if "error" not in case]))
    done = subprocess.run([python, str(pathlib.Path(__file__).resolve()), "--read", str(index)], capture_output=True, text=True,
                          check=False)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        sys.exit(f"readers: {python}: {done.stderr[-2000:]}")
    return {line["name"]: line for line in lines[1:]}, lines[0]["versions"]


def compare(cases, readers, answerer):
    """Prints a line a case; how many are wrong."""
    wrong, skipped = 0, {}
    bases = {base["name"]: ours(answerer, base) for base in bases_of(cases)}
    for case in cases:
        mine = {"error": case["error"]} if "error" in case else ours(answerer, case)
        right, words = "error" not in mine, [mine["error"]] if "error" in mine else []
        for which, (answers, _) in readers.items() if right else ():
            read = answers.get(case["name"], {"error": "the reader ended"})
            why = unknown_to(which, read, bases[case["family"]], answers.get(case["family"], {"error": "the reader ended"}))
            fits, said = (True, "skipped") if why else judge(case, mine, read)
            if why:
                skipped.setdefault((which, case["family"], why), []).append(case["name"])
            right = right and fits
            words.append(f"{which}: {said}")
        if right and moved(mine, ours(answerer, {"base": case["base"]})) < MOVED * LOGITS_TOLERANCE:
            right, words = False, ["training moves nothing"]
        wrong += not right
        print(f"{'ok' if right else 'FAILED':8}{case['name']:36}{'; '.join(words)}")
    for (which, family, why), names in skipped.items():
        print(f"SKIP: {which}: {family}, {len(names)} outcomes: {why}")
    return wrong


def moved(mine, base):
    """How far training moved the logits."""
    return apart(mine["logits"], base["logits"]) if "logits" in base else float("inf")


def main(only):
    sys.path.insert(0, str(HERE.parent / "system"))
    from motley import BIN, Motley, two_unlike
    import cases as wild
    pythons = {which: os.environ[name] for which, name in (("new", "WILD_PYTHON"), ("old", "WILD_PYTHON_OLD")) if os.environ.get(name)}
    for which in sorted({"new", "old"} - set(pythons)):
        print(f"SKIP: readers: no Python with the {which} transformers and peft")
    if not pythons:
        return 0
    answerer = wild.Answerer(os.path.join(BIN, "wild_answer"))
    with Motley(two_unlike()) as motley:
        cases = plan_cases(pathlib.Path(motley.base), only)
        run_jobs(motley, cases)
        index = pathlib.Path(motley.path("index.json"))
        readers = {which: readings(python, cases + bases_of(cases), index) for which, python in pythons.items()}
        for which, (_, versions) in readers.items():
            print(f"{which}: {versions}")
        wrong = compare(cases, readers, answerer)
    answerer.close()
    print(f"readers: {len(cases)} outcomes, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--read"]:
        read_all(sys.argv[2])
    else:
        sys.exit(main(sys.argv[2] if sys.argv[1:2] == ["--only"] else ""))
