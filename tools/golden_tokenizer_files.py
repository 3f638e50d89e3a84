#!/usr/bin/env python3
"""Records what transformers makes of the files beside tokenizer.json: tests/data/tokenizer/files.json.

Run with a Python that has transformers 5.24 and tokenizers 0.23.3:  tools/golden_tokenizer_files.py
Each case is a folder made of `base` and what the case changes: members of config.json, tokenizer_config.json and
tokenizer.json (null is null; a member that is absent says so by "-"), and further files. `want` is null where
AutoTokenizer.from_pretrained refuses the folder; else the ids of `texts`, special_tokens_map, and what
apply_chat_template renders without and with tools (null: it refuses).
"""
import json
import os
import shutil
import tempfile

os.environ["TRANSFORMERS_VERBOSITY"] = "error"
from transformers import AutoTokenizer  # noqa: E402

OUT = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "tests/data/tokenizer/files.json")
TEXTS = ["a<tool>b", "x <|im_end|> y", "a <|x|>  <|y|>b", "é 12345 it's", "<s>q</s>"]
MESSAGES = [{"role": "user", "content": "hi"}]


def flags(**more):
    return {**{"lstrip": False, "rstrip": False, "normalized": False, "single_word": False, "special": True}, **more}


def byte_vocabulary():
    """GPT-2's alphabet of bytes, in its order."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters, extra = {b: chr(b) for b in printable}, 256
    for byte in range(256):
        if byte not in letters:
            letters[byte], extra = chr(extra), extra + 1
    return {letters[b]: b for b in range(256)}


BASE = {
    "config": {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 16, "vocab_size": 300,
               "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, "bos_token_id": 258,
               "eos_token_id": 257},
    "tokenizer_config": {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>",
                         "chat_template": "{{ bos_token }}|{{ eos_token }}|{{ messages[0].content }}"},
    "tokenizer": {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "post_processor": None,
        "added_tokens": [{"id": 256 + i, "content": c, **flags()}
                         for i, c in enumerate(("<|im_start|>", "<|im_end|>", "<|endoftext|>"))],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": byte_vocabulary(), "merges": []}}}

TOKEN = {"__type": "AddedToken", "content": "<|x|>", **flags()}
DEFAULT, TOOLS = "D {{ messages[0].content }}", "T {{ messages[0].content }}{{ tools is none }}"


def named_cases():
    for name in ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "mask_token", "image_token"):
        for value in (None, "-", "<|x|>", "<|im_start|>", "", 7, TOKEN, {"content": "<|x|>"}, {**TOKEN, "lstrip": True},
                      {**TOKEN, "special": False, "normalized": True, "rstrip": True}, ["<|x|>"]):
            yield {"tokenizer_config": {name: value}}
    for key in ("additional_special_tokens", "extra_special_tokens"):
        for value in (None, [], ["<tool>", "<|x|>"], ["<|x|>", {**TOKEN, "content": "<|y|>", "rstrip": True}], {},
                      {"tool_token": "<tool>"}, "<tool>", 3):
            yield {"tokenizer_config": {key: value}}
    yield {"tokenizer_config": {"additional_special_tokens": ["<tool>"], "extra_special_tokens": ["<|x|>"]}}


def added_cases():
    one = {"259": {"content": "<tool>", **flags()}}
    yield {"tokenizer_config": {"added_tokens_decoder": one}}
    yield {"tokenizer_config": {"added_tokens_decoder": {"1000": {"content": "<tool>", **flags()}}}}
    yield {"tokenizer_config": {"added_tokens_decoder": {"5": {"content": "<tool>", **flags()}, "4": {"content": "<|x|>", **flags()}}}}
    for more in ({"lstrip": True}, {"rstrip": True}, {"special": False}, {"normalized": True}, {"single_word": True}):
        yield {"tokenizer_config": {"added_tokens_decoder": {"257": {"content": "<|im_end|>", **flags(**more)}}}}
        yield {"tokenizer_config": {"added_tokens_decoder": {"259": {"content": "<|x|>", **flags(**more)}}}}
        yield {"tokenizer_config": {"eos_token": "<|x|>", "added_tokens_decoder": {"259": {"content": "<|x|>", **flags(**more)}}}}
    for wrong in (None, {}, [], {"a": {"content": "<tool>", **flags()}}, {"259": "<tool>"}, {"259": {"content": 5}},
                  {"259": {"content": "<tool>"}}, {"259": {"content": "a"}}, {"259": {"content": "<tool>", "x": 1}}):
        yield {"tokenizer_config": {"added_tokens_decoder": wrong}}
    for added in ({"<tool>": 259}, {"<tool>": 259, "<|x|>": 260}, {"<|im_end|>": 257}, {}):
        yield {"files": {"added_tokens.json": added}}
        yield {"files": {"added_tokens.json": added}, "tokenizer_config": {"pad_token": "<tool>"}}
        yield {"files": {"added_tokens.json": added}, "tokenizer_config": {"added_tokens_decoder": one}}
    for special in ({"eos_token": "<|im_start|>"}, {"eos_token": {"content": "<|x|>", "lstrip": True, "rstrip": False,
                     "normalized": False, "single_word": False}}, {"bos_token": "<|x|>", "eos_token": "<|im_start|>"},
                    {"additional_special_tokens": ["<tool>"]}, {"eos_token": None}, {}):
        yield {"files": {"special_tokens_map.json": special}}
        yield {"files": {"special_tokens_map.json": special}, "tokenizer_config": {"eos_token": "-"}}
        yield {"files": {"special_tokens_map.json": special}, "tokenizer_config": {"added_tokens_decoder": one}}


def switch_cases():
    around = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<|im_start|>", "type_id": 0}},
              {"Sequence": {"id": "A", "type_id": 0}}], "pair": [{"Sequence": {"id": "A", "type_id": 0}},
              {"Sequence": {"id": "B", "type_id": 1}}],
              "special_tokens": {"<|im_start|>": {"id": "<|im_start|>", "ids": [256], "tokens": ["<|im_start|>"]}}}
    for post in (None, around):
        for begin in ("-", None, True, False):
            for end in ("-", True, False):
                for bos in ("-", "<|endoftext|>"):
                    yield {"tokenizer": {"post_processor": post},
                           "tokenizer_config": {"add_bos_token": begin, "add_eos_token": end, "bos_token": bos}}
    for key in ("add_prefix_space", "legacy", "split_special_tokens", "clean_up_tokenization_spaces", "use_default_system_prompt"):
        for value in (True, False, None):
            yield {"tokenizer_config": {key: value}}


def class_cases():
    for model in ("llama", "mistral", "qwen2", "qwen3", "gemma2", "phi3", "smollm3", "olmoe", "qwen3_moe", "mixtral"):
        for name in ("-", "PreTrainedTokenizerFast", "LlamaTokenizerFast", "Qwen2Tokenizer", "GPT2TokenizerFast",
                     "GPTNeoXTokenizer", "TokenizersBackend"):
            yield {"config": {"model_type": model}, "tokenizer_config": {"tokenizer_class": name, "eos_token": "-"}}
    # a vowel sign belongs to its letter's word, so that their bytes may merge
    marks = {"model": {**BASE["tokenizer"]["model"], "merges": ["\u00b9 \u00e0"], "vocab": {
        **BASE["tokenizer"]["model"]["vocab"], "\u00b9\u00e0": 290}}}
    for model in ("qwen2", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_next"):
        for name in ("-", "Qwen2Tokenizer", "Qwen3_5Tokenizer"):
            yield {"config": {"model_type": model}, "tokenizer": marks, "tokenizer_config": {"tokenizer_class": name},
                   "texts": ["\u0939\u093f x\u093f!"]}
    for name in ("Qwen2Tokenizer", "GPT2Tokenizer", "GPTNeoXTokenizer"):
        for space in (True, False, None):
            yield {"tokenizer_config": {"tokenizer_class": name, "add_prefix_space": space}}
    spaces = {"pre_tokenizer": None, "decoder": None, "added_tokens": [], "normalizer": {"type": "Lowercase"},
              "model": {**BASE["tokenizer"]["model"], "vocab": {**{chr(33 + i): i for i in range(94)}, "<unk>": 94, "<s>": 95,
                        "</s>": 96, "▁": 97, "<pad>": 98, "<bos>": 99, "<eos>": 100, "<mask>": 101, "é": 102}}}
    for legacy in ("-", True, False, None):
        for space in ("-", True, False, None):
            yield {"tokenizer": spaces, "tokenizer_config": {"tokenizer_class": "LlamaTokenizer", "legacy": legacy,
                                                             "add_prefix_space": space, "eos_token": "-"}}
    for model in ("gemma2", "gemma3_text"):
        yield {"config": {"model_type": model}, "tokenizer": spaces,
               "tokenizer_config": {"tokenizer_class": "GemmaTokenizer", "eos_token": "-"}}
        yield {"config": {"model_type": model}, "tokenizer": spaces,
               "tokenizer_config": {"tokenizer_class": "GemmaTokenizer", "unk_token": "<s>"}}
        yield {"config": {"model_type": model}, "tokenizer": spaces, "tokenizer_config": {"tokenizer_class": "-"}}


def order_cases():
    """Which file, flag or id counts where several speak of one token; how classes that build their own pipeline go on."""
    plain = {"id": 256, "content": "<|im_end|>", **flags(special=False, normalized=True, single_word=True)}
    yield {"tokenizer": {"added_tokens": [plain]}}
    yield {"tokenizer_config": {"bos_token": "i", "added_tokens_decoder": {"256": {"content": "<|im_end|>", **flags(normalized=True)}}}}
    yield {"tokenizer_config": {"bos_token": "o"}, "files": {"added_tokens.json": {"<tool>": 259}}}
    yield {"tokenizer": {"added_tokens": [plain]}, "tokenizer_config": {"eos_token": "-"}}
    for name in ("-", "Qwen2Tokenizer", "GPT2Tokenizer", "GPTNeoXTokenizer"):
        for decoder in ("-", {"260": {"content": "<|x|>", **flags(lstrip=True)}},
                        {"257": {"content": "<|im_end|>", **flags()}, "300": {"content": "<|y|>"}}):
            for eos in ("<|im_end|>", "<|x|>", None):
                yield {"tokenizer_config": {"tokenizer_class": name, "added_tokens_decoder": decoder, "eos_token": eos}}
        yield {"tokenizer": {"added_tokens": [plain]}, "tokenizer_config": {"tokenizer_class": name}}
    for added in ({"<tool>": 257, "<|x|>": 300, "<|y|>": 300}, {"a": 259, "<|y|>": 257}, {"<tool>": 5}, {"<tool>": "5"}):
        yield {"files": {"added_tokens.json": added}}
    for special in ({"cls_token": "<tool>", "mask_token": "<|x|>", "bos_token": "<|y|>"}, {"image_token": "<|x|>"},
                    {"padding_side": "left"}, {"padding_side": "up"}, {"add_bos_token": True}, {"eos_token": ""},
                    {"extra_special_tokens": ["<tool>", {"content": "<|x|>", "lstrip": True}]},
                    {"extra_special_tokens": {"image_token": "<tool>"}}, {"additional_special_tokens": [{"content": "<tool>"}]}):
        yield {"files": {"special_tokens_map.json": special}}
        yield {"files": {"special_tokens_map.json": special},
               "tokenizer_config": {"image_token": "<|y|>", "extra_special_tokens": ["<|y|>"], "sep_token": "<tool>"}}
    for lstrip in (True, False):
        yield {"tokenizer_config": {"bos_token": "<|x|>", "image_token": {**TOKEN, "lstrip": lstrip, "rstrip": not lstrip}}}
        yield {"tokenizer_config": {"pad_token": {**TOKEN, "lstrip": lstrip}, "additional_special_tokens": ["<|x|>", "<tool>"]}}
    for side in ("padding_side", "truncation_side"):
        for value in ("left", "right", "middle", None, True):
            yield {"tokenizer_config": {side: value}}
    for key, value in (("padding", {"strategy": "BatchLongest", "direction": "Left", "pad_to_multiple_of": None, "pad_id": 3,
                                    "pad_type_id": 0, "pad_token": "<tool>"}),
                       ("truncation", {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0})):
        for pad in ("-", None, "<|x|>"):
            yield {"tokenizer": {key: value}, "tokenizer_config": {"pad_token": pad}}
    for key in ("model_max_length", "model_input_names", "chat_control_tokens", "auto_map", "init_inputs", "fix_mistral_regex",
                "model_specific_special_tokens"):
        for value in (None, 7, [], {}, "x", {"image_token": "<|x|>"}):
            yield {"tokenizer_config": {key: value}}
    for name in ("", "Qwen2TokenizerFast"):
        yield {"config": {"model_type": "qwen2"}, "tokenizer_config": {"tokenizer_class": name}}


def template_cases():
    own = ("-", None, DEFAULT, {"default": DEFAULT, "tool_use": TOOLS}, {"tool_use": TOOLS}, {"x": DEFAULT}, [],
           [{"name": "tool_use", "template": TOOLS}, {"name": "default", "template": DEFAULT}], [{"name": "default"}], 5)
    for value in own:
        yield {"tokenizer_config": {"chat_template": value}}
        yield {"tokenizer_config": {"chat_template": value}, "files": {"chat_template.jinja": "F {{ eos_token }}"}}
        yield {"tokenizer_config": {"chat_template": value},
               "files": {"additional_chat_templates/tool_use.jinja": TOOLS}}
        yield {"tokenizer_config": {"chat_template": value},
               "files": {"chat_template.jinja": "F {{ eos_token }}", "additional_chat_templates/tool_use.jinja": TOOLS}}
    yield {"files": {"chat_template.json": {"chat_template": "J"}}}
    yield {"tokenizer_config": {"chat_template": "{{ pad_token }}{{ unk_token }}{{ image_token }}{{ bos_token is defined }}",
                                "pad_token": "<|endoftext|>", "image_token": "<img>"}}


def merge(base, change):
    out = dict(base)
    for key, value in (change or {}).items():
        out.pop(key, None) if value == "-" else out.__setitem__(key, value)
    return out


def write(folder, case):
    for part, name in (("config", "config.json"), ("tokenizer_config", "tokenizer_config.json"), ("tokenizer", "tokenizer.json")):
        with open(os.path.join(folder, name), "w") as file:
            json.dump(merge(BASE[part], case.get(part)), file)
    for name, value in case.get("files", {}).items():
        path = os.path.join(folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write(value if isinstance(value, str) else json.dumps(value))


def render(tokenizer, tools):
    try:
        return tokenizer.apply_chat_template(MESSAGES, tools=tools, tokenize=False)
    except Exception:
        return None


def answer(folder, texts):
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
        ids = [tokenizer(text)["input_ids"] for text in texts]
    except BaseException:  # the library's panics are no Exception
        return None
    return {"ids": ids, "special": tokenizer.special_tokens_map,
            "plain": render(tokenizer, None), "tools": render(tokenizer, [])}


def main():
    cases = [*named_cases(), *added_cases(), *switch_cases(), *class_cases(), *order_cases(), *template_cases()]
    for case in cases:
        folder = tempfile.mkdtemp()
        write(folder, case)
        case["want"] = answer(folder, case.get("texts", TEXTS))
        shutil.rmtree(folder)
    with open(OUT, "w") as file:
        file.write('{"base": ' + json.dumps(BASE, ensure_ascii=False) + ',\n "texts": ' + json.dumps(TEXTS, ensure_ascii=False) +
                   ',\n "cases": [\n' + ",\n".join(json.dumps(c, ensure_ascii=False) for c in cases) + "]}\n")
    print(f"{len(cases)} cases, {sum(c['want'] is None for c in cases)} refused")


if __name__ == "__main__":
    main()
