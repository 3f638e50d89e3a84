"""A case: files of a folder and questions about it; how it is built, asked, and compared with what is right.

    {"kind": ..., "keys": [names that a refusal may name], "files": {name: JSON, or text as it is},
     "links": {name: path in tests/data}, "adapter": {"files", "links"} or none, "ask": [questions, no folder]}

A tokenizer's model.vocab and model.merges may be short for the whole: "bytes" stands for the 256 characters of bytes
and for WORDS, "pieces" for a vocabulary as SentencePiece has it. Results of merges are in the vocabulary, too.
"""
import json
import math
import os
import pathlib
import select
import shutil
import subprocess

DATA = pathlib.Path(__file__).resolve().parent.parent / "data"
WORDS = ["t h", "th e", "a b", "ab c", "1 2", "12 3", "i n", "in g", "Ġ t", "Ġt he", "Ġ a", "Ċ Ċ", "Ġ Ġ", "Ã ©", "' s",
         "h e", "l l", "he ll", "hell o", "Ġ Ċ", "ð Ł", "ä ¸"]
PIECES = [*"▁abcdefghilnorstuABT0123456789.,!'-()é中ü", " ", "\n", "▁▁", "the", "▁the", "▁a", "ab", "in", "ing", "12"]
PIECE_MERGES = ["t h", "th e", "▁ the", "▁ a", "a b", "i n", "in g", "1 2", "▁ ▁"]
START_SECONDS = 90  # in which the libraries are loaded
ALLOWED = ["equal", "refused by both", "the library fails", "refused by name"]
LOSS_TOLERANCE, LOGITS_TOLERANCE = 1e-5, 1e-4  # relative; absolute


def byte_characters():
    """GPT-2's printable character of every byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    of = {b: chr(b) for b in plain} | {b: chr(256 + i) for i, b in enumerate(others)}
    return [of[b] for b in range(256)]


def expand_tokenizer(tokenizer):
    model = tokenizer.get("model") if isinstance(tokenizer, dict) else None
    if not isinstance(model, dict) or not isinstance(model.get("vocab"), str):
        return tokenizer
    pieces = {"bytes": byte_characters(), "pieces": ["<unk>", *(f"<0x{b:02X}>" for b in range(256)), *PIECES]}
    merges = {"bytes": WORDS, "pieces": PIECE_MERGES}
    if model["vocab"] not in pieces:
        return tokenizer
    words = dict.fromkeys([*pieces[model["vocab"]], *(merge.replace(" ", "") for merge in merges[model["vocab"]])])
    model = model | {"vocab": {p: i for i, p in enumerate(words)}}
    if isinstance(model.get("merges"), str):
        model["merges"] = merges.get(model["merges"], model["merges"])
    return tokenizer | {"model": model}


def write_folder(folder, files, links):
    folder.mkdir(parents=True)
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name == "tokenizer.json":
            content = expand_tokenizer(content)
        path.write_bytes((content if isinstance(content, str) else json.dumps(content)).encode("utf-8", "surrogatepass"))
    for name, target in links.items():
        os.symlink(DATA / target, folder / name)


class Built:
    """The folder of a case, as long as it is entered."""

    def __init__(self, case, scratch):
        self.case, self.root = case, pathlib.Path(scratch) / "case"

    def __enter__(self):
        shutil.rmtree(self.root, ignore_errors=True)
        write_folder(self.root / "model", self.case["files"], self.case.get("links", {}))
        if self.case.get("adapter"):
            write_folder(self.root / "adapter", self.case["adapter"]["files"], self.case["adapter"]["links"])
        return self

    def __exit__(self, *ignored):
        shutil.rmtree(self.root, ignore_errors=True)

    def questions(self):
        place = {"folder": str(self.root / "model")}
        if self.case.get("adapter"):
            place["adapter"] = str(self.root / "adapter")
        return [question | ({} if "template" in question else place) for question in self.case["ask"]]


class Answerer:
    """A program that answers a JSON line with one. It is started again after it ended, or was ended because an answer
    took longer than 'seconds'; an end is an answer, {"crash": ...}."""

    def __init__(self, command, seconds=15):
        self.command = [command, "10"] if isinstance(command, str) else command  # wild_answer's own limit
        self.seconds, self.process, self.ready = seconds, None, False

    def ask(self, question):
        if self.process is None or self.process.poll() is not None:
            self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            self.ready = False
        try:
            self.process.stdin.write(json.dumps(question).encode() + b"\n")
            self.process.stdin.flush()
            if select.select([self.process.stdout], [], [], self.seconds + (0 if self.ready else START_SECONDS))[0]:
                line = self.process.stdout.readline()
                if line:
                    self.ready = True
                    return json.loads(line)
                why = "ended"
            else:
                why = f"took more than {self.seconds} s"
        except BrokenPipeError:
            why = "ended"
        self.process.kill()
        self.process.wait()
        return {"crash": f"{why} ({self.process.returncode})"}

    def close(self):
        if self.process is not None:
            self.process.stdin.close()
            self.process.wait()


def near(ours, theirs, tolerance, relative):
    if math.isnan(theirs) or math.isinf(theirs):
        return False
    return abs(ours - theirs) <= tolerance * (max(abs(theirs), 1e-9) if relative else 1)


def same_rows(got, want, dropped):
    """Rows of which nothing is learnt are dropped; so may be one whose labels no library says."""
    want = [w for w in want if w.get("labels") is None or any(label != -100 for label in w["labels"])]
    for w in want:
        if got and got[0]["ids"] == w["ids"] and w.get("labels") in (None, got[0]["labels"]):
            got = got[1:]
        elif w.get("labels") is None and dropped > 0:
            dropped -= 1
        else:
            return False
    return not got


def same(ours, theirs):
    """Whether an answer says all that is expected. Labels of None are not known, a row of them likewise."""
    for key, want in theirs.items():
        got = ours.get(key)
        if key == "loss":
            if not near(got, want, LOSS_TOLERANCE, True):
                return False
        elif key == "logits":
            if len(got) != len(want) or not all(near(g, w, LOGITS_TOLERANCE, False) for g, w in zip(got, want)):
                return False
        elif key == "rows":
            if not same_rows(got, want, ours.get("dropped", 0)):
                return False
        elif got != want:
            return False
    return True


def names_a_key(text, keys):
    return any(key in text for key in keys)


def outcome(ours, theirs, keys):
    """None for an outcome that is allowed, else what is wrong. 'theirs' of {"refused": ...} is a refusal."""
    if "crash" in ours:
        return "crash"
    if "panic" in theirs or "crash" in theirs:  # the library's own fault: there is no right value
        return None
    if "error" in ours:
        if ours["error"]["code"] == "internal":
            return "internal error"
        if "refused" in theirs or names_a_key(ours["error"]["text"], keys):
            return None
        return "refused without a key's name"
    if "refused" in theirs:
        return "accepted by Motley alone"
    return None if same(ours, theirs) else "another answer"


def allowed(ours, theirs):
    """Which of the allowed outcomes one is."""
    if "panic" in theirs or "crash" in theirs:
        return "the library fails"
    if "refused" in theirs:
        return "refused by both"
    return "refused by name" if "error" in ours else "equal"


def read(path, variables):
    """The cases of a file, one a line; variables that are named are those of 'variables'."""
    for line in pathlib.Path(path).read_text().split("\n")[:-1]:
        case = json.loads(line)
        for question in case["ask"]:
            if isinstance(question.get("variables"), str):
                question["variables"] = variables[question["variables"]]
        yield case
