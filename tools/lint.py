#!/usr/bin/env python3
"""House rules that a compiler does not check: layering, banned calls, file sizes, contracts.

Prints one line a finding, `path:line: rule: what`, and exits 1 if there is any.
clang-format-19 is asked where it is installed. --full adds cppcheck, where it is, and conversions.
"""
import concurrent.futures
import json
import os
import re
import shutil
import subprocess
import sys

import circles
import documents
import names
import recursion
import sql
import statements

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# docs/DESIGN.md, Rooms: the only includes allowed.
MAY_INCLUDE = {
    "common": set(),
    "program": {"common"},
    "model": {"common"},
    "hub": {"model", "common"},
    "parse": {"model", "common"},
    "planner": {"program", "model", "common"},
    "plug": {"planner", "program", "model", "common"},
    "profiles": {"planner", "common"},
    "published": {"planner", "common"},
    "replay": {"planner", "program", "model", "common"},
    "show": {"planner", "program", "model", "common"},
    "result": {"model", "common"},
    "engine": {"model", "common"},
    "mesh": {"common"},
    "worker": {"mesh", "engine", "result", "model", "program", "common"},
    "agent": {"common"},
    "store": {"common"},
    "scheduler": {"replay", "plug", "profiles", "planner", "program", "model", "store", "common"},
    "api": {"show", "plug", "profiles", "planner", "program", "hub", "model", "parse", "store", "common"},
    "cli": {"scheduler", "show", "replay", "plug", "profiles", "published", "planner", "program", "hub", "model", "common", "local"},
    "local": {"common"},
    "signer": {"common"},
}
# The planner is pure: of model/ it sees descriptions only.
PLANNER_MODEL_HEADERS = {"model/shape/config.h", "model/shape/blocks.h", "model/shape/footprint.h", "model/shape/flat.h",
                         "model/shape/lora_sites.h", "model/job/order.h", "model/job/spec.h", "model/rows/rows.h", "model/histogram.h"}

# The parts of a room from the bottom up: a part includes those before it. Files in no part stand above them all.
PARTS = {
    "planner": ["given", "simulate", "cost", "candidate", "schedule", "emit", "kind", "search", "answer"],
    "model": ["files", "shape", "job", "adapters", "text", "templates", "rows"],
    "engine": ["device", "cpu", "gpu", "checked", "stage"],
    "worker": ["program", "session", "checkpoint", "start"],
    "scheduler": ["policy", "simulate", "events", "placer", "leader", "pass"],
    "api": ["http", "request", "check", "people", "blobs", "jobs", "nodes"],
}

LINES_MAX = 800
FUNCTION_LINES_MAX = 70
ARGUMENTS_MAX = 8
# Opaque types of a header that have two implementations: cards and the emulator, and two libraries of products.
IMPLEMENTED_TWICE = {"gpu_context", "gpu_event", "gpu_function", "gpu_graph", "gpu_library", "gpu_module", "gpu_queue",
                     "products"}
BANNED = {
    "strcpy": "snprintf or memcpy with a checked length", "strcat": "buf_printf", "sprintf": "snprintf",
    "vsprintf": "vsnprintf", "gets": "fgets", "strtok": "strtok_r or a parser", "atoi": "strtol with checks",
    "atol": "strtol with checks", "atof": "strtod with checks", "system": "process.h", "popen": "process.h",
    "alloca": "malloc", "rand": "common/rand.h", "srand": "common/rand.h", "random": "common/rand.h",
    "strncpy": "snprintf", "tmpnam": "mkstemp", "setjmp": "error returns", "longjmp": "error returns",
}
LIBRARY_ONLY_BANNED = {
    "exit": "only main exits", "_exit": "only main exits", "abort": "return an error", "printf": "libraries do not print",
    "puts": "libraries do not print", "perror": "return an error", "kill": "process_signal of common/process.h",
}
# Rooms whose business is to speak to a person.
MAY_PRINT = {"cli", "local"}
SQL = re.compile(r'"\s*(SELECT\s|INSERT\s+INTO|UPDATE\s+\w+\s+SET|DELETE\s+FROM|CREATE\s+(TABLE|INDEX)|ALTER\s+TABLE|WITH\s+\w+\s+AS)', re.I)
# It makes the table in which migrations are noted, and notes each in the migration's own script.
SQL_IN_C = {"store/migrate.c"}
# They have what typed calls fill several parameters with.
FILLS_PARAMETERS = {"store/access.c", "store/call.c"}
# What tools leave behind: it is never part of the tree.
LEFT_BEHIND = re.compile(r"(^|/)(\.(?!ci/)[^/]+/|__pycache__/|node_modules/|(crash|leak|oom|slow-unit|timeout)-[0-9a-f]{40}$)")
CALL = re.compile(r"(?<![\w.>])([A-Za-z_]\w*)\s*\(")


def tracked():
    out = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT,
                         capture_output=True, check=True).stdout.decode()
    return sorted(p for p in out.split("\0") if p and os.path.exists(os.path.join(ROOT, p)))


def strip_comments(text):
    """Blank comments, keep line structure; strings stay."""
    def blank(match):
        piece = match.group(0)
        if piece.startswith("/"):
            return re.sub(r"[^\n]", " ", piece)
        return piece
    return re.sub(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', blank, text, flags=re.S)


def blank_strings(text):
    return re.sub(r'"(?:\\.|[^"\\\n])*"', lambda m: '"' + " " * (len(m.group(0)) - 2) + '"', text)


def part_of(path):
    """How high a file stands in its room, from 0; a file that is in no part stands above all parts."""
    room, part = path.split("/")[:2]
    return PARTS[room].index(part) if part in PARTS[room] else len(PARTS[room])


def check_source(path, text, report):
    room = path.split("/")[0]
    code = strip_comments(text)
    is_main = re.match(r"main\w*\.c$", os.path.basename(path)) is not None
    for number, line in enumerate(code.split("\n"), 1):
        include = re.match(r'\s*#\s*include\s+"([^"]+)"', line)
        if include and room in MAY_INCLUDE:
            target = include.group(1)
            other = target.split("/")[0]
            if "/" not in target:
                report(path, number, "include", f'name the room: "{room}/{target}"')
            elif other not in MAY_INCLUDE:
                report(path, number, "include", f"{target} is not in a room")
            elif other != room and other not in MAY_INCLUDE[room]:
                report(path, number, "layering", f"{room}/ may not include {other}/")
            elif other != room and target.endswith("_private.h"):
                report(path, number, "layering", f"{target} is not for other rooms")
            elif room == "cli" and other == "scheduler" and not target.startswith(("scheduler/policy/", "scheduler/simulate/")):
                report(path, number, "layering", f"cli/ sees only the policies and their simulator, not {target}")
            elif room == "planner" and other == "model" and target not in PLANNER_MODEL_HEADERS:
                report(path, number, "layering", f"the planner sees only descriptions of model/, not {target}")
            elif room == other and room in PARTS and part_of(target) > part_of(path):
                report(path, number, "layering", f"{os.path.dirname(path)}/ stands below {os.path.dirname(target)}/")
        if re.search(r"#\s*include\s+<libpq-fe\.h>", line) and room not in ("common", "store"):
            report(path, number, "layering", "libpq outside common/pg and store/")
        if room in MAY_INCLUDE and path not in SQL_IN_C and SQL.search(line):
            report(path, number, "sql", "SQL outside store/*.sql")
        if path.startswith("store/") and path not in FILLS_PARAMETERS and re.search(r"\bpg_param_\w+\s*\(", line):
            report(path, number, "sql", "a typed call fills a statement's parameters (tools/sql.py)")
        if re.search(r"\bSSL_CTX_\w+\s*\(", line) and not path.startswith("common/tls") and room in MAY_INCLUDE:
            report(path, number, "tls", "SSL_CTX outside common/tls")
        for call in CALL.findall(blank_strings(line)):
            if call in BANNED:
                report(path, number, "banned", f"{call}(): use {BANNED[call]}")
            elif call in LIBRARY_ONLY_BANNED and room in MAY_INCLUDE and not is_main:
                if not (room in MAY_PRINT and call in ("printf", "puts", "_exit")):
                    if not (call in ("_exit", "kill") and path in ("common/process.c", "common/sandbox_run.c")):
                        report(path, number, "banned", f"{call}(): {LIBRARY_ONLY_BANNED[call]}")
            elif call in ("sleep", "usleep") and room == "tests":
                report(path, number, "banned", f"{call}() in a test: wait on an event with a deadline")
    if text.count("\n") > LINES_MAX:
        report(path, 1, "size", f"{text.count(chr(10))} lines; split at {LINES_MAX}")


def check_guard(path, text, report):
    """One shape for all: what the header is for, then MOTLEY_<PATH>_H around the rest."""
    name = "MOTLEY_" + re.sub(r"[/.]", "_", path).upper()
    if not re.match(rf"/\*.*?\*/\n#ifndef {name}\n#define {name}\n.*\n#endif\n$", text, flags=re.S):
        report(path, 1, "guard", f"a comment, then #ifndef {name} and #define, at the end #endif")
    if re.search(r"(?:_impl|_internal|/impl|/internal|/private)\.h$", path):
        report(path, 1, "guard", "what only some files of a room share is called *_private.h")


def check_header(path, text, report):
    """Every function declared in a room's header stands under a comment that says its contract."""
    lines = text.split("\n")
    code = blank_strings(strip_comments(text)).split("\n")
    depth = 0
    covered = False
    statement = ""
    start = 0
    for index, line in enumerate(code):
        raw = lines[index].strip()
        if depth == 0 and not statement:
            if raw.endswith("*/") or raw.startswith("//"):
                covered = True
            elif raw == "":
                covered = False
        if line.strip().startswith("#"):
            continue
        stripped = line.strip()
        if depth == 0 and stripped:
            if not statement:
                start = index + 1
            statement += " " + stripped
        depth += line.count("{") - line.count("}")
        if depth == 0 and statement and (statement.endswith(";") or statement.endswith("}")):
            statement = statement.strip()
            declared = re.match(r"^(?!typedef|struct\s+\w+\s*\{|enum|union|extern\s+const|static)[\w\s\*]+?\b(\w+)\s*\([^;{]*\)[^;{]*;\s*$", statement)
            conventional = declared and re.search(r"_(destroy|fini)$", declared.group(1))  # docs/STYLE.md says it for all
            if declared and not conventional and not covered and "/*" not in lines[start - 1]:
                tail = "".join(lines[start - 1:index + 1])
                if "/*" not in tail:
                    report(path, start, "contract", f"{declared.group(1)}() has no comment that says its contract")
            statement = ""


# A decoder answers 0 for what is no character: a walk that adds its answer stands still for ever.
NO_PROGRESS = re.compile(r"\+=\s*utf8_decode\s*\(")
# clang-format decides braces; these two it leaves open.
HANDWRITING = re.compile(r"== NULL\b|\bsizeof [^(]")
HANDWRITING_RULE = "a null pointer is tested as !pointer, and sizeof has brackets"
STRUCT = re.compile(r"^(?:static |const |typedef )*(?:struct|enum|union)\s+(\w+)\s*\{", re.M)
FUNCTION = re.compile(r"^(?![ \t#}/])(?:[A-Za-z_][\w \t\*]*?[\s\*])?([A-Za-z_]\w*)\s*\(([^;{}]*)\)\s*\n\{(.*?)^\}", re.M | re.S)


def count_arguments(text):
    """Commas outside parentheses, plus one."""
    depth, count = 0, 1
    for character in text:
        depth += (character in "([") - (character in ")]")
        count += character == "," and depth == 0
    return count


def check_shapes(path, text, structs, report):
    """Functions have few arguments and fit a screen; notes where structs are defined."""
    code = blank_strings(strip_comments(text))
    for found in HANDWRITING.finditer(code):
        report(path, code.count("\n", 0, found.start()) + 1, "handwriting", HANDWRITING_RULE)
    for found in NO_PROGRESS.finditer(code):
        report(path, code.count("\n", 0, found.start()) + 1, "progress", "utf8_decode() answers 0 for a bad character: utf8_next")
    for found in STRUCT.finditer(code):
        structs.setdefault(found.group(1), set()).add(path)
    for found in FUNCTION.finditer(code):
        name, line = found.group(1), code.count("\n", 0, found.start()) + 1
        if name.isupper() or "#define" in code[code.rfind("\n", 0, found.start() - 1) + 1:found.start()]:
            continue
        arguments, lines = count_arguments(found.group(2)), found.group(0).count("\n") + 1
        if arguments > ARGUMENTS_MAX:
            report(path, line, "arguments", f"{name}() takes {arguments}; a struct says what they are")
        if lines > FUNCTION_LINES_MAX:
            report(path, line, "function", f"{name}() has {lines} lines; split at {FUNCTION_LINES_MAX}")


# cppcheck reads no system headers; these macros of theirs are not C without them.
CPPCHECK_MACROS = ["-Djson_object_foreach(o,k,v)=for(;;)", "-Djson_array_foreach(a,i,v)=for(;;)",
                   "-DLIST_ENTRY(t)=struct{struct t *next;}", "-DSTAILQ_ENTRY(t)=struct{struct t *next;}",
                   "-DTAILQ_ENTRY(t)=struct{struct t *next;}", "-DLIST_HEAD(n,t)=struct n{struct t *first;}",
                   "-DSTAILQ_HEAD(n,t)=struct n{struct t *first;}", "-DTAILQ_HEAD(n,t)=struct n{struct t *first;}"]


# Conversions that lose values or signs need a cast that somebody thought about, in every room.
CONVERSIONS = ["-fsyntax-only", "-Wconversion", "-Wsign-conversion", "-Wformat=2"]
# They choose a conversion of a number from a list before they make its format.
MAKES_FORMATS = {"model/templates/jinja_format.c", "model/templates/jinja_function.c"}


def check_conversions(report):
    """Compiles as build/ was configured, with the warnings above."""
    commands = os.path.join(ROOT, "build", "compile_commands.json")
    entries = json.loads(circles.read(commands)) if os.path.exists(commands) else []
    if not entries:
        print("lint: conversions were not looked at: there is no configured build/")
    for entry in entries:
        path = os.path.relpath(entry["file"], ROOT)
        if path.split("/")[0] not in MAY_INCLUDE:
            continue
        words = [w.replace('\\"', '"') for w in entry["command"].split() if not w.startswith(("-W", "-o", "-M")) and not w.endswith((".o", ".o.d"))]
        words = [w for w in words if w not in ("-c", entry["file"], "-g") and "ccache" not in w and "FORTIFY" not in w]
        quiet = ["-Wno-format-nonliteral"] if path in MAKES_FORMATS else []
        done = subprocess.run([*words, *CONVERSIONS, *quiet, entry["file"]], cwd=entry["directory"], capture_output=True, text=True)
        for line in done.stderr.splitlines():
            found = re.match(r".*?([\w/.]+):(\d+):\d+: (?:warning|error): (.*)", line)
            if found:
                report(os.path.relpath(found.group(1), ROOT) if os.path.isabs(found.group(1)) else path, int(found.group(2)), "conversion",
                       found.group(3))


def check_format(files, report):
    if not shutil.which("clang-format-19"):
        print("lint: the format was not looked at: clang-format-19 is not installed")
        return
    sources = [f for f in files if f.endswith((".c", ".h", ".inc")) and not f.startswith("tests/data/")]

    def differing(part):
        return subprocess.run(["clang-format-19", "--dry-run", *part], cwd=ROOT, capture_output=True, text=True).stderr

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        said = "".join(pool.map(differing, [sources[at:at + 50] for at in range(0, len(sources), 50)]))
    for path, line in dict(re.findall(r"^([^\s:]+):(\d+):\d+: warning", said, re.M)).items():
        report(path, int(line), "format", f"clang-format-19 -i {path}")


def full_checks(files, report):
    check_conversions(report)
    sources = [f for f in files if f.endswith((".c", ".h")) and f.split("/")[0] in MAY_INCLUDE]
    if shutil.which("cppcheck"):
        done = subprocess.run(["cppcheck", "--quiet", "--std=c11", "--enable=warning,portability", "--inline-suppr",
                               "--suppressions-list=tools/cppcheck.txt", "-I.", "-j2", *CPPCHECK_MACROS,
                               "--template={file}:{line}: cppcheck: {id}: {message}", "--error-exitcode=0"]
                              + [f for f in sources if f.endswith(".c")], cwd=ROOT, capture_output=True, text=True)
        for line in done.stderr.splitlines():
            if re.match(r"[\w/.]+:\d+: cppcheck", line):
                print(line)
                report.count += 1


# The page (api/web): texts stay texts, and nothing is inline, so that its content-security policy can refuse both.
WEB = [
    (".js", re.compile(r"\b(innerHTML|outerHTML|insertAdjacentHTML|srcdoc|DOMParser|createContextualFragment|setHTMLUnsafe|parseHTMLUnsafe)\b|\bdocument\.write|\beval\s*\(|\bnew Function\b"),
     "texts become text nodes (dom.js), never HTML or code"),
    (".html", re.compile(r"\s(style|on[a-z]+)\s*=|<style|<script(?![^>]*\ssrc=)|javascript:", re.I), "nothing is inline: styles and scripts are files"),
    (".css", re.compile(r"@import|url\(\s*['\"]?(https?:|//|data:)", re.I), "a sheet takes files beside it only"),
]


def check_web(path, text, report):
    for end, pattern, rule in WEB:
        if not path.endswith(end):
            continue
        for found in pattern.finditer(text):
            report(path, text.count("\n", 0, found.start()) + 1, "web", f"{found.group(0).strip()}: {rule}")
    if text.count("\n") > LINES_MAX:
        report(path, 1, "size", f"{text.count(chr(10))} lines; split at {LINES_MAX}")


class Report:
    def __init__(self):
        self.count = 0

    def __call__(self, path, line, rule, what):
        self.count += 1
        print(f"{path}:{line}: {rule}: {what}")


def main():
    import layering  # it reads this file's tables

    report = Report()
    files = tracked()
    rooms = {f.split("/")[0] for f in files if f.endswith(".c")}
    structs = {}
    for path in files:
        if LEFT_BEHIND.search(path):
            report(path, 1, "left", "a tool left it behind; it belongs in .gitignore")
        if path.endswith(".md"):
            text = circles.read(path)
            found = [*documents.find(path, text), *documents.readable(path, text, ROOT)]
            room, part = path.split("/")[0], path.split("/")[1:-1]
            if room in MAY_INCLUDE and path.endswith("/README.md"):
                found += documents.tests(text, files, part != [] and part[0] in PARTS.get(room, []))
            if path == "docs/DESIGN.md" and not layering.is_in(text):
                report(path, 1, "layering", "its table is not what tools/layering.py prints")
            if path == "docs/TOUR.md":
                found += documents.tour(text, circles.read)
            for line, rule, what in found:
                report(path, line, rule, what)
        if path.startswith("api/web/") and path.endswith((".js", ".html", ".css")):
            check_web(path, circles.read(path), report)
        if not path.endswith((".c", ".h", ".inc")):
            continue
        with open(os.path.join(ROOT, path), encoding="utf-8") as handle:
            text = handle.read()
        check_source(path, text, report)
        if path.split("/")[0] in MAY_INCLUDE:
            check_shapes(path, text, structs, report)
        if path.endswith(".h") and path.split("/")[0] in MAY_INCLUDE:
            check_header(path, text, report)
            check_guard(path, text, report)
    for name, paths in sorted(structs.items()):
        if len(paths) > 1 and name not in IMPLEMENTED_TWICE:
            report(sorted(paths)[0], 1, "struct", f"{name} is defined in {len(paths)} files: {', '.join(sorted(paths))}")
    for folder in sorted(rooms & set(MAY_INCLUDE)) + [f"{room}/{part}" for room in PARTS for part in PARTS[room]]:
        if not os.path.exists(os.path.join(ROOT, folder, "README.md")):
            report(folder, 1, "readme", "the folder has no README.md")
    for room, path, _, why, _ in circles.find(files, sorted(MAY_INCLUDE), circles.read):
        report(path[0], 1, "circle", f"{' -> '.join(path)}: {'; '.join(why)}")
    sources = [f for f in files if f.endswith(".c") and f.split("/")[0] in MAY_INCLUDE]
    for path, line, name, others in names.find(sources, circles.read):
        report(path, line, "name", f"{name} is a function of {', '.join(others)}, too: put the file's noun before it")
    for path, line, circle in recursion.find(sources, circles.read):
        report(path, line, "recursion", f"{', '.join(circle)}: no depth bounds it (tools/recursion.py)")
    try:
        for path, line, name in statements.find([f for f in files if re.match(r"store/\w+\.sql$", f)]):
            report(path, line, "visible", f"{name} does not ask who may see what it reads or changes (tools/statements.py)")
    except sql.Wrong as wrong:
        report("store", 1, "sql", wrong)
    check_format(files, report)
    if "--full" in sys.argv[1:]:
        full_checks(files, report)
    print(f"lint: {report.count} findings in {len(files)} files")
    return 1 if report.count else 0


if __name__ == "__main__":
    sys.exit(main())
