"""What the libraries make of a question. Nothing here knows of Motley."""
import copy
import json
import os
import re
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


class Refused(Exception):
    pass


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
        """Rows of chat alone: ids are apply_chat_template's; labels where the template marks answers."""
        rows = []
        for line in q["rows"].split("\n"):
            row = json.loads(line)
            rows.append(self.row(q, row))
        return {"rows": rows}

    def row(self, q, row):
        tokenizer = self.tokenizer(q["folder"])
        if "text" in row:
            ids = tokenizer.encode(row["text"], add_special_tokens=True)
            if not ids or ids[-1] != tokenizer.eos_token_id:
                ids.append(tokenizer.eos_token_id)
            return {"ids": ids, "labels": [-100, *ids[1:]]}
        marked = re.search(r"\{%-?\s*generation\s*-?%\}", tokenizer.get_chat_template())  # as transformers looks for it
        made = tokenizer.apply_chat_template(row["messages"], tools=row.get("tools"), tokenize=True, return_dict=True,
                                             return_assistant_tokens_mask=bool(marked))
        mask = made.get("assistant_masks")
        labels = marked and [i if m and at else -100 for at, (i, m) in enumerate(zip(made["input_ids"], mask))]
        return {"ids": made["input_ids"], "labels": labels or None}

    def loss(self, q):
        config = transformers.AutoConfig.from_pretrained(q["folder"])
        for key in ("num_hidden_layers", "num_local_experts", "num_experts"):  # each takes the class a while to make
            if isinstance(getattr(config, key, 0), int) and getattr(config, key, 0) > PARTS_MAX:
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
            if type(why).__name__ == "PanicException":
                return {"panic": str(why)[:300]}
            return {"refused": f"{type(why).__name__}: {str(why)[:300]}"}
