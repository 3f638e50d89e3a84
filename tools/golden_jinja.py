#!/usr/bin/env python3
"""Expressions and statements of Jinja at random: tests/data/chat/expressions.json, and a comparison without end.

  tools/golden_jinja.py           record 700 templates with what jinja2 makes of them (null: it refuses), in the
                                  environment that transformers sets up for chat templates
  cases(seed, count)              yields (template, variables), for whoever compares more of them

Run with a Python that has transformers 5.24 and jinja2 3.1.
"""
import copy
import json
import os
import random

OUT = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "tests/data/chat/expressions.json")
VARIABLES = {
    "messages": [{"role": "user", "content": "Hi there"},
                 {"role": "assistant", "content": "Ünï <b>", "tool_calls": [{"function": {"name": "f", "arguments": {"b": 2, "a": 1}}}]}],
    "x": 3, "y": -2.5, "s": "hello World", "l": [3, 1, 2, 3], "d": {"b": 1, "a": [1, 2], "C": None}, "n": None, "t": True,
    "e": [], "es": ""}
ATOMS = [
    "x", "y", "s", "l", "d", "n", "t", "e", "es", "u", "1", "0", "-3", "2.5", "'ab c'", "\"é\"", "[1,'a']",
    "{'k':1}", "(1,2)", "messages", "messages[0].content", "messages|length", "true", "none", "7", "'3'",
    "'1.5'", "d.a"]
FILTERS = [
    "trim", "length", "upper", "lower", "title", "capitalize", "first", "last", "list", "string", "int",
    "float", "abs", "round", "round(1)", "round(1,'floor')", "tojson", "tojson(indent=2)", "join(',')",
    "default('D')", "d('D',true)", "sort", "sort(reverse=true)", "unique|list", "min", "max", "sum",
    "dictsort", "items|list", "batch(2)|list", "slice(2)|list", "replace('l','L')", "replace('l','L',1)",
    "indent", "indent(2,true)", "center(12)", "wordcount", "escape", "select|list", "reject|list",
    "select('odd')|list", "map('string')|list", "map('upper')|list", "map(attribute='role')|list",
    "selectattr('role')|list", "selectattr('role','equalto','user')|list", "groupby('role')|list", "safe",
    "count", "truncate(5)", "wordwrap(4)", "urlencode", "striptags", "format(1)", "pprint", "filesizeformat",
    "xmlattr", "attr('x')", "int(5)", "float(2)", "join", "map('abs')|list", "sum(start=2)"]
TESTS = [
    "defined", "undefined", "none", "string", "mapping", "iterable", "sequence", "number", "integer", "float",
    "boolean", "odd", "even", "true", "false", "in [1,3]", "eq 3", "ne 3", "lt 2", "gt(1)", "divisibleby 2",
    "lower", "upper", "callable", "sameas none", "in 'hello'", "not defined", "not none", "escaped", "filter",
    "test", "equalto('x')"]
OPERATORS = [
    "+", "-", "*", "/", "//", "%", "~", "**", "==", "!=", "<", ">", "<=", ">=", "in", "not in", "and", "or"]
METHODS = [
    ".strip()", ".upper()", ".split()", ".split('l')", ".title()", ".startswith('h')", ".endswith('d')",
    ".replace('l','')", ".items()|list", ".keys()|list", ".get('a')", ".get('zz','q')", ".lower()",
    ".find('o')", ".join(['a','b'])", ".count('l')", ".index('l')", ".isdigit()", ".splitlines()",
    ".rstrip('d')", ".format(1)", ".zfill(4)", "[0]", "[-1]", "[1:]", "[::-1]", "[:2]", ".a", ".zz", "['a']",
    ".casefold()", ".swapcase()", ".isalpha()", ".append(1)", ".copy()", ".values()|list", ".lstrip()",
    ".removeprefix('he')", ".center(9)", ".ljust(9)", ".partition(' ')", ".rfind('o')", ".encode()",
    ".expandtabs()", ".__class__"]
BODIES = [
    "{{ E }}",
    "{% for i in E %}{{ i }},{% else %}none{% endfor %}",
    "{% for i in E %}{{ loop.index }}{{ loop.last }}{% if loop.index > 2 %}{% break %}{% endif %}{% endfor %}",
    "{% if E %}Y{% else %}N{% endif %}",
    "{% set v = E %}{{ v }}",
    "{% set v %}a{{ E }}{% endset %}{{ v|upper }}",
    "{% set v | upper %}ab{{ E }}{% endset %}[{{ v }}]",
    "{% macro m(a, b=2) %}<{{ a }}{{ b }}>{% endmacro %}{{ m(E) }}",
    "{% macro m(a) %}<{{ a }}{{ caller() }}>{% endmacro %}{% call m(1) %}{{ E }}{% endcall %}",
    "{% with q = E %}{{ q }}{% endwith %}{{ q }}",
    "{% filter upper %}x{{ E }}{% endfilter %}",
    "{% raw %}{{ E }}{% endraw %}|",
    "a\n  {%- if E %}\n b\n  {% endif -%}\n c",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{{ E }}{% endfor %}",
    "{% set ns = namespace(a=E) %}{% for i in l %}{% set ns.a = i %}{% endfor %}{{ ns.a }}",
    "{{ E ~ E }}",
    "{% if false %}{{ x|nofilter }}{% endif %}{{ E }}",
]


def expression(draw, depth):
    """A random expression; one in five is a name or a constant, and all are at `depth` 4."""
    kind = draw.random()
    if depth > 3 or kind < .22:
        return draw.choice(ATOMS)
    inner = expression(draw, depth + 1)
    if kind < .45:
        return f"{inner}|{draw.choice(FILTERS)}"
    if kind < .6:
        return f"({inner} {draw.choice(OPERATORS)} {expression(draw, depth + 1)})"
    if kind < .7:
        return f"({inner} is {draw.choice(TESTS)})"
    if kind < .85:
        return draw.choice(["s", "l", "d", "messages", "'a-b'", "x", f"({inner})"]) + draw.choice(METHODS)
    if kind < .9:
        return f"({inner} if {expression(draw, depth + 1)} else {expression(draw, depth + 1)})"
    return draw.choice([f"not {inner}", f"-{draw.choice(ATOMS)}", f"[{inner},{draw.choice(ATOMS)}]"])


def cases(seed, count):
    draw = random.Random(seed)
    for _ in range(count):
        template = draw.choice(BODIES).replace("E", expression(draw, 1), 1)
        yield template.replace("E", expression(draw, 2)), VARIABLES


def wanted(template, variables):
    from transformers.utils.chat_template_utils import _compile_jinja_template
    try:
        return _compile_jinja_template(template).render(**copy.deepcopy(variables))  # `indent` appends to lists
    except Exception:
        return None


def main():
    rows, refused = [], 0
    for template, variables in cases(1, 3000):
        text = wanted(template, variables)
        refused += text is None
        if text is not None or refused <= 200:
            rows.append([template, text])
        if len(rows) == 700:
            break
    with open(OUT, "w") as file:
        file.write('{"variables": ' + json.dumps(VARIABLES, ensure_ascii=False) + ',\n "cases": [\n' +
                   ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "]}\n")
    print(f"{len(rows)} templates, {sum(text is None for _, text in rows)} refused by jinja2")


if __name__ == "__main__":
    main()
