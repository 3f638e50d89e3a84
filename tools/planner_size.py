#!/usr/bin/env python3
"""How large and how entangled the planner is: lines of C, files, circles of files, long functions, tuned constants.

  tools/planner_size.py [--check] [--list] [--root DIR]

Over everything under planner/ but what is data, the catalogue's entries. A unit is x.c with x.h. A
circle is a set of units each of which needs every other one (a strongly connected component), by includes and by calls of
functions that are not static; `by symbols` also counts functions and tables that are named without being called, and is
shown for who wants to be strict. A tuned constant is a numeric #define, a number given to a constant of an enum that is
neither flags nor an enumeration, and a static const number, each number of an array for itself; units (MIB) are none, and
a name in _MAX is a bound, which is counted apart.
`naked` are numbers with a fraction or an exponent in the midst of code, but for the plain ones. --check: exit status 1
above LIMITS. --list: what was counted, with file:line."""
import argparse
import os
import re
import sys

LIMITS = {"lines": 20000, "circles": 0, "constants": 120}
LEFT_OUT = ("planner/given/catalogue_entries.c",)
LONG = 75  # lines of a function
UNITS = {"KIB", "MIB", "GIB", "KILO", "MEGA", "GIGA", "TERA", "NANO", "MICRO", "MILLI"}
PLAIN = {0.0, 1.0, 2.0, 0.5, 3.0, 4.0, 8.0, 100.0, 1e3, 1e6, 1e9, 1e12, 1e-3, 1e-6, 1e-9, 3600.0}
BOUND = re.compile(r"_MAX(\[\d+\])?$")  # an array's or a loop's end, a file's largest number: nothing is tuned by it
KEYWORDS = {"if", "for", "while", "switch", "return", "sizeof", "do", "else", "case", "defined"}
NUMBER = r"(?:0[xX][0-9a-fA-F]+|(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)[uUlLfF]*"
DEFINE = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)(\()?[ \t]*([^\n]*)$", re.M)
FUNCTION = re.compile(r"^(?!typedef|(?:struct|enum|union)[ \t]*\w*[ \t]*\{|static const struct[ \t]\w+[ \t]\w+[ \t]*=)"
                      r"((?:[A-Za-z_][\w \t*]*?[ \t*])??)([A-Za-z_]\w*)\(([^;{}]*?)\)\s*\{", re.M)
STATIC = re.compile(r"\bstatic[ \t]+const[ \t]+(?:unsigned[ \t]+)?(?:u?int\d+_t|int|unsigned|long|size_t|double|float|char|bool)[ \t]+"
                    r"(\w+)((?:\[[^\]]*\])*)[ \t]*=[ \t]*([^;]*);")
ENUM = re.compile(r"\benum[ \t]*(\w*)\s*\{([^}]*)\}")
OBJECT = re.compile(r"^const[ \t]+struct[ \t]+\w+[ \t*]*?(?:const[ \t]+)?(\w+)(?:\[\])?[ \t]*=", re.M)


def blank(match):
    return re.sub(r"[^\n]", " ", match.group(0))


def plain(text):
    """Without comments, strings and line continuations; every line stays where it is."""
    text = re.sub(r"/\*.*?\*/|//[^\n]*", blank, text, flags=re.S)
    text = re.sub(r'"(?:\\.|[^"\\\n])*"', lambda m: '"' + " " * (len(m.group(0)) - 2) + '"', text)
    return re.sub(r"'(?:\\.|[^'\\\n])+'", lambda m: "0" + " " * (len(m.group(0)) - 1), text)


def line_of(text, at):
    return text.count("\n", 0, at) + 1


class Source:
    """A file as read."""
    def __init__(self, root, path):
        self.path = path
        with open(os.path.join(root, path), encoding="utf-8") as handle:
            self.raw = handle.read()
        self.lines = self.raw.count("\n")
        self.text = plain(self.raw)
        self.code = sum(1 for line in self.text.split("\n") if line.strip())
        self.includes = re.findall(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', self.raw, re.M)
        self.unit = os.path.splitext(path)[0]
        self.functions = list(self.find_functions())

    def find_functions(self):
        """(name, static, first line, last line)"""
        for m in FUNCTION.finditer(self.text):
            if m.group(2) in KEYWORDS or not m.group(1).strip():
                continue
            end = self.text.find("\n}", m.end() - 1)
            if end >= 0:
                yield (m.group(2), re.search(r"\bstatic\b", m.group(1)) is not None, line_of(self.text, m.start()),
                       line_of(self.text, end + 1))


def sources(root):
    found = []
    for folder, _, names in sorted(os.walk(os.path.join(root, "planner"))):
        for name in sorted(names):
            path = os.path.relpath(os.path.join(folder, name), root)
            if name.endswith((".c", ".h")) and not path.startswith(LEFT_OUT):
                found.append(Source(root, path))
    return found


def edges(files, symbols):
    """unit → units that it needs; by includes and calls, or also by names."""
    units = {f.unit for f in files}
    owner = {}
    for f in files:
        if f.path.endswith(".c"):
            owner.update({name: f.unit for name, static, _, _ in f.functions if not static})
            if symbols:
                owner.update({m.group(1): f.unit for m in OBJECT.finditer(f.text)})
    needs = {unit: set() for unit in units}
    for f in files:
        for path in f.includes:
            for name in (path, os.path.join(os.path.dirname(f.path), path)):
                needs[f.unit] |= {os.path.splitext(name)[0]} & units
        if f.path.endswith(".c"):
            used = re.findall(r"\b[A-Za-z_]\w*\b" if symbols else r"\b[A-Za-z_]\w*(?=\s*\()", f.text)
            own = {name for name, static, _, _ in f.functions if static}
            needs[f.unit] |= {owner[name] for name in set(used) - own if name in owner}
        needs[f.unit].discard(f.unit)
    return needs


def circles(needs):
    """Strongly connected components of more than one unit (Tarjan, without recursion)."""
    number, low, on, stack, found = {}, {}, set(), [], []
    for root in sorted(needs):
        if root in number:
            continue
        work = [(root, iter(sorted(needs[root])))]
        number[root] = low[root] = len(number)
        stack.append(root)
        on.add(root)
        while work:
            unit, left = work[-1]
            for other in left:
                if other not in number:
                    number[other] = low[other] = len(number)
                    stack.append(other)
                    on.add(other)
                    work.append((other, iter(sorted(needs[other]))))
                    break
                if other in on:
                    low[unit] = min(low[unit], number[other])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[unit])
                if low[unit] == number[unit]:
                    at = stack.index(unit)
                    if len(stack) - at > 1:
                        found.append(sorted(stack[at:]))
                    on -= set(stack[at:])
                    del stack[at:]
    return sorted(found, key=len, reverse=True)


def numeric(value):
    """An expression of numbers, names in capitals and casts, with a number in it."""
    bare = re.sub(r"\(\s*(?:u?int\d+_t|unsigned|int|double|float|size_t|long|uint64_t)\s*\)|\bUINT\w+_C\b|\bsizeof\b", "", value)
    return bool(re.search(r"(?<![\w.])" + NUMBER, bare)) and \
        not re.sub(r"(?<![\w.])" + NUMBER + r"|[A-Z][A-Z0-9_]*|[-+*/%<>|&~^()?:\s]", "", bare).strip()


def enum_constants(text):
    for m in ENUM.finditer(text):
        given = []
        for part in re.finditer(r"(\w+)\s*=\s*([^,]+)", m.group(2)):
            if numeric(part.group(2)):
                given.append((part.group(1), part.group(2).strip(), line_of(text, m.start(2) + part.start())))
        values = [value for _, value, _ in given]
        flags = len(values) > 1 and all("<<" in v or v.lower().startswith("0x") or v in ("0", "1", "2", "4", "8") for v in values)
        counts = m.group(1) and all(re.fullmatch(r"-?\d{1,2}u?", v) for v in values)  # of an enumeration
        if not flags and not counts:
            yield from given


def constants(f):
    """(name, value, line)"""
    joined = re.sub(r"[ \t]*\\\n", lambda m: " " * len(m.group(0)), f.text)
    for m in DEFINE.finditer(joined):
        value = m.group(3).strip()
        if not m.group(2) and value and numeric(value) and m.group(1) not in UNITS:
            yield m.group(1), value, line_of(f.text, m.start())
    yield from enum_constants(f.text)
    for m in STATIC.finditer(f.text):
        each = [part.strip(" \n{}") for part in m.group(3).split(",")]
        each = [part for part in each if re.search(r"(?<![\w.])" + NUMBER, part.split("]")[-1])]
        for n, value in enumerate(each):
            yield m.group(1) + (f"[{n}]" if m.group(2) else ""), value, line_of(f.text, m.start())


def naked(f):
    """Numbers with a fraction or an exponent inside functions: (number, line)."""
    lines = f.text.split("\n")
    for _, _, first, last in f.functions:
        for at in range(first, last):
            if lines[at].lstrip().startswith("#"):
                continue
            for m in re.finditer(r"(?<![\w.])(?:\d+\.\d*|\.\d+|\d+(?=[eE]))(?:[eE][-+]?\d+)?", lines[at]):
                if float(m.group(0)) not in PLAIN:
                    yield m.group(0), at + 1


def measure(root):
    files = sources(root)
    found = {"circles": circles(edges(files, False)), "by symbols": circles(edges(files, True))}
    found["long"] = sorted(((last - first + 1, f.path, first, name) for f in files for name, _, first, last in f.functions
                            if last - first + 1 > LONG), reverse=True)
    numbers = [(f.path, line, name, value) for f in files for name, value, line in constants(f)]
    found["constants"] = [c for c in numbers if not BOUND.search(c[2])]
    found["bounds"] = [c for c in numbers if BOUND.search(c[2])]
    found["naked"] = [(f.path, line, value) for f in files for value, line in naked(f)]
    figures = {"lines": sum(f.lines for f in files), "code": sum(f.code for f in files), "files": len(files),
               "units": len({f.unit for f in files}), "functions": sum(len(f.functions) for f in files),
               "circles": len(found["circles"]), "in circles": sum(len(c) for c in found["circles"]),
               "circles by symbols": len(found["by symbols"]), "long functions": len(found["long"]),
               "constants": len(found["constants"]), "bounds (_MAX)": len(found["bounds"]),
               "naked numbers": len(found["naked"])}
    return figures, found


def show(found):
    for kind in ("circles", "by symbols"):
        for circle in found[kind]:
            print(f"{kind}: {len(circle)} units: {' '.join(circle)}")
    for length, path, line, name in found["long"]:
        print(f"{path}:{line}: {name}: {length} lines")
    for path, line, name, value in found["constants"] + found["bounds"]:
        print(f"{path}:{line}: {name} = {value}")
    for path, line, value in found["naked"]:
        print(f"{path}:{line}: naked {value}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--root", default=os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    asked = parser.parse_args()
    figures, found = measure(asked.root)
    if asked.list:
        show(found)
    over = [name for name, limit in LIMITS.items() if figures[name] > limit]
    for name, figure in figures.items():
        limit = f" (at most {LIMITS[name]})" if name in LIMITS else ""
        print(f"{name:19s} {figure}{limit}")
    if asked.check:
        for name in over:
            print(f"planner/: size: {figures[name]} {name}, at most {LIMITS[name]}")
    return 1 if asked.check and over else 0


if __name__ == "__main__":
    sys.exit(main())
