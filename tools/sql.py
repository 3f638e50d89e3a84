#!/usr/bin/env python3
"""Makes C of store/*.sql: each statement's text with $1, $2 …, a typed call that fills its parameters, names of columns.

A line that begins with --# begins a piece, and a line of the same kind that follows continues it:
    --# read job_runs(job bigint, before bigint, most bigint) -> json
    --# write device_drain(viewer, name text, drained boolean, actor) -> json, void
    --# fragment audit(actor, what, object, before, after, from)
    --# columns link_row(from_node text, to_node text, document json)
Its text follows, up to the next --#. That of a statement ends in a semicolon.
    :name         a parameter: $1, $2 … in the order of the line
    @name(a, b)   the text of a fragment of this file or of store/fragments.sql, in which {x} stands for an argument;
                  the last argument may have commas of its own
A parameter has PostgreSQL's type. In C a number is int64_t or double, json a json_t, an array a pointer and a count.
    bytea(32)     a pointer to 32 bytes or NULL, which is null; a plain bytea has a size beside it
    bigint?       a pointer, as text and json always are: null where it is NULL
    bigint[n]     an array that has its count n in common with others
    json as text  C has the text of the document
    viewer        :viewer and :admin by store_param_viewer; actor is :actor, sharing :visibility and :grp, and edges
                  :from and :to, in the same way. Viewer and actor are one argument, the principal
A column is a type, with a name if C reads it (NODE_SEEN_STATE of node_seen), or the name of a list of columns.

    sql.py make FOLDER store/*.sql   store/X.sql.h, which X.c includes, and store_sql.c with the texts
    sql.py show NAME store/*.sql     a statement as PREPARE, for psql
"""
import pathlib
import re
import sys

TOKEN = re.compile(r"""(?P<space>\s+|--[^\n]*)|'(?:[^']|'')*'|"[^"]*"|::|:(?P<param>[a-z]\w*)|@(?P<use>[a-z]\w*)
    |\{(?P<hole>\w+)\}|\w+|.""", re.X | re.S)
HEAD = re.compile(r"(read|write|fragment|columns) ([a-z]\w*)(?:\((.*?)\))?(?: -> (.*))?")
PARAMETER = re.compile(r"([a-z]\w*) ([a-z]\w*)(\(32\))?(?:\[(\w*)\])?(\?)?(?: as (text))?")
# Parameters that store_param_… adds: what they are in SQL and in C.
KNOWN = {"viewer": ({"viewer": "bigint", "admin": "boolean"}, {"principal": "const struct principal *"}),
         "actor": ({"actor": "json"}, {"principal": "const struct principal *"}),
         "sharing": ({"visibility": "text", "grp": "text"}, {"sharing": "const struct sharing *"}),
         "edges": ({"from": "text[]", "to": "text[]"}, {"machine": "const struct state_machine *", "event": "int "})}
# The C type of a parameter, and the function pg_param_… that adds it.
PLAIN = {"smallint": ("int64_t ", "i64"), "integer": ("int64_t ", "i64"), "bigint": ("int64_t ", "i64"), "boolean": ("bool ", "bool"),
         "float8": ("double ", "f64"), "text": ("const char *", "text"), "timestamptz": ("const char *", "text"),
         "json": ("const json_t *", "json"), "jsonb": ("const json_t *", "json"), "bytea": ("const void *", "bytes"),
         "bigint[]": ("const int64_t *", "i64_array"), "text[]": ("const char *const *", "text_array")}
ARGUMENTS_MAX = 8
KINDS = ("read", "write")
SHARED = "store/fragments.sql"


class Wrong(Exception):
    """What is wrong with a file; the text begins with the place."""


def wrong(place, why):
    raise Wrong(f"{place[0]}:{place[1]}: {why}")


def split(found, most=None):
    """Tokens as lists between the commas that stand in no bracket, at most `most`. Also where an unopened ) stands."""
    parts, depth = [[]], 0
    for at, token in enumerate(found):
        piece = token[0].group()
        depth += (piece in ("(", "[")) - (piece in (")", "]"))
        if depth < 0:
            return parts, at
        if piece == "," and depth == 0 and len(parts) != most:
            parts.append([])
        else:
            parts[-1].append(token)
    return parts, len(found)


def tokens(text, path="", line=0):
    """Pairs of a match of TOKEN and its place."""
    return [(match, (path, line + text.count("\n", 0, match.start()))) for match in TOKEN.finditer(text)]


def words(text):
    return ["".join(token[0].group() for token in part).strip() for part in split(tokens(text or ""))[0] if part]


class Parameter:
    """`sql` has its names and types in SQL, `c` those in C; `call` adds it."""

    def __init__(self, text, place):
        if text in KNOWN:
            self.sql, self.c = KNOWN[text]
            self.call = f"store_param_{text}(params, {', '.join('{0}' + name for name in self.c)});"
            return
        found = PARAMETER.fullmatch(text)
        if not found:
            wrong(place, f"\"{text}\" is no parameter: a name and a type, or one of {', '.join(KNOWN)}")
        name, kind, fixed, count, null, given = found.groups()
        array = "[]" if count is not None else ""
        self.sql = {name: kind + array}
        if (given or kind) + array not in PLAIN:
            wrong(place, f"tools/sql.py knows no C type for {kind}{array}: perhaps \"as text\"")
        kind, add = PLAIN[(given or kind) + array]
        pointer = null and "*" not in kind
        self.c = {name: f"const {kind}*" if pointer else kind}
        if array or add == "bytes" and not fixed:
            self.c[count or name + ("_count" if array else "_size")] = "size_t "
        given = ", ".join("{0}" + name for name in self.c)
        self.call = f"pg_param_{add}(params, {'*' if pointer else ''}{given}{', 32' if fixed else ''});"
        if null or add == "bytes":
            self.call = f"if ({{0}}{name})\n        {self.call}\n    else\n        pg_param_null(params);"


class Piece:
    """A statement, a fragment or a list of columns."""

    def __init__(self, head, place):
        found = HEAD.fullmatch(head)
        if not found or (found[4] and found[1] in ("fragment", "columns")):
            wrong(place, f"\"{head}\" is not of the form read|write name(parameters) -> columns, fragment|columns name(…)")
        self.kind, self.name, given, columns = found.groups()
        self.place, self.tokens, self.used = place, [], False
        self.columns = words(given if self.kind == "columns" else columns)
        self.holes = words(given) if self.kind == "fragment" else []
        self.parameters = [Parameter(part, place) for part in words(given)] if self.kind in KINDS else []
        self.types = {}
        for name, kind in [pair for parameter in self.parameters for pair in parameter.sql.items()]:
            if name in self.types:
                wrong(place, f"{self.name} has the parameter {name} twice, as {self.types[name]} and {kind}")
            self.types[name] = kind


def read(paths):
    """All pieces of some files and of SHARED, by path and name, or by name alone if they are statements."""
    pieces = {}
    for path in dict.fromkeys([*paths, SHARED]):
        text = pathlib.Path(path).read_text(encoding="utf-8")
        starts = [*re.finditer(r"^--#.*(?:\n--#.*)*", text, re.M), None]
        for start, following in zip(starts, starts[1:]):
            place = (path, text.count("\n", 0, start.start()) + 1)
            piece = Piece(re.sub(r"\s*(?:\n|^)--#\s*", " ", start.group()).strip(), place)
            key = piece.name if piece.kind in KINDS else (path, piece.name)
            if key in pieces:
                wrong(place, f"{piece.name} is in {pieces[key].place[0]}:{pieces[key].place[1]} already")
            pieces[key] = piece
            piece.tokens = tokens(text[start.end():following.start() if following else None], path, place[1] + start.group().count("\n"))
    return pieces


def expand(found, holes, pieces, within):
    """The tokens with fragments in the place of their uses. `within`: those under way."""
    out, at = [], 0
    while at < len(found):
        match, place = found[at]
        at += 1
        if match["hole"]:
            out += holes[match["hole"]] if match["hole"] in holes else wrong(place, f"{match.group()} is no argument here")
        elif match["use"]:
            fragment = pieces.get((place[0], match["use"])) or pieces.get((SHARED, match["use"]))
            if not fragment:
                wrong(place, f"there is no fragment {match['use']} in this file or in {SHARED}")
            if fragment in within:
                wrong(place, f"the fragment {fragment.name} uses itself")
            fragment.used = True
            given, end = split(found[at + 1:], len(fragment.holes)) if fragment.holes else ([], -2)
            if len(given) != len(fragment.holes) or given and (found[at][0].group() != "(" or at + 1 + end == len(found)):
                wrong(place, f"@{fragment.name} takes {len(fragment.holes)} arguments in brackets")
            at += end + 2
            given = [expand(argument, holes, pieces, within) for argument in given]
            out += expand(fragment.tokens, dict(zip(fragment.holes, given)), pieces, [*within, fragment])
        else:
            out.append((match, place))
    return out


def text_of(piece, pieces):
    """A statement's text as the server gets it."""
    text, names, used = "", list(piece.types), set()
    for match, place in expand(piece.tokens, {}, pieces, []):
        used.add(match["param"])
        if match["param"] and match["param"] not in names:
            wrong(place, f"{piece.name} has no parameter {match['param']}")
        token = f"${names.index(match['param']) + 1}" if match["param"] else " " if match["space"] else match.group()
        if not (token == " " and text[-1:] in ("", " ", "(")):
            text = (text.rstrip() if token in "),;" else text) + token
    for name in set(names) - used:
        wrong(piece.place, f"{piece.name} does not use its parameter {name}")
    text = text.strip()
    if not text.endswith(";") or ";" in re.sub(r"'[^']*'", "", text[:-1]):
        wrong(piece.place, f"{piece.name} is not one statement that ends in a semicolon")
    return text[:-1].strip()


def columns_of(piece, pieces):
    """Names, or "", and types of a result's columns."""
    out = []
    for column in piece.columns:
        name, _, kind = column.rpartition(" ")
        several = not name and (pieces.get((piece.place[0], kind)) or pieces.get((SHARED, kind)))
        out += columns_of(several, pieces) if several else [(name, kind)]
    return out


def load(paths):
    """The pieces of some files, and each statement with its text and its columns' types, in the files' order."""
    pieces = read(paths)
    found = [(piece, text_of(piece, pieces), [kind for _, kind in columns_of(piece, pieces)])
             for piece in pieces.values() if piece.kind in KINDS]
    for piece in pieces.values():
        if piece.kind == "fragment" and not piece.used and (piece.place[0] != SHARED or len(paths) > 1):
            wrong(piece.place, f"nothing uses the fragment {piece.name}")
    return pieces, found


def enum_of(piece, pieces):
    rows = "".join(f"    {piece.name.upper()}_{name.upper()} = {at},\n" for at, (name, _) in enumerate(columns_of(piece, pieces)) if name)
    return f"enum {{\n{rows}}};\n" if rows else ""


def call_of(piece, structs):
    """The declaration of a statement and its typed call. `structs`: members and names of the structs so far."""
    arguments, of, struct = {name: kind for parameter in piece.parameters for name, kind in parameter.c.items()}, "", ""
    if len(arguments) > ARGUMENTS_MAX:
        members = "".join(f"    {kind}{name};\n" for name, kind in arguments.items())
        if members not in structs:
            struct, structs[members] = f"struct sql_{piece.name} {{\n{members}}};\n", piece.name
        arguments, of = {"of": f"const struct sql_{structs[members]} *"}, "of->"
    return (f"extern const struct pg_statement {piece.name}_sql;\n{struct}static inline void sql_{piece.name}(struct pg_params *params"
            + "".join(f", {kind}{name}" for name, kind in arguments.items())
            + f")\n{{\n    pg_params_init(params);\n    params->statement = &{piece.name}_sql;\n"
            + "".join(f"    {parameter.call.format(of)}\n" for parameter in piece.parameters) + "}\n")


def header_of(path, pieces):
    guard, structs = re.sub(r"\W", "_", f"motley_{path}_h").upper(), {}
    own = [piece for piece in pieces.values() if piece.place[0] == path]
    return (f"/* Made from {path} by tools/sql.py. */\n#ifndef {guard}\n#define {guard}\n\n#include \"store/store_private.h\"\n"
            + (f"#include \"{SHARED}.h\"\n" if path != SHARED else "")
            + "".join("\n" + enum_of(piece, pieces) + (call_of(piece, structs) if piece.kind in KINDS else "") for piece in own) + "\n#endif\n")


def source_of(found):
    text = "/* Made from store/ by tools/sql.py. */\n#include \"common/pg.h\"\n"
    for piece, sql, _ in found:
        literal = sql.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        text += (f"\nextern const struct pg_statement {piece.name}_sql;\nconst struct pg_statement {piece.name}_sql = "
                 f"{{\"{piece.name}\",\n    \"{literal}\", PG_{piece.kind.upper()}}};\n")
    return text


def main(what, out, *paths):
    pieces, found = load(paths)
    if what == "show":
        print(*[f"PREPARE {piece.name} AS {text};" for piece, text, _ in found if piece.name == out])
        return
    for name, text in [("store_sql.c", source_of(found)), *((f"{path}.h", header_of(path, pieces)) for path in paths)]:
        file = pathlib.Path(out, name)
        if not file.exists() or file.read_text(encoding="utf-8") != text:  # what has not changed is not compiled again
            file.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except (Wrong, OSError) as error:
        sys.exit(f"sql.py: {error}")
