#!/usr/bin/env python3
"""Chat templates that are published with models: tests/data/chat/published/*.jinja, rendered over several lists of
messages. Writes tests/data/chat/published.json:

    {"requests": [variables, ...], "templates": {name: {"hashes": [SHA-256 of the text or null: refused, ...],
                                                        "begins": the first 200 characters of the first text}}}

  tools/golden_published.py               record
  tools/golden_published.py --list        print names, bytes and how many of the requests jinja2 renders

Run with a Python that has transformers 5.24 and jinja2 3.1.6. The day of strftime_now is 2024-07-26.
"""
import copy
import datetime
import glob
import hashlib
import json
import os
import sys

DATA = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "tests", "data", "chat")
WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "The weather of a city, \"now\" & <later>.",
    "parameters": {"type": "object", "properties": {
        "city": {"type": "string", "description": "Name of the city"},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
        "days": {"type": ["integer", "null"], "minimum": 1, "maximum": 14.5},
        "where": {"type": "object", "properties": {"lat": {"type": "number"}, "lon": {"type": "number"}}, "required": ["lat"]},
        "tags": {"type": "array", "items": {"type": "string"}, "nullable": True}}, "required": ["city"]},
    "return": {"type": "object", "description": "what is known"}}}
CLOCK = {"type": "function", "function": {"name": "clock", "description": "", "parameters": {"type": "object", "properties": {}}}}


def user(content):
    return {"role": "user", "content": content}


def answer(content, **more):
    return {"role": "assistant", "content": content, **more}


def system(content):
    return {"role": "system", "content": content}


def call(name, arguments, number=1):
    return {"id": f"call{number:05}", "type": "function", "function": {"name": name, "arguments": arguments}}


CALLS = [call("get_weather", {"city": "Zürich 天", "days": 3, "where": {"lat": 47.4}}), call("clock", {}, 2)]
TOOL_TALK = [user("Weather and time?"), answer("Let me look.", tool_calls=CALLS),
             {"role": "tool", "name": "get_weather", "tool_call_id": "call00001", "content": "{\"sun\": true, \"t\": 21.5}"},
             {"role": "tool", "name": "clock", "tool_call_id": "call00002", "content": "12:00"}, answer("Sunny, and noon.")]
CONVERSATIONS = [
    {"messages": [user("Hello")]},
    {"messages": [system("Be brief."), user("Say 'x' & \"y\" <z>\n"), answer("x"), user(" again \n\n"), answer("é 🎉\u2028."), user("日本")]},
    {"messages": TOOL_TALK[:-1], "tools": [WEATHER, CLOCK]},
    {"messages": [system("Use tools.\n"), *TOOL_TALK, user("Thanks")], "tools": [WEATHER, CLOCK]},
    {"messages": [user("q"), answer(None, tool_calls=[call("clock", "{}")]), {"role": "tool", "content": "noon", "tool_call_id": "call00001"}],
     "tools": [CLOCK]},
    {"messages": [user("2+2?"), answer("4", reasoning_content="two and\ntwo "), user("3+3?"), answer("<think>\nhm\n</think>\n\n6", thinking="six")]},
    {"messages": [user("Think."), answer("", reasoning_content="I look.", tool_calls=[CALLS[0]]),
                  {"role": "tool", "name": "get_weather", "content": [{"type": "text", "text": "rain"}], "tool_call_id": "call00001"}],
     "tools": [WEATHER], "enable_thinking": True},
    {"messages": [system([{"type": "text", "text": "Look."}]), user([{"type": "image"}, {"type": "text", "text": "What?"}]),
                  answer([{"type": "text", "text": "A cat."}]), user([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])]},
    {"messages": [user("q")], "enable_thinking": False, "documents": [{"title": "T", "text": "body"}]},
    {"messages": [system("S"), user("a"), user("b"), answer("c", name="bot"), {"role": "developer", "content": "d"}]},
    {"messages": [], "tools": None}, {"messages": [answer("first"), user("then")], "tools": []},
]


def requests():
    for conversation in CONVERSATIONS:
        for add in (False, True):
            yield {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>", "tools": None, "documents": None,
                   **conversation, "add_generation_prompt": add}


def render(text, variables):
    from transformers.utils import chat_template_utils

    class Day(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(2024, 7, 26)

    chat_template_utils.datetime = Day
    try:
        return chat_template_utils._compile_jinja_template(text).render(**copy.deepcopy(variables))
    except Exception:  # whatever the library raises, for the reason that it gives
        return None


def main():
    out = {}
    for path in sorted(glob.glob(os.path.join(DATA, "published", "*.jinja"))):
        template = open(path, encoding="utf-8", newline="").read()
        texts = [render(template, r) for r in requests()]
        first = next((t for t in texts if t is not None), "")
        out[os.path.basename(path)[:-6]] = {"hashes": [t if t is None else hashlib.sha256(t.encode()).hexdigest()[:16] for t in texts],
                                            "begins": first[:200]}
        if "--list" in sys.argv:
            print(f"{os.path.basename(path):48} {len(template):6} {sum(t is not None for t in texts):3} of {len(texts)}")
    if "--list" not in sys.argv:
        with open(os.path.join(DATA, "published.json"), "w", encoding="utf-8") as file:
            file.write('{"requests": [\n' + ",\n".join(json.dumps(r, ensure_ascii=False) for r in requests()) + '],\n"templates": {\n')
            file.write(",\n".join(f"{json.dumps(name)}: {json.dumps(row, ensure_ascii=False)}" for name, row in out.items()) + "}}\n")
        print(f"{len(out)} templates, {sum(h is not None for row in out.values() for h in row['hashes'])} texts")


if __name__ == "__main__":
    main()
