#!/usr/bin/env python3
"""Tests `motley rows`, which shows without a server what a job would learn: bad rows are refused by file, line and key."""
import datetime
import gzip
import json
import os
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from claims import BIN, DATA, expect, main  # noqa: E402

MODEL = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
         "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 259, "max_position_embeddings": 4096,
         "rms_norm_eps": 1e-5}
with open(os.path.join(DATA, "rows", "cases.json"), encoding="utf-8") as file:
    CASES = json.load(file)


def case(name):
    return next(c for c in CASES if c["name"] == name and c["tokenizer"] == "bytes")


def rows(lines, *words, config=None, data=None, status=0, tokenizer=True):
    """Runs `motley rows` over a data file of these bytes. Returns its stdout and stderr."""
    with tempfile.TemporaryDirectory(prefix="motley-rows-") as home:
        os.mkdir(os.path.join(home, "model"))
        for name, document in (("model/config.json", MODEL), ("model/tokenizer_config.json", config or {}),
                               ("spec.json", {"name": "x", "model": "model", "data": {"train": "rows", **(data or {})},
                                              "train": {"steps": 1}})):
            with open(os.path.join(home, name), "w", encoding="utf-8") as handle:
                json.dump(document, handle)
        if tokenizer:
            shutil.copy(os.path.join(DATA, "rows", "bytes.json"), os.path.join(home, "model", "tokenizer.json"))
        with open(os.path.join(home, "rows"), "wb") as handle:
            handle.write(lines if isinstance(lines, bytes) else lines.encode())
        done = subprocess.run([os.path.join(BIN, "motley"), "rows", "spec.json", *words], capture_output=True, text=True,
                              timeout=60, check=False, cwd=home, env=dict(os.environ, MOTLEY_HOME=os.path.join(home, "none")))
        expect(done.returncode == status, f"status {done.returncode}, not {status}\n{done.stdout}\n{done.stderr}")
        return done.stdout, done.stderr


def shown_rows_have_the_libraries_ids_and_labels():
    told = 0
    for name in ("tool calls", "reasoning", "weights", "sharegpt", "alpaca", "prompt and completion"):
        c = case(name)
        for lines in (c["lines"], gzip.compress(c["lines"].encode())):
            answer = json.loads(rows(lines, "--json", "--show", "99", config=c["config"])[0])["train"]
            expect([[r["ids"], r["labels"]] for r in answer["shown"]] == c["want"], f"{name}: {answer['shown']}")
            expect(answer["rows"] == len(c["want"]) and answer["tokens"] == sum(len(i) for i, _ in c["want"]), f"{answer}")
            expect(answer["labelled_tokens"] == sum(sum(x != -100 for x in l[1:]) for _, l in c["want"]), f"{answer}")
            told += answer["rows"]
    return f"{told} rows"


def the_learnt_part_is_marked():
    c = case("tool calls")
    out, _ = rows(c["lines"], config=c["config"])
    expect('5 rows of format chat (by "messages")' in out, out)
    expect('<|im_start|>assistant\n⟦CALLw{"c": "x"}<|im_end|>⟧\n<|im_start|>tool' in out and out.count("⟦") == 3, out)
    answer = json.loads(rows('{"text":"é\\u0000\\u001b[1m"}', "--json", config=c["config"])[0])["train"]["shown"][0]
    expect(answer["text"] == "é\0\x1b[1m<|im_end|>" and answer["marked"] == "⟦é␀␛[1m<|im_end|>⟧", f"{answer}")
    out, _ = rows('{"ids":[5,6,7],"labels":[-100,6,-100]}', tokenizer=False)
    expect(" 5⟦ 6⟧ 7" in out, out)


def what_is_cut_or_dropped_is_said():
    c = case("text")
    lines = '{"ids":[1,2,3,4,5,6]}\n{"ids":[1,2],"labels":[-100,-100]}\n{"ids":[1,2]}'
    out, _ = rows(lines, config=c["config"], data={"sequence_tokens": 4})
    expect("2 rows of format tokens (by \"ids\"): 6 tokens, 4 learnt; the longest row has 4; 1 cut at 4 tokens, first line 1; "
           "1 dropped with nothing to learn, first line 2" in out, out)


def a_role_that_the_template_does_not_name_is_said():
    c = case("keys")

    def row(asks, answers):
        return json.dumps({"messages": [{"role": asks, "content": "q"}, {"role": answers, "content": "a"}]})
    lines = "\n".join([row("user", "assistant"), row("us\x1b[1mr", "assistant"), row("user", "asistant"), row("system", "assistant")])
    out, _ = rows(lines, config=c["config"])
    expect('; 1 dropped with nothing to learn, first line 3; 2 with a role that the chat template does not name, first "us?[1mr" in line 2' in out,
           out)


def what_the_template_does_not_write_is_said():
    c = case("keys")
    row = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a", "thinking": "hm", "tool_calls": [1]}],
           "tools": [{}]}
    out, _ = rows(json.dumps(row), config=c["config"])
    expect("the chat template does not write their tools, reasoning, tool_calls\n" in out, out)
    dated = "{{ strftime_now('%d %b %Y') }}" + c["config"]["chat_template"]
    out, _ = rows(json.dumps(row), config={**c["config"], "chat_template": dated})
    expect(f"writes the day (strftime_now): data.day, {datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d}\n" in out, out)
    out, _ = rows(json.dumps(row), config={**c["config"], "chat_template": dated}, data={"day": "2025-02-03"})
    expect("data.day, 2025-02-03\n" in out and "\n03 Feb 2025" in out, out)
    _, err = rows(json.dumps(row), data={"day": "3 Feb 2025"}, status=2)
    expect("data.day: must be a date" in err, err)
    call = {"role": "assistant", "content": "", "function_call": {"name": "w", "arguments": "{}"}}
    row_of = {"messages": [row["messages"][0], call, {"role": "assistant", "content": "a", "name": "n"}], "id": 3, "label": "", "x": [1]}
    out, _ = rows(json.dumps(row_of), config=c["config"])
    expect("the chat template does not write their function_call, name; columns that are not read: id, x\n" in out, out)
    out, _ = rows('{"instruction": "q", "context": "c", "output": "a"}', config=c["config"])
    expect("columns that are not read: context\n" in out, out)
    _, err = rows(json.dumps({**row, "tools": []}), config=c["config"], data={"chat_template": "chatml-plain"}, status=2)
    expect('messages[1].tool_calls: is not written by the chat template "chatml"' in err, err)
    _, err = rows(json.dumps(row), config=c["config"], data={"chat_template": "chatml-plain"}, status=2)
    expect('tools, documents: are not written by the chat template "chatml"' in err, err)
    _, err = rows(json.dumps(row), config=c["config"], data={"chat_template": "llama3"}, status=2)
    expect('data.chat_template: "llama3" writes <|begin_of_text|>, which is no token of the model\'s tokenizer' in err, err)


def bad_rows_are_refused_by_file_line_and_key():
    c = case("text")
    for lines, words in (('{"text":"a"}\n{"text":3}', "rows: line 2: text: must be a text"), ("", "no rows"),
                         ('[{"text":"a"},{"x":1}]', "rows: row 2: a row needs"), (b"\x1f\x8b\x08\x00", "cut off")):
        _, err = rows(lines, config=c["config"], status=2)
        expect(words in err, err)


main(shown_rows_have_the_libraries_ids_and_labels, the_learnt_part_is_marked, what_is_cut_or_dropped_is_said, a_role_that_the_template_does_not_name_is_said,
     what_the_template_does_not_write_is_said, bad_rows_are_refused_by_file_line_and_key)
