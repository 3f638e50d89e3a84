#!/usr/bin/env python3
"""Every statement of store/*.sql on a real PostgreSQL with Motley's schema, and what tools/sql.py refuses."""
import glob
import os
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", "support"), os.path.join(HERE, "..", "api"), os.path.join(HERE, "..", "..", "tools")]
import sql  # noqa: E402
from api import Api  # noqa: E402
from claims import SOURCE, expect, main  # noqa: E402


def short(kind):
    """A type's short name, as the files have it."""
    return kind.replace("double precision", "float8").replace("timestamp with time zone", "timestamptz")


def described(conninfo, found):
    """By each statement's name: the types of its parameters and of its columns, as the server has them."""
    script = "".join(f"\\echo @{piece.name}\nPREPARE {piece.name} AS {text};\n{text} \\gdesc\n" for piece, text, _ in found)
    script += "\\echo @\nSELECT name, array_to_string(parameter_types, ';') FROM pg_prepared_statements;\n"
    done = subprocess.run(["psql", "-v", "ON_ERROR_STOP=1", "-X", "-q", "-A", "-t", "-F", "\t", conninfo], input=script,
                          capture_output=True, text=True, timeout=60, check=False)
    expect(done.returncode == 0, f"{done.stdout.rpartition('@')[2].split()[:1]}: {done.stderr}")
    columns, parameters, name = {}, {}, ""
    for line in done.stdout.splitlines():
        if line.startswith("@"):
            name = line[1:]
            columns[name] = []
        elif name and "\t" in line:  # else: "The command has no result, or the result has no columns."
            columns[name].append(line.split("\t")[1])
        elif not name:
            key, _, types = line.partition("\t")
            parameters[key] = [kind.strip('"') for kind in types.split(";") if kind]
    return {key: ([short(kind) for kind in parameters[key]], [short(kind) for kind in columns[key]]) for key in parameters}


def the_server_takes_every_statement_with_the_types_that_it_declares():
    api = Api()
    try:
        api.postgres.start()
        api.migrate()
        found = sql.load(sorted(glob.glob("store/*.sql")))[1]
        server = described(api.postgres.conninfo, found)
        for piece, _, columns in found:
            where = f"{piece.place[0]}:{piece.place[1]}: {piece.name}"
            parameters, result = server[piece.name]
            expect(parameters == list(piece.types.values()), f"{where} has the parameters {parameters}, not {list(piece.types.values())}")
            expect(result == columns, f"{where} answers the columns {result}, not {columns}")
        return f"{len(found)} statements"
    finally:
        api.postgres.stop()
        shutil.rmtree(api.base)


def refusal(text):
    """What is said of a file with this text."""
    with tempfile.NamedTemporaryFile("w", suffix=".sql") as file:
        file.write(text)
        file.flush()
        try:
            sql.load([file.name])
        except sql.Wrong as wrong:
            return str(wrong).removeprefix(file.name)
    return "nothing"


def a_mistake_is_refused_with_its_line():
    cases = {
        "--# read a(b bigint)\nSELECT 1,\n:c;": ":3: a has no parameter c",
        "\n--# read a(b bigint)\nSELECT 1;": ":2: a does not use its parameter b",
        "--# read a(b bigint, b text)\nSELECT :b;": ":1: a has the parameter b twice, as bigint and text",
        "--# read a(b frog)\nSELECT :b;": ":1: tools/sql.py knows no C type for frog: perhaps \"as text\"",
        "--# read a(b)\nSELECT :b;": ":1: \"b\" is no parameter: a name and a type, or one of viewer, actor, sharing, edges",
        "--# read a\nSELECT\n@b(1);": ":3: there is no fragment b in this file or in store/fragments.sql",
        "--# fragment b(x, y)\n{x}{y}\n--# read a\nSELECT @b(1);": ":4: @b takes 2 arguments in brackets",
        "--# fragment b(x)\n{y}\n--# read a\nSELECT @b(1);": ":2: {y} is no argument here",
        "--# fragment b\n@b\n--# read a\nSELECT @b;": ":2: the fragment b uses itself",
        "--# fragment b\n1\n--# read a\nSELECT 1;": ":1: nothing uses the fragment b",
        "--# read a\nSELECT 1": ":1: a is not one statement that ends in a semicolon",
        "--# read a\nSELECT 1; SELECT 2;": ":1: a is not one statement that ends in a semicolon",
        "--# look a\nSELECT 1;": ":1: \"look a\" is not of the form read|write name(parameters) -> columns, fragment|columns name(…)",
    }
    for text, why in cases.items():
        said = refusal(text)
        expect(said == why, f"{text!r}: {said!r} is not {why!r}")
    said = refusal("--# read a\nSELECT 1;\n--# read a\nSELECT 2;")
    expect(said.startswith(":3: a is in /") and said.endswith(":1 already"), said)


def texts_keep_what_quotes_hold():
    with tempfile.NamedTemporaryFile("w", suffix=".sql") as file:
        file.write("--# fragment f(x, y)\n( {x} -- ')\n  || {y} )\n--# read a(b text, c bigint[])\n"
                   "SELECT @f(':b  ( ', :b::text),   '--{}', \"q  :b\", :c[1:2], 'it''s';\n")
        file.flush()
        (piece, text, _), = sql.load([file.name])[1]
    expect(text == "SELECT (':b  ( ' || $1::text), '--{}', \"q  :b\", $2[1:2], 'it''s'", text)
    expect(piece.types == {"b": "text", "c": "bigint[]"}, piece.types)


if __name__ == "__main__":
    os.chdir(SOURCE)
    main(the_server_takes_every_statement_with_the_types_that_it_declares, a_mistake_is_refused_with_its_line, texts_keep_what_quotes_hold)
