#!/usr/bin/env python3
"""Writes the reference (docs/reference), the man pages (docs/man) and the tables of hardware from the programs themselves.

    tools/reference.py [--check] [BIN]      BIN: where the programs are, build/bin

Whole files are job.md, hardware.md, http.md and the man pages. Elsewhere it writes what stands between
`<!-- made by tools/reference.py: NAME -->` and `<!-- end -->`; what people wrote around it stays. With --check nothing is
written: every file that differs is named, and the exit status is 1.
"""
import json
import os
import re
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
HEAD = "<!-- made by tools/reference.py from {}; `make reference` writes it anew -->\n"
DATE = "2026-11-29"  # of the man pages; of the release, once there is one
DAEMONS = {"motley-api": "answers people and programs over HTTP", "motley-scheduler": "decides which job runs where and when",
           "motley-agent": "one machine's part of the cluster: its devices and their workers",
           "motley-signer": "holds the key of the cluster's CA and signs agents' certificates"}


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as handle:
        return handle.read()


class Programs:
    """What the built programs say of themselves."""

    def __init__(self, folder):
        self.folder = folder
        self.groups = []  # (title, [command name])
        self.commands = {}
        for part in self.says("motley", "help").split("\n\n"):
            lines = part.splitlines()
            if re.match(r"(Run|Look|Plan|Share|Administer): ", lines[0]):
                self.groups.append((lines[0], [line.split()[0] for line in lines[1:] if line[2] != " "]))
        for _, names in self.groups:
            for name in names:
                self.commands[name] = self.command(name)
        self.common = [o for o in options(self.says("motley", "help", "down")) if o[0] in ("--home DIR", "--json", "--help")]
        self.schemas = {"job": self.schema("motley"), "api": self.schema("motley-api"), "scheduler": self.schema("motley-scheduler")}
        self.catalogue = json.loads(self.says("motley", "devices", "--catalogue", "--json"))["devices"]

    def says(self, program, *words):
        return subprocess.run([os.path.join(self.folder, program), *words], capture_output=True, text=True, check=True).stdout

    def schema(self, program):
        return json.loads(self.says(program, "--schema"))

    def command(self, name):
        text = self.says("motley", "help", name)
        usage, about = text.split("\n\n")[:2]
        rows = [o for o in options(text) if o[0] not in ("--home DIR", "--json", "--help")]
        return {"usage": usage[len("usage: "):].replace(" [options]", ""), "about": about.replace("\n", " "), "options": rows}


def options(text):
    """[(option with its value, meaning)] of a help text; a long option has its meaning in the next lines."""
    found = []
    for line in text.splitlines():
        option = re.match(r"  (-\S+(?: [^\s(]\S*)*?)(?:  +(\S.*)| (?=\S)(\S.*))?$", line)
        wide = re.match(r"  (-.*?\S)  +(\S.*)$", line)
        if wide:
            found.append([wide.group(1), wide.group(2)])
        elif option:
            found.append([line.strip(), ""])
        elif found and re.match(r"    +\S", line):
            found[-1][1] = (found[-1][1] + " " + line.strip()).strip()
        elif found and not line.startswith("  "):
            break
    return [tuple(row) for row in found]


def cell(text):
    return " ".join(str(text).replace("|", "\\|").split())


def table(head, rows):
    return "\n".join([f"| {' | '.join(head)} |", "|" + "---|" * len(head)] + [f"| {' | '.join(cell(c) for c in row)} |" for row in rows]) + "\n"


# ---- schemas: one row a key ----

def amount(number, bytes_meant=False):
    if isinstance(number, bool):
        return str(number).lower()
    if isinstance(number, str):
        return number
    if bytes_meant and number >= 1 << 20 and number % (1 << 20) == 0:
        for name, size in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20)):
            if number % size == 0:
                return f"{number // size} {name}"
    return f"{number:.6g}" if isinstance(number, float) else str(number)


def kind_of(node):
    if "enum" in node:
        return ", ".join("null" if v is None else str(v) for v in node["enum"])
    if "anyOf" in node:
        return " or ".join(dict.fromkeys(kind_of(part) for part in node["anyOf"]))
    kind = node.get("type", "any")
    kinds = [{"array": "list", "object": "object", "string": "text"}.get(k, k) for k in (kind if isinstance(kind, list) else [kind])]
    return " or ".join(kinds)


def range_of(node, bytes_meant):
    parts = node.get("anyOf", [node])
    for part in parts:
        if "minimum" in part or "maximum" in part:
            least = amount(part["minimum"], bytes_meant)
            return f"{least} to {amount(part['maximum'], bytes_meant)}" if "maximum" in part else f"from {least}"
        if "minItems" in part or "maxItems" in part:
            return f"{part.get('minItems', 0)} to {part['maxItems']} entries" if "maxItems" in part else ""
    return ""


def keys(node, path=""):
    """Yields (path, kind, default, range, meaning) of every key, parts before what is in them."""
    for key, value in node.get("properties", {}).items():
        if "$ref" in value:
            value = {"type": "object", "description": "names and values of your own"}
        name = f"{path}{key}"
        must = key in node.get("required", [])
        bytes_meant = re.search(r"\b(bytes|memory)\b", value.get("description", "")) is not None
        default = "needed" if must else amount(value["default"], bytes_meant) if value.get("default") is not None else ""
        if "properties" in value:
            yield name, "object", "needed" if must else "", "", value.get("description", "")
            yield from keys(value, name + ".")
        else:
            yield name, kind_of(value), default, range_of(value, bytes_meant), value.get("description", "")


def key_table(schema):
    return table(("key", "value", "default", "range", "meaning"), [(f"`{k[0]}`", *k[1:]) for k in keys(schema)])


# ---- pages ----

def command_block(command):
    text = f"```text\n{command['usage']}\n```\n{command['about'][0].upper()}{command['about'][1:]}.\n"
    if command["options"]:
        text += "\n" + table(("option", "meaning"), [(f"`{o[0]}`", o[1]) for o in command["options"]])
    return text


RUNS = {"real": "yes", "emulated": "not yet: emulated", "planned only": "no: planned only"}


def of_maker(entry):
    return "NVIDIA" if entry["kind"] == "cuda" else "AMD" if entry["kind"] == "hip" else "Intel" if entry["kind"] == "xpu" else "CPU"


def hardware_page(programs):
    text = "# Hardware\n\n" + HEAD.format("`motley devices --catalogue`") + """
No real GPU is known to have run Motley yet. `make gpu-hour` is for the first who has one: it takes an hour, checks
every kernel on your card and leaves one archive.

| a job runs on it | meaning |
|---|---|
| yes | jobs have run on a real one |
| not yet: emulated | its kernels are compiled, and the same source passes its tests on an emulated card |
| no: planned only | `motley plan` knows its published speed; no worker runs there, and `--runnable` refuses it |
| not in a table below | neither: Apple's GPUs, say. A NVIDIA or AMD card of an architecture named here runs all the same |

`motley devices --code` says which kernels are inside your build. The names stand for `like` in a cluster file.
"""
    for maker in ("CPU", "NVIDIA", "AMD", "Intel"):
        groups = {}
        for entry in programs.catalogue:
            if of_maker(entry) == maker:
                groups.setdefault((entry["arch"], entry["runs"]), []).append(entry["name"])
        rows = [(arch, RUNS[runs], ", ".join(f"`{n}`" for n in names[i:i + 8]))
                for (arch, runs), names in groups.items() for i in range(0, len(names), 8)]
        text += f"\n## {maker if maker != 'CPU' else 'CPUs'}\n" + table(("architecture", "a job runs on it", "names"), rows)
    return text


def readme_row(programs):
    count = {(maker, runs): sum(of_maker(e) == maker and e["runs"] == runs for e in programs.catalogue) for maker in ("NVIDIA", "AMD") for runs in RUNS}
    planned = [e["name"] for e in programs.catalogue if e["runs"] == "planned only" and e["kind"] in ("cuda", "hip")]
    return (f"| devices | x86-64 CPUs with AVX2 or AVX-512 | {count['NVIDIA', 'emulated']} NVIDIA cards (compute capability 5.2 and up, driver 470) and "
            f"{count['AMD', 'emulated']} of AMD's (ROCm 5): [the table](docs/reference/hardware.md) | {', '.join(planned).upper()} and Intel's GPUs "
            "(planned only), Apple's, ARM |")


def http_page():
    text, path, rows = read("api/openapi.yaml"), None, []
    for line in text[text.index("\npaths:"):text.index("\ncomponents:")].splitlines():
        at = re.match(r"  (/\S*):", line)
        method = re.match(r"    (get|post|put|patch|delete):", line)
        about = re.match(r"      summary: (.*)", line)
        path = at.group(1) if at else path
        if method:
            rows.append([f"`{method.group(1).upper()} {path}`", ""])
        elif about:
            rows[-1][1] = about.group(1).strip("'\"")
    return ("# HTTP\n\n" + HEAD.format("api/openapi.yaml") + "\nThe whole description is [openapi.yaml](../../api/openapi.yaml) (`GET /v1/openapi.yaml`). "
            "What holds for all routes, and\nthe codes of problems, are in [INTERFACES.md](../INTERFACES.md).\n\n" + table(("route", "what"), rows))


def job_page(programs):
    return ("# A job's specification, key by key\n\n" + HEAD.format("model/job/spec.c") + """
A YAML or JSON file with these keys. Only `model` and `data.train` are needed. An unknown key, a wrong type or a value
out of range is refused with its path. `motley --schema` prints the JSON schema, for an editor that completes keys. An
example with comments, and what rows look like, is in [INTERFACES.md](../INTERFACES.md).

""" + key_table(programs.schemas["job"]))


# ---- what fits ----

# Shapes of published models of these sizes: Llama 3.2, Mistral 7B, Llama 2 13B.
SIZES = {"1B": (2048, 8192, 16, 32, 8, 128256, True), "3B": (3072, 8192, 28, 24, 8, 128256, True),
         "7B": (4096, 14336, 32, 32, 8, 32000, False), "13B": (5120, 13824, 40, 40, 40, 32000, False)}
PAIRS = [("rtx-2070", "gtx-1070"), ("rtx-3060", "gtx-1080ti"), ("rtx-3080", "rx-6800xt"), ("t4", "t4"), ("rtx-4090", "rtx-3090"),
         ("a100x40", "rtx-3090")]
SHAPE = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "vocab_size", "tie_word_embeddings")
GIGABIT = {"within": {"latency_s": 1e-5, "bytes_per_s": 1e10}, "between": {"latency_s": 1e-4, "bytes_per_s": 1.17e8}}
METHODS = {"qlora": {"kind": "lora", "base": "nf4"}, "lora": {"kind": "lora", "base": "bf16"}}


def fits(programs, folder, pair, size, method):
    """What `motley plan` says of one model on one pair: GiB of each card, or what is lacking."""
    config = dict(zip(SHAPE, SIZES[size]), architectures=["LlamaForCausalLM"], model_type="llama", max_position_embeddings=32768,
                  rms_norm_eps=1e-5, rope_theta=1e6, hidden_act="silu", bos_token_id=1, eos_token_id=2)
    nodes = [{"name": n, "devices": [{"name": f"{n}/0", "like": like}]} for n, like in zip("ab", pair)]
    spec = {"model": folder, "data": {"train": "rows.jsonl", "sequence_tokens": 1024}, "method": METHODS[method],
            "train": {"batch_rows": 8, "steps": 100, "compute": "bf16"}}
    for name, document in (("config.json", config), ("cluster.json", {"nodes": nodes, "links": GIGABIT}), ("job.json", spec)):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as handle:
            json.dump(document, handle)
    at = [os.path.join(folder, name) for name in ("job.json", "cluster.json")]
    done = subprocess.run([os.path.join(programs.folder, "motley"), "plan", at[0], "--cluster", at[1], "--runnable", "--evaluations", "300", "--json"],
                          capture_output=True, text=True, check=False)
    answer = json.loads(done.stdout)
    if answer["verdict"] != "fits":
        return f"no: {answer['shortfall_bytes'] / 2 ** 30:.1f} GiB short"
    used = {rank["device"]: rank["memory_bytes"] / 2 ** 30 for rank in answer["ranks"]}
    return " + ".join(f"{used[d]:.1f}" if d in used else "0" for d in ("a/0", "b/0"))


def memory_table(programs, method):
    usable = {e["name"]: e["usable_bytes"] / 2 ** 30 for e in programs.catalogue}
    with tempfile.TemporaryDirectory(prefix="motley-reference-") as folder:
        rows = [(f"`{a}` + `{b}`", f"{usable[a]:.1f} + {usable[b]:.1f}", *(fits(programs, folder, (a, b), size, method) for size in SIZES))
                for a, b in PAIRS]
    return table(("cards", "usable GiB", *SIZES), rows)


# ---- man pages ----

def troff(text):
    text = text.replace("\\|", "|").replace("\\", "\\e").replace("-", "\\-")
    text = re.sub(r"\[([^\]]*)\]\(([^)]*)\)", r"\1", text)
    text = re.sub(r"\*\*([^*]+)\*\*", r"\\fB\1\\fR", text)
    text = re.sub(r"`([^`]*)`", r"\\fB\1\\fR", text)
    return re.sub(r"^([.'])", r"\\&\1", text, flags=re.M)


def man(name, section, about, body):
    version = re.search(r"VERSION (\d+\.\d+\.\d+)", read("CMakeLists.txt")).group(1)
    return f'.TH {name.upper()} {section} "{DATE}" "Motley {version}" "Motley"\n.SH NAME\n{troff(name)} \\- {troff(about)}\n{body}'


def entries(rows):
    return "".join(f".TP\n\\fB{troff(a)}\\fR\n{troff(b) or '.'}\n" for a, b in rows)


def paragraphs(text):
    return "".join(f".PP\n{troff(' '.join(part.split()))}\n" for part in re.split(r"\n\n+", text.strip()) if part)


def notes(page, name):
    """What people wrote behind a command's block."""
    found = re.search(rf"<!-- made by tools/reference.py: command {re.escape(name)} -->.*?<!-- end -->\n(.*?)(?=\n##|\Z)", page, re.S)
    return found.group(1).strip() if found else ""


def statuses():
    text = read("docs/INTERFACES.md").split("| exit status | meaning |\n|---|---|\n")[1].split("\n\n")[0]
    return [tuple(c.strip() for c in line.strip("|").split("|")) for line in text.splitlines()]


def motley_page(programs, commands):
    body = ".SH SYNOPSIS\n.B motley\n.I COMMAND\n[\\fIoptions\\fR]\n.SH DESCRIPTION\n" + troff(
        "Motley fine-tunes one language model across the different GPUs and CPUs that a lab already owns. It measures the devices, plans "
        "which layers go where, predicts step time and memory, trains, and writes an adapter or a model.") + "\n.SH OPTIONS\n" + entries(programs.common)
    for title, names in programs.groups:
        body += f".SH {troff(title.split(':')[0].upper())}\n"
        for name in names:
            command = programs.commands[name]
            body += f".SS {troff(command['usage'])}\n{troff(command['about'])}.\n{entries(command['options'])}"
            body += paragraphs(notes(commands, name)) if notes(commands, name) else ""
    body += ".SH EXIT STATUS\n" + entries(statuses())
    body += ".SH ENVIRONMENT\n" + entries([("MOTLEY_HOME", "the home, unless --home names it; else ~/.motley"), ("HF_ENDPOINT, HF_HOME, HF_TOKEN", "as Hugging Face's tools read them")])
    return man("motley", 1, "train one model over unlike devices", body + ".SH SEE ALSO\n" + ", ".join(f"{troff(d)}(8)" for d in DAEMONS) + "\n")


def daemon_page(programs, name):
    text = programs.says(name, "--help")
    usage = re.match(r"usage: (.*)", text).group(1)
    body = f".SH SYNOPSIS\n{troff(usage)}\n.SH OPTIONS\n{entries(options(text))}"
    schema = programs.schemas.get(name.split("-")[1])
    if schema:
        rows = [(key, "; ".join(part for part in (kind, f"default {default}" if default and default != "needed" else default, span, about) if part))
                for key, kind, default, span, about in keys(schema)]
        body += ".SH CONFIGURATION\nA YAML file with these keys.\n" + entries(rows)
    elif name == "motley-agent":
        body += f".SH CONFIGURATION\n.nf\n{troff(agent_file())}\n.fi\n"
    return man(name, 8, DAEMONS[name], body + ".SH SEE ALSO\nmotley(1)\n")


def agent_file():
    """The file as agent/config.h describes it."""
    text = re.search(r"file \(YAML or JSON\):\n \*\n(.*?)\n \*\n", read("agent/config.h"), re.S).group(1)
    return "\n".join(re.sub(r"^ \* {0,5}", "", line).rstrip() for line in text.splitlines())


# ---- writing ----

def blocks_of(path, made):
    """The file with each block that `made` has put in anew; a block of another name is an error."""
    def fill(match):
        return f"{match.group(1)}{made[match.group(2)]}<!-- end -->"
    return re.sub(r"(<!-- made by tools/reference.py: ([^>]*?) -->\n).*?<!-- end -->", fill, read(path), flags=re.S)


def all_files(programs):
    files = {"docs/reference/job.md": job_page(programs), "docs/reference/hardware.md": hardware_page(programs), "docs/reference/http.md": http_page()}
    made = {f"command {name}": command_block(command) for name, command in programs.commands.items()}
    made |= {"api": key_table(programs.schemas["api"]), "scheduler": key_table(programs.schemas["scheduler"]),
             "agent": f"```text\n{agent_file()}\n```\n",
             "what fits with qlora": memory_table(programs, "qlora"), "what fits with lora": memory_table(programs, "lora")}
    for path in ("docs/reference/commands.md", "docs/reference/files.md", "docs/INTERFACES.md", "docs/how-to/what-fits.md"):
        files[path] = blocks_of(path, made)
    for name in programs.commands:
        if f"tools/reference.py: command {name} -->" not in files["docs/reference/commands.md"]:
            raise SystemExit(f"docs/reference/commands.md has no block `command {name}`")
    files["README.md"] = re.sub(r"^\| devices \|.*$", lambda _: readme_row(programs), read("README.md"), count=1, flags=re.M)
    files["docs/man/motley.1"] = motley_page(programs, files["docs/reference/commands.md"])
    for name in DAEMONS:
        files[f"docs/man/{name}.8"] = daemon_page(programs, name)
    return files


def main():
    words = [word for word in sys.argv[1:] if word != "--check"]
    programs = Programs(words[0] if words else os.environ.get("MOTLEY_BIN") or os.path.join(ROOT, "build", "bin"))
    stale = []
    for path, text in all_files(programs).items():
        at = os.path.join(ROOT, path)
        if os.path.exists(at) and read(path) == text:
            continue
        stale.append(path)
        if "--check" not in sys.argv:
            os.makedirs(os.path.dirname(at), exist_ok=True)
            with open(at, "w", encoding="utf-8") as handle:
                handle.write(text)
    print("\n".join(f"{path}: {'stale: make reference' if '--check' in sys.argv else 'written'}" for path in stale) or "nothing to write")
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
