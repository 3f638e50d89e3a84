"""Tokenizers put together from what occurs: pre-tokenisers, normalisers, decoders, post-processors, added tokens, and
the files beside them mutated; texts of many scripts."""
import copy

import cases

PATTERNS = [
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}|\s+",
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+", r"\p{N}{1,3}", r"[一-龥぀-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s+",
    r"\d{1,3}(?=(?:\d{3})*\b)", r"[0-9][0-9][0-9]", r"\s?\d+", r"^a", r"b$", r"\w+|[^\w\s]+", r"\h+", r"\bab\b", r"[a-z&&[^aeiou]]+",
    r"\p{Han}|\p{Hiragana}+", r"[[:alpha:]]+", r"[[:^space:]]", r"\X", r"(?m).+", r".", r"\R", r"x{,3}", r"(?<=a)b", r"\p{Emoji}",
    r"(?x) a b # c", r"[^\x00-\x7F]+", r"\S+|\n", r"a++b", r"\A.", r"\z", r"\p{^L}", r"\P{L}+", r"\p{Greek}", r"\u00e9", r"\x{4e2d}",
    r"(?i)É|straße", r"\G.", r"(a)\1", r"", r"\s*", r"[\p{L}&&\p{ASCII}]+", r"(?>a|ab)c", r"\K", r"[\w-]+", r"\H+"]
BEHAVIOURS = ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"]
ALPHABET = ["the", " ", "  ", "\n", "\n\n", "\r\n", "\t", "\u00a0", "\u3000", "\u2028", "\u200b", "\ufeff", "\u200d", "ab", "abc",
            "AB", "Straße", "İı", "é", "e\u0301", "ﬁ", "①", "½", "12345", "१२३", "٣", "中文字", "ひらがな", "カタカナ", "한국어", "ไทย", "हिन्दी",
            "ع\u0651ربي", "ελληνικά", "русский", "👨\u200d👩\u200d👧", "🇩🇪", "🏽", "'s", "'LL", "don't", "...", "!?", "(", ")", "_", "-",
            "$", "^", "+", "=", "a1b2", "<|im_end|>", "<s>", "<tool>", "<tool>s", " <tool> ", "▁", "Ġ", "x", "\u0085", "\x1f", "\x7f", "𝒳",
            "ǅ", "ß", "ſ", "\u0345", "Å", "가", "ᄀ", "\u00ad", "\u0300", "def f(x):", "//", "0x1F", "hello", "İ", "\u1e9e", "\U0001fae8"]


def text(rng):
    return "".join(rng.choice(ALPHABET) for _ in range(rng.choice([0, 1, 2, 4, 8, 16])))


def flag(rng):
    return rng.random() < 0.5


ATOMS = ["a", "b", "s", r"\p{L}", r"\p{N}", r"\p{Lu}", r"\s", r"\S", r"\w", r"\d", r"\h", ".", r"\p{Han}", r"\p{^L}", r"\P{M}", r"\W", " ",
         r"\n", r"\R", r"\p{P}", r"\p{S}", r"\u3042", r"\x{61}", r"\D", r"\p{Alpha}", r"\b", r"\B", "^", "$", r"\A", r"\z", r"\Z", r"\G",
         "'s", "ll", "st", "ss", r"\."]
MEMBERS = ["a-z", "A-Z", "0-9", r"\s", r"\p{L}", r"\p{N}", r"\w", r"\d", "[:alpha:]", "[:punct:]", "[:^space:]", "&&[^b-d]", "[xyz]", r"\r\n", ".",
           "-", "_", r"\p{M}", r"\P{L}", "é", "あ-ん", r"\]", "^", r"\h", "[:upper:]"]
GROUPS = ["(?:", "(", "(?i:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?m:", "(?x:", "(?~", "(?i)"]
COUNTS = [""] * 6 + ["?", "*", "+", "{1,3}", "{2}", "{,2}", "{2,}", "+?", "*?", "??", "++", "*+", "?+", "{1,3}+", "{2}?", "{1,3}?"]


def atom(rng, depth):
    kind = rng.random()
    if kind < 0.4:
        return rng.choice(ATOMS)
    if kind < 0.7 or depth == 3:
        return "[" + rng.choice(["", "^", ""]) + "".join(rng.choice(MEMBERS) for _ in range(rng.randint(1, 4))) + "]"
    opening = rng.choice(GROUPS)
    return opening + ("" if opening == "(?i)" else expression(rng, depth + 1) + ")")


def expression(rng, depth=0):
    """A regular expression by chance, of what Oniguruma has."""
    return "|".join("".join(atom(rng, depth) + rng.choice(COUNTS) for _ in range(rng.randint(1, 3))) for _ in range(rng.choice([1, 1, 2, 3])))


def pattern(rng):
    if rng.random() < 0.15:
        return {"String": rng.choice([" ", "ab", "\n", "", "the", "."])}
    return {"Regex": rng.choice(PATTERNS) if rng.random() < 0.6 else expression(rng)}


def pre_tokenizer(rng, kinds=None):
    kind = rng.choice(kinds or ["Split"] * 6 + ["Punctuation", "Digits", "Whitespace", "WhitespaceSplit", "Metaspace", "ByteLevel",
                                            "BertPreTokenizer", "CharDelimiterSplit", "UnicodeScripts", "FixedLength"])
    made = {"type": kind}
    if kind == "Split":
        made |= {"pattern": pattern(rng), "behavior": rng.choice(BEHAVIOURS), "invert": flag(rng) and flag(rng)}
    elif kind == "Punctuation":
        made |= {"behavior": rng.choice(BEHAVIOURS)}
    elif kind == "Digits":
        made |= {"individual_digits": flag(rng)}
    elif kind == "Metaspace":
        made |= {"replacement": "▁", "prepend_scheme": rng.choice(["always", "never", "first"]), "split": flag(rng)}
    elif kind == "ByteLevel":
        made |= {"add_prefix_space": flag(rng), "trim_offsets": flag(rng), "use_regex": flag(rng)}
    elif kind == "CharDelimiterSplit":
        made |= {"delimiter": rng.choice([" ", "a", "中"])}
    elif kind == "FixedLength":
        made |= {"length": rng.choice([1, 2, 5])}
    return made


def normalizer(rng):
    kind = rng.choice(["NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Strip", "StripAccents", "Nmt", "Replace", "Replace", "Prepend",
                       "BertNormalizer"])
    made = {"type": kind}
    if kind == "Strip":
        made |= {"strip_left": flag(rng), "strip_right": flag(rng)}
    elif kind == "Replace":
        made |= {"pattern": rng.choice([{"String": " "}, {"String": "ab"}, {"String": ""}, pattern(rng)]),
                 "content": rng.choice(["▁", " ", "", "x", "ab", "\\1", "$0"])}
    elif kind == "Prepend":
        made |= {"prepend": rng.choice(["▁", " ", "", "ab"])}
    elif kind == "BertNormalizer":
        made |= {"clean_text": flag(rng), "handle_chinese_chars": flag(rng), "strip_accents": rng.choice([None, True, False]),
                 "lowercase": flag(rng)}
    return made


def sequence(rng, make, word, longest, weights=(2, 4, 1)):
    """None, one, or a Sequence of some."""
    choice = rng.choices(["none", "one", "several"], weights)[0]
    if choice == "none":
        return None
    if choice == "one":
        return make(rng)
    return {"type": "Sequence", word: [make(rng) for _ in range(rng.randint(1, longest))]}


def decoder(rng):
    kind = rng.choice(["ByteLevel", "Replace", "ByteFallback", "Fuse", "Strip", "Metaspace", "WordPiece", "BPEDecoder", "CTC"])
    made = {"type": kind}
    if kind == "ByteLevel":
        made |= {"add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    elif kind == "Replace":
        made |= {"pattern": {"String": rng.choice(["▁", "a"])}, "content": rng.choice([" ", ""])}
    elif kind == "Strip":
        made |= {"content": rng.choice([" ", "a"]), "start": rng.choice([0, 1, 2]), "stop": rng.choice([0, 1])}
    elif kind == "Metaspace":
        made |= {"replacement": "▁", "prepend_scheme": rng.choice(["always", "never", "first"]), "split": flag(rng)}
    elif kind == "WordPiece":
        made |= {"prefix": "##", "cleanup": flag(rng)}
    elif kind == "BPEDecoder":
        made |= {"suffix": "</w>"}
    elif kind == "CTC":
        made |= {"pad_token": "<pad>", "word_delimiter_token": "|", "cleanup": flag(rng)}
    return made


def post_processor(rng, added):
    kind = rng.choice(["TemplateProcessing", "TemplateProcessing", "ByteLevel", "Sequence", "RobertaProcessing", "BertProcessing"])
    token = rng.choice(added)
    name, number = token["content"], token["id"]
    if kind == "TemplateProcessing":
        special, text_a = {"SpecialToken": {"id": name, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
        single = rng.choice([[special, text_a], [text_a, special], [special, text_a, special], [text_a]])
        return {"type": kind, "single": single, "pair": [*single, {"Sequence": {"id": "B", "type_id": 1}}],
                "special_tokens": {name: {"id": name, "ids": [number], "tokens": [name]}}}
    if kind == "ByteLevel":
        return {"type": kind, "add_prefix_space": flag(rng), "trim_offsets": flag(rng), "use_regex": True}
    if kind == "Sequence":
        return {"type": kind, "processors": [post_processor(rng, added) for _ in range(rng.randint(1, 2))]}
    made = {"type": kind, "sep": [name, number], "cls": [name, number]}
    return made | ({"trim_offsets": True, "add_prefix_space": flag(rng)} if kind == "RobertaProcessing" else {})


def added_tokens(rng, first):
    names = ["<s>", "<|im_start|>", "<|im_end|>", "<tool>", "the", " ab", "中"]
    chosen = names[:3] + rng.sample(names[3:], rng.randint(0, 3))
    return [{"id": first + i, "content": name, "single_word": rng.random() < 0.1, "lstrip": rng.random() < 0.15,
             "rstrip": rng.random() < 0.15, "normalized": rng.random() < 0.3, "special": i < 3 or flag(rng)}
            for i, name in enumerate(chosen)]


BESIDE = {"bos_token": ["<s>", None, {"content": "<s>", "__type": "AddedToken", "lstrip": True}, "<new>", "a"],
          "eos_token": ["<|im_end|>", None, "<s>", {"content": "<|im_end|>"}, "<new>", 5], "pad_token": ["<tool>", None, "<pad>"],
          "unk_token": ["<s>", None, "a"], "add_bos_token": [True, False, None], "add_eos_token": [True, False],
          "add_prefix_space": [True, False, None], "additional_special_tokens": [["<tool>"], [], None, ["<new>"], "<x>"],
          "extra_special_tokens": [["<tool>"], {"image_token": "<img>"}, {}, None], "legacy": [True, False, None],
          "clean_up_tokenization_spaces": [True, False], "split_special_tokens": [True, False], "model_max_length": [8, None, 1e30],
          "added_tokens_decoder": [{}, {"300": {"content": "<tool>", "special": True}},
                                   {"258": {"content": "<|im_end|>", "lstrip": True, "special": True}},
                                   {"300": {"content": "xyz", "single_word": True, "normalized": True, "special": False}}],
          "tokenizer_class": ["PreTrainedTokenizerFast", "LlamaTokenizerFast", "LlamaTokenizer", "Qwen2Tokenizer", "GPT2Tokenizer",
                              "GemmaTokenizer", "PreTrainedTokenizer", "TokenizersBackend", "NoSuch", None],
          "padding_side": ["left", "right", "up"], "use_default_system_prompt": [True], "sp_model_kwargs": [{}],
          "chat_template": ["{{ messages[0].content }}", [], None, {"default": "x"}]}


FAMILIES = ["llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "gemma2", "gemma3_text", "phi3", "smollm3", "olmoe"]
CLASSES = ["PreTrainedTokenizerFast", "LlamaTokenizer", "Qwen2TokenizerFast", "GPT2Tokenizer", "GPTNeoXTokenizerFast", "GemmaTokenizer", "",
           None, "NoSuch"]


def side_files(rng, first):
    """Files beside tokenizer.json but for tokenizer_config.json, and the keys in them."""
    files, named = {}, set()
    if rng.random() < 0.3:
        config = {"model_type": rng.choice(FAMILIES)} | ({"tokenizer_class": rng.choice(CLASSES)} if rng.random() < 0.3 else {})
        files["config.json"], named = config, {"tokenizer_class", *filter(None, config.values())}
    if rng.random() < 0.15:
        keys = rng.sample([key for key in BESIDE if key.endswith(("_token", "_tokens"))], rng.randint(1, 3))
        files["special_tokens_map.json"] = {key: copy.deepcopy(rng.choice(BESIDE[key])) for key in keys}
        named |= set(keys)
    if rng.random() < 0.1:
        files["added_tokens.json"] = {rng.choice(["<x>", "a", "<tool>", "é", "<|im_end|>"]): rng.choice([first, first + 1, first + 9, 5, "x"])
                                      for _ in range(rng.randint(1, 2))}
        named |= {"added_tokens.json"}
    if rng.random() < 0.05:
        files[rng.choice(["chat_template.jinja", "additional_chat_templates/tool_use.jinja"])] = "{{ bos_token }}{{ messages[0].content }}\n"
    return files, named


def make(rng):
    by_bytes = rng.random() < 0.7
    if by_bytes:
        model = {"type": "BPE", "vocab": "bytes", "merges": "bytes"}
        size = 256 + len(cases.WORDS)
        pre = rng.choice([{"type": "ByteLevel", "add_prefix_space": flag(rng), "trim_offsets": True, "use_regex": flag(rng)}, None])
        if pre is None:
            steps = [pre_tokenizer(rng) for _ in range(rng.choice([1, 1, 1, 2, 3]))]
            pre = {"type": "Sequence", "pretokenizers": [*steps, {"type": "ByteLevel", "add_prefix_space": rng.random() < 0.2,
                                                                  "trim_offsets": True, "use_regex": rng.random() < 0.2}]}
        decode = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
        normal = sequence(rng, normalizer, "normalizers", 3, (4, 3, 1))
    else:
        model = {"type": "BPE", "vocab": "pieces", "merges": "pieces",
                 "byte_fallback": rng.random() < 0.8, "fuse_unk": flag(rng), "unk_token": rng.choice(["<unk>", "<unk>", None])}
        size = len(cases.expand_tokenizer({"model": model})["model"]["vocab"]) if rng.random() < 0.8 else 400
        pre = sequence(rng, pre_tokenizer, "pretokenizers", 2, (3, 4, 1)) if flag(rng) else {
            "type": "Metaspace", "replacement": "▁", "prepend_scheme": rng.choice(["always", "never", "first"]), "split": flag(rng)}
        normal = sequence(rng, normalizer, "normalizers", 3, (1, 3, 3))
        decode = {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                                                   {"type": "ByteFallback"}, {"type": "Fuse"}]}
    if rng.random() < 0.1:
        model |= {rng.choice(["ignore_merges", "dropout", "continuing_subword_prefix", "end_of_word_suffix"]):
                  rng.choice([True, False, None, 0.0, "", "##", "</w>"])}
    added = added_tokens(rng, size)
    if size != 400:
        known = cases.expand_tokenizer({"model": model})["model"]["vocab"]
        for token in added:
            token["id"] = known.setdefault(token["content"], len(known))
    tokenizer = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": normal,
                 "pre_tokenizer": pre, "post_processor": post_processor(rng, added) if rng.random() < 0.4 else None,
                 "decoder": sequence(rng, decoder, "decoders", 3, (1, 4, 3)) if rng.random() < 0.2 else decode, "model": model}
    if rng.random() < 0.15:
        tokenizer["truncation"] = {"direction": "Right", "max_length": rng.choice([3, 512]), "strategy": "LongestFirst",
                                   "stride": rng.choice([0, 0, 2, 600])}
    if rng.random() < 0.15:
        tokenizer["padding"] = {"strategy": rng.choice(["BatchLongest", {"Fixed": 12}]), "direction": "Left", "pad_id": 1, "pad_type_id": 0,
                                "pad_to_multiple_of": rng.choice([None, 8]), "pad_token": rng.choice(["<s>", "<pad>", "a"])}
    numbers = [*range(size - 100 * (not by_bytes)), *(token["id"] for token in added if size != 400)]
    beside = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"}
    files, named = side_files(rng, size)
    keys = mutate(rng, tokenizer) if rng.random() < 0.3 else set()
    for _ in range(rng.choice([0, 0, 0, 1, 1, 2])):
        key = rng.choice(sorted(BESIDE))
        beside[key] = copy.deepcopy(rng.choice(BESIDE[key]))
        keys.add(key)
    return finish(tokenizer, beside, keys | named,
                  [{"do": "ids", "text": text(rng), "add_special": flag(rng)} for _ in range(4)] + [{"do": "special"}] +
                  [{"do": "decode", "ids": [rng.choice(numbers) for _ in range(rng.randint(0, 9))], "skip_special": flag(rng)}
                   for _ in range(2)], files)


ODD = [None, True, False, 0, 1, -1, 1.5, 7, 2 ** 31, 2 ** 32, 2 ** 64, 1e30, "", "x", "a", " ", "\u0000", [], {}, [1], [[]], ["x"],
       ["x", 1], {"a": 1}, {"type": "x"}, {"String": "a"}, "Left", "LongestFirst", {"Fixed": 3}]


def places(value, path=()):
    """Every member of a tokenizer.json but those of the vocabulary and the merges: its path."""
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield (*path, key)
        if not isinstance(value[key], str):
            yield from places(value[key], (*path, key))


def mutate(rng, tokenizer):
    """One member left out, of another type or at a limit, or there without a reason. Its name and those it stands in."""
    path = rng.choice(list(places(tokenizer)))
    holder = tokenizer
    for step in path[:-1]:
        holder = holder[step]
    what = rng.random()
    if what < 0.25:
        del holder[path[-1]]
    elif what < 0.35 and isinstance(holder, dict):
        holder[rng.choice(["type", "pattern", "single_word", "trim_offsets", "unknown_key", "dropout", "length"])] = rng.choice(ODD)
    else:
        holder[path[-1]] = copy.deepcopy(rng.choice(ODD))
    return {step for step in path if isinstance(step, str)} | ({"model"} & set(path))


def types(value):
    """The names of the parts of a tokenizer, and their settings."""
    if isinstance(value, dict):
        yield from value
        yield from [v for k, v in value.items() if k == "type" and isinstance(v, str)]
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from types(inner)


def finish(tokenizer, beside, keys, ask, files=None):
    parts = {key: tokenizer.get(key) for key in ("normalizer", "pre_tokenizer", "post_processor", "decoder")}
    names = set(types(parts)) - {"type", "id"} | set(keys) | {"token id", "added_tokens"}  # an id that no token has
    if isinstance(tokenizer.get("model"), dict):
        names |= set(tokenizer["model"]) - {"type", "vocab"}
    added = tokenizer["added_tokens"] if isinstance(tokenizer.get("added_tokens"), list) else []
    names |= {t["content"] for t in added if isinstance(t, dict) and isinstance(t.get("content"), str) and t["content"]}
    return {"kind": "tokenizers", "keys": sorted(names - {""}), "ask": ask,
            "files": {"tokenizer.json": tokenizer, "tokenizer_config.json": beside, "config.json": {"model_type": "llama"}} | (files or {})}
