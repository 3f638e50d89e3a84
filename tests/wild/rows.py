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


def odd(rng, row, keys):
    """One key of a row absent, null, odd or beside what it is."""
    if rng.random() < 0.2:
        key = rng.choice(sorted(row))
        keys.append(key)
        if rng.random() < 0.3:
            del row[key]
        else:
            row[key] = rng.choice(ODD)
    return row


def alpaca_row(rng, keys):
    row = {"instruction": tokens.text(rng), "output": tokens.text(rng)}
    if rng.random() < 0.6:
        row["input"] = rng.choice(["", None, tokens.text(rng)])
    if rng.random() < 0.3:
        row["system"] = rng.choice(["", None, tokens.text(rng)])
    if rng.random() < 0.3:
        row["history"] = rng.choice([None, [], [[tokens.text(rng), tokens.text(rng)]], [["a", "b"], ["c", ""]], [["a"]], "x"])
    keys += ["instruction", "input", "output", "system", "history"]
    return odd(rng, row, keys)


def sharegpt_row(rng, keys):
    speakers = rng.choice([["human", "gpt"], ["system", "human", "gpt"], ["human", "gpt", "human", "gpt"], ["user", "assistant"],
                           ["human", "function_call", "observation", "gpt"], ["human", "chatgpt"], ["human", "x"], ["gpt"]])
    call = json.dumps(rng.choice([CALL["function"], [CALL["function"]], {"a": 1}]))
    row = {"conversations": [{"from": who, "value": call if who == "function_call" else content(rng)} for who in speakers]}
    if rng.random() < 0.2:
        row["system"] = rng.choice([None, "", "be brief"])
    if rng.random() < 0.3:
        row["tools"] = rng.choice([None, "", json.dumps([TOOL]), [TOOL], "x"])
    if rng.random() < 0.15:
        row["conversations"][-1][rng.choice(["weight", "train", "loss"])] = rng.choice([0, 1, True, False, None, 0.5])
    keys += ["conversations", "from", "value", "system", "tools", "weight", "train", "loss"]
    return odd(rng, row, keys)


def completion_row(rng, keys):
    keys += ["prompt", "completion"]
    if rng.random() < 0.5:
        return odd(rng, {"prompt": tokens.text(rng), "completion": tokens.text(rng)}, keys)
    return odd(rng, {"prompt": [message(rng, role, keys) for role in rng.choice([["user"], ["system", "user"]])],
                     "completion": [message(rng, "assistant", keys)]}, keys)


def ids_row(rng, keys):
    ids = [rng.randrange(200) for _ in range(rng.randrange(1, 12))]
    row = {rng.choice(["ids", "input_ids"]): ids}
    if rng.random() < 0.5:
        row["labels"] = [rng.choice([-100, i]) for i in ids]
    if rng.random() < 0.3:
        row["attention_mask"] = [1] * len(ids)
    keys += ["ids", "input_ids", "labels", "attention_mask"]
    return row


FORMATS = ["auto", "chat", "alpaca", "text", "sharegpt", "tokens", "prompt-completion", "prompt-completion-chat"]
SHAPES = {"chat": (chat_row, 40), "alpaca": (alpaca_row, 15), "sharegpt": (sharegpt_row, 15), "prompt": (completion_row, 15),
          "text": (lambda rng, keys: odd(rng, {"text": tokens.text(rng)}, keys), 10), "ids": (ids_row, 5)}


def make(rng):
    keys = ["role", "content", "messages", "text", "assistant", "user", "learn"]
    template = rng.choice([MARKED, MARKED, PLAIN, TOOLS, TOOLS, STRIPPED])
    case = tokens.make(rng)
    while set(tokens.BESIDE) & set(case["files"]["tokenizer_config.json"]) - {"eos_token", "tokenizer_class"} or \
            rng.random() < 0.5:
        case = tokens.make(rng)
    case["files"]["tokenizer_config.json"] |= {"chat_template": template, "bos_token": "<s>"}
    shape = rng.choices(list(SHAPES), [weight for _, weight in SHAPES.values()])[0]
    asked = [SHAPES[shape][0](rng, keys) for _ in range(1 if rng.random() < 0.8 else 2)]
    lines = "\n".join(json.dumps(row, ensure_ascii=rng.random() < 0.5) for row in asked)
    data = {"sequence_tokens": 4096}
    if rng.random() < 0.15:
        data["format"] = rng.choice(FORMATS)
        keys += ["format", *FORMATS, "instruction", "ids", "conversations", "prompt"]  # that the other format asks for
    return case | {"kind": "rows", "keys": sorted({*case["keys"], *keys}), "ask": [{"do": "rows", "rows": lines, "data": data}]}
