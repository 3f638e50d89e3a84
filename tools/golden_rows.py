#!/usr/bin/env python3
"""Rows of every format, and the ids and labels that transformers (5.24) and TRL (1.16) make of them, into
tests/data/rows/cases.json. Without TRL: what its SFTTrainer does is written out below, from its sources.

usage: golden_rows.py            (needs transformers; writes the file)

A case is {"name", "tokenizer", "config", "format"?, "learn"?, "lines" (text of the data file), "want"}: want is a
list of [ids, labels], or a text that the refusal must have. Of templates without {% generation %}, what is learnt
is said by the case itself, as texts in order; transformers says where their tokens lie.
"""

import datetime
import json
import pathlib

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

ROOT = pathlib.Path(__file__).resolve().parent.parent / "tests/data"
IGNORE = -100
EOS = "<|im_end|>"



class Day(datetime.datetime):
    """The day that templates are told (model/templates/chat_names.c)."""

    @classmethod
    def now(cls, tz=None):
        return cls(2024, 7, 26)


chat_template_utils.datetime = Day

CHATML = ("{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
          "'<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
TOOLS = ("{% if tools %}TOOLS{{ tools|tojson }}{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n"
         "{% if m.tool_calls %}{% for t in m.tool_calls %}CALL{{ t.function.name }}{{ t.function.arguments|tojson }}"
         "{% endfor %}{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}"
         "<|im_start|>assistant\n{% endif %}")
PARTS = ("{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content is string %}{{ m.content }}{% else %}"
         "{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
         "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
REASONING = ("{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.reasoning_content %}<think>"
             "{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}<|im_end|>\n{% endfor %}"
             "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
GENERATION = ("{{ mode }}{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}"
              "{%- generation -%}{{ m.content }}<|im_end|>\n{% endgeneration %}{% else %}{{ m.content }}<|im_end|>\n"
              "{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
DOCUMENTS = ("{% for d in documents %}[{{ d.title }}]{% endfor %}{% if custom is defined %}{{ custom }}{% endif %}"
             "{% if enable_thinking is defined and not enable_thinking %}/off{% endif %}") + CHATML


def user(text, **more):
    return {"role": "user", "content": text, **more}


def said(text, **more):
    return {"role": "assistant", "content": text, **more}


def published(name):
    return (ROOT / "chat" / f"{name}.jinja").read_text()


def tokenizer_of(case):
    path = ROOT / ("rows/bytes.json" if case["tokenizer"] == "bytes" else f"tokenizer/{case['tokenizer']}.json")
    config = {key: value for key, value in case["config"].items() if key != "tokenizer_class"}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_file(str(path)), **config)


# ---- what the libraries make of a row ----

def settle(ids, learnt):
    labels = [i if l else IGNORE for i, l in zip(ids, learnt)]
    labels[0] = IGNORE
    return [ids, labels]


def arguments(row):
    tools = row.get("tools")
    return {"tools": json.loads(tools) if isinstance(tools, str) and tools else tools or None,
            "documents": row.get("documents"), **row.get("kwargs", {}), **(row.get("chat_template_kwargs") or {})}


def of_messages(tokenizer, row, case):
    given = arguments(row)
    if "{% generation %}" in case["config"]["chat_template"].replace("{%-", "{%").replace("-%}", "%}"):
        out = tokenizer.apply_chat_template(row["messages"], return_assistant_tokens_mask=True, return_dict=True, **given)
        return settle(out["input_ids"], out["assistant_masks"])
    text = tokenizer.apply_chat_template(row["messages"], tokenize=False, **given)
    out = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    learnt, at = [False] * len(out["input_ids"]), 0
    for part in row["learnt"]:
        begin = text.index(part, at)
        at = begin + len(part)
        for i, (a, b) in enumerate(out["offset_mapping"]):
            learnt[i] = learnt[i] or (a >= begin and b <= at and b > a)
    return settle(out["input_ids"], learnt)


def common(a, b):
    same = 0
    while same < min(len(a), len(b)) and a[same] == b[same]:
        same += 1
    return same


def of_prompt(tokenizer, row, case):
    """trl/trainer/sft_trainer.py, tokenize_fn with completion_only_loss."""
    if isinstance(row["prompt"], list):
        given = arguments(row)
        prompt = tokenizer.apply_chat_template(row["prompt"], add_generation_prompt=True, return_dict=False, **given)
        whole = tokenizer.apply_chat_template(row["prompt"] + row["completion"], return_dict=False, **given)
    else:
        completion = row["completion"] if row["completion"].endswith(EOS) else row["completion"] + EOS
        prompt, whole = tokenizer(row["prompt"])["input_ids"], tokenizer(row["prompt"] + completion)["input_ids"]
    given = common(prompt, whole)
    return settle(whole, [i >= given for i in range(len(whole))])


def of_text(tokenizer, row, case):
    text = row["text"]
    ids = tokenizer(text if text.endswith(EOS) else text + EOS)["input_ids"]
    return settle(ids, [True] * len(ids))


ALPACA = ("Below is an instruction that describes a task{}. Write a response that appropriately completes the "
          "request.")
WITH_INPUT = ", paired with an input that provides further context"


def of_alpaca(tokenizer, row, case):
    """Stanford's words; LLaMA-Factory's meaning of system and history (all answers are learnt)."""
    ids, learnt = [], []

    def put(text, learn):
        part = tokenizer(text, add_special_tokens=False)["input_ids"]
        ids.extend(part)
        learnt.extend([learn] * len(part))

    head = row.get("system") or ALPACA.format(WITH_INPUT if row.get("input") and not row.get("history") else "")
    for question, answer in row.get("history") or []:
        put(head + f"\n\n### Instruction:\n{question}\n\n### Response:\n", False)
        put(answer if answer.endswith(EOS) else answer + EOS, True)
        head = ""
    given = f"\n\n### Input:\n{row['input']}" if row.get("input") else ""
    put(head + f"\n\n### Instruction:\n{row['instruction']}{given}\n\n### Response:\n", False)
    put(row["output"] if row["output"].endswith(EOS) else row["output"] + EOS, True)
    return settle(ids, learnt)


OF = {"messages": of_messages, "prompt": of_prompt, "text": of_text, "instruction": of_alpaca}


# ---- the cases ----

CALL = {"type": "function", "function": {"name": "w", "arguments": {"c": "x"}}}
TOOL = {"type": "function", "function": {"name": "w", "parameters": {"b": 1, "a": [None, 1.5, "é"]}}}


def chat_cases():
    yield "keys", CHATML, [{"messages": [user("q"), said("a")], "learnt": ["a" + EOS]},
                           {"messages": [{"role": "system", "content": "s", "name": "n"}, user("q"), said("a b"), user("r"),
                                         said("c")], "id": 3, "learnt": ["a b" + EOS, "c" + EOS]}]
    yield "tool calls", TOOLS, [
        {"messages": [user("q"), said("", tool_calls=[CALL]), {"role": "tool", "content": "5", "name": "w"},
                      said("five")], "learnt": ['CALLw{"c": "x"}' + EOS, "five" + EOS]},
        {"messages": [user("q"), said(None, tool_calls=[{"function": {"name": "w", "arguments": '{"c": "x"}'}}])],
         "learnt": [r'CALLw"{\"c\": \"x\"}"' + EOS]},
        {"tools": [TOOL], "messages": [user("q"), said("a")], "learnt": ["a" + EOS]},
        {"tools": json.dumps([TOOL]), "messages": [user("q"), said("a")], "learnt": ["a" + EOS]},
        {"tools": None, "messages": [user("q"), said("a", tool_calls=None)], "learnt": ["a" + EOS]}]
    yield "parts", PARTS, [{"messages": [{"role": "user", "content": [{"type": "text", "text": "q"},
                                                                     {"type": "text", "text": "r"}]}, said("a")],
                            "learnt": ["a" + EOS]}]
    yield "reasoning", REASONING, [
        {"messages": [user("q"), said("a", reasoning_content="hm")], "learnt": ["<think>hm</think>a" + EOS]},
        {"messages": [user("q"), said("a", thinking="hm")], "learnt": ["<think>hm</think>a" + EOS]},
        {"messages": [user("q"), said("a", reasoning="hm", thinking="ha")], "learnt": ["<think>ha</think>a" + EOS]}]
    yield "weights", CHATML, [
        {"messages": [user("q"), said("a", weight=0), user("r"), said("b", weight=1)], "learnt": ["b" + EOS]},
        {"messages": [user("q"), said("a", weight=1.0), user("r"), said("b", train=False)], "learnt": ["a" + EOS]}]
    yield "generation", GENERATION, [
        {"messages": [user("q"), said("a b"), user("r"), said("c ")]},
        {"messages": [user("q"), said("a")], "chat_template_kwargs": {"mode": "fast"}}]
    yield "rest", DOCUMENTS, [
        {"messages": [user("q"), said("a")], "documents": [{"title": "t", "text": "x"}], "learnt": ["a" + EOS]},
        {"messages": [user("q"), said("a")], "documents": [{"title": "t"}], "enable_thinking": False,
         "kwargs": {"enable_thinking": False}, "chat_template_kwargs": {"custom": "c"}, "learnt": ["a" + EOS]}]
    yield "odd texts", CHATML, [
        {"messages": [user("a\u2028b\u0085\x00c"), said("\U0001f600 \x7f")], "learnt": ["\U0001f600 \x7f" + EOS]}]


def published_cases():
    talk = [user("q"), said("one"), user("and?"), said("two")]
    for name, learnt in [("qwen3", ["one<|im_end|>", "<think>\n\n</think>\n\ntwo<|im_end|>"]),
                         ("qwen2.5", ["one<|im_end|>", "two<|im_end|>"]),
                         ("gemma3", ["one<end_of_turn>", "two<end_of_turn>"]),
                         ("phi3", ["one<|end|>", "two<|end|>"])]:
        yield name, published(name), [{"messages": talk, "learnt": learnt}]
    yield "qwen3 tools", published("qwen3"), [
        {"tools": [TOOL], "messages": [user("q"), said("", tool_calls=[CALL]), {"role": "tool", "content": "5"},
                                       said("five", reasoning_content="hm")],
         "learnt": ['<tool_call>\n{"name": "w", "arguments": {"c": "x"}}\n</tool_call><|im_end|>',
                    "<think>\nhm\n</think>\n\nfive<|im_end|>"]},
        {"messages": [user("q"), said("<think>\nold\n</think>\n\none"), user("r"), said("two")],
         "learnt": ["one<|im_end|>", "<think>\n\n</think>\n\ntwo<|im_end|>"]},
        {"messages": [user("q"), said("two")], "chat_template_kwargs": {"enable_thinking": False},
         "learnt": ["two<|im_end|>"]}]
    yield "smollm3", published("smollm3"), [{"messages": talk}]


def cases():
    plain = {"eos_token": EOS}
    for tokenizer in ("bytes", "smollm"):
        for name, template, rows in chat_cases():
            yield {"name": name, "tokenizer": tokenizer, "config": {**plain, "chat_template": template}}, rows
    for name, template, rows in published_cases():
        yield {"name": name, "tokenizer": "smollm", "config": {**plain, "chat_template": template}}, rows
    for tokenizer in ("bytes", "smollm"):
        base = {"tokenizer": tokenizer, "config": {**plain, "chat_template": CHATML}}
        yield {**base, "name": "text"}, [{"text": "ab"}, {"text": "ab" + EOS, "source": "x"}, {"text": "a" + EOS + "\n"}]
        yield {**base, "name": "alpaca"}, [
            {"instruction": "a", "output": "b" + EOS}, {"instruction": "a", "input": "", "output": "b"},
            {"instruction": "a", "input": "i", "output": "b", "system": None, "history": []},
            {"instruction": "a", "output": "b", "system": "Be brief."},
            {"instruction": "a", "input": "i", "output": "b", "history": [["q1", "a1"], ["q2", "a2" + EOS]]},
            {"instruction": "a", "output": "b", "system": "S", "history": [["q1", "a1"]]}]
        yield {**base, "name": "prompt and completion"}, [
            {"prompt": "Once upon", "completion": " a time"}, {"prompt": "Once up", "completion": "on a time" + EOS}]
        yield {**base, "name": "prompt and completion of messages"}, [
            {"prompt": [user("q")], "completion": [said("a")]},
            {"prompt": [user("q"), said("x"), user("r")], "completion": [said("a"), user("more"), said("b")]}]
    yield ({"tokenizer": "smollm", "name": "a prompt that is rendered otherwise alone",
            "config": {**plain, "chat_template": published("qwen3")}},
           [{"prompt": [user("q")], "completion": [said("a", reasoning_content="hm")],
             "chat_template_kwargs": {"enable_thinking": False}}])


def inserted_cases():
    """Tokenizers that put a space before a stretch of text: its token is of the character behind it."""
    for tokenizer, eos in (("gpt2", "<|endoftext|>"), ("llama2", "</s>")):
        template = (f"{{% for m in messages %}}{{{{ m.role }}}}{eos}{{% generation %}}{{{{ m.content }}}} {eos}"
                    "{% endgeneration %}\n{% endfor %}")
        yield ({"name": "inserted", "tokenizer": tokenizer, "config": {"eos_token": eos, "chat_template": template}},
               [{"messages": [user("q"), said("\n one"), said("two ")]}, {"messages": [user("q"), said("\u65e5 one")]}])


def share(message):
    names = {"user": "human", "assistant": "gpt", "system": "system", "tool": "observation"}
    if message.get("tool_calls"):
        calls = [call["function"] for call in message["tool_calls"]]
        return {"from": "function_call", "value": json.dumps(calls[0] if len(calls) == 1 else calls)}
    return {"from": names[message["role"]], "value": message["content"],
            **{k: v for k, v in message.items() if k not in ("role", "content")}}


def sharegpt_cases():
    """The same as messages, so the same is wanted."""
    talk = [{"role": "system", "content": "s"}, user("q"), said("", tool_calls=[CALL]), {"role": "tool", "content": "5"},
            said("five"), user("r"), said("six", weight=0)]
    learnt = ['CALLw{"c": "x"}' + EOS, "five" + EOS]
    base = {"name": "sharegpt", "tokenizer": "bytes", "config": {"eos_token": EOS, "chat_template": TOOLS}}
    row = {"messages": talk, "tools": [TOOL], "learnt": learnt}
    yield base, [row], [{"conversations": [share(m) for m in talk], "tools": json.dumps([TOOL])}]
    yield {**base, "name": "sharegpt, system apart"}, [row], [
        {"conversations": [share(m) for m in talk[1:]], "tools": [TOOL], "system": "s"}]
    yield {**base, "name": "sharegpt, roles"}, [{"messages": [user("q"), said("a")], "learnt": ["a" + EOS]}], [
        {"conversations": [{"role": "human", "content": "q"}, {"role": "gpt", "content": "a"}]}]


# Rows as text, by what JSON has not: read where nobody reads it, refused by key where somebody does.
ODD = [
    ('{"text": "a", "x": NaN, "y": [-Infinity, 1e999, 123456789012345678901], "z": "\\ud83d", "u": "\\u0000"}',
     {"text": "a"}),
    ('{"text": "b", "text": "a"}', {"text": "a"}),
    ('{"text": "a\\u0000b", "\\u0000": 1}', {"text": "a\0b"}),
    ('{"text": "a", "x": {"y": {"y": NaN}, "\\udc00": 2}}\r', {"text": "a"}),
    ('{"text": "\\ud83d\\ude00"}', {"text": "\U0001f600"}),
]

REFUSED = [
    ({}, '{"text": "\\ud83d"}', "line 1: text: has half"),
    ({}, '{"te\\u0078t": "\\ud83d"}', "line 1: text: has half"),
    ({}, '{"messages": [{"role": "user", "content": NaN}]}', "line 1: messages: has NaN"),
    ({}, '{"messages": [{"role": "user", "content": "q"}], "tools": [{"a": 18446744073709551616}]}', "tools: has a whole"),
    ({}, '{"text": "a", "messages": []}', '"messages" (format chat) and "text" (format text)'),
    ({}, '{"instruction": "a", "output": "b", "prompt": "c", "completion": "d"}', "prompt"),
    ({}, '{"ids": [1, 2], "input_ids": [1, 2]}', "not both"),
    ({}, '{"input_ids": [1, 2], "attention_mask": [1, 0]}', "attention_mask[1]"),
    ({}, '{"input_ids": [1, 2], "completion_mask": [0, 1]}', "completion_mask"),
    ({}, '{"instruction": "a", "output": "b", "tools": [{}]}', "tools: is not read"),
    ({}, '{"instruction": "a", "output": "b", "history": [["a"]]}', "history[0]"),
    ({}, '{"text": "a", "weight": 0.5}', "weight: is not read"),
    ({}, '{"prompt": "a", "completion": "b", "label": true}', "label: is not read"),
    ({}, '{"messages": [{"role": "user", "content": "q"}], "add_generation_prompt": true}', "add_generation_prompt: is not"),
    ({}, '{"text": "a", "images": ["x.png"]}', "images: is not read"),
    ({}, '{"messages": [{"role": "user", "content": "q"}], "system": "s"}', "system: is not read"),
    ({}, '{"messages": [{"role": "user", "content": [{"type": "image"}]}]}', "messages[0].content[0].type"),
    ({}, '{"messages": [{"role": "assistant", "content": "q", "weight": 0.5}]}', "messages[0].weight"),
    ({}, '{"messages": [{"role": "user", "content": "q"}], "functions": [{}]}', "functions"),
    ({}, '{"conversations": [{"from": "king", "value": "q"}]}', 'conversations[0].from: "king"'),
    ({}, '{"conversations": [{"from": "function_call", "value": "q"}]}', "conversations[0].value"),
    ({}, '{"text": "a"}\n{"instruction": "a", "output": "b"}', 'line 2: the row is of format alpaca, by "instruction"'),
    ({}, '{"text": "a"}\n\n{"text": "a", "x": tru}', "line 3: no valid JSON"),
    ({}, '[{"text": "a"}, {"text": 1}]', "row 2: text"),
    ({}, '[{"text": "a"}, ]', "row 2"),
    ({}, '[{"text": "a"}] x', "behind the end"),
    ({}, '[{"text": "a"}', "no end"),
    ({}, "PAR1\x15\x04", "is a Parquet file; convert it to JSON lines"),
    ({}, "{\0\"\0t\0", "is a text in UTF-16; save it as UTF-8"),
    ({}, "version https://git-lfs.github.com/spec/v1\noid sha256:0", "is a Git LFS pointer"),
    ({}, " <!DOCTYPE html>", "is a web page"),
    ({}, "PK\3\4", "is a zip file; unpack it"),
    ({}, "GGUF\3", "is a GGUF file; data are JSON"),
    ({}, 'instruction,output\na,b\n', 'begins with "instruction,output", which looks like a table (CSV)'),
    ({}, '{\n "text": "a"\n}', "line 1: no valid JSON"),
    ({"format": "text"}, '{"instruction": "a"}', "line 1: text: is missing"),
    ({}, '{"prompt": "a", "chosen": "b", "rejected": "c"}', "needs"),
]


def main():
    out = []
    for case, rows in [*cases(), *inserted_cases()]:
        tokenizer = tokenizer_of(case)
        want = [next(f for key, f in OF.items() if key in row)(tokenizer, row, case) for row in rows]
        lines = [{k: v for k, v in row.items() if k not in ("learnt", "kwargs")} for row in rows]
        out.append({**case, "lines": "".join(json.dumps(line) + "\n" for line in lines), "want": want})
        if case["name"] == "text":
            out.append({**case, "name": "array", "lines": " " + json.dumps(lines, indent=1), "want": want})
            out.append({**case, "name": "mark, blanks", "want": want,
                        "lines": "\ufeff" + "\r\n \r\n".join(json.dumps(line, ensure_ascii=False) for line in lines)})
    for case, rows, lines in sharegpt_cases():
        want = [of_messages(tokenizer_of(case), row, case) for row in rows]
        out.append({**case, "lines": "".join(json.dumps(line) + "\n" for line in lines), "want": want})
    base = {"tokenizer": "bytes", "config": {"eos_token": EOS, "chat_template": CHATML}}
    want = [of_text(tokenizer_of(base), json.loads(line.strip()) and row, base) for line, row in ODD]
    out.append({**base, "name": "odd columns", "lines": "\n".join(line for line, _ in ODD), "want": want})
    out += [{**base, **more, "name": text, "lines": lines, "want": text} for more, lines, text in REFUSED]
    text = ",\n".join(json.dumps(case, separators=(",", ":")) for case in out)
    (ROOT / "rows/cases.json").write_text(f"[{text}]\n")
    print(len(out), "cases")


main()
