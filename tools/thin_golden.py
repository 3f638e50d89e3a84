#!/usr/bin/env python3
"""Leave out of tests/data/golden what repeats: gradients of layers and experts like others, and JSON's white space.

    tools/thin_golden.py FOLDER...      each a golden model's; changed in place, safe to repeat

Full gradients of the first step stand for each kind of tensor: of models beside small ones (LARGE bytes) those of the first and
the last layer are kept, or of all layers those of every fourth expert. What is left out is in the norm of all gradients, which
expected.json has for every step.
"""
import json
import os
import re
import struct
import sys

LARGE = 500_000


def kept(name, layers, experts):
    expert = re.search(r"\.experts\.(\d+)\.", name)
    layer = re.search(r"\.layers\.(\d+)\.", name)
    if experts:
        return not expert or int(expert[1]) % 4 == 0
    return not layer or int(layer[1]) in (0, layers - 1)


def thin_gradients(path):
    with open(path, "rb") as handle:
        header = json.loads(handle.read(struct.unpack("<Q", handle.read(8))[0]))
        data = handle.read()
    metadata = header.pop("__metadata__", None)
    layers = 1 + max(int(number) for name in header for number in re.findall(r"\.layers\.(\d+)\.", name))
    experts = any(".experts." in name for name in header)
    out, pieces, at = {"__metadata__": metadata} if metadata else {}, [], 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        if kept(name, layers, experts):
            begin, end = entry["data_offsets"]
            out[name] = {**entry, "data_offsets": [at, at + end - begin]}
            pieces.append(data[begin:end])
            at += end - begin
    text = json.dumps(out, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as handle:
        handle.write(struct.pack("<Q", len(text)) + text + b"".join(pieces))


def thin_json(path):
    with open(path, encoding="utf-8") as handle:
        document = json.load(handle)
    with open(path, "w", encoding="utf-8") as handle:
        json.dump(document, handle, separators=(",", ":"), ensure_ascii=False)
        handle.write("\n")


def main():
    for folder in sys.argv[1:]:
        gradients = os.path.join(folder, "grads_full_step0.safetensors")
        if os.path.exists(gradients) and os.path.getsize(gradients) > LARGE:
            thin_gradients(gradients)
        if os.path.exists(os.path.join(folder, "expected.json")):
            thin_json(os.path.join(folder, "expected.json"))


if __name__ == "__main__":
    main()
