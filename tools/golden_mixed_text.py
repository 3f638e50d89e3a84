#!/usr/bin/env python3
"""Make tests/data/tokenizer/mixed.json: what `tokenizers` makes of 2 MB of mixed text under the pre-tokenisers of the
known families.

The text is put together from the file's fragments and from single code points by a generator of numbers that
tests/model/test_mixed_text.c has too. The file holds the fragments, two vocabularies with merges that were trained across
the families' cuts (so that ids tell where a text was cut), the families, and for each the SHA-256 of its ids.
Needs `tokenizers`.
"""
import hashlib
import json
import os
import random
import struct

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
OUT = os.path.join(ROOT, "tests", "data", "tokenizer", "mixed.json")
TEXT_BYTES = 2 << 20
CODES = 0x33480  # single code points are below this

# First and last letters of a script's block, or of the part of it that is full.
SCRIPTS = """0041-005a 0061-007a 00c0-00ff 0100-017f 0370-03ff 0400-04ff 0531-0556 0561-0587 05d0-05ea 0620-064a 0710-072f
0780-07a5 07ca-07ea 0905-0939 0985-09b9 0a05-0a39 0a85-0ab9 0b05-0b39 0b85-0bb9 0c05-0c39 0c85-0cb9 0d05-0d39 0d85-0dc6
0e01-0e3a 0e81-0eb0 0f40-0f6c 1000-102a 10a0-10ff 1100-11ff 1200-1248 13a0-13f4 1401-1500 1681-169a 16a0-16ea 1780-17b3
1820-1878 1950-196d 1a00-1a16 1b05-1b33 1c00-1c23 1c5a-1c7d 1c80-1c8a 2c00-2c5f 2c80-2ce4 2d30-2d67 3041-3096 30a1-30fa
3105-312f 4e00-4fff a000-a0ff a4d0-a4f7 a640-a66e a6a0-a6e5 a720-a7dc a882-a8b3 ac00-ad00 1d400-1d454 10300-1031f
10400-1044f 10d40-10d85 11005-11037 16100-1612f 1e900-1e943 20000-20040 2ebf0-2ec10""".split()

OTHERS = ["\U0001f469\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466", "\U0001f44d\U0001f3fd", "\U0001f1e9\U0001f1ea", "1\ufe0f\u20e3",
          "\u2764\ufe0f\u200d\U0001f525", "\U0001f3f4\U000e0067\U000e0062\U000e007f", "e\u0301\u0323", "a\u0308\u0301\u0345\u0327o",
          "\u0915\u094d\u0937", "\u1100\u1161\u11a8", "\uac00\u11a8", "\u0e33\u0e48", "i\u0307\u0130", "\ufb01\ufb03", "\u2460\u2168\u00bd",
          "\ufffd", "\ufffd\ufffdx", "\0", "\x01\x02", "\x1b[0m", "\x7f\x80\x9f", "\u200b", "\u200e\u202e\u2066x\u2069", "\ufeff", "\u00ad",
          " ", "  ", "   ", "\t", "\n", "\r\n", "\r", "\n\n", " \n ", "\x0b\x0c", "\x85", "\u00a0", "\u1680", "\u2000\u2003", "\u2028\u2029",
          "\u202f\u205f", "\u3000", "\u180e", "\x1c\x1f", "'s", "'T", "'re", "'VE", "'ll", "'D", "'m", "\u2019s", "don't", "I'\u017f",
          "123", "1234567", "3.14", "1,000", "0x1F", "\u0663\u0664\u0665", "\u00b2\u00b3\u00b9", "\u2167", "!", "?!", "...", "--", "\u2014", "\u3002",
          "\uff0c", "\u00bf", "\u00ab", "$", "\u20ac", "+", "==", "\u2260", "^", "`", "~", "\u00b4", "_", "__init__", "a_b", "@", "#", "&amp;",
          "\u0378", "\ue000", "\U000f0000", "\u1c89\u1c8a", "\ua7cb\ua7dc", "\u019b", "\u0897", "\U00010d50", "\U00011bc0", "\U0001ccd6",
          "\u4e00\u4e8c\u3001", "\u3042\u3044\u30a2", "\ud55c\uad6d\uc5b4", "\u0416\u0443\u043a", "\u0e44\u0e17\u0e22",
          "def f(x):\n    return x ** 2\n", "for (int i = 0; i < n; i++) {\n\ta[i] = b;\n}\n", "#include <stdio.h>\r\n",
          "{\"key\": [1, 2.5e-3, null]}", "SELECT * FROM t WHERE a='b';", "https://example.org/a?b=c&d=%20", "C:\\Users\\x",
          "The quick brown fox", " jumps over", " the lazy dog.", "CamelCaseWords", "HTTPServer2", "snake_case_2", "x86_64", "iPhone",
          "naïve café", "Straße ẞ", "ΑΣΑΣ ς", "ǅ ǆ Ǆ", "<|im_start|>", "</s>", "[INST]", "\u2581", "\u2581a\u2581\u2581b", "\u0120", "\u010a"]


def fragments():
    choose = random.Random(1)
    words = []
    for script in SCRIPTS:
        first, last = (int(x, 16) for x in script.split("-"))
        for _ in range(4):
            word = "".join(chr(choose.randint(first, last)) for _ in range(choose.randint(1, 6)))
            words.append(choose.choice(["", " ", " ", ""]) + word)
    return OTHERS * 2 + words


class Numbers:
    """Knuth's linear congruential generator; its upper bits."""

    def __init__(self):
        self.state = 1

    def below(self, limit):
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) & (1 << 64) - 1
        return (self.state >> 33) % limit


def mixed_text(parts):
    numbers, out, size = Numbers(), [], 0
    while size < TEXT_BYTES:
        if numbers.below(8) == 0:
            code = numbers.below(CODES)
            part = chr(0xFFFD if 0xD800 <= code < 0xE000 else code)
        else:
            part = parts[numbers.below(len(parts))]
        out.append(part)
        size += len(part.encode())
    return "".join(out)


def train(text, byte_level):
    tokenizer = Tokenizer(models.BPE(byte_fallback=not byte_level))
    alphabet = pre_tokenizers.ByteLevel.alphabet() if byte_level else []
    if byte_level:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    else:
        tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    bytes_of = [] if byte_level else ["<unk>"] + [f"<0x{b:02X}>" for b in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=1500 + len(bytes_of), initial_alphabet=alphabet, limit_alphabet=700,
                                  special_tokens=bytes_of, max_token_length=12, show_progress=False)
    text = text.replace("\0", "")  # no key of a vocabulary may hold it
    # In short pieces, cut anywhere: merges go across what the families cut at.
    tokenizer.train_from_iterator((text[i:i + 97] for i in range(0, len(text) // 4, 97)), trainer)
    model = json.loads(tokenizer.to_str())["model"]
    if not byte_level:
        model.update(unk_token="<unk>", fuse_unk=True)
    return model


def split(pattern, behavior="Isolated", invert=False):
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": invert}


def text_split(text, behavior):
    return {"type": "Split", "pattern": {"String": text}, "behavior": behavior, "invert": False}


def bytes_stage(prefix=False, regex=False):
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": regex}


def sequence(*stages):
    return {"type": "Sequence", "pretokenizers": list(stages)}


TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
LLAMA3 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + TAIL
QWEN2 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + TAIL
QWEN35 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
O200K = (r"[^\r\n\p{L}\p{N}]?" + UPPER + "*" + LOWER + "+" + CONTRACTIONS + "?|" + r"[^\r\n\p{L}\p{N}]?" + UPPER + "+" + LOWER + "*" +
         CONTRACTIONS + r"?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
TEKKEN = (r"[^\r\n\p{L}\p{N}]?" + UPPER + "*" + LOWER + r"+|[^\r\n\p{L}\p{N}]?" + UPPER + "+" + LOWER +
          r"*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
CL100K = (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s")
DEEPSEEK3 = (r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|"
             r"\s+(?!\S)|\s+")
GLM4 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + TAIL
BLOOM = r" ?[^(\s|[.,!?…。，、।۔،])]+"
FALCON = sequence({"type": "Punctuation", "behavior": "Contiguous"}, bytes_stage(regex=True),
                  {"type": "Digits", "individual_digits": False}, split(r"[0-9][0-9][0-9]"))
DEEPSEEK1 = sequence(split("[\r\n]"), split(r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕ]+"),
                     split(r"\s?[!-/:-~！-／：-～‘-‟　-。]+"), split(r"\s+$"), split("[一-龥ࠀ-一가-퟿]+"),
                     {"type": "Digits", "individual_digits": True}, bytes_stage())
META = {"type": "Metaspace", "replacement": "\u2581", "split": True}
SPACES = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}

# name: (pre-tokeniser, normaliser), over bytes and over characters.
BYTES = {
    "gpt2": (bytes_stage(regex=True), None),
    "gpt2 with a space": (bytes_stage(True, True), None),
    "llama3": (sequence(split(LLAMA3), bytes_stage()), None),
    "llama3 removed and inverted": (sequence(split(LLAMA3, "Removed", True), bytes_stage()), None),
    "qwen2": (sequence(split(QWEN2), bytes_stage()), {"type": "NFC"}),
    "qwen3.5": (sequence(split(QWEN35), bytes_stage()), {"type": "NFC"}),
    "o200k": (sequence(split(O200K), bytes_stage()), None),
    "tekken": (sequence(split(TEKKEN), bytes_stage()), None),
    "cl100k": (sequence(split(CL100K, "Removed", True), bytes_stage()), None),
    "deepseek1": (DEEPSEEK1, None),
    "deepseek3": (sequence(split(r"\p{N}{1,3}"), split("[一-龥぀-ゟ゠-ヿ]+"), split(DEEPSEEK3), bytes_stage()), None),
    "smollm": (sequence({"type": "Digits", "individual_digits": True}, bytes_stage(regex=True)), None),
    "starcoder": (sequence({"type": "Digits", "individual_digits": True}, bytes_stage(regex=True)), {"type": "NFKC"}),
    "falcon": (FALCON, None),
    "bloom": (sequence(split(BLOOM), bytes_stage()), None),
    "words": (sequence({"type": "Whitespace"}, bytes_stage()), {"type": "NFD"}),
    "words by space": (sequence({"type": "WhitespaceSplit"}, {"type": "Punctuation", "behavior": "MergedWithNext"}, bytes_stage()), None),
    "bert": (sequence({"type": "BertPreTokenizer"}, bytes_stage()),
             {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True}),
    "lower": (sequence(split(r"\w+|[^\w\s]+"), bytes_stage()),
              {"type": "Sequence", "normalizers": [{"type": "Lowercase"}, {"type": "NFKD"}, {"type": "StripAccents"}, {"type": "Nmt"},
                                                   {"type": "Strip", "strip_left": True, "strip_right": True}]}),
    "oniguruma": (sequence(split(r"^[[:alpha:]&&[^\p{Han}]]{2,}$|\b\w{,3}\b|\h+|[[:punct:]]{1,2}+|\R", "MergedWithPrevious"), bytes_stage()),
                  {"type": "Replace", "pattern": {"Regex": r"(?<=\d)\p{Cn}|\p{Me}+"}, "content": "<>"}),
}
TEXTS = {
    "llama2": (None, {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u2581"}, SPACES]}),
    "gemma": (text_split(" ", "MergedWithPrevious"), SPACES),
    "metaspace": ({**META, "prepend_scheme": "always"}, None),
    "metaspace behind": (sequence({"type": "Digits", "individual_digits": True}, {**META, "prepend_scheme": "first"}), {"type": "NFKC"}),
}


def main():
    parts = fragments()
    text = mixed_text(parts)
    out = {"fragments": parts, "bytes": train(text, True), "texts": train(text, False), "families": []}
    for model, families in (("bytes", BYTES), ("texts", TEXTS)):
        for name, (pre, normal) in families.items():
            decoder = bytes_stage() if model == "bytes" else None
            document = {"version": "1.0", "added_tokens": [], "normalizer": normal, "pre_tokenizer": pre, "decoder": decoder,
                        "post_processor": None, "model": out[model]}
            ids = Tokenizer.from_str(json.dumps(document)).encode(text).ids
            digest = hashlib.sha256(struct.pack(f"<{len(ids)}i", *ids)).hexdigest()
            out["families"].append({"name": name, "model": model, "pre_tokenizer": pre, "normalizer": normal, "count": len(ids),
                                    "sha256": digest})
            print(name, len(ids), flush=True)
    out["text_sha256"] = hashlib.sha256(text.encode()).hexdigest()
    for model in ("bytes", "texts"):  # shorter: merges as texts where they can be
        out[model]["merges"] = [" ".join(pair) if not any(" " in x for x in pair) else pair for pair in out[model]["merges"]]
        if any(isinstance(pair, list) for pair in out[model]["merges"]):
            raise SystemExit("a merge with a space in it")
    with open(OUT, "w", encoding="utf-8") as file:
        json.dump(out, file, ensure_ascii=False, separators=(",", ":"))


if __name__ == "__main__":
    main()
