#!/usr/bin/env python3
"""Make small tokenizers and what the real libraries make of texts with them.

    tools/golden_tokenizers.py                 tests/data/tokenizer: the SentencePiece-like families and tekken
    tools/golden_tokenizers.py pieces          of those the tokenizer.model files alone
    tools/golden_tokenizers.py FOLDER COUNT    every family, COUNT texts each, for MOTLEY_TOKENIZERS=FOLDER

Needs `tokenizers`, `transformers` (merges of a SentencePiece vocabulary as it extracts them) and `sentencepiece`.
The vocabularies are trained here on this tree's own documents; the shapes of the files (normaliser,
pre-tokeniser, decoder, flags of added tokens) are those of the models named.
"""
import glob
import io
import json
import os
import random
import struct
import sys

import sentencepiece
from tokenizers import Tokenizer
from transformers.convert_slow_tokenizer import generate_merges

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
DATA = os.path.join(ROOT, "tests", "data", "tokenizer")
MARK = "\u2581"
NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6


def corpus():
    for path in sorted(glob.glob(os.path.join(ROOT, "docs", "*.md"))):
        yield from open(path, encoding="utf-8").read().split("\n")
    for _ in range(40):
        yield from ["  return  x;", "    if (a == b) {", "\t\tend", "日本語と中国語の文です。", "국어 문장입니다", "café naïve über",
                    "👩\u200d👧 🙂🙃", "это русский текст", "x = 12345 + 67890"]


def train(**more):
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=corpus(), model_writer=out, model_type="bpe", byte_fallback=True,
        normalization_rule_name="identity", remove_extra_whitespaces=False, split_digits=True, num_threads=1,
        allow_whitespace_only_pieces=True, character_coverage=0.99, max_sentencepiece_length=12, minloglevel=2, **{"vocab_size": 560, **more})
    return sentencepiece.SentencePieceProcessor(model_proto=out.getvalue())


def type_of(sp, i):
    return UNKNOWN if sp.is_unknown(i) else CONTROL if sp.is_control(i) else BYTE if sp.is_byte(i) else NORMAL


def added(i, content, **flags):
    token = {"id": i, "content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
             "special": True}
    return {**token, **flags}


REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": MARK}
PREPEND = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": MARK}, REPLACE]}
DECODE = [{"type": "Replace", "pattern": {"String": MARK}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]
STRIP = {"type": "Sequence", "decoders": DECODE + [{"type": "Strip", "content": " ", "start": 1, "stop": 0}]}


def metaspace(**more):
    return {"type": "Metaspace", "replacement": MARK, **more}


def families(sp):
    """name -> (normalizer, pre_tokenizer, decoder, model's flags, added tokens behind unk, bos, eos)."""
    n = sp.get_piece_size()
    yield "llama2", PREPEND, None, STRIP, {}, []
    yield "mistral", None, metaspace(prepend_scheme="first", split=False), STRIP, {}, [
        added(n + i, t) for i, t in enumerate(["[INST]", "[/INST]", "[TOOL_CALLS]"])]
    yield "gemma", REPLACE, {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}, {
        "type": "Sequence", "decoders": DECODE}, {}, [added(n + i, t, special=i < 2) for i, t in enumerate(
            ["<start_of_turn>", "<end_of_turn>", "\n\n", "\n\n\n", "<b>"])] + [
                added(sp.piece_to_id(MARK + MARK), MARK + MARK, special=False)]
    yield "phi3", PREPEND, None, STRIP, {}, [
        added(n, "<|user|>", rstrip=True), added(n + 1, "<|end|>", rstrip=True), added(n + 2, "<|l|>", lstrip=True, rstrip=True),
        added(n + 3, "word", single_word=True, special=False), added(n + 4, "a b", normalized=True, special=False)]
    yield "metaspace", {"type": "NFKC"}, metaspace(add_prefix_space=True), metaspace(add_prefix_space=True), {
        "byte_fallback": False}, [added(n, "<mask>", lstrip=True)]
    yield "tinyllama", PREPEND, None, STRIP, {"byte_fallback": False, "fuse_unk": False}, []


def document(sp, normalizer, pre, decoder, flags, more):
    vocab = {sp.id_to_piece(i): i for i in range(sp.get_piece_size())}
    scores = {sp.id_to_piece(i): sp.get_score(i) for i in range(sp.get_piece_size()) if type_of(sp, i) == NORMAL}
    bos = {"SpecialToken": {"id": "<s>", "type_id": 0}}
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [added(0, "<unk>"), added(1, "<s>"), added(2, "</s>")] + more,
        "normalizer": normalizer, "pre_tokenizer": pre,
        "post_processor": {"type": "TemplateProcessing", "single": [bos, {"Sequence": {"id": "A", "type_id": 0}}],
                           "pair": [bos, {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                           "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
        "decoder": decoder,
        "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True, "ignore_merges": False, **flags,
                  "vocab": vocab, "merges": [list(m) for m in generate_merges(vocab, scores)]}}


def tekken():
    """Llama 3's small vocabulary cut by Mistral's pattern."""
    doc = json.load(open(os.path.join(DATA, "llama3.json"), encoding="utf-8"))
    doc["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = (
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|"
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|"
        r"\s*[\r\n]+|\s+(?!\S)|\s+")
    return doc


def gguf(sp):
    """The vocabulary alone, as a GGUF file of `tokenizer.ggml.model` llama."""
    def text(s):
        raw = s.encode()
        return struct.pack("<Q", len(raw)) + raw

    n = sp.get_piece_size()
    keys = [text("general.architecture") + struct.pack("<I", 8) + text("llama"),
            text("tokenizer.ggml.model") + struct.pack("<I", 8) + text("llama"),
            text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, n) + b"".join(text(sp.id_to_piece(i)) for i in range(n)),
            text("tokenizer.ggml.scores") + struct.pack("<IIQ", 9, 6, n) + b"".join(struct.pack("<f", sp.get_score(i)) for i in range(n)),
            text("tokenizer.ggml.token_type") + struct.pack("<IIQ", 9, 5, n) + b"".join(struct.pack("<i", type_of(sp, i)) for i in range(n)),
            text("tokenizer.ggml.bos_token_id") + struct.pack("<II", 4, sp.bos_id()),
            text("tokenizer.ggml.eos_token_id") + struct.pack("<II", 4, sp.eos_id()),
            text("tokenizer.ggml.unknown_token_id") + struct.pack("<II", 4, sp.unk_id())]
    return b"GGUF" + struct.pack("<IQQ", 3, 0, len(keys)) + b"".join(keys)


FIXED = ["", " ", "  ", "a", " a", "Hello, world!", "  two  spaces   three ", "tab\tnew\nline\r\n\r\nend\n\n\n", "1234567890 3.14",
         "<s>a</s> b <unk>", "<s> <s>", "[INST] hi [/INST]yes", "<start_of_turn>user\n\n\nx<end_of_turn>\n", "<|user|>\n hi<|end|>\n",
         "x  <|l|>  y<|l|>\n<|l|>", "word words sword word_ (word) word", "aa b a b\u2581c", "\u2581\u2581x \u2581", "a<mask> b  <mask>c",
         "日本語と中国語", "👩\u200d👧 🙂 \U0001f9ff", "\ufb01 \u2460 \u00e9 e\u0301 \u1100\u1161 \u212b", "\x00\x01\x7f\x1b", "<0x41><0x0A>", " " * 40,
         "\u00a0nbsp\u2003em\u200bzero\u3000", "\ud7a3\u11a8 \u0344 \u0f73"]
ALPHABETS = ["abcdefghijklmnopqrstuvwxyz ABC", " \t\n\r\u00a0\u3000\u2581", "0123456789.,²½٣Ⅷ", "日本語文中国어국テキスト", "éüñßçžø\u0301\u0308\u0327",
             "👩🙂🙃❤\u200d\ufe0f🇫🇷", "\x00\x01\x1b\x7f", "это русский текст", "{}()[]<>|_=+-*/\\'\"!?#", "ℯ𝒹ꙮ﷽ﬁ①Å"]
PARTS = ["<s>", "</s>", "<unk>", "[INST]", "[/INST]", "<start_of_turn>", "<|user|>", "<|end|>", " <|l|> ", "word", "a b", "<mask>",
         "\n\n", "\n\n\n\n", "  ", "<0x0A>", "<b>", "<|eot_id|>", "<|im_end|>", "the ", "don't "]


def texts(seed, count):
    rng = random.Random(seed)
    yield from FIXED
    for _ in range(count):
        out = ""
        for _ in range(rng.randint(1, 8)):
            kind = rng.random()
            if kind < 0.25:
                out += rng.choice(PARTS)
            elif kind < 0.35:
                out += " " * rng.randint(1, 20)
            elif kind < 0.45:
                out += "".join(chr(c) for c in (rng.randrange(0x110000) for _ in range(4)) if not 0xd800 <= c < 0xe000)
            else:
                out += "".join(rng.choice(rng.choice(ALPHABETS)) if rng.random() < 0.1 else c
                               for c in rng.choices(rng.choice(ALPHABETS), k=rng.randint(1, 9)))
        yield out


def cases(tokenizer, seed, count):
    """Besides texts: runs of ids by chance, whose bytes are mostly no text, in `decode`."""
    rng = random.Random(seed)
    out = []
    for text in texts(seed, count):
        ids = tokenizer.encode(text).ids
        item = {"text": text, "ids": ids, "decoded": tokenizer.decode(ids, skip_special_tokens=False),
                "plain": tokenizer.decode(ids, skip_special_tokens=True)}
        if rng.random() < 0.3:
            loose = [rng.randrange(tokenizer.get_vocab_size()) for _ in range(rng.randint(1, 8))]
            item["loose"] = loose
            item["loose_decoded"] = tokenizer.decode(loose, skip_special_tokens=True)
        out.append(item)
    return out


def write(folder, name, value):
    with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
        json.dump(value, f, ensure_ascii=False, separators=(",", ":"))


def pieces(folder, count):
    """tokenizer.model files, as Llama 2 has it and as Gemma: without a space before the text, with pieces of the user's.

    SentencePiece sees no control tokens in a text and gives a text of no bytes no prefix."""
    for name, more in (("pieces", {}), ("pieces-user", {"add_dummy_prefix": False, "vocab_size": 600, "user_defined_symbols": [
            MARK * n for n in (2, 3, 4, 8)] + ["\n\n", "\n\n\n", "<b>", "[INST]", "word"]})):
        sp = train(**more)
        with open(os.path.join(folder, name + ".model"), "wb") as f:
            f.write(sp.serialized_model_proto())
        plain = [t for t in texts(98, count) if t and not any(c in t for c in ("<s>", "</s>", "<unk>", "\x00", MARK))]
        write(folder, name + ".cases.json", [{"text": t, "ids": [1] + sp.encode(t)} for t in plain])


def main():
    if sys.argv[1:] == ["pieces"]:
        pieces(DATA, 120)
        return
    folder = sys.argv[1] if len(sys.argv) > 1 else DATA
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 45
    os.makedirs(folder, exist_ok=True)
    sp = train()
    documents = {name: document(sp, *rest) for name, *rest in families(sp)}
    documents["tekken"] = tekken()
    if folder != DATA:
        for name in ("smollm", "gpt2", "llama3", "qwen2"):
            documents[name] = json.load(open(os.path.join(DATA, name + ".json"), encoding="utf-8"))
    for seed, (name, doc) in enumerate(sorted(documents.items())):
        write(folder, name + ".json", doc)
        write(folder, name + ".cases.json", cases(Tokenizer.from_str(json.dumps(doc)), seed, count))
    with open(os.path.join(folder, "sentencepiece.gguf"), "wb") as f:
        f.write(gguf(sp))
    # SentencePiece sees no control tokens in a text and gives a text of no bytes no prefix.
    plain = [t for t in texts(99, count) if t and not any(c in t for c in ("<s>", "</s>", "\x00", MARK))]
    write(folder, "sentencepiece.cases.json", [{"text": t, "ids": [1] + sp.encode(t)} for t in plain])


main()
