"""What the libraries make of a question: a line of JSON each, as answer.c has it. Nothing here knows of Motley."""
import copy
import json
import os
import re
import resource
import sys
import warnings

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "critical")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import peft  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from transformers.utils import chat_template_utils  # noqa: E402

warnings.filterwarnings("ignore")
torch.set_num_threads(1)
transformers.utils.logging.disable_progress_bar()
MODEL_MAX = 4 << 20  # parameters: a config that asks for more is refused by both for its weights' shapes
PARTS_MAX = 128  # layers or experts
MEMORY_BYTES = 8 << 30  # a template may ask for any amount


SWITCHES = ("weight", "train", "training", "loss")
ALPACA = ("Below is an instruction that describes a task. Write a response that appropriately completes the request.")
ALPACA_INPUT = ("Below is an instruction that describes a task, paired with an input that provides further context. "
                "Write a response that appropriately completes the request.")
SPEAKERS = {"human": "user", "gpt": "assistant", "chatgpt": "assistant", "model": "assistant", "bot": "assistant",
            "function_call": "assistant", "observation": "tool", "function": "tool", "function_response": "tool",
            "tool_response": "tool"}


class Refused(Exception):
    pass


def texts(value):
    if not isinstance(value, str):
        raise Refused("no text")
    return value


def ended(tokenizer, ids):
    """With the end token behind them, once."""
    if tokenizer.eos_token_id is None:
        raise Refused("no end token")
    return ids if ids and ids[-1] == tokenizer.eos_token_id else [*ids, tokenizer.eos_token_id]


def unlearnt(ids, prompt):
    """Labels behind what the ids have in common with the prompt's own, as TRL's SFTTrainer has them."""
    same = next((k for k, (a, b) in enumerate(zip(ids, prompt)) if a != b), min(len(ids), len(prompt)))
    return [-100] * same + ids[same:]


def spoken(message):
    """A message of ShareGPT's as one of a chat."""
    key = "from" if message.get("from") is not None else "role"
    speaker, content = message[key], message.get("value" if key == "from" else "content")
    if speaker not in SPEAKERS and speaker not in ("user", "assistant", "system", "developer", "tool"):
        raise Refused(f"nobody is called {speaker}")
    made = {k: v for k, v in message.items() if k not in ("from", "value")} | {"role": SPEAKERS.get(speaker, speaker)}
    if speaker == "function_call":
        calls = json.loads(content) if isinstance(content, str) else content
        calls = calls if isinstance(calls, list) else [calls]
        made.pop("content", None)
        return made | {"tool_calls": [{"type": "function", "function": {"name": c["name"], "arguments": c["arguments"]} | c}
                                      for c in calls]}
    return made | ({"content": content} if "value" in message or "content" in message else {})


class Oracle:
    def __init__(self):
        self.kept = {}  # of the folder in hand

    def forget(self):
        self.kept = {}

    def tokenizer(self, folder):
        if "tokenizer" not in self.kept:
            self.kept["tokenizer"] = transformers.AutoTokenizer.from_pretrained(folder)
        return self.kept["tokenizer"]

    def ids(self, q):
        return {"ids": self.tokenizer(q["folder"]).encode(q["text"], add_special_tokens=q.get("add_special", False))}

    def decode(self, q):
        return {"text": self.tokenizer(q["folder"]).decode(q["ids"], skip_special_tokens=q.get("skip_special", False),
                                                           clean_up_tokenization_spaces=False)}

    def special(self, q):
        return {"special": dict(self.tokenizer(q["folder"]).special_tokens_map)}

    def render(self, q):
        if "template" in q:
            template = chat_template_utils._compile_jinja_template(q["template"])
            return {"text": template.render(**copy.deepcopy(q["variables"]))}  # jinja2 may change a list in place
        text = self.tokenizer(q["folder"]).apply_chat_template(
            q["messages"], tools=q.get("tools"), documents=q.get("documents"), tokenize=False,
            add_generation_prompt=q.get("add_generation_prompt", False), **q.get("kwargs", {}))
        return {"text": text}

    def rows(self, q):
        rows = [self.row(q, json.loads(line)) for line in q["rows"].split("\n")]
        for row in rows:  # nothing comes before a first token, so that it is never learnt
            row["labels"] = row["labels"] and [-100, *row["labels"][1:]]
        return {"rows": rows}

    def row(self, q, row):
        """A row of any shape: those of chats are made messages first."""
        tokenizer = self.tokenizer(q["folder"])
        if "ids" in row or "input_ids" in row:
            ids = row.get("ids", row.get("input_ids"))
            return {"ids": ids, "labels": row.get("labels") or ids}
        if "conversations" in row:
            return self.chat(tokenizer, row, [spoken(m) for m in row["conversations"]])
        if "messages" in row:
            return self.chat(tokenizer, row, row["messages"])
        if "instruction" in row:
            return self.alpaca(tokenizer, row)
        if "prompt" in row and isinstance(row["prompt"], list):
            return self.completion(tokenizer, row)
        if "prompt" in row:
            ids = ended(tokenizer, tokenizer.encode(texts(row["prompt"]) + texts(row["completion"])))
            return {"ids": ids, "labels": unlearnt(ids, tokenizer.encode(row["prompt"]))}
        ids = ended(tokenizer, tokenizer.encode(texts(row["text"])))
        return {"ids": ids, "labels": ids}

    def chat(self, tokenizer, row, messages):
        """Ids are apply_chat_template's; labels where the template marks answers."""
        template, tools = tokenizer.get_chat_template(), row.get("tools") or None
        if row.get("system"):
            messages = [{"role": "system", "content": texts(row["system"])}, *messages]
        if isinstance(tools, str):
            tools = json.loads(tools)
        marked = re.search(r"\{%-?\s*generation\s*-?%\}", template)  # as transformers looks for it
        muted = [isinstance(m, dict) and any(m.get(k) in (0, False) and m.get(k) is not None for k in SWITCHES)
                 for m in messages]
        if marked and any(muted):  # a message that is not learnt is written without the mark
            messages = [m | {"muted": mute} for m, mute in zip(messages, muted)]
            template = re.sub(r"\{% generation %\}(.*?)\{% endgeneration %\}",
                              r"{% if m.muted %}\1{% else %}{% generation %}\1{% endgeneration %}{% endif %}", template)
        made = tokenizer.apply_chat_template(messages, tools=tools, tokenize=True, return_dict=True, chat_template=template,
                                             return_assistant_tokens_mask=bool(marked))
        mask = made.get("assistant_masks")
        labels = marked and [i if m and at else -100 for at, (i, m) in enumerate(zip(made["input_ids"], mask))]
        return {"ids": made["input_ids"], "labels": labels or None}

    def completion(self, tokenizer, row):
        asked = tokenizer.apply_chat_template(row["prompt"], tokenize=True, add_generation_prompt=True)["input_ids"]
        ids = tokenizer.apply_chat_template(row["prompt"] + row["completion"], tokenize=True)["input_ids"]
        return {"ids": ids, "labels": unlearnt(ids, asked)}

    def alpaca(self, tokenizer, row):
        """Stanford's templates; `system` in the place of its first sentence, turns of `history` before the last."""
        # What stands before any text, found beside the first text that has tokens of its own.
        probes = [texts(row["instruction"]), "a", "b", "1", "."]
        probe = next((text for text in probes if text and tokenizer.encode(text, add_special_tokens=False)), "a")
        bare, whole = tokenizer.encode(probe, add_special_tokens=False), tokenizer.encode(probe)
        ids = whole[:next((k for k in range(len(whole)) if whole[k:k + len(bare)] == bare), 0)] if bare else []
        labels = [-100] * len(ids)
        last = [texts(row["instruction"]), texts(row.get("input") or ""), texts(row["output"])]
        for turn, (instruction, given, output) in enumerate([[*map(texts, (q, "", a))] for q, a in row.get("history") or []] + [last]):
            head = texts(row.get("system") or "") or (ALPACA_INPUT if given else ALPACA)
            prompt = (head if turn == 0 else "") + f"\n\n### Instruction:\n{instruction}" + \
                (f"\n\n### Input:\n{given}" if given else "") + "\n\n### Response:\n"
            asked = tokenizer.encode(prompt, add_special_tokens=False)
            answer = ended(tokenizer, tokenizer.encode(output, add_special_tokens=False))
            ids, labels = ids + asked + answer, labels + [-100] * len(asked) + answer
        return {"ids": ids, "labels": labels}

    def loss(self, q):
        config = transformers.AutoConfig.from_pretrained(q["folder"])
        for key in ("num_hidden_layers", "num_local_experts", "num_experts"):  # each takes the class a while to make
            if key in type(config)().to_dict() and isinstance(getattr(config, key), int) and getattr(config, key) > PARTS_MAX:
                raise Refused(f"weights are missing for {key}")
        with torch.device("meta"):
            empty = transformers.AutoModelForCausalLM.from_config(config)
        if sum(p.numel() for p in empty.parameters()) > MODEL_MAX:
            raise Refused("weights of other shapes")
        model, info = transformers.AutoModelForCausalLM.from_pretrained(
            q["folder"], dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
        if info["missing_keys"] or info["mismatched_keys"]:
            raise Refused(f"weights are missing: {sorted(info['missing_keys'])[:3]}")
        if "adapter" in q:
            model = peft.PeftModel.from_pretrained(model, q["adapter"])
        model.eval()
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([q["ids"]]), return_dict=True).logits[0].double()
        labels = torch.tensor(q["labels"])
        loss = torch.nn.functional.cross_entropy(logits[:-1], labels[1:], ignore_index=-100).item()
        if loss != loss:
            raise Refused("the loss is not a number")
        return {"loss": loss} | ({"logits": logits.flatten().tolist()} if q.get("logits") else {})

    def answer(self, q):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return getattr(self, q["do"])(q)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as why:  # tokenizers' panics are no Exceptions
            if isinstance(why, MemoryError) or type(why).__name__ == "PanicException":
                return {"panic": str(why)[:300]}
            return {"refused": f"{type(why).__name__}: {str(why)[:300]}"}


def main():
    """Questions on the input, answers where the output was: what the libraries print goes elsewhere."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    oracle = Oracle()
    for line in sys.stdin:
        question = json.loads(line)
        if question.pop("fresh", True):
            oracle.forget()
        answers.write(json.dumps(oracle.answer(question)) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
