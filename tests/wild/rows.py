"""Rows of chat and of text with odd values, through a tokenizer with one of several templates."""
import json

import tokens

MARKED = ("{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' }}{% if m['role'] == 'assistant' %}{% generation %}"
          "{{ m['content'] }}<|im_end|>{% endgeneration %}{% else %}{{ m['content'] }}<|im_end|>{% endif %}{{ '\\n' }}{% endfor %}")
PLAIN = ("{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + (m['content'] | string) + '<|im_end|>\\n' }}{% endfor %}"
         "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")
TOOLS = ("{{ bos_token }}{% if tools %}TOOLS{{ tools | tojson }}{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n"
         "{% if m.content is string %}{{ m.content }}{% elif m.content %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}"
         "{% if m.tool_calls %}{% for c in m.tool_calls %}CALL{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}{% endif %}"
         "{% if m.reasoning_content is defined and m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}<|im_end|>\n"
         "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
STRIPPED = ("{%- for m in messages %}\n  {%- if m.role == 'system' %}{{ m.content | trim }}\n  {%- else %}{{ '[' + m.role + ']' + m.content.strip() "
            "+ ('</s>' if m.role == 'assistant' else '') }}{%- endif %}\n{%- endfor %}")
ODD = [None, "", " ", 5, True, [], {}, ["a"], {"text": "x"}, [{"type": "text", "text": "part"}, {"type": "text", "text": "two"}],
       [{"type": "image", "image": "x.png"}], 1.5, "<|im_end|>", "a<|im_end|>b"]
CALL = {"type": "function", "id": "c1", "function": {"name": "w", "arguments": {"c": "x", "n": [1, 2.50, None, True], "é": "中"}}}
TOOL = {"type": "function", "function": {"name": "w", "description": "q", "parameters": {"type": "object", "properties": {
    "c": {"type": "string", "enum": ["a", "b"]}}, "required": ["c"]}}}


def content(rng):
    return tokens.text(rng) if rng.random() < 0.85 else rng.choice(ODD)


def message(rng, role, keys):
    made = {"role": role, "content": content(rng)}
    if rng.random() < 0.15:
        key = rng.choice(["name", "tool_calls", "reasoning_content", "thinking", "weight", "train", "extra", "content", "role",
                          "tool_call_id", "prefix", "function_call"])
        made[key] = rng.choice([None, "x", 1, 0, [], [CALL], {"a": 1}, True, False, ""])
        keys.append(key)
        if rng.random() < 0.2:
            made.pop(rng.choice(sorted(made)))
    return made


def chat_row(rng, keys):
    roles = rng.choice([["user", "assistant"], ["system", "user", "assistant"], ["user", "assistant", "user", "assistant"],
                        ["user", "assistant", "tool", "assistant"], ["user"], ["assistant"], ["user", "user", "assistant"],
                        ["system", "assistant"], ["user", "assistant", "user"], ["developer", "user", "assistant"]])
    row = {"messages": [message(rng, role, keys) for role in roles]}
    if rng.random() < 0.3:
        row["tools"] = rng.choice([None, [], [TOOL], [TOOL, TOOL], "x", {"a": 1}])
        keys.append("tools")
    if rng.random() < 0.1:
        key = rng.choice(["id", "source", "documents"])
        row[key] = rng.choice([None, 1, "x", []])
        keys.append(key)
    return row


def make(rng):
    keys = ["role", "content", "messages", "text", "assistant", "user", "learn"]
    template = rng.choice([MARKED, MARKED, PLAIN, TOOLS, TOOLS, STRIPPED])
    case = tokens.make(rng)
    while set(tokens.BESIDE) & set(case["files"]["tokenizer_config.json"]) - {"eos_token", "tokenizer_class"} or \
            rng.random() < 0.5:
        case = tokens.make(rng)
    case["files"]["tokenizer_config.json"] |= {"chat_template": template, "bos_token": "<s>"}
    if rng.random() < 0.15:
        asked = [{"text": t} for t in [tokens.text(rng)]]
    else:
        asked = [chat_row(rng, keys)]
    lines = "\n".join(json.dumps(row, ensure_ascii=rng.random() < 0.5) for row in asked)
    return case | {"kind": "rows", "keys": sorted({*case["keys"], *keys}),
                   "ask": [{"do": "rows", "rows": lines, "data": {"sequence_tokens": 4096}}]}
