#!/usr/bin/env python3
"""Write tests/data/chat/cases.json: what transformers renders by the templates there, and by small ones that try
each part of the language.

    tools/golden_chat.py                 tests/data/chat/cases.json
    tools/golden_chat.py FILE COUNT      the same with COUNT small ones made by chance, for MOTLEY_CHAT_CASES=FILE

Needs `transformers` and `jinja2`. The day of strftime_now is the one that model/templates/chat.c tells.
"""
import datetime
import glob
import json
import os
import random
import sys

from transformers.utils import chat_template_utils

DATA = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "tests", "data", "chat")


class Day(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2024, 7, 26)


chat_template_utils.datetime = Day


def turns(*texts, system=None):
    out = [{"role": "system", "content": system}] if system is not None else []
    return out + [{"role": "assistant" if i % 2 else "user", "content": t} for i, t in enumerate(texts)]


CONVERSATIONS = [
    turns("Hello"), turns("Hello", "Hi there!"), turns(" a\n", "b ", "c\n\n", " d\t"),
    turns("Say 'x'", "\"x\" \\ \n", "again", "x", system="Be brief."), turns("q", system=" padded \n"), turns("q", "", "r", "s"),
    turns("日本語", "👩\u200d👧 é", system="ü"), turns("2+2", "<think>\ncount\n</think>\n\n4", "3+3", "<think>six</think>6"),
    turns("q", "a", system="Do it. /no_think"), turns("q", "a", system="Only this. /system_override"),
    [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}], [{"role": "assistant", "content": "first"}],
    [{"role": "user", "content": "a"}, {"role": "tool", "content": "t"}, {"role": "assistant", "content": "b"}],
]

# Templates over messages = CONVERSATIONS[3].
SNIPPETS = [
    "{{ messages|length }} {{ messages[0].role }} {{ messages[-1]['content'] }} {{ messages[9] }}|",
    "{{ 'abc'[1] }}{{ 'abc'[-1] }}{{ 'aéb'[1:] }}{{ 'abcdef'[::2] }}{{ 'abcdef'[::-1] }}{{ 'abc'[5:] }}{{ 'abc'[-2:] }}{{ [1,2,3,4][1:-1] }}{{ [1,2,3][::-2] }}",
    "{{ 1 + 2 * 3 - 4 // 3 }} {{ 7 % 3 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 1.5 + 1 }} {{ 10 / 5 }} {{ 1e3 if false else 2.25 }} {{ 2 * 1.5 }}",
    "{{ 'a' ~ 1 ~ none ~ true ~ [1, 'x', none] ~ {'a': 1.0} }} {{ 'a' + 'b' }} {{ [1] + [2, 3] }} {{ undefined_name ~ 'x' }}",
    "{{ 1 < 2 < 3 }} {{ 1 < 2 > 5 }} {{ 'a' in 'abc' }} {{ 1 in [1] }} {{ 'x' not in {'x': 1} }} {{ not 1 == 2 }} {{ 1 == 1.0 }} {{ true == 1 }} {{ 'a' < 'b' }}",
    "{{ 'x' if messages else 'y' }} {{ 'x' if false }} {{ 1 and 0 }} {{ '' or 'z' }} {{ none or [] or 'last' }} {{ not none }}",
    "{% for m in messages %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.previtem.role if loop.previtem is defined }}{{ loop.nextitem.role if loop.nextitem is defined else '-' }};{% endfor %}",
    "{% for m in messages if m.role == 'user' %}{{ loop.index }}{{ m.content }}{% if not loop.last %}, {% endif %}{% else %}none{% endfor %}{% for x in [] %}{% else %}empty{% endfor %}",
    "{% for k, v in {'a': 1, 'b': [2]}.items() %}{{ k }}={{ v }};{% endfor %}{% for k in {'x': 1} %}{{ k }}{% endfor %}{% for c in 'aé' %}<{{ c }}>{% endfor %}{% for k, v in {'q': 2}|items %}{{ k }}{{ v }}{% endfor %}",
    "{% set ns = namespace(n=0, seen='') %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% set n = 5 %}{% set ns.seen = ns.seen ~ m.role[0] %}{% endfor %}{{ ns.n }}{{ n }}{{ ns.seen }}",
    "{% set x = 1 %}{% for i in range(3) %}{{ x }}{% set x = 7 %}{{ x }}{% endfor %}{{ x }}{% if true %}{% set x = 2 %}{% endif %}{{ x }}",
    "{% set x %}a{{ 1 }}b{% endset %}[{{ x }}]{% set a, b = 1, 2 if false else 3 %}",
    "{% set a, b = (1, 'two') %}{{ a }}{{ b }}{{ (1,) }}{{ () }}",
    "{% macro f(a, b='d') %}<{{ a }}{{ b }}{{ g }}>{% endmacro %}{% set g = 'G' %}{{ f(1) }}{{ f(1, b=2) }}{{ f(b=3, a=4) }}{{ f() }}",
    "{% macro even(n) %}{{ 'yes' if n == 0 else odd(n - 1) }}{% endmacro %}{% macro odd(n) %}{{ 'no' if n == 0 else even(n - 1) }}{% endmacro %}{{ even(10) }}{{ even(7) }}",
    "{% for i in range(10) %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 5 %}{% break %}{% endif %}{{ i }}{% endfor %}{{ range(2, 10, 3)|list }}{{ range(3, 0, -1)|list }}",
    "{{ ' a b '|trim }}|{{ 'xxaxx'|trim('x') }}|{{ 'aB c'|upper }}|{{ 'AÉ'|lower }}|{{ 'hELLO wORLD'|capitalize }}|{{ \"they're a-b (c)\"|title }}|{{ \"they're a-b\".title() }}",
    "{{ [3, 1]|first }}{{ []|first }}{{ [3, 1]|last }}{{ 'abc'|last }}{{ x|default('d') }}{{ ''|default('e', true) }}{{ none|default('f') }}{{ [1, 2]|join('-') }}{{ messages|map(attribute='role')|join(', ') }}{{ messages|join('/', attribute='role') }}",
    "{{ messages|selectattr('role', 'equalto', 'user')|list|length }}{{ messages|rejectattr('role', 'in', ['user', 'system'])|map(attribute='content')|list }}{{ ['a ', ' b']|map('trim')|list }}{{ [0, 1, '', 'x']|select|list }}{{ [1, none]|reject('none')|list }}{{ [1, 2, 3]|select('odd')|list }}",
    "{{ {'a': [1, 2.5, true, none, 'é\\n\"<>&']}|tojson }}{{ {'a': {'b': [1]}, 'c': []}|tojson(indent=2) }}{{ 'x/y'|tojson }}{{ []|tojson(indent=4) }}",
    "{{ 'a,b,,c'.split(',') }}{{ ' a  b '.split() }}{{ 'a-b-c'.split('-', 1) }}{{ 'a b c'.split(none, 1) }}{{ ''.split() }}{{ ''.split(',') }}{{ 'a\\nb\\r\\nc\\n'.splitlines() }}",
    "{{ ' x '.strip() }}|{{ 'xxaxx'.strip('x') }}|{{ '\\n\\na\\n'.lstrip('\\n') }}|{{ 'abab'.rstrip('ab') }}|{{ 'aXbX'.replace('X', 'yy') }}|{{ 'aaa'.replace('a', 'b', 2) }}|{{ 'aaa'|replace('a', 'c') }}",
    "{{ 'abc'.startswith('ab') }}{{ 'abc'.endswith(('x', 'c')) }}{{ 'abc'.find('c') }}{{ 'abc'.find('z') }}{{ 'abc'.removeprefix('a') }}{{ ', '.join(['x', 'y']) }}{{ 'Ab'.upper() }}{{ 'Ab'.lower() }}{{ 'ab cd'.capitalize() }}",
    "{{ {'a': 1}.get('a') }}{{ {'a': 1}.get('b') }}{{ {'a': 1}.get('b', 2) }}{{ {'a': 1}.keys()|list }}{{ {'a': 1}.values()|list }}{{ dict(a=1, b='x') }}{{ 'a' in dict(a=1) }}",
    "{{ x is defined }}{{ x is not defined }}{{ x is undefined }}{{ none is none }}{{ 'a' is string }}{{ {} is mapping }}{{ [] is iterable }}{{ 'a' is iterable }}{{ 1 is iterable }}{{ [] is sequence }}{{ true is true }}{{ 1 is true }}{{ false is false }}{{ 1 is number }}{{ 1 is integer }}{{ 1.0 is float }}{{ true is boolean }}{{ 2 is even }}{{ 3 is odd }}{{ 1 is in [1] }}{{ 1 is eq 1 }}{{ 1 is equalto(2) }}{{ 1 is ne 2 }}{{ 'a' is not none and 1 is not in [2] }}",
    "{{ '12'|int + 1 }}{{ 'x'|int }}{{ 'x'|int(5) }}{{ 3.9|int }}{{ ' 7 '|int }}{{ 5|string + '!' }}{{ none|string }}{{ 'x'|safe }}{{ [1, 2]|reverse|list }}{{ 'abc'|list }}{{ 'aé'|length }}{{ {'a': 1}|count }}",
    "{{ \"it's\" }}{{ 'say \"x\"' }}{{ 'tab\\tnl\\nbs\\\\q\\'x\\x41\\u00e9\\U0001F642' }}{{ 'a' 'b' }}{{ [\"it's\", 'a\"b', 'x\\n'] }}",
    "a\n  {% if true %}\n    b\n  {% endif %}\nc\n",
    "a\n  {%- if true -%}\n    b\n  {%- endif %}\n\nc  {{- ' d ' -}}  e\n\n",
    "x  {# comment #}  y\n  {# alone #}\nz {#- tight -#} w\n   {%+ if true +%}\nkeep{% endif %}\n\n",
    "  {{ 'a' }}\n\t{% set q = 1 %}  {{ q }}\n",
    "{% if false %}a{% elif messages|length > 3 %}b{% else %}c{% endif %}{% if none %}d{% else %}e{% endif %}",
    "{{ {'a': {'b': 1}}.a.b }}{{ {'a': {'b': {'c': [1, 2]}}}['a']['b'].c[1] }}{{ {'items': 3}['items'] }}{{ messages[0]['nope'] }}{{ messages[0].nope is defined }}",
    "{{ strftime_now('%d %B %Y') }}{{ strftime_now is defined }}{{ raise_exception is defined }}{{ bos_token }}{{ eos_token }}{{ tools is none }}{{ tools is defined }}",
    "{% generation %}{{ 'in' }}{% endgeneration %} out {%- for m in messages %}{% generation %}{{ m.role }}{% endgeneration %}{% endfor %}",
    "{{ (messages|last).content|upper|lower|trim ~ '.' }}{{ -1|string }}{{ (1, 2)|join }}{{ 1 if 2 in [2] else 3 }}{{ not 'a' in 'b' }}",
    "{{ 1.0 }} {{ 0.1 }} {{ 100000000.0 }} {{ 1.5 * 2 }} {{ 3.0|int }} {{ 12345678901 * 10 }}",
    "{% for m in messages %}{{ bos_token }}{{ eos_token }}{% endfor %}{% set bos_token = 1 %}{% if tools %}{% set eos_token = 2 %}{% endif %}",
    "{% macro m() %}{{ bos_token }}{% endmacro %}{{ m() }}{% for m in messages %}{% call n() %}{{ eos_token }}{% endcall %}{% set eos_token = 1 %}{% break %}{% else %}{% macro n() %}{% endmacro %}{% endfor %}",
    "{% macro m(a, b=2) %}{{ a }}{{ b }}{{ varargs }}{{ kwargs }}{{ caller is defined }}{% endmacro %}{{ m(1, 2, 3, c=4) }}{{ m(*[1, 2, 3]) }}{{ m(**{'b': 5, 'z': 6}) }}{{ m }}{{ m.name }}{{ m.arguments }}{{ m.catch_kwargs }}",
    "{% macro m() %}<{{ caller(1, b=2) }}>{% endmacro %}{% call(a, b=3) m() %}{{ a }}{{ b }}{% endcall %}",
    "{% set g = [1, 2, 3]|map('string') %}{{ g|first }}{{ g|join(',') }}{{ g|list }}{{ g is iterable }}{{ g is sequence }}{% for x in [1, 2, 3]|select %}{{ x }}{{ loop.last }}{% endfor %}",
    "{% set g = [1, 2, 3, 4]|select %}{% for x in g %}{{ x }}{% if x == 2 %}{% break %}{% endif %}{% endfor %}{{ g|list }}",
    "{{ '<a>'|e }}{{ '<a>'|e|e }}{{ '<a>'|safe|e }}{{ '<a>'|forceescape }}{{ ['<a>'|e] }}{{ '<a>'|safe + '<b>' }}{{ ('<a>'|safe).replace('a', '<') }}{{ '<a>'|safe|upper is escaped }}{{ ('a,b'|safe).split(',') }}",
    "{{ range(3) }}{{ range(1, 9, 2)[1:] }}{{ {'a': 1}.keys() }}{{ {'a': 1}.items() }}{{ {'a': 1}.values() }}{{ self }}{{ loop }}{{ [nope] }}{{ namespace(a=1) }}",
    "{{ 'ß'|upper }}{{ 'ﬁx'.title() }}{{ 'İ'|lower }}{{ 'ΑΣ ΣΑ'|lower }}{{ ['\u2028\x85\u200b\ud7ff é \x7f'] }}{{ 'Straße'.casefold() }}{{ 'aÉ'.swapcase() }}",
    "{{ {'b': 'é\u2028', 'a': [1, {}]}|tojson(ensure_ascii=true) }}{{ {'b': 1, 'a': 2}|tojson(sort_keys=true, separators=(',', ':')) }}{{ [1]|tojson(indent='--') }}{{ {1: 2, none: 3, true: 4}|tojson }}{{ 1e400|tojson }}",
    "{{ '%5.2f|%-4s|%04d|%x|%r|%s' % (1.005, 'ab', 7, 255, 'é', none) }}{{ '%(a)s' % {'a': 1} }}{{ '{} {:>4} {x:,} {0}'.format(1, 'a', x=1000) if false else '{:>4}|{x:,}|{:.1%}'.format('a', 0.256, x=1000) }}{{ '%s'|format(3) }}",
    "{{ -7.5 % 2 }}{{ 7.5 % -2 }}{{ -0.0 % 3 }}{{ -7 // 2.0 }}{{ 2 ** 10 }}{{ 2 ** -1 }}{{ -2 ** 2 }}{{ +true }}{{ -true }}{{ [1, 2] < [1, 3] }}{{ (1, 'a') == (1, 'a') }}{{ [1] == (1,) }}",
    "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.current }}{% set j = joiner('|') %}{{ j() }}{{ j() }}{% for x in [1, 1, 2] %}{{ loop.cycle('x', 'y') }}{{ loop.changed(x) }}{{ loop.depth }}{% endfor %}",
    "{% for x in [1, [2, [3]]] recursive %}{{ loop(x) if x is sequence else x }}{{ loop.depth }}{% endfor %}",
    "{{ 'a'.upper is defined }}{{ {'items': 1}.items is callable }}{{ {'items': 1}['items'] }}{{ {}['items'] is callable }}{{ nope is callable }}{{ {'a': 1}.append is defined }}{{ [].append }}",
    "{% if false %}{% include 'x' %}{{ 1|nofilter }}{% endif %}{{ 1, 2 }}{% for x in 1, 2 %}{{ x }}{% endfor %}{{ [[1, 2]].0.1 }}{{ 0x1f }}{{ 1_000 }}{{ 0b11 }}{{ 'a\101b' }}",
    "{{ [{'a': 2}, {'a': 1}, {}]|groupby('a', default=0) }}{{ [3, 1]|batch(2, 'x')|list }}{{ 'one two three'|truncate(9) }}{{ 'aa bb cc'|wordwrap(5) }}{{ 'abcdefg hijkl'|wordwrap(4) }}{{ 1234567|filesizeformat }}{{ {'a': '<', 'b': none}|xmlattr }}{{ {'a b': 'c/d'}|urlencode }}{{ '<p>a <b>b</b></p>'|striptags }}",
    # what goes wrong
    "{{ nope|int }}", "{% macro m() %}{% endmacro %}{{ m(1) }}", "{{ [[1]]|unique|list }}", "{{ {[1]: 2} }}", "{% if a if b else c %}{% endif %}", "{{ 1 is odd is odd }}", "{{ [1] + (2,) }}",
    "{% filter length %}a{% endfilter %}", "{{ 01 }}", "{{ dict(1, 2) }}", "{{ 'a'.join([1]) }}", "{% for x in [] %}{{ x|nofilter }}{% endfor %}", "{{ f(a=1, 2) }}", "{{ ([1]|map('abs'))|length }}",
    "{{ nothing.attribute }}", "{{ nothing + 1 }}", "{{ 'a' + 1 }}", "{{ raise_exception('as told') }}", "{{ 1 // 0 }}", "{{ [1] < 2 }}",
    "{% for a, b in [[1]] %}{% endfor %}", "{{ none.split }}{{ none.split() }}", "{% set q.a = 1 %}", "{{ 'a' in 1 }}", "{% for x in 1 %}{% endfor %}",
    "{% if %}", "{{ 1 + }}", "{% for x in y %}", "{{ 'open", "{# open", "{% endif %}", "{{ (1, }}", "{{ a b }}", "{% break %}",
]

# Beyond the subset: each must be refused when it is reached, naming what it uses, in this line.
REFUSED = [
    ["{{ ''.__class__ }}", 1, "__class__"], ["\n{{ messages.__init__ }}", 2, "__init__"], ["{% include 'x' %}", 1, "include"],
    ["a\nb\n{% import 'x' as y %}", 3, "import"], ["{% extends 'x' %}", 1, "extends"], ["{% block a %}{% endblock %}", 1, "block"],
    ["{{ open('x') }}", 1, "open"], ["\n\n{{ lipsum() }}", 3, "lipsum"], ["{{ messages.append(1) }}", 1, "append"],
    ["{{ 'a'.encode() }}", 1, "encode"], ["{{ 1|urlize }}", 1, "urlize"], ["{{ messages|random }}", 1, "random"],
    ["{% autoescape true %}{% endautoescape %}", 1, "autoescape"], ["{{ messages|map('upper') }}", 1, "generator of map"],
]


class Chance:
    """Templates by chance: expressions of every kind in outputs, loops, conditions and assignments."""

    def __init__(self, seed):
        self.r = random.Random(seed)

    def text(self):
        return repr("".join(self.r.choice(["a", "b", "X", " ", "  ", "\n", "é", "日", "-", ",", "user", "0"]) for _ in range(self.r.randint(0, 6))))

    def atom(self):
        return self.r.choice([self.text, self.text, lambda: str(self.r.randint(0, 5)), lambda: "x", lambda: "y", lambda: "nope",
                              lambda: self.r.choice(["true", "false", "none", "messages", "messages[0]", "messages[-1].content",
                                                     "loop.index", "[]", "{}", "{'a': 1, 'b': 'z'}", "['a', 2, none]", "(1, 'q')"])])()

    def value(self, depth):
        if depth == 0:
            return self.atom()
        e = lambda: self.value(depth - 1)
        return self.r.choice([
            self.atom, self.atom, lambda: f"({e()} {self.r.choice(['+', '~', '~', '*', '-', '//', '%'])} {e()})",
            lambda: f"({e()} {self.r.choice(['==', '!=', '<', '>=', 'in', 'not in', 'and', 'or'])} {e()})",
            lambda: f"(not {e()})", lambda: f"({e()} if {e()} else {e()})", lambda: f"({e()} if {e()})",
            lambda: f"({e()})[{self.r.randint(-3, 3)}]", lambda: f"({e()})[{self.r.choice(['', '1', '-2'])}:{self.r.choice(['', '2', '-1'])}{self.r.choice(['', ':2', ':-1'])}]",
            lambda: f"({e()})|{self.r.choice(['trim', 'length', 'upper', 'lower', 'title', 'capitalize', 'first', 'last', 'list', 'string', 'int', 'reverse|list', 'tojson', 'default(5)', 'join', 'select|list'])}",
            lambda: f"({e()})|replace({self.text()}, {self.text()})", lambda: f"({e()})|join({self.text()})", lambda: f"({e()})|default({e()}, true)",
            lambda: f"({self.text()}).{self.r.choice(['strip', 'lstrip', 'rstrip', 'upper', 'lower', 'title', 'capitalize', 'split', 'splitlines'])}()",
            lambda: f"({self.text()}).{self.r.choice(['strip', 'split', 'startswith', 'endswith', 'find', 'rstrip', 'removeprefix'])}({self.text()})",
            lambda: f"({self.text()}).split({self.text()}, {self.r.randint(-1, 2)})",
            lambda: f"({e()} is {self.r.choice(['', 'not '])}{self.r.choice(['defined', 'none', 'string', 'mapping', 'iterable', 'sequence', 'number', 'true', 'boolean', 'undefined'])})",
            lambda: f"messages|map(attribute={self.r.choice(['role', 'content'])!r})|list", lambda: f"messages|selectattr('role', 'equalto', {e()})|list|length",
            lambda: f"({{'a': {e()}}}).get('a')", lambda: f"{{'k': {e()}}}|items|list", lambda: f"[{e()}, {e()}]", lambda: f"m({e()})"])()

    def sign(self):
        return self.r.choice(["", "", "", "-", "+"])

    def tag(self, inner):
        return "{%" + self.sign() + " " + inner + " " + self.r.choice(["", "", "-"]) + "%}"

    def block(self, depth):
        out = ""
        for _ in range(self.r.randint(1, 3)):
            out += self.r.choice(["", " ", "\n", "t", "\n  ", "  \n", "{# c #}", "{#- c -#}"])
            kind = self.r.random() if depth else 0.0
            if kind < 0.5:
                out += "{{" + self.r.choice(["", "-"]) + " " + self.value(self.r.randint(1, 3)) + " " + self.r.choice(["", "-"]) + "}}"
            elif kind < 0.65:
                out += self.tag(f"for x in {self.value(2)}") + self.block(depth - 1) + (self.tag("else") + "e" if self.r.random() < 0.3 else "") + self.tag("endfor")
            elif kind < 0.85:
                out += self.tag(f"if {self.value(2)}") + self.block(depth - 1) + self.tag("else") + self.block(depth - 1) + self.tag("endif")
            else:
                out += self.tag(f"set {self.r.choice('xy')} = {self.value(2)}")
        return out

    def template(self):
        return "{% macro m(v) %}<{{ v }}>{% endmacro %}{% set x = 'ab' %}" + self.block(2)


def render(text, messages, add):
    try:
        return {"text": chat_template_utils._compile_jinja_template(text).render(
            messages=messages, tools=None, documents=None, add_generation_prompt=add, bos_token="<s>", eos_token="</s>")}
    except Exception as error:  # whatever the library raises, for the reason that it gives
        return {"error": str(error).split("\n")[0]}


def main():
    models = {}
    for path in sorted(glob.glob(os.path.join(DATA, "*.jinja"))):
        text = open(path, encoding="utf-8", newline="").read()
        models[os.path.basename(path)[:-6]] = [
            {"conversation": i, "add": add, **render(text, c, add)} for i, c in enumerate(CONVERSATIONS) for add in (False, True)]
    small = SNIPPETS
    if len(sys.argv) > 2:
        chance = Chance(7)
        small = [chance.template() for _ in range(int(sys.argv[2]))]
    snippets = [{"template": s, **render(s, CONVERSATIONS[3], False)} for s in small]
    if len(sys.argv) > 2:  # by chance most have a fault somewhere, and which is met first is not the matter
        snippets = [s for s in snippets if "text" in s]
    with open(sys.argv[1] if len(sys.argv) > 1 else os.path.join(DATA, "cases.json"), "w", encoding="utf-8") as f:
        json.dump({"conversations": CONVERSATIONS, "models": models, "snippets": snippets, "refused": REFUSED}, f,
                  ensure_ascii=False, indent=1)
        f.write("\n")


main()
