"""What tools/lint.py asks of documents: lines of at most 120 characters and paragraphs of at most 120 words, outside
tables and code; links that lead somewhere; functions of docs/TOUR.md that are where it says; table cells that fit a
screen; short sentences in what users read; and in README.md no measured number without a link to its result."""
import fnmatch
import os
import re

LINE_MAX = 120
WORDS_MAX = 120
# Results are figures as a tool wrote them.
LEFT_ALONE = ("bench/results/",)
CELL_MAX = 200
SENTENCE_WORDS_MAX = 30
# For whoever changes the code; their longer cells are not lint's business.
WIDE_CELLS = re.compile(r"^(docs/(CONTRACTS|STYLE|EQUALITY)\.md|(?!docs/).*/README\.md)$")
FOR_USERS = ("docs/start/", "docs/how-to/", "docs/run-a-lab/")
LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")
NUMBER = re.compile(r"\d(\.\d+)? ?(%|times\b|tokens/s|ms\b|minutes\b|seconds\b)|\de-\d")


def find(path, text):
    """Yields (line number, rule, what) of a Markdown document."""
    if path.startswith(LEFT_ALONE):
        return
    fence, words, start = None, 0, 0
    for number, line in enumerate(text.split("\n") + [""], 1):
        stripped = line.strip()
        mark = re.match(r"(```+|~~~+)", stripped)
        if fence:
            fence = None if stripped.startswith(fence) else fence
            continue
        outside = bool(mark) or stripped == "" or stripped.startswith(("|", "#", "<"))
        if outside or re.match(r"([-*+]|\d+[.)])\s", stripped):
            if words > WORDS_MAX:
                yield start, "paragraph", f"{words} words; split at {WORDS_MAX}"
            words, start = 0, number
        if mark:
            fence = mark.group(1)
        if outside:
            continue
        start = number if words == 0 else start
        words += len(stripped.split())
        if len(line) > LINE_MAX and " " in stripped:
            yield number, "line", f"{len(line)} characters; wrap at {LINE_MAX}"


# A row of docs/TOUR.md names a function and its file.
ROW = re.compile(r"\| `(\w+)\(\)` \| `([\w/.]+)` \|")


def tour(text, read):
    """Yields the rows whose file has no such function."""
    for number, line in enumerate(text.split("\n"), 1):
        row = ROW.match(line)
        if not row:
            continue
        name, path = row.groups()
        try:
            there = re.search(rf"^[\w \*]*\b{name}\(", read(path), flags=re.M)
        except OSError:
            there = None
        if not there:
            yield number, "tour", f"{path} has no function {name}()"


# A room's README may name the tests to run first, a part's must: `api/jobs.py` is tests/api/test_jobs.py, `api/parse`
# tests/api/test_parse.c.
TESTS = re.compile(r"^Tests: (.*)\.$", re.M)


def tests(text, files, must):
    """Yields what is wrong with that line. files: of the whole tree."""
    line = TESTS.search(text)
    if must and not line:
        yield 1, "tests", "no line `Tests: …` names the tests to run first"
    for room, name in re.findall(r"`(\w+)/([\w.*]+)`", line.group(1) if line else ""):
        if not fnmatch.filter(files, f"tests/{room}/test_{name}") + fnmatch.filter(files, f"tests/{room}/test_{name}.c"):
            yield text.count("\n", 0, line.start()) + 1, "tests", f"{room}/{name} is not there"


def plain(text):
    """The text as a reader sees it: a link is its words, code one word."""
    return re.sub(r"`[^`]*`", "code", LINK.sub(r"\1", text))


def units(text):
    """Yields (line number, kind, text) of paragraphs, list items, headings and table cells; code is left out."""
    fence, part, start = None, [], 0
    for number, line in enumerate(text.split("\n") + [""], 1):
        stripped = line.strip()
        mark = re.match(r"(```+|~~~+)", stripped)
        if fence:
            fence = None if stripped.startswith(fence) else fence
            continue
        item = re.match(r"([-*+]|\d+[.)])\s", stripped)
        if part and (mark or item or not stripped or stripped[0] in "|#<>"):
            yield start, "text", " ".join(part)
            part = []
        if mark:
            fence = mark.group(1)
        elif stripped.startswith("|"):
            for cell in re.split(r"(?<!\\)\|", stripped.strip("|")):
                yield number, "cell", cell.strip()
        elif stripped.startswith("#"):
            yield number, "heading", stripped.lstrip("# ")
        elif stripped and stripped[0] != "<":
            start = start if part else number
            part.append(stripped.lstrip("> "))


def sentences(text):
    return re.split(r"(?<=[.!?])\s+(?=[A-Z`*\[])|(?<=[.!?]\*\*)\s+", text)


def anchors(text):
    """The names that a page's headings have in links."""
    return {re.sub(r" ", "-", re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower())) for _, kind, heading in units(text) if kind == "heading"}


def readable(path, text, root):
    """Yields (line number, rule, what): links, cells, sentences and unproved numbers of a document."""
    if path.startswith(LEFT_ALONE):
        return
    for number, kind, part in units(text):
        for _, link in LINK.findall(re.sub(r"`[^`]*`", "", part)):
            target, _, anchor = link.partition("#")
            if re.match(r"[a-z]+:", link):
                continue
            at = os.path.normpath(os.path.join(root, os.path.dirname(path), target)) if target else os.path.join(root, path)
            if not os.path.exists(at):
                yield number, "link", f"{link} is not there"
            elif anchor and at.endswith(".md"):
                with open(at, encoding="utf-8") as handle:
                    if anchor not in anchors(handle.read()):
                        yield number, "link", f"{link}: no such heading"
        if kind == "cell" and len(LINK.sub(r"\1", part)) > CELL_MAX and not WIDE_CELLS.match(path):
            yield number, "cell", f"{len(part)} characters; at {CELL_MAX} it is a paragraph"
        for sentence in sentences(part) if path.startswith(FOR_USERS) and kind == "text" else ():
            if len(plain(sentence).split()) > SENTENCE_WORDS_MAX:
                yield number, "sentence", f"{len(plain(sentence).split())} words; say it in {SENTENCE_WORDS_MAX}: {sentence[:60]} …"
        for sentence in sentences(part) if path == "README.md" else ():
            if NUMBER.search(re.sub(r"`[^`]*`", "", sentence)) and "](" not in sentence:
                yield number, "number", f"no link to its result: {sentence[:60]} …"
