"""What tools/lint.py asks of documents: lines of at most 120 characters and paragraphs of at most 120 words, outside
tables and code, and functions of docs/TOUR.md that are where it says."""
import re

LINE_MAX = 120
WORDS_MAX = 120
# Results are figures as a tool wrote them.
LEFT_ALONE = ("bench/results/",)


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
