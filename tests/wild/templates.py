"""Templates from a grammar over what jinja2 has, and published templates with something changed; rendered with values of
all kinds. Expressions are made by the kind of their value, so that most of them are valid; one in ten is of any kind."""
import functools
import json
import pathlib
import re

DATA = pathlib.Path(__file__).resolve().parent.parent / "data" / "chat"
VARIABLES = {
    "messages": [{"role": "system", "content": "be  good "}, {"role": "user", "content": "Hi <b> & 'you'\n"},
                 {"role": "assistant", "content": None, "tool_calls": [
                     {"type": "function", "function": {"name": "w", "arguments": {"c": "x", "n": 1.5, "u": "é中"}}}]},
                 {"role": "tool", "content": [{"type": "text", "text": "12"}]}],
    "tools": [{"type": "function", "function": {"name": "w", "description": "d", "parameters": {"type": "object"}}}],
    "s": "Hello wörld ", "t": "a,b,,c", "e": "", "n": 7, "m": -3, "f": 2.5, "g": 1e20, "z": 0, "yes": True, "no": False, "none": None,
    "l": [3, 1, 2], "ls": ["b", "A", "c"], "d": {"b": 1, "a": [1, 2], "C": None}, "ld": [{"k": 2, "v": "x"}, {"k": 1, "v": "y"}],
    "bos_token": "<s>", "add_generation_prompt": True, "nested": [[1, 2], [3]], "q": "it's \"q\"", "u": "ß İ ǅ \u2028 \U0001f600"}
NAMES = {
    "text": ["s", "t", "e", "q", "u", "bos_token", "messages[0].content", "d.keys() | first", "'x'", "'a' 'b'", "'aß Ǆ'", "'%s|%5d'", "'\\n\\t\\u00e9'"],
    "int": ["n", "m", "z", "l[0]", "1", "0", "1_000", "0x1f", "-1", "ld[0].k", "7"], "float": ["f", "g", "2.5", "1e3", "-0.5"],
    "bool": ["yes", "no", "true", "False", "add_generation_prompt", "s is defined"],
    "ints": ["l", "[1, 2, 2]", "nested[0]", "(3, 1)", "range(4)", "range(5, 0, -2)", "[]"],
    "texts": ["ls", "t.split(',')", "d.keys()", "['b', 'a', 'B']", "('x',)", "messages | map(attribute='role')"],
    "dicts": ["ld", "messages", "tools", "messages[1:]"], "dict": ["d", "messages[0]", "ld[1]", "{'a': 1, 'b': [2]}", "dict(a=1)", "{}"],
    "other": ["none", "missing", "nested", "loop", "self", "namespace(a=1)", "range", "[1, 'a', none]", "()", "d.missing", "s.upper",
              "cycler('a', 'b')", "joiner(',')", "[1.5, true]", "d.items()", "d.values()", "ld | groupby('k')", "u'x'"]}
ANY = list(NAMES)
# By the kind of the value: what follows it, and the kind of what comes out ("=": the same).
STEPS = {
    "text": [*((f" | {f}", "text") for f in (
        "upper", "lower", "capitalize", "title", "trim", "trim('a')", "replace('a', 'b')", "replace('l', '', 1)", "indent", "indent(2, true)",
        "indent('> ', blank=true)", "center(9)", "e", "escape", "forceescape", "safe", "string", "striptags", "truncate(5)",
        "truncate(5, true, '')", "truncate(6, leeway=0)", "urlencode", "wordwrap(4)", "wordwrap(6, false)", "reverse", "tojson",
        "tojson(ensure_ascii=true)", "d('x')", "default('x', true)", "first", "last", "pprint", "upper | safe", "e | upper", "max", "min",
        "safe | e", "e | replace('&', '+')", "join('-')")),
             *((f" | {f}", "int") for f in ("length", "count", "wordcount", "int", "int(3)", "int(base=16)")),
             *((f" | {f}", "float") for f in ("float", "float(1.5)")), (" | list", "texts"), (" | unique | list", "texts"), (" | batch(2) | list", "other"),
             (" | sort", "texts"), (" | select | list", "texts"), (" | map('upper') | list", "texts"), (" | slice(2) | list", "other"),
             *((f".{m}", "text") for m in (
                 "strip()", "strip('a ')", "lstrip()", "rstrip('\\n')", "upper()", "lower()", "title()", "capitalize()", "swapcase()", "casefold()",
                 "replace('l', 'L')", "replace('l', 'L', 1)", "replace('', '-')", "zfill(5)", "center(9, '*')", "ljust(4)", "rjust(14, '0')",
                 "removeprefix('He')", "removesuffix(' ')", "expandtabs()", "join(['a', 'b'])", "join('xy')")),
             *((f".{m}", "texts") for m in ("split()", "split(',')", "split(',', 1)", "split(none, 1)", "rsplit(',', 1)", "rsplit(none, 1)", "splitlines()",
                                            "splitlines(true)", "partition(',')", "rpartition('l')")),
             *((f".{m}", "int") for m in ("find('l')", "find('l', 3)", "rfind('l')", "count('l')", "count('')", "count('l', 2, 5)")),
             *((f".{m}", "bool") for m in ("startswith('H')", "startswith(('a', 'b'))", "endswith(('d ', 'x'))", "isdigit()", "isalpha()", "isupper()", "islower()",
                                           "isspace()", "isalnum()", "istitle()", "isnumeric()", "isdecimal()", "isidentifier()", "isprintable()", "isascii()")),
             *((f"[{i}]", "text") for i in ("0", "-1", "1:", ":2", "::-1", "-2:", "::2", "5:", "1:-1"))],
    "int": [*((f" | {f}", "int") for f in ("abs", "int", "round", "default(1)")), *((f" | {f}", "float") for f in ("float", "round(1, 'floor')", "round(0, 'ceil')")),
            *((f" | {f}", "text") for f in ("string", "tojson", "filesizeformat", "filesizeformat(true)", "pprint", "e", "center(5)", "urlencode")),
            (".real", "int"), (".bit_length()", "int"), (".denominator", "int")],
    "float": [*((f" | {f}", "float") for f in ("abs", "round", "round(1)", "round(1, 'floor')", "round(2, 'ceil')", "float")), (" | int", "int"),
              *((f" | {f}", "text") for f in ("string", "tojson", "filesizeformat", "pprint")), (".is_integer()", "bool"), (".imag", "float")],
    "bool": [(" | int", "int"), (" | string", "text"), (" | tojson", "text"), (" | lower", "text"), (" | abs", "int")],
    "ints": [*((f" | {f}", "int") for f in ("sum", "sum(start=1)", "max", "min", "first", "last", "length")),
             *((f" | {f}", "ints") for f in ("sort", "sort(reverse=true)", "unique | list", "reverse | list", "list", "select('odd') | list", "reject('eq', 2) | list",
                                             "map('abs') | list", "select('in', [1, 2]) | list", "map('int') | list", "select('divisibleby', 2) | list")),
             *((f" | {f}", "text") for f in ("join", "join(', ')", "tojson", "tojson(indent=2)", "string", "pprint", "tojson(separators=(',', ':'))")),
             *((f" | {f}", "other") for f in ("batch(2) | list", "batch(2, 'x') | list", "slice(2) | list", "slice(2, 0) | list", "map('string') | list", "select", "map('float') | list")),
             *((f"[{i}]", "ints") for i in ("1:", ":2", "::-1", "::2", "-2:")), (".count(1)", "int"), (".index(1)", "int"), (" + [4]", "ints"), (" * 2", "ints")],
    "texts": [*((f" | {f}", "text") for f in ("join", "join(', ')", "first", "max", "min", "tojson", "string", "pprint")),
              *((f" | {f}", "texts") for f in ("sort", "sort(case_sensitive=true)", "sort(reverse=true)", "unique | list", "reverse | list", "list", "map('upper') | list",
                                               "map('trim') | list", "reject('eq', 'a') | list", "select('in', 'abc') | list", "map('e') | list", "map('replace', 'a', 'o') | list")),
              (" | length", "int"), (" | list | length", "int"), (" | map('length') | list", "ints"), (" | list | last", "text"), (" | batch(2, 'x') | list", "other")],
    "dicts": [*((f" | {f}", "dicts") for f in ("list", "reverse | list", "selectattr('role') | list", "selectattr('role', 'equalto', 'user') | list", "rejectattr('k', 'eq', 1) | list",
                                               "selectattr('k', 'defined') | list", "sort(attribute='k')", "sort(attribute='role,k')", "unique(attribute='k') | list")),
              *((f" | {f}", "texts") for f in ("map(attribute='role') | list", "map(attribute='role', default='-') | map('string') | list")),
              *((f" | {f}", "other") for f in ("groupby('k')", "groupby('role', default='z')", "map(attribute='k') | list", "map('items') | map('list') | list", "map('tojson') | list")),
              *((f" | {f}", "text") for f in ("tojson", "tojson(indent=2)", "tojson(sort_keys=true)", "tojson(indent='--')", "join('-', attribute='role')", "string")),
              (" | length", "int"), ("[0]", "dict"), ("[-1]", "dict"), (" | first", "dict"), (" | last", "dict"), (" | list | sum(attribute='k')", "int")],
    "dict": [*((f" | {f}", "text") for f in ("tojson", "tojson(indent=1)", "tojson(sort_keys=true, separators=(',', ':'))", "string", "xmlattr", "urlencode", "join(',')", "pprint")),
             *((f" | {f}", "other") for f in ("dictsort", "dictsort(true)", "dictsort(reverse=true)", "items | list", "list", "d(1)")), (" | length", "int"),
             *((f".{m}", "other") for m in ("items()", "values()", "items() | list", "get('a')", "get('x', 9)", "a", "k", "role", "content", "missing", "copy()", "b", "keys")),
             (".keys() | list", "texts"), ("['a']", "other"), ("['keys']", "other")],
    "other": [(" | string", "text"), (" | d('x')", "text"), (" | default('y', true)", "other"), (" | tojson", "text"), (" | list", "other"), (" | length", "int"), (" | first", "other"),
              (".a", "other"), (" | attr('a')", "other"), (" | pprint", "text"), (" | abs", "int"), ("[0]", "other"), (" | sum", "int"), (" | sort", "other"), (" | random", "other"), (" | urlize", "text"),
              (" | unique | list", "other"), (" | join", "text"), (" | nosuch", "text"), (".__class__", "other"), (".encode()", "text"), (".append(1)", "other"), (".pop()", "other"), (" | format(1)", "text")]}
TESTS = ["boolean", "callable", "defined", "eq 7", "equalto('x')", "escaped", "false", "float", "in [1, 7]", "integer", "iterable", "mapping", "ne 1", "none", "number",
         "sameas none", "sequence", "string", "true", "undefined", "not none", "lower", "upper"]
NUMBER_TESTS = ["divisibleby(2)", "divisibleby 3", "even", "odd", "ge 2", "gt(1)", "le 3", "lt 9", "lessthan 2"]


def expression(rng, depth=3, kind=None):
    """An expression of that kind, most likely."""
    kind = kind or rng.choice([*ANY, "text", "text", "int"])
    if rng.random() < 0.04:
        kind = rng.choice(ANY)
    if depth == 0 or rng.random() < 0.12:
        return rng.choice(NAMES[kind])
    if rng.random() < 0.6:
        froms = [(k, step) for k in STEPS for step, to in STEPS[k] if to == kind and (k != "other" or kind == "other")]
        if froms:
            before, step = rng.choice(froms)
            inner = expression(rng, depth - 1, before)
            return (inner if re.fullmatch(r"\w+", inner) else f"({inner})") + step
    inner = lambda k=kind: f"({expression(rng, depth - 1, k)})"  # noqa: E731
    same = rng.choice(["int", "text", "float"])
    general = [lambda: f"{inner()} if {inner('bool')} else {inner()}", lambda: f"{inner()} or {inner()}", lambda: f"{inner('bool')} and {inner()}"]
    special = {
        "text": [lambda: f"{inner()} ~ {inner(rng.choice(ANY[:6]))}", lambda: f"{inner()} + {inner()}", lambda: f"{inner()} * {rng.choice(['0', '2', '3'])}", lambda: f"'%s|%r' % ({inner('int')}, {inner()})",
                 lambda: f"'%5.2f|%-4s|%+d|%x' % ({inner('float')}, {inner()}, {inner('int')}, {inner('int')} | abs)", lambda: f"'%(a)s' % {{'a': {inner()}}}",
                 lambda: f"'{{}}-{{:>6}}|{{x}}'.format({inner('int')}, {inner()}, x={inner('float')})", lambda: f"'%s' | format({inner()})", lambda: f"{inner('int')} | string"],
        "int": [lambda: f"{inner()} {rng.choice(['+', '-', '*'])} {inner()}", lambda: f"{inner()} {rng.choice(['//', '%'])} {rng.choice(['2', '3', '-4', '7'])}",
                lambda: f"-{inner()}", lambda: f"+{inner()}", lambda: f"{inner()} ** {rng.choice(['0', '2', '1'])}"],
        "float": [lambda: f"{inner()} {rng.choice(['+', '-', '*', '/', '//', '%'])} {rng.choice(['2', '0.3', '-1.5', 'f'])}", lambda: f"{inner('int')} / {rng.choice(['3', '-7', 'n'])}", lambda: f"-{inner()}"],
        "bool": [lambda: f"{inner(same)} {rng.choice(['==', '!=', '<', '<=', '>', '>='])} {inner(same)}", lambda: f"not {inner(rng.choice(ANY))}",
                 lambda: f"{inner('int')} < {inner('int')} <= {inner('float')}", lambda: f"{inner('text')} {rng.choice(['in', 'not in'])} {inner(rng.choice(['text', 'texts', 'dict']))}",
                 lambda: f"{inner(rng.choice(ANY))} is {rng.choice(['', 'not '])}{rng.choice(TESTS)}", lambda: f"{inner('int')} is {rng.choice(NUMBER_TESTS)}", lambda: f"{inner(rng.choice(ANY))} == {inner(rng.choice(ANY))}",
                 lambda: f"{inner('ints')} < {inner('ints')}", lambda: f"{inner('text')} is {rng.choice(['filter', 'test', 'lower', 'upper'])}"],
        "ints": [lambda: f"[{inner('int')}, {inner('int')}]", lambda: f"{inner()} | list + [{inner('int')}]"], "texts": [lambda: f"[{inner('text')}, {inner('text')}]", lambda: f"[{inner('text')}] * 2"],
        "dicts": [lambda: f"[{inner('dict')}]"], "dict": [lambda: f"{{'k': {inner(rng.choice(ANY))}}}", lambda: f"dict(a={inner(rng.choice(ANY))}, role='r')", lambda: f"{{{inner('text')}: {inner('int')}}}"],
        "other": [lambda: f"({inner('int')}, {inner('text')})", lambda: f"[{inner(rng.choice(ANY))}, {inner(rng.choice(ANY))}]", lambda: f"{inner('dicts')}[{rng.choice(['5', '-9'])}]"]}
    return rng.choice(general + 3 * special[kind])()


def dash(rng):
    return rng.choice(["", "", "", "-", "+"])


def tag(rng, inside):
    return "{%" + dash(rng) + f" {inside} " + rng.choice(["", "", "-"]) + "%}"


def out(rng, depth=2):
    return "{{" + rng.choice(["", "", "-"]) + f" {expression(rng, depth)} " + rng.choice(["", "", "-"]) + "}}"


def block_for(rng, inner):
    loop = rng.choice(["loop.index", "loop.first", "loop.last", "loop.cycle('a', 'b')", "loop.length", "loop.revindex0", "loop.previtem", "loop.nextitem",
                       "loop.changed(x)", "loop.depth", "loop.depth0", "loop"])
    head = rng.choice([f"for x in {expression(rng, 2, rng.choice(['ints', 'texts', 'dicts', 'text', 'dict']))}", "for x, y in d.items()", "for x in l if x > 1", "for x in ld | sort(attribute='k')",
                       "for x, y in nested[:1]", "for x, v in ld | groupby('k')", "for x in messages if x.role != 'system'"])
    other = tag(rng, "else") + inner() if rng.random() < 0.2 else ""
    stop = tag(rng, f"if {loop}") + tag(rng, rng.choice(["break", "continue"])) + tag(rng, "endif") if rng.random() < 0.15 else ""
    return tag(rng, head) + "{{ x }}" * (rng.random() < 0.7) + "{{ " + loop + " }}" + stop + inner() + other + tag(rng, "endfor")


def block_macro(rng, inner):
    call, more = rng.choice([("mm(1)", ""), ("mm(1, b=2)", ""), ("mm()", ""), ("mm(1, 2, 3)", "{{ varargs }}"), ("mm(1, c=3)", "{{ kwargs }}"), ("mm(*l[:2])", ""), ("mm(**{'a': 5})", ""),
                             ("mm(1, 2, 3, c=4)", "{{ kwargs }}{{ varargs | length }}"), ("mm(1, 2, 3)", ""), ("mm(c=1)", "")])
    more += rng.choice(["", "{{ caller is defined }}", "{{ mm.name }}{{ mm.arguments }}", "{{ mm }}"])
    return "{% macro mm(a, b='z') %}{{ a }}-{{ b }}" + more + inner() + "{% endmacro %}{{ " + call + " }}"


def block(rng, depth=3):
    kind = rng.randrange(17) if depth else rng.randrange(5)
    inner = lambda: body(rng, depth - 1)  # noqa: E731
    if kind < 3:
        return out(rng)
    if kind < 5:
        return rng.choice(["text ", "\n", "  ", "<|im_start|>", "{# comment #}", "\n  {#- c -#}\n", "a\n\nb", "%}", "{ {", "é中"])
    if kind < 7:
        return block_for(rng, inner)
    if kind < 9:
        middle = tag(rng, f"elif {expression(rng, 1, 'bool')}") + inner() if rng.random() < 0.3 else ""
        other = tag(rng, "else") + inner() if rng.random() < 0.5 else ""
        return tag(rng, f"if ({expression(rng, 2)})") + inner() + middle + other + tag(rng, "endif")
    if kind == 9:
        return tag(rng, f"set {rng.choice(['v', 's', 'n'])} = {expression(rng, 2)}") + "{{ v }}{{ s }}"
    if kind == 10:
        return tag(rng, rng.choice(["set v", "set v | upper", "set v | trim | e"])) + inner() + tag(rng, "endset") + "[{{ v }}]"
    if kind == 11:
        return ("{% set ns = namespace(c=0, t='') %}" + tag(rng, "for x in l") + tag(rng, "set ns.c = ns.c + x")
                + tag(rng, "endfor") + rng.choice(["{{ ns.c }}", "{{ ns }}"]))
    if kind == 12:
        return block_macro(rng, inner)
    if kind == 13:
        call, body_of = rng.choice([("call cc()", "caller()"), ("call(a, b=2) cc()", "caller(1)"), ("call cc(1)", "caller()")])
        return "{% macro cc(x=0) %}<{{ " + body_of + " }}{{ x }}>{% endmacro %}" + tag(rng, call) + inner() + tag(rng, "endcall")
    if kind == 14:
        steps = [step[3:] for step, to in STEPS["text"] if to == "text" and step.startswith(" | ")]
        return tag(rng, f"filter {rng.choice(steps)}") + inner() + tag(rng, "endfilter")
    if kind == 15:
        return tag(rng, f"with v = {expression(rng, 1)}, w = 2") + "{{ v }}" + inner() + tag(rng, "endwith")
    return rng.choice(["{% raw %}\n{{ x }}{% endraw %}", "{% generation %}" + inner() + "{% endgeneration %}", "{% autoescape false %}{{ q }}{% endautoescape %}",
                       "{% if false %}{% include 'x' %}{% endif %}", "{% set a, b = 1, 2 %}{{ a }}{{ b }}", "{% for x in l recursive %}{{ x }}{% endfor %}",
                       "{% for x in nested recursive %}{{ loop.depth }}{{ loop(x) if x is iterable else x }}{% endfor %}", "# for x in l\n", "{{ self }}",
                       "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.current }}{% set j = joiner('|') %}{{ j() }}{{ j() }}",
                       "{% set g = l | map('string') %}{{ g | first }}{{ g | join(',') }}{{ g | list }}", "{{ 1, 'a' }}", "{% if l and s %}y{% endif %}",
                       "{% set g = l | select %}{% for x in g %}{{ x }}{% break %}{% endfor %}{{ g | list }}", "{% autoescape true %}{{ q }}{% endautoescape %}",
                       "{% do l %}", "{% block b %}x{% endblock %}", "{{ raise_exception('no') }}", "{{ s | nosuch }}", "{% if no %}{{ s | nosuch }}{% endif %}",
                       "{% for x in l %}{{ s }}{{ n }}{% endfor %}{% set s = 1 %}{% if yes %}{% set n = 2 %}{% endif %}", "{% if no %}{% set q = 1 %}{% endif %}{{ q }}"])


def body(rng, depth=2):
    return "".join(block(rng, depth) for _ in range(rng.choice([1, 1, 2, 3])))


@functools.cache
def published():
    golden = json.loads((DATA / "published.json").read_text())
    sources = [(DATA / "published" / f"{name}.jinja").read_text() for name in golden["templates"]]
    return golden["requests"], [source for source in sources if "strftime_now" not in source]  # the libraries' day is today


CHANGES = [("==", "!="), ("-%}", "%}"), ("{%-", "{%"), (" and ", " or "), ("is defined", "is none"), ("| trim", "| upper"), ("tojson", "tojson(indent=2)"), (".content", "['content']"), ("not ", ""),
           ("[0]", "[-1]"), ("[1:]", "[:-1]"), ("loop.first", "loop.last"), (".strip()", ".title()"), ("is string", "is iterable"), ("+ ", "~ "), ("true", "false"), ("| length", "| list | length"),
           (".items()", "|items"), ("'user'", "'assistant'"), ("\\n", "\\t"), (".split(", ".rsplit("), ("}}", "-}}"), ("loop.index0", "loop.revindex"), ("is not ", "is "), ("| string", "| e"), ("lstrip", "rstrip")]
VALUES = [None, "", "text\n", 0, 2.5, True, [], [{"type": "text", "text": "part"}], {"a": {"b": [1, None]}}, "é\u2028\"'<", "tool"]


def changed(rng, template, variables):
    """A published template with a few changes, over a request with one."""
    for _ in range(rng.choice([0, 1, 2])):
        old, new = rng.choice(CHANGES)
        places = [m.start() for m in re.finditer(re.escape(old), template)]
        if places:
            at = rng.choice(places)
            template = template[:at] + new + template[at + len(old):]
    variables = json.loads(json.dumps(variables))
    message = rng.choice(variables["messages"] or [variables])
    key = rng.choice([*message, "reasoning_content", "tool_calls", "content", "name"])
    if rng.random() < 0.6:
        message.pop(key, None)
        if rng.random() < 0.7:
            message[key] = rng.choice(VALUES)
    return template, variables


def grammar(rng):
    return "{{ " + expression(rng) + " }}" if rng.random() < 0.5 else body(rng)


def make(rng):
    variables = VARIABLES
    if rng.random() < 0.25:
        requests, sources = published()
        template, variables = changed(rng, rng.choice(sources), rng.choice(requests))
    else:
        template = grammar(rng)
    words = set(re.findall(r"[a-z_]{3,}|\*\*|//|[-+*/%<>]=?|[~]", template))
    words |= {w for w in ("in", "is") if f" {w} " in template} | ({"slice"} if re.search(r"\[[^\]]*:", template) else set())
    return {"kind": "templates", "keys": sorted(words), "files": {}, "ask": [{"do": "render", "template": template, "variables": variables}]}
