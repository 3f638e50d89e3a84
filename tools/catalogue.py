#!/usr/bin/env python3
"""Compare tests/data/configs/published.json with transformers' classes, at real size, on PyTorch's meta device.

    python3 tools/catalogue.py tests/data/configs/published.json [--defaults]      needs torch, transformers

Each row has a model's name, where its config is from, the config and the number of values that its language model's
tensors have. --defaults adds a row for each class of model that Motley knows (the model_types of docs/FAMILIES.md), with
the config that the class has by default. A row whose number is not that of the class is an error.
"""
import json
import pathlib
import re
import sys

import torch
import transformers

KEPT = re.compile(r".*(e_score_correction_bias|layer_scalar)$")  # buffers that files have
FAMILIES = pathlib.Path(__file__).parents[1] / "docs" / "FAMILIES.md"


def values_of(document):
    """What a file of the language model has: parameters, tied ones once, and some buffers."""
    document = {key: value for key, value in document.items() if key != "quantization_config"}
    config = transformers.AutoConfig.for_model(**document).get_text_config()
    with torch.device("meta"):
        kind = transformers.MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
        model = kind(config) if kind else transformers.AutoModel.from_config(config)
    head = 0 if kind or document.get("tie_word_embeddings") else config.vocab_size * config.hidden_size
    return sum(p.numel() for p in model.parameters()) + head + sum(b.numel() for n, b in model.named_buffers() if KEPT.match(n))


def default_rows(have):
    for kind in re.findall(r"^\| `((?!model_type)\w+)` \|", FAMILIES.read_text(), re.M):
        config = transformers.CONFIG_MAPPING[kind]()
        classes = transformers.MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
        document = {key: value for key, value in config.to_diff_dict().items() if value is not None}
        if classes:
            document["architectures"] = [classes.__name__]
        if kind + " by default" not in have:
            yield {"name": kind + " by default", "parameters": 0, "config": document,
                   "source": f"{type(config).__name__}() of transformers {transformers.__version__}"}


def main():
    path = pathlib.Path(sys.argv[1])
    rows, wrong = json.loads(path.read_text()), 0
    if "--defaults" in sys.argv:
        rows += default_rows({row["name"] for row in rows})
    for row in rows:
        found = values_of(row["config"])
        row["parameters"] = row["parameters"] or found
        if found != row["parameters"]:
            print(f"{row['name']}: {row['parameters']}, the class has {found}", flush=True)
            wrong += 1
    if "--defaults" in sys.argv:
        path.write_text("[" + ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows) + "]\n")
    print(f"{len(rows)} rows, {wrong} wrong")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
