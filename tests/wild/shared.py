#!/usr/bin/env python3
"""Write tests/data/wild/shared.jsonl: the inputs of ../shared/wild as cases, with what the libraries make of them.

    shared.py ../shared/wild tests/data/wild/shared.jsonl      needs the libraries (requirements.txt)

Values that the README there gives are looked for in the libraries' answers.
"""
import json
import pathlib
import sys
import tempfile

import cases
import oracle

ROW = list(range(5, 15))
ASKS = {  # folder: texts with the README's ids, or what else is asked
    "01-oniguruma-syntax/cl": {"ab 12345 x": [261, 32, 259, 32, 120],
                               "123456\n  \nab  ": [259, 54, 10, 263, 10, 261, 263]},
    "01-oniguruma-syntax/cd": {"ab\nab 12 \nab": [261, 10, 261, 32, 256, 32, 10, 261]},
    "03-split-removed-inverted/ri": {"ab 12345 x": [261, 32, 257, 258, 32, 120]},
    "03-split-removed-inverted/pu": {"ab, 12.x": [261, 44, 32, 49, 50, 46, 120]},
    "05-special-tokens-map/stm": {"ab": [97, 98]}, "06-added-tokens-decoder/atd": {"a<tool>b": [97, 259, 98]},
    "04-bos-of-config-json/bosnull": "rows", "05-special-tokens-map/padt": "rows", "10-second-eos/te": "rows",
    "11-tool-calls-dropped/tool": "rows", "12-content-parts/parts": "parts", "13-keys-of-messages/reas": "reasoning",
    "13-keys-of-messages/wgt": "weight", "15-templates-as-dict/dct": "rows", "22-tied-with-other-head/m1": 5.819846,
    "24-base-model-prefix/m3": 5.442900, "29-null-kv-heads/k1b": 5.844052,
    "32-config-duplicate-key-and-eos/k6g": 5.819846, "32-config-duplicate-key-and-eos/k6p": 5.819846,
    "35-default-keys/adbase": 5.752409}
WEIGHTS = {"22": "tied", "24": "body", "29": "null-heads", "32": "tied", "35": "tied"}
HERE = {"parts": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}],
        "reasoning": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a", "reasoning_content": "hm"}],
        "weight": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a", "weight": 0},
                   {"role": "user", "content": "r"}, {"role": "assistant", "content": "b"}]}


def asks(folder, asked):
    if isinstance(asked, dict):
        return [{"do": "ids", "text": text, "add_special": False} for text in asked] + [{"do": "special"}]
    if isinstance(asked, float):
        return [{"do": "loss", "ids": ROW, "labels": ROW}]
    if asked != "rows":
        return [{"do": "render", "messages": HERE[asked]}]
    lines = (folder.parent / "rows.jsonl").read_text().split("\n") if (folder.parent / "rows.jsonl").exists() else []
    rows = [row for row in map(json.loads, filter(None, lines)) if "messages" in row]
    return [{"do": "render", "messages": row["messages"], **({"tools": row["tools"]} if "tools" in row else {})}
            for row in rows] + [{"do": "special"}]


def case_of(root, name, asked):
    folder = root / name
    files = {path.name: path.read_text() for path in sorted(folder.iterdir()) if path.suffix in (".json", ".jinja")}
    case = {"name": name, "kind": "shared", "keys": [], "files": files, "ask": asks(folder, asked)}
    if isinstance(asked, float):
        case["files"] = {"config.json": files["config.json"]}
        case["links"] = {"model.safetensors": f"wild/models/{WEIGHTS[name[:2]]}/model.safetensors"}
    if name.startswith("35"):
        case["adapter"] = {"files": {"adapter_config.json": (folder.parent / "ad-a3/adapter_config.json").read_text()},
                           "links": {"adapter_model.safetensors": "wild/default-keys.safetensors"}}
    return case


def main():
    root, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    asker, lines = oracle.Oracle(), []
    (out.parent / "default-keys.safetensors").write_bytes((root / "35-default-keys/ad-a3/adapter_model.safetensors").read_bytes())
    for name, asked in ASKS.items():
        case = case_of(root, name, asked)
        asker.forget()
        with tempfile.TemporaryDirectory() as scratch, cases.Built(case, scratch) as built:
            case["expected"] = [asker.answer(question) for question in built.questions()]
        if isinstance(asked, dict):
            assert [e["ids"] for e in case["expected"][:-1]] == list(asked.values()), (name, case["expected"])
        if isinstance(asked, float):
            assert abs(case["expected"][0]["loss"] / asked - 1) < 1e-6, (name, case["expected"])
        lines.append(json.dumps(case, ensure_ascii=False) + "\n")
    out.write_text("".join(lines))


if __name__ == "__main__":
    main()
