#!/usr/bin/env python3
"""Writes model/text/unicode_properties.c and model/text/unicode_sets.c: the kinds of characters in which `tokenizers`
differs from the libraries that Motley uses.

It asks `tokenizers` itself (0.23.3) and Debian 12's libonig (6.9.8, Unicode 14) about every code point, so both
must be installed.  usage: for part in properties sets; do tools/unicode_tables.py $part > model/text/unicode_$part.c; done
"""
import ctypes
import re
import sys

from tokenizers import Regex, normalizers, pre_tokenizers

CODES = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
# Within each of these ranges all characters are of one kind in every version: ideographs, Hangul, private use.
DULL = ((0x4E10, 0x9FF0), (0xAC10, 0xD790), (0xE010, 0xF8F0), (0x33500, 0xE0000), (0xE0210, 0x10FFF0))
SOME = [c for c in CODES if not any(a <= c < b for a, b in DULL)]

onig = ctypes.CDLL("libonig.so.5")
UTF8 = ctypes.addressof(ctypes.c_char.in_dll(onig, "OnigEncodingUTF8"))
RUBY = ctypes.addressof(ctypes.c_char.in_dll(onig, "OnigSyntaxRuby"))
onig.onig_initialize((ctypes.c_void_p * 1)(UTF8), 1)
onig.onig_search.argtypes = [ctypes.c_void_p] * 6 + [ctypes.c_uint]
onig.onig_new.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_uint] + [ctypes.c_void_p] * 3
onig.onig_region_new.restype = ctypes.c_void_p


class Region(ctypes.Structure):
    _fields_ = [("allocated", ctypes.c_int), ("count", ctypes.c_int),
                ("begin", ctypes.POINTER(ctypes.c_int)), ("end", ctypes.POINTER(ctypes.c_int))]


def onig_codes(pattern, codes):
    """Returns the code points that match in libonig, or None when it refuses the pattern."""
    own = ctypes.create_string_buffer(pattern.encode())
    regex, info = ctypes.c_void_p(), (ctypes.c_void_p * 3)()
    begin = ctypes.addressof(own)
    if onig.onig_new(ctypes.byref(regex), begin, begin + len(own) - 1, 0, UTF8, RUBY, info) != 0:
        return None
    text = "".join(map(chr, codes)).encode()
    buffer = ctypes.create_string_buffer(text)
    first, place, index = ctypes.addressof(buffer), 0, {}
    for i, code in enumerate(codes):
        index[place] = i
        place += len(chr(code).encode())
    index[place] = len(codes)
    region = onig.onig_region_new()
    found, place = set(), 0
    end = first + len(text)
    while onig.onig_search(regex, first, end, first + place, end, region, 0) >= 0:
        match = ctypes.cast(region, ctypes.POINTER(Region))[0]
        found.update(codes[index[match.begin[0]]:index[match.end[0]]])
        place = match.end[0]
    onig.onig_region_free(ctypes.c_void_p(region), 1)
    onig.onig_free(regex)
    return found


def their_codes(pattern, codes):
    split = pre_tokenizers.Split(Regex(pattern), "removed", invert=True)
    text = "".join(map(chr, codes))
    found = set()
    for _, (begin, end) in split.pre_tokenize_str(text):
        found.update(codes[begin:end])
    return found


def ranges(codes):
    out = []
    for code in sorted(codes):
        if out and out[-1][1] == code - 1:
            out[-1][1] = code
        else:
            out.append([code, code])
    return out


def property_names():
    """Returns every property name in libonig, in the form in which libonig compares names."""
    data = open("/usr/lib/x86_64-linux-gnu/libonig.so.5", "rb").read()
    return sorted({m.decode() for m in re.findall(rb"[a-z0-9]{1,60}(?=\0)", data)})


def write_pairs(kind, name, pairs):
    print(f"static const struct {kind} {name}[] = {{")
    line = "   "
    for first, second in pairs:
        item = f" {{0x{first:x}, 0x{second:x}}},"
        if len(line) + len(item) > 110:
            print(line)
            line = "   "
        line += item
    print(line)
    print("};\n")


def write_ranges(name, codes):
    write_pairs("code_range", name, ranges(codes))


def properties():
    """Returns {name: index of its difference}, and the list of differences, each (added, removed)."""
    names, differences = {}, []
    for name in property_names():
        pattern = f"[\\p{{{name}}}]+"
        ours = onig_codes(pattern, SOME)
        if ours is None:
            continue
        theirs = their_codes(pattern, SOME)
        difference = (frozenset(theirs - ours), frozenset(ours - theirs))
        if difference == (frozenset(), frozenset()):
            continue
        if difference not in differences:
            differences.append(difference)
        names[name] = differences.index(difference)
    return names, differences


CATEGORIES = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Co Cn".split()


def write_newer():
    """Writes the code points whose general category in `tokenizers` is not the one in libonig."""
    newer = set()
    for name in CATEGORIES:
        pattern = f"[\\p{{{name}}}]+"
        newer |= their_codes(pattern, SOME) ^ onig_codes(pattern, SOME)
    if min(newer) < 0x800:
        raise SystemExit("pattern.c takes it that what is below U+0800 is old")
    write_set("newer", newer)


def write_properties():
    names, differences = properties()
    for i, (added, removed) in enumerate(differences):
        if added:
            write_ranges(f"added_{i}", added)
        if removed:
            write_ranges(f"removed_{i}", removed)
    print("const struct unicode_property unicode_properties[] = {")
    for name, i in sorted(names.items()):
        added, removed = differences[i]
        parts = [f'.name = "{name}"']
        if added:
            parts.append(f".added = {{added_{i}, {len(ranges(added))}}}")
        if removed:
            parts.append(f".removed = {{removed_{i}, {len(ranges(removed))}}}")
        print(f"    {{{', '.join(parts)}}},")
    print("};")
    print(f"const unsigned unicode_property_count = {len(names)};\n")


def write_set(name, codes):
    write_ranges(f"set_{name}", codes)
    print(f"const struct code_set unicode_{name} = {{.ranges = set_{name}, .count = {len(ranges(codes))}}};\n")


def cut_off(stage):
    """Returns the code points that this pre-tokeniser cuts off from a letter before them."""
    return {c for c in CODES if len(stage.pre_tokenize_str("a" + chr(c))) == 2}


def write_sets():
    words = pre_tokenizers.Whitespace()
    write_set("numeric", cut_off(pre_tokenizers.Digits(True)))
    write_set("punctuation", cut_off(pre_tokenizers.Punctuation("isolated")))
    write_set("word", {c for c in CODES if words.pre_tokenize_str("a" + chr(c))[0][0] == "a" + chr(c)})


utf8proc = ctypes.CDLL("libutf8proc.so.2")


def write_lower():
    """Writes the characters whose lower case in Rust is not utf8proc's, but for U+0130, which the C code handles."""
    lower = normalizers.Lowercase()
    different = {c: lower.normalize_str(chr(c)) for c in CODES if c != 0x130}
    different = {c: t for c, t in different.items() if ord(t) != utf8proc.utf8proc_tolower(c)}
    write_pairs("code_pair", "map_lower", ((code, ord(text)) for code, text in sorted(different.items())))
    print(f"const struct code_map unicode_lower = {{.pairs = map_lower, .count = {len(different)}}};\n")


def becomes(normalizer, result):
    """Returns the code points that the normaliser turns into result(character) between two letters."""
    return {c for c in CODES if normalizer.normalize_str("a" + chr(c) + "a") == "a" + result(chr(c)) + "a"
            and result(chr(c)) != chr(c)}


def bert(**given):
    flags = dict(clean_text=False, handle_chinese_chars=False, strip_accents=False, lowercase=False)
    return normalizers.BertNormalizer(**(flags | given))


def our_form(code_text, options):
    raw = code_text.encode()
    out = ctypes.c_void_p()
    size = utf8proc.utf8proc_map(raw, len(raw), ctypes.byref(out), options)
    return ctypes.string_at(out, size).decode()


def write_unformed():
    """Writes the characters that utf8proc decomposes or reorders among marks, and `tokenizers` leaves alone."""
    stable, compat, decompose = 2, 4, 16
    nfd, nfkd = normalizers.NFD(), normalizers.NFKD()
    unknown = set()
    for code in CODES:
        one = chr(code)
        # U+0345 has the highest combining class, 240, so a known mark behind it moves to before it.
        marked = "a\u0345" + one
        for text, theirs, options in ((one, nfd, decompose), (one, nfkd, decompose | compat), (marked, nfd, decompose)):
            if theirs.normalize_str(text) != our_form(text, stable | options):
                unknown.add(code)
                if theirs.normalize_str(text) != text:
                    raise SystemExit(f"U+{code:04X} is decomposed otherwise, not left alone")
    write_set("unformed", unknown)


def write_characters():
    write_lower()
    write_set("accents", becomes(normalizers.StripAccents(), lambda c: ""))
    write_set("nmt_gone", becomes(normalizers.Nmt(), lambda c: ""))
    write_set("nmt_space", becomes(normalizers.Nmt(), lambda c: " "))
    write_set("bert_gone", becomes(bert(clean_text=True), lambda c: ""))
    write_set("bert_space", becomes(bert(clean_text=True), lambda c: " "))
    write_set("bert_chinese", becomes(bert(handle_chinese_chars=True), lambda c: " " + c + " "))
    composed = {c for c in CODES if normalizers.NFD().normalize_str(chr(c)) != chr(c)}
    write_set("bert_accents", becomes(bert(strip_accents=True), lambda c: "") - composed)
    write_unformed()


PARTS = {"properties": (write_properties,), "sets": (write_sets, write_newer, write_characters)}
print(f"/* `tools/unicode_tables.py {sys.argv[1]}` makes this file. See unicode_tables.h. */")
print('#include "model/text/unicode_tables.h"\n')
print("/* clang-format off */")
for write in PARTS[sys.argv[1]]:
    write()
