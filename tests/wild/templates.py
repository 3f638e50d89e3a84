"""Templates from a grammar over what jinja2 has, rendered with values of all kinds."""
VARIABLES = {
    "messages": [{"role": "system", "content": "be  good "}, {"role": "user", "content": "Hi <b> & 'you'\n"},
                 {"role": "assistant", "content": None, "tool_calls": [
                     {"type": "function", "function": {"name": "w", "arguments": {"c": "x", "n": 1.5, "u": "é中"}}}]},
                 {"role": "tool", "content": [{"type": "text", "text": "12"}]}],
    "tools": [{"type": "function", "function": {"name": "w", "description": "d", "parameters": {"type": "object"}}}],
    "s": "Hello wörld ", "t": "a,b,,c", "e": "", "n": 7, "m": -3, "f": 2.5, "g": 1e20, "z": 0, "yes": True, "no": False, "none": None,
    "l": [3, 1, 2], "ls": ["b", "A", "c"], "d": {"b": 1, "a": [1, 2], "C": None}, "ld": [{"k": 2, "v": "x"}, {"k": 1, "v": "y"}],
    "bos_token": "<s>", "add_generation_prompt": True, "nested": [[1, 2], [3]], "q": "it's \"q\"", "u": "ß İ ǅ \u2028 \U0001f600"}
NAMES = ["s", "t", "e", "n", "m", "f", "g", "z", "yes", "no", "none", "l", "ls", "d", "ld", "messages", "nested", "q", "u", "missing",
         "tools", "true", "false", "none", "bos_token"]
FILTERS = ["abs", "attr('k')", "batch(2)", "batch(2, 'x')", "capitalize", "center(9)", "count", "d('x')", "default('x', true)", "dictsort",
           "dictsort(true)", "dictsort(by='value')", "e", "escape", "filesizeformat", "first", "float", "float(1.5)", "forceescape",
           "format(1)", "groupby('k')", "indent", "indent(2, true)", "int", "int(3)", "items", "join", "join(', ')", "join('-', 'k')",
           "last", "length", "list", "lower", "map('upper')", "map(attribute='k')", "map(attribute='k', default=0)", "max", "min",
           "pprint", "random", "reject('none')", "rejectattr('k', 'eq', 1)", "replace('a', 'b')", "replace('l', '', 1)", "reverse", "round",
           "round(1)", "round(1, 'floor')", "safe", "select", "select('odd')", "selectattr('k')", "selectattr('role', 'equalto', 'user')",
           "slice(2)", "sort", "sort(reverse=true)", "sort(attribute='k')", "string", "striptags", "sum", "sum(attribute='k')",
           "sum(start=1)", "title", "tojson", "tojson(indent=2)", "tojson(ensure_ascii=true)", "tojson(separators=(',', ':'))",
           "tojson(sort_keys=true)", "trim", "trim('a')", "truncate(5)", "truncate(5, true, '')", "unique", "upper", "urlencode", "urlize",
           "wordcount", "wordwrap(4)", "xmlattr", "nosuch"]
TESTS = ["boolean", "callable", "defined", "divisibleby(2)", "divisibleby 3", "eq 7", "equalto('x')", "escaped", "even", "false", "float",
         "ge 2", "gt(1)", "in [1, 7]", "in('abc')", "integer", "iterable", "le 3", "lower", "lt 9", "mapping", "ne 1", "none", "number",
         "odd", "sameas none", "sequence", "string", "true", "undefined", "upper", "filter", "test", "nosuch", "not none"]
METHODS = ["strip()", "strip('a ')", "lstrip()", "rstrip('\\n')", "split()", "split(',')", "split(',', 1)", "rsplit(',', 1)", "splitlines()",
           "upper()", "lower()", "title()", "capitalize()", "swapcase()", "casefold()", "startswith('H')", "endswith(('d ', 'x'))",
           "find('l')", "rfind('l')", "index('o')", "count('l')", "replace('l', 'L')", "replace('l', 'L', 1)", "join(['a', 'b'])",
           "format(1, x=2)", "zfill(5)", "center(9, '*')", "ljust(4)", "rjust(4, '0')", "isdigit()", "isalpha()", "isupper()", "islower()",
           "isspace()", "isalnum()", "istitle()", "isnumeric()", "isdecimal()", "isidentifier()", "isprintable()", "isascii()", "encode()",
           "removeprefix('He')", "removesuffix(' ')", "partition(',')", "rpartition(',')", "expandtabs()", "items()", "keys()", "values()",
           "get('a')", "get('x', 9)", "pop()", "append(1)", "copy()", "index(2)", "count(1)", "is_integer()", "bit_length()",
           "translate({})", "update({})", "setdefault('a', 1)", "hex()", "real", "__class__", "sort()", "reverse()", "nosuch()"]
LITERALS = ["1", "0", "2.5", "'x'", '"y"', "'a' 'b'", "[1, 'a', none]", "(1, 2)", "(1,)", "()", "[]", "{}", "{'a': 1, 'b': [2]}", "1_000",
            "0x1f", "1e3", "'\\n\\t\\u00e9'", "none", "True", "'%s and %d'", "'{} {x}'", "-1"]
BINARY = ["+", "-", "*", "/", "//", "%", "~", "==", "!=", "<", "<=", ">", ">=", "and", "or", "in", "not in"]


def expression(rng, depth=3):
    if depth == 0 or rng.random() < 0.15:
        return rng.choice(NAMES) if rng.random() < 0.7 else rng.choice(LITERALS)
    inner = lambda: expression(rng, depth - 1)  # noqa: E731
    kind = rng.randrange(16)
    if kind < 4:
        return f"{inner()} | {rng.choice(FILTERS)}"
    if kind < 6:
        return f"({inner()} {rng.choice(BINARY)} {inner()})"
    if kind == 6 and rng.random() < 0.1:  # a power of a power may take Python for ever
        return f"({inner()} ** {rng.choice(['2', '0', '-1', '0.5'])})"
    if kind < 8:
        return f"({inner()}).{rng.choice(METHODS)}"
    if kind == 8:
        return f"({inner()} is {rng.choice(['', 'not '])}{rng.choice(TESTS)})"
    if kind == 9:
        return f"({inner()} if {inner()} else {inner()})"
    if kind == 10:
        return f"({inner()})[{rng.choice(['0', '-1', '1:', ':2', '::-1', '-2:', '::2', '5:', repr('a'), repr('k'), inner()])}]"
    if kind == 11:
        return f"({inner()}).{rng.choice(['role', 'content', 'a', 'k', 'items', 'missing', 'real'])}"
    if kind == 12:
        return rng.choice([f"not {inner()}", f"-{rng.choice(['n', 'f', 'l'])}", f"+{rng.choice(['n', 'm'])}", f"({inner()}, {inner()})"])
    if kind == 13:
        return rng.choice([f"range({rng.choice(['3', '1, 4', '5, 0, -2', 'n'])}) | list", f"dict(a={inner()})", f"'%s' % {inner()}",
                           f"'%5.2f|%-4s|' % ({inner()}, {inner()})", "namespace(a=1).a", "cycler('a', 'b').next()",
                           "joiner(',')()", "lipsum(1)|length > 0", f"[{inner()}, {inner()}]", f"{{'k': {inner()}}}"])
    if kind == 14:
        return f"{rng.choice(NAMES)} {rng.choice(['<', '==', 'in', '>='])} {rng.choice(NAMES)} {rng.choice(['<', '!='])} {rng.choice(NAMES)}"
    return f"[{inner()}] | {rng.choice(FILTERS)}"


def dash(rng):
    return rng.choice(["", "", "", "-", "+"])


def tag(rng, inside):
    return "{%" + dash(rng) + f" {inside} " + rng.choice(["", "", "-"]) + "%}"


def out(rng, depth=2):
    return "{{" + rng.choice(["", "", "-"]) + f" {expression(rng, depth)} " + rng.choice(["", "", "-"]) + "}}"


def block(rng, depth=3):
    kind = rng.randrange(17) if depth else rng.randrange(5)
    inner = lambda: body(rng, depth - 1)  # noqa: E731
    if kind < 3:
        return out(rng)
    if kind < 5:
        return rng.choice(["text ", "\n", "  ", "<|im_start|>", "{# comment #}", "\n  {#- c -#}\n", "a\n\nb", "%}", "{ {", "é中"])
    if kind < 7:
        loop = rng.choice(["loop.index", "loop.first", "loop.last", "loop.cycle('a', 'b')", "loop.length", "loop.revindex0", "loop.previtem",
                           "loop.nextitem", "loop.changed(x)", "loop.depth", "loop.depth0", "loop"])
        head = rng.choice([f"for x in {expression(rng, 1)}", f"for x in {rng.choice(['l', 'ls', 'messages', 't', 'nested', 'd'])}",
                           "for x, y in d.items()", "for x in l if x > 1", "for x in ld | sort(attribute='k')", "for x, y in nested",
                           "for k, v in ld | groupby('k')", "for x in messages if x.role != 'system'"])
        other = tag(rng, "else") + inner() if rng.random() < 0.2 else ""
        stop = tag(rng, f"if {loop}") + tag(rng, rng.choice(["break", "continue"])) + tag(rng, "endif") if rng.random() < 0.15 else ""
        return tag(rng, head) + "{{ x }}" * (rng.random() < 0.7) + "{{ " + loop + " }}" + stop + inner() + other + tag(rng, "endfor")
    if kind < 9:
        middle = tag(rng, f"elif {expression(rng, 1)}") + inner() if rng.random() < 0.3 else ""
        other = tag(rng, "else") + inner() if rng.random() < 0.5 else ""
        return tag(rng, f"if {expression(rng)}") + inner() + middle + other + tag(rng, "endif")
    if kind == 9:
        return tag(rng, f"set {rng.choice(['v', 's', 'n'])} = {expression(rng)}") + "{{ v }}{{ s }}"
    if kind == 10:
        return tag(rng, "set v") + inner() + tag(rng, "endset") + "[{{ v }}]"
    if kind == 11:
        return ("{% set ns = namespace(c=0, t='') %}" + tag(rng, "for x in l") + tag(rng, "set ns.c = ns.c + x")
                + tag(rng, "endfor") + "{{ ns.c }}")
    if kind == 12:
        call = rng.choice(["mm(1)", "mm(1, b=2)", "mm()", "mm(1, 2, 3)", "mm(1, c=3)", "mm(*l)", "mm(**{'a': 5})"])
        more = rng.choice(["", "{{ varargs }}", "{{ kwargs }}", "{{ caller is defined }}", "{{ mm.name }}"])
        return "{% macro mm(a, b='z') %}{{ a }}-{{ b }}" + more + inner() + "{% endmacro %}{{ " + call + " }}"
    if kind == 13:
        return "{% macro cc() %}<{{ caller() }}>{% endmacro %}" + tag(rng, "call cc()") + inner() + tag(rng, "endcall")
    if kind == 14:
        return tag(rng, f"filter {rng.choice(FILTERS)}") + inner() + tag(rng, "endfilter")
    if kind == 15:
        return tag(rng, f"with v = {expression(rng, 1)}") + "{{ v }}" + inner() + tag(rng, "endwith")
    return rng.choice(["{% raw %}{{ x }}{% endraw %}", "{% generation %}" + inner() + "{% endgeneration %}",
                       "{% autoescape true %}{{ q }}{% endautoescape %}", "{% do l %}", "{% include 'x' %}", "{% block b %}x{% endblock %}",
                       "{% set a, b = 1, 2 %}{{ a }}{{ b }}", "{{ raise_exception('no') }}", "{% for x in l recursive %}{{ x }}{% endfor %}",
                       "{% for x in nested recursive %}{{ loop(x) if x is iterable else x }}{% endfor %}", "# for x in l\n", "{{ self }}"])


def body(rng, depth=2):
    return "".join(block(rng, depth) for _ in range(rng.choice([1, 1, 2, 3])))


def make(rng):
    template = "{{ " + expression(rng) + " }}" if rng.random() < 0.5 else body(rng)
    names = [w for f in FILTERS + TESTS + METHODS for w in [f.split("(")[0].split(" ")[0]] if w in template]
    return {"kind": "templates", "keys": sorted(set(names)), "files": {},
            "ask": [{"do": "render", "template": template, "variables": VARIABLES}]}
