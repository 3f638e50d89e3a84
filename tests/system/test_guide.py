#!/usr/bin/env python3
"""Every command of the pages for users (docs/README.md names them) is run, in order, in a fresh home whose path is long and has spaces.

A block ```sh is run, ```sh fails must end with a status that is not 0; a block ```file NAME is written as that file; a block ```sh not-run is not run, and the comment in its
first line must say why (it is printed). No other block may look like commands.
"""
import json
import os
import random
import re
import shutil
import struct
import subprocess
import tempfile

from motley import BIN, SOURCE, Failed, expect, main
from hub import Hub, Repository

DOCS = os.path.join(SOURCE, "docs")
FOLDERS = ("start", "how-to", "run-a-lab")
DATA = os.path.join(SOURCE, "tests", "data")
CHATML = os.path.join(DATA, "chat", "chatml.jinja")


def pages():
    """The pages in the order of the index."""
    with open(os.path.join(DOCS, "README.md"), encoding="utf-8") as handle:
        named = re.findall(rf"\]\(((?:{'|'.join(FOLDERS)})/[a-z-]+\.md)\)", handle.read())
    pages_there = sorted(f"{folder}/{name}" for folder in FOLDERS for name in os.listdir(os.path.join(DOCS, folder)))
    expect(sorted(named) == pages_there, f"the index names {sorted(named)}, there are {pages_there}")
    return named


def blocks(page):
    """(kind, text) of each fenced block."""
    with open(os.path.join(DOCS, page), encoding="utf-8") as handle:
        return re.findall(r"^```([^\n]*)\n(.*?)^```$", handle.read(), re.M | re.S)


def make_model(folder):
    """A Llama of two layers with random weights, a tokenizer and a chat template, in the place of the guide's model."""
    os.makedirs(folder)
    hidden, inter, vocab, heads, kv = 64, 128, 512, 4, 2
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": vocab, "hidden_size": hidden,
              "intermediate_size": inter, "num_hidden_layers": 2, "num_attention_heads": heads, "num_key_value_heads": kv,
              "max_position_embeddings": 1024, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": True,
              "hidden_act": "silu", "bos_token_id": None, "eos_token_id": 2, "torch_dtype": "float32"}
    shapes = {"model.embed_tokens.weight": (vocab, hidden), "model.norm.weight": (hidden,)}
    for layer in range(2):
        at = f"model.layers.{layer}."
        shapes.update({at + "input_layernorm.weight": (hidden,), at + "post_attention_layernorm.weight": (hidden,),
                       at + "self_attn.q_proj.weight": (hidden, hidden), at + "self_attn.o_proj.weight": (hidden, hidden),
                       at + "self_attn.k_proj.weight": (hidden * kv // heads, hidden),
                       at + "self_attn.v_proj.weight": (hidden * kv // heads, hidden),
                       at + "mlp.gate_proj.weight": (inter, hidden), at + "mlp.up_proj.weight": (inter, hidden),
                       at + "mlp.down_proj.weight": (hidden, inter)})
    header, body, draw = {}, [], random.Random(1)
    at = 0
    for name, shape in shapes.items():
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        values = [1.0] * count if "norm" in name else [draw.gauss(0, 0.05) for _ in range(count)]
        body.append(struct.pack(f"<{count}f", *values))
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [at, at + 4 * count]}
        at += 4 * count
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(folder, "model.safetensors"), "wb") as handle:
        handle.write(struct.pack("<Q", len(text)) + text + b"".join(body))
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as handle:
        json.dump(config, handle)
    shutil.copy(os.path.join(DATA, "tokenizer", "smollm.json"), os.path.join(folder, "tokenizer.json"))
    with open(CHATML, encoding="utf-8") as handle:
        template = handle.read()
    with open(os.path.join(folder, "tokenizer_config.json"), "w", encoding="utf-8") as handle:
        json.dump({"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "chat_template": template,
                   "tokenizer_class": "PreTrainedTokenizerFast"}, handle)


class Reader:
    """Somebody who types what the guide says, in one folder."""

    def __init__(self, hub):
        self.base = tempfile.mkdtemp(prefix="motley-guide-")
        os.chmod(self.base, 0o755)
        self.work = os.path.join(self.base, "a student's folder", "w" * 80)
        os.makedirs(self.work)
        self.env = dict(os.environ, PATH=f"{BIN}:{os.environ['PATH']}", MOTLEY_HOME=os.path.join(self.work, "my home"),
                        HF_ENDPOINT=hub.url, HF_HOME=os.path.join(self.base, "hf"))
        made = os.path.join(self.base, "made")
        make_model(made)
        files = {}
        for name in os.listdir(made):
            with open(os.path.join(made, name), "rb") as handle:
                files[name] = handle.read()
        hub.repositories["HuggingFaceTB/SmolLM2-135M-Instruct"] = Repository(files)

    def type(self, page, text, fails=False):
        done = subprocess.run(["bash", "-euo", "pipefail", "-c", text], cwd=self.work, env=self.env, capture_output=True, text=True,
                              timeout=120, check=False)
        expect((done.returncode != 0) == fails, f"{page}: {text}\nstatus {done.returncode}: {done.stdout[-1500:]}{done.stderr[-1500:]}")
        return done.stdout + done.stderr

    def follow(self, page):
        ran = 0
        for kind, text in blocks(page):
            if kind in ("sh", "sh fails"):
                output = self.type(page, text, kind == "sh fails")
                if os.environ.get("MOTLEY_GUIDE_SHOW"):
                    print(f"$ {text}{output}")
                ran += 1
            elif kind.startswith("file "):
                with open(os.path.join(self.work, kind[5:].strip()), "w", encoding="utf-8") as handle:
                    handle.write(text)
            elif kind == "sh not-run":
                expect(text.startswith("# not run by the test: "), f"{page}: a block that is not run has no reason:\n{text}")
                print(f"not run ({page}): {text.splitlines()[0][23:]}")
            else:
                expect(kind in ("text", "python", "json", "yaml"), f"{page}: a block of unknown kind \"{kind}\"")
                expect(not re.search(r"^(motley|make|\$) ", text, re.M), f"{page}: commands in a block that is not sh:\n{text}")
        return ran


def the_guides_commands_work_as_they_stand():
    with Hub() as hub:
        return follow_all(Reader(hub))


def follow_all(reader):
    try:
        ran = {page: reader.follow(page) for page in pages()}
    finally:
        subprocess.run([os.path.join(BIN, "motley"), "down"], env=reader.env, cwd=reader.work, timeout=60, check=False,
                       stdout=subprocess.DEVNULL)
        shutil.rmtree(reader.base, ignore_errors=True)
    if sum(ran.values()) < 15:
        raise Failed(f"only {ran} blocks were found")
    return f"{sum(ran.values())} blocks run: {ran}"


if __name__ == "__main__":
    main(the_guides_commands_work_as_they_stand)
