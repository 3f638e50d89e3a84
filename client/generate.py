#!/usr/bin/env python3
"""Writes src/motley/models.py and src/motley/operations.py from api/openapi.yaml.

Needs PyYAML, while the client is developed only. Every named schema, answer and nested object becomes a dataclass, every
operation that speaks JSON a function that builds its call. What carries bytes or events is written by hand (files.py,
streams.py). A construct that this script does not know ends it with its place: nothing is left out silently.

usage: generate.py [--check]     with --check: compare with the committed files, exit 1 when they differ
"""
import builtins
import keyword
import os
import re
import sys
import textwrap

import yaml

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.join(HERE, "..", "api", "openapi.yaml")
PACKAGE = os.path.join(HERE, "src", "motley")
WIDTH = 140
METHODS = ("get", "post", "put", "patch", "delete", "head")
JOBS = "/v1/jobs/{id}"  # a job is named by its id, or by whatever has one
PLAIN = {"string": "str", "integer": "int", "number": "float", "boolean": "bool"}
# These say what a server checks, or are for people: they change no type.
CHECKED_BY_SERVER = {"minimum", "maximum", "exclusiveMaximum", "minLength", "maxLength", "pattern", "format", "minItems", "maxItems",
                     "uniqueItems", "default", "description", "minProperties", "maxProperties", "propertyNames", "x-known-values"}


class Unknown(Exception):
    pass


def snake(name):
    return re.sub(r"[^a-z0-9]+", "_", re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", name).lower()).strip("_")


def camel(name):
    return "".join(part[:1].upper() + part[1:] for part in re.split(r"[^A-Za-z0-9]+", name))


def identifier(name):
    made = snake(name) if not name.isidentifier() else name
    return made + "_" if keyword.iskeyword(made) else made


def sentence(text):
    """A description on one line, in ASCII quotes that cannot end a string."""
    return " ".join((text or "").split()).replace("\\", "\\\\").replace('"""', "'''")


class Generator:
    def __init__(self, document):
        self.document = document
        self.models = {}   # name: (description, is sent to the server, [(field, type, needed, alias, note)])
        self.order = []
        self.schemas = {}  # name: what it was made of

    def resolve(self, node):
        while "$ref" in node:
            node = self.named(node["$ref"])
        return node

    def named(self, reference):
        node = self.document
        for part in reference.removeprefix("#/").split("/"):
            node = node[part]
        return node

    # ---- types ----

    def kind(self, schema, name, sent):
        """The Python type of a schema; `name` is what an object in it is called."""
        if "$ref" in schema:
            name = schema["$ref"].rsplit("/", 1)[1]
            return self.kind(self.named(schema["$ref"]), name, sent)
        known = CHECKED_BY_SERVER | {"type", "enum", "anyOf", "items", "properties", "required", "additionalProperties"}
        if set(schema) - known:
            raise Unknown(f"{name}: {sorted(set(schema) - known)}")
        if "anyOf" in schema:
            return " | ".join(dict.fromkeys(self.kind(part, f"{name}{i or ''}", sent) for i, part in enumerate(schema["anyOf"])))
        types = schema.get("type", [])
        types = types if isinstance(types, list) else [types]
        if "enum" in schema:
            values = ", ".join(repr(value) for value in schema["enum"] if value is not None)
            return f"Literal[{values}]" + (" | None" if None in schema["enum"] else "")
        if not types:
            return "Any"
        return " | ".join("None" if one == "null" else self.one_kind(one, schema, name, sent) for one in types)

    def one_kind(self, one, schema, name, sent):
        if one == "string" and schema.get("format") == "date-time":
            return "datetime"
        if one in PLAIN:
            return PLAIN[one]
        if one == "array":
            item = self.kind(schema.get("items", {}), name.removesuffix("s"), sent)
            return f"Sequence[{item}]" if sent else f"list[{item}]"
        if one != "object":
            raise Unknown(f"{name}: type {one}")
        if "properties" in schema:
            self.model(name, schema, sent)
            return name
        more = schema.get("additionalProperties")
        value = self.kind(more, name + "Value", sent) if isinstance(more, dict) else "Any"
        return f"Mapping[str, {value}]" if sent else f"dict[str, {value}]"

    def model(self, name, schema, sent):
        if set(schema["properties"]) & {"raw", "unknown"}:
            raise Unknown(f"{name} has a member that Answered has")
        if name in self.models:
            if self.models[name][1] != sent or self.schemas[name] is not schema:
                raise Unknown(f"{name} is the name of two things, or both sent and answered")
            return
        self.schemas[name] = schema
        self.models[name] = None, sent, []
        needed = schema.get("required", [])
        fields = []
        for key, value in schema["properties"].items():
            kind = self.kind(value, name + camel(key), sent)
            note = value.get("description") or self.resolve(value).get("description", "")
            values = self.resolve(value).get("x-known-values")
            if values:
                note = f"{', '.join(values)}; {note or 'others may come'}"
            fields.append((key, kind, key in needed, sentence(note)))
        self.models[name] = sentence(schema.get("description")), sent, fields
        self.order.append(name)

    def write_models(self):
        out = []
        for name in self.order:
            description, sent, fields = self.models[name]
            out += ["", "", "@dataclass(frozen=True, kw_only=True)", f"class {name}({'Sent' if sent else 'Answered'}):"]
            if description:
                out += docstring(description, 4)
            for key, kind, needed, note in fields:
                out.append("    " + self.field(key, kind, needed, sent) + (f"  # {note}" if note else ""))
        return out

    @staticmethod
    def field(key, kind, needed, sent):
        name, default = identifier(key), ""
        if not needed and sent:
            kind, default = f"{kind} | Unset", "UNSET"
        elif not needed:
            kind, default = kind if kind.endswith("None") or kind == "Any" else f"{kind} | None", "None"
        if name != key:
            default = f"field({'default=' + default + ', ' if default else ''}metadata={{\"name\": \"{key}\"}})"
        return f"{name}: {kind}" + (f" = {default}" if default else "")

    # ---- operations ----

    def answer(self, operation, name):
        """The answer's type, its schema, and whether it is text."""
        for status, response in operation["responses"].items():
            if not str(status).startswith("2"):
                continue
            reference = response.get("$ref", "").rsplit("/", 1)[-1]
            content = self.resolve(response).get("content", {})
            if not content:
                return "None", None
            if "application/json" in content:
                schema = content["application/json"]["schema"]
                return self.kind(schema, reference or name + "Answer", False), self.resolve(schema)
            if any(media.startswith("text/plain") or media == "application/yaml" for media in content):
                return "str", None
        raise Unknown(f"{name}: no answer that is read as a whole")

    @staticmethod
    def by_hand(operation, method):
        """Bytes and event streams: files.py and streams.py have them."""
        media = set(operation.get("requestBody", {}).get("content", {}))
        for response in operation["responses"].values():
            media |= set(response.get("content", {}))
            media |= {"application/octet-stream"} if response.get("$ref", "").endswith("/Bytes") else set()
        return method == "head" or bool(media & {"application/octet-stream", "text/event-stream"})

    def arguments(self, url, operation, path, name):
        """Lists of (Python name, type, is needed, where it goes, wire name), needed ones first."""
        found, keyed = [], False
        for parameter in [*path.get("parameters", []), *operation.get("parameters", [])]:
            parameter = self.resolve(parameter)
            key, where = parameter["name"], parameter["in"]
            if key == "Idempotency-Key":
                keyed = True
                continue
            kind = self.kind(parameter["schema"], name + camel(key), True)
            if where == "path" and url.startswith(JOBS):
                kind += " | Numbered"
            found.append((identifier(key), kind, parameter.get("required", False), where, key))
        body, whole = operation.get("requestBody"), None
        if body:
            schema = self.resolve(body)["content"]["application/json"]["schema"]
            if "$ref" in schema:
                whole = snake(schema["$ref"].rsplit("/", 1)[1])
                kind = f"{self.kind(schema, name, True)} | Mapping[str, Any]"
                found.append((whole, kind.replace(" |", " |", 1), True, "whole", whole))
            else:
                for key, value in schema.get("properties", {}).items():
                    kind = self.kind(value, name + camel(key), True)
                    found.append((identifier(key), kind, key in schema.get("required", []), "body", key))
        return sorted(found, key=lambda a: (not a[2], a[3] != "path")), keyed, bool(body)

    def operation(self, url, path, method):
        operation = path[method]
        name = camel(operation["operationId"])
        answer, schema = self.answer(operation, name)
        found, keyed, has_body = self.arguments(url, operation, path, name)
        item = self.listed(schema, answer)
        call = snake(operation["operationId"])
        words = [quote_argument(a) for a in found if a[3] in ("path", "whole") and a[2]]
        rest = [quote_argument(a) for a in found if a[3] not in ("path", "whole") or not a[2]]
        rest += ["idempotency_key: str | None = None"] if keyed else []
        words += ["*", *rest] if rest else []
        given = [f'"{method.upper()}"', f'f"{template(url, found)}"' if "{" in url else f'"{url}"', answer]
        for where, key in (("query", "query"), ("header", "headers")):
            pairs = [f'"{wire}": {name}' for name, _, _, kind, wire in found if kind == where]
            given += [f"{key}={{{', '.join(pairs)}}}"] if pairs else []
        whole = [a[0] for a in found if a[3] == "whole"]
        pairs = [f'"{wire}": {name}' for name, _, _, kind, wire in found if kind == "body"]
        if whole or (has_body and pairs):
            given.append("body=" + (whole[0] if whole else "{" + ", ".join(pairs) + "}"))
        given += ["keyed=True", "key=idempotency_key"] if keyed else []
        made = f"Call({', '.join(given)})"
        result = f"Call[{answer}]"
        if item:
            result, made = f"Listing[{answer}, {item[1]}]", f"Listing({made}, lambda page: page.{item[0]}, lambda page: page.next)"
        lines = ["", "", *wrapped(f"def {call}(", words, f") -> {result}:", 0)]
        lines += docstring(operation["summary"] + ". " + sentence(operation.get("description", "")), 4)
        lines += wrapped_call(made)
        return call, bool(item), lines

    def listed(self, schema, answer):
        """The member of a page that holds its items, and their type."""
        if not schema or "next" not in schema.get("properties", {}):
            return None
        for key in schema["required"]:
            field = next(f for f in self.models[answer][2] if f[0] == key)
            if field[1].startswith("list["):
                return identifier(key), field[1][5:-1]
        raise Unknown(f"{answer}: a page without items")

    def operations(self):
        for url, path in self.document["paths"].items():
            for method in METHODS:
                if method in path and not self.by_hand(path[method], method):
                    yield self.operation(url, path, method)


def quote_argument(argument):
    name, kind, needed = argument[:3]
    return f"{name}: {kind}" if needed else f"{name}: {kind} | Unset = UNSET"


def template(url, found):
    for name, _, _, where, wire in found:
        if where == "path":
            url = url.replace("{" + wire + "}", "{" + ("job_" if url.startswith(JOBS) else "") + "segment(" + name + ")}")
    return url


def wrapped(begin, words, end, indent):
    line = " " * indent + begin + ", ".join(words) + end
    if len(line) <= WIDTH:
        return [line]
    body = textwrap.wrap(", ".join(words).replace(" ", "\0").replace(",\0", ", "), WIDTH - indent - 4, break_long_words=False)
    return [" " * indent + begin, *(" " * (indent + 4) + text.replace("\0", " ") for text in body), " " * indent + end]


def wrapped_call(made):
    line = f"    return {made}"
    if len(line) <= WIDTH:
        return [line]
    first, rest = made.split("(", 1)
    body = textwrap.wrap(rest[:-1], WIDTH - 8, break_long_words=False, break_on_hyphens=False)
    return [f"    return {first}(", *("        " + text for text in body), "    )"]


def docstring(text, indent):
    lines = textwrap.wrap(sentence(text) + '"""', WIDTH - indent - 3, break_long_words=False)
    return [" " * indent + '"""' + lines[0], *(" " * indent + line for line in lines[1:])]


HEAD = '"""Made by client/generate.py from api/openapi.yaml: change that, and run it again."""'


def generate():
    with open(SOURCE, encoding="utf-8") as handle:
        maker = Generator(yaml.safe_load(handle))
    maker.kind({"$ref": "#/components/schemas/Problem"}, "Problem", False)
    operations, classes = [], {"Sync": [], "Async": []}
    names = []
    for name, pages, lines in maker.operations():
        if hasattr(builtins, name):
            raise Unknown(f"{name} is a name of Python's")
        operations += lines
        names.append(name)
        for kind, members in classes.items():
            members.append(f"    {name} = {kind}{'Pages' if pages else 'Call'}({name})")
    models = [HEAD, "from __future__ import annotations", "", "from dataclasses import dataclass, field", "from datetime import datetime",
              "from typing import Any, Literal, Mapping, Sequence", "", "from ._json import UNSET, Answered, Sent, Unset",
              *maker.write_models()]
    used = sorted({word for line in operations for word in re.findall(r"\b[A-Z]\w+\b", line)} & set(maker.models))
    text = [HEAD, "from __future__ import annotations", "", "from datetime import datetime", "from typing import Any, Literal, Mapping, Sequence",
            "", "from ._call import AsyncCall, AsyncPages, Call, Listing, Numbered, SyncCall, SyncPages, job_segment, segment", "from ._json import UNSET, Unset",
            *wrapped("from .models import (", used, ")", 0), *operations, "", "", "class Operations:",
            '    """Every operation of the service that speaks JSON, as a method."""', *classes["Sync"], "", "", "class AsyncOperations:",
            '    """The same, to be awaited."""', *classes["Async"]]
    return {"models.py": "\n".join(models) + "\n", "operations.py": "\n".join(text) + "\n"}


def main():
    status = 0
    for name, text in generate().items():
        path = os.path.join(PACKAGE, name)
        try:
            with open(path, encoding="utf-8") as handle:
                there = handle.read()
        except FileNotFoundError:
            there = ""
        if there == text:
            continue
        if "--check" in sys.argv[1:]:
            print(f"{os.path.relpath(path)} is not what api/openapi.yaml gives: run client/generate.py")
            status = 1
        else:
            with open(path, "w", encoding="utf-8") as handle:
                handle.write(text)
    return status


if __name__ == "__main__":
    sys.exit(main())
