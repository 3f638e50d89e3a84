#!/usr/bin/env python3
"""Functions that call themselves, directly or in a circle, without a depth that they compare.

What a file, a peer or a plan shapes can be nested as deep as it is long, and a stack is 8 MiB or less. So each circle of
calls names a depth (or nesting, or level) that something refuses, or stands in BOUNDED with what bounds it instead.
Prints one line a circle and exits 1 if there is any.
"""
import re
import sys

import circles

BOUNDED = {
    "added_flag": "once: the second flag has no default of its own",
    "add_recomputation": "a layer's steps, each once",
    "catalogue_find": "once: an alias is an entry's own name",
    "contribution_ready": "the height of a tree of ranks",
    "doc_schema": "how deep the constant tables of a description lie",
    "doc_take": "how deep the constant tables of a description lie",
    "doc_write": "how deep the constant tables of a description lie",
    "fields_fini": "how deep the constant tables of a description lie",
    "fields_start": "how deep the constant tables of a description lie",
    "fixed_differs": "how deep the constant tables of a description lie",
    "live_exchange": "how deep the constant tables of a description lie",
    "heap_lowest": "the height of a heap",
    "jv_from_json": "JSON_DEPTH_MAX, where the document was parsed",
    "mark_find": "JSON_DEPTH_MAX, where the document was parsed",
    "values_flatten": "JSON_DEPTH_MAX, where the document was parsed",
    "tokens_made": "JSON_DEPTH_MAX, where the document was parsed",
    "node_advanced": "FOLD_DEPTH_MAX passes make the nodes",
    "nodes_json": "FOLD_DEPTH_MAX passes make the nodes",
    "queue_run": "a wait is for an earlier entry of another queue",
    "replace_nul": "the limits of frames, where the message was decoded",
    "result_broadcast": "the height of a tree of ranks",
    "scope_run": "jinja_check.c has refused what is nested deeper",
    "jinja_scope_visit": "jinja_check.c has refused what is nested deeper",
    "seed_tight_orders": "SETS_ALL devices",
    "segment_cut": "twice: the normalised text is cut once more",
    "write_next": "the units of a pass, each of which is tried twice at most",
    "walk_cut": "the stages of a pre-tokenizer, whose number is limited",
}
FUNCTION = re.compile(r"^(?![ \t#}/])([A-Za-z_][\w \t\*]*?[\s\*])??([A-Za-z_]\w*)\s*\([^;{}]*\)\s*\n\{(.*?)^\}", re.M | re.S)
CALL = re.compile(r"(?<![\w.>])([A-Za-z_]\w*)\s*\(")
LIMITED = re.compile(r"depth|DEPTH|(?<!LOG_)level|(?<!LOG_)LEVEL|deeper|nest")


def functions(paths, read):
    """{(file of a static function or "", name): (file, text, names that it calls, line)}"""
    found = {}
    for path in paths:
        code = circles.code_of(read(path))
        for function in FUNCTION.finditer(code):
            static = "static" in (function.group(1) or "")
            line = code.count("\n", 0, function.start()) + 1
            found[(path if static else "", function.group(2))] = (path, function.group(0), set(CALL.findall(function.group(3))), line)
    return found


def calls_in_circles(known):
    """Yields the keys of each circle of calls among functions()."""
    calls = {key: {k for name in names for k in [(path, name) if (path, name) in known else ("", name)] if k in known}
             for key, (path, _, names, _) in known.items()}
    reach = {}
    for start in known:  # all that a function reaches; a few thousand functions, each with few calls
        seen, todo = set(), list(calls[start])
        while todo:
            key = todo.pop()
            if key not in seen:
                seen.add(key)
                todo.extend(calls[key])
        if start in seen:
            reach[start] = seen
    done = set()
    for start in sorted(reach):
        circle = {key for key in reach[start] if key in reach and start in reach[key]}
        if start in done:
            continue
        done |= circle
        yield circle


def find(paths, read):
    """Yields (file, line, names of the circle) for each circle without a depth."""
    known = functions(paths, read)
    for circle in calls_in_circles(known):
        names = sorted(name for _, name in circle)
        if not any(LIMITED.search(known[key][1]) for key in circle) and not any(name in BOUNDED for name in names):
            first = known[min(circle)]
            yield first[0], first[3], names


def main():
    found = list(find([p for p in circles.tracked() if p.endswith(".c") and not p.startswith(("tests/", "bench/"))], circles.read))
    for path, _, names in found:
        print(f"{path}: {', '.join(names)}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
