#!/usr/bin/env python3
"""Circles of files inside a room: the house rule is that of two files one is the lower.

A unit is x.c with x.h. A header stands alone where there is no such x.c (x_private.h too), and where several files
define what it declares: then it is the face of them all and not of x.c. A unit uses another when it includes the
other's header, and when it calls a function that the other defines, also through a header that many share. x_private.h
may include x.h, its outer face, without being above x.c. Static functions are a file's own.
Prints one line a circle, `room: a -> b -> a`, then why each arrow is there; exits 1 if there is any.

    tools/circles.py [--arrows] [ROOM ...]     every room by default; --arrows: why each file of a circle is in it
"""
import collections
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

NOT_A_FUNCTION = {"if", "for", "while", "switch", "return", "sizeof", "defined", "__attribute__", "_Static_assert"}
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+"([^"]+)"', re.M)
# A definition begins in column 0 and its body's brace stands alone on a line (.clang-format, BreakBeforeBraces: Linux).
DEFINITION = re.compile(r"^(?![ \t#}/])((?:[A-Za-z_][\w \t\*]*?[\s\*])??)([A-Za-z_]\w*)\s*(\([^;{}]*\))\s*\n\{", re.M)
DECLARATION = re.compile(r"\b([A-Za-z_]\w*)\s*\([^;{}]*\)[^;{}()]*;")
# A function is also used where only its name stands: in a table, as a callback.
NAME = re.compile(r"(?<![\w.>])([A-Za-z_]\w*)\b")


def code_of(text):
    """Comments and strings blanked, lines kept."""
    def blank(match):
        return re.sub(r"[^\n]", " ", match.group(0))
    return re.sub(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', blank, text, flags=re.S)


def without_comments(text):
    return re.sub(r"/\*.*?\*/|//[^\n]*", " ", text, flags=re.S)


def tracked():
    out = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT,
                         capture_output=True, check=True).stdout.decode()
    return sorted(p for p in out.split("\0") if p and os.path.exists(os.path.join(ROOT, p)))


class Room:
    """arrows[a][b]: why unit a is above unit b, one sentence each."""

    def __init__(self, paths, read):
        known, sources = set(paths), {p for p in paths if p.endswith(".c")}
        self.arrows = collections.defaultdict(lambda: collections.defaultdict(list))
        owner, codes = {}, {}
        for path in sorted(sources):
            codes[path] = code_of(read(path))
            for before, name, _ in DEFINITION.findall(codes[path]):
                if name not in NOT_A_FUNCTION and not re.search(r"\bstatic\b", before):
                    owner[name] = path
        faces = set()
        for path in paths:
            if path.endswith(".h") and path[:-2] + ".c" in sources:
                behind = {owner[name] for name in DECLARATION.findall(code_of(read(path))) if name in owner}
                if len(behind | {path[:-2] + ".c"}) > 1:
                    faces.add(path)

        def unit_of(path):
            return path if path in faces else os.path.splitext(path)[0]

        for path in paths:
            unit = unit_of(path)
            for target in INCLUDE.findall(without_comments(read(path))):
                outer_face = path.endswith("_private.h") and target == path[:-len("_private.h")] + ".h"
                if target in known and unit_of(target) != unit and not outer_face:
                    self.arrows[unit][unit_of(target)].append(f"{path} includes {target}")
        for path, code in codes.items():
            unit = unit_of(path)
            own = {name for _, name, _ in DEFINITION.findall(code)}
            for name in sorted(set(NAME.findall(code)) - own):
                if name in owner and unit_of(owner[name]) != unit and used(code, name):
                    self.arrows[unit][unit_of(owner[name])].append(f"{path} uses {name}() of {owner[name]}")

    def circles(self):
        """The strongly connected parts of more than one unit, each as a sorted list."""
        order, seen = [], set()
        for start in sorted(self.arrows):
            stack = [(start, iter(sorted(self.arrows[start])))] if start not in seen else []
            seen.add(start)
            while stack:
                unit, rest = stack[-1]
                for other in rest:
                    if other not in seen:
                        seen.add(other)
                        stack.append((other, iter(sorted(self.arrows[other] if other in self.arrows else ()))))
                        break
                else:
                    order.append(unit)
                    stack.pop()
        back = collections.defaultdict(set)
        for unit in self.arrows:
            for other in self.arrows[unit]:
                back[other].add(unit)
        parts, taken = [], set()
        for start in reversed(order):
            part, todo = [], [start]
            while todo:
                unit = todo.pop()
                if unit not in taken:
                    taken.add(unit)
                    part.append(unit)
                    todo.extend(back[unit])
            if len(part) > 1:
                parts.append(sorted(part))
        return parts

    def shortest(self, part):
        """The shortest circle in a strongly connected part, as [a, b, ..., a]."""
        best = None
        inside = set(part)
        for start in part:
            came, todo = {start: None}, collections.deque([start])
            while todo:
                unit = todo.popleft()
                for other in sorted(self.arrows[unit]):
                    if other == start:
                        path = [start]
                        while unit is not None:
                            path.append(unit)
                            unit = came[unit]
                        path.reverse()
                        if best is None or len(path) < len(best):
                            best = path
                        todo.clear()
                        break
                    if other in inside and other not in came:
                        came[other] = unit
                        todo.append(other)
        return best


def used(code, name):
    """Called, or handed on by its name; not merely a local or a member that is called the same."""
    if re.search(rf"(?<![\w.>]){name}\s*\(", code):
        return not re.search(rf"^\s*(?:static|extern)[^;{{}}=]*\b{name}\s*\(", code, re.M)
    declared = re.search(rf"(?:[\w\]]\s*\*+|\b(?!return\b|case\b|else\b|goto\b)[A-Za-z_]\w*\s+)\*?{name}\s*(?:[;=,\[)]|$)", code, re.M)
    return not declared and re.search(rf"[=,({{&?:]\s*&?{name}\s*[,;)}}:]", code) is not None


def find(files, rooms, read):
    """[(room, shortest circle, all its units, [why, one an arrow])] for every strongly connected part."""
    found = []
    for name in rooms:
        room = Room([f for f in files if f.startswith(name + "/") and f.endswith((".c", ".h"))], read)
        for part in room.circles():
            path = room.shortest(part)
            why = [room.arrows[a][b][0] for a, b in zip(path, path[1:])]
            found.append((name, path, part, why, room))
    return found


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as handle:
        return handle.read()


def main():
    words = [w for w in sys.argv[1:] if w != "--arrows"]
    files = tracked()
    rooms = words or sorted({f.split("/")[0] for f in files if f.endswith(".c")} - {"tests", "bench"})
    found = find(files, rooms, read)
    for name, path, part, why, room in found:
        print(f"{name}: {' -> '.join(path)}   ({len(part)} files go round)")
        for sentence in why:
            print(f"    {sentence}")
        if "--arrows" in sys.argv[1:]:
            for a in part:
                for b in sorted(set(room.arrows[a]) & set(part)):
                    print(f"        {a} -> {b}: {'; '.join(room.arrows[a][b])}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
