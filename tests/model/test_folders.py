"""What the installed transformers saves is read: folders made now, not those in the tree (test_folders.c).

MOTLEY_TRANSFORMERS names Pythons that have torch and transformers, separated by colons; without it, MOTLEY_TORCH's
or python3 is asked. Skipped where none has them.
"""
import os
import pathlib
import subprocess
import sys
import tempfile

SOURCE, BIN = pathlib.Path(os.environ["MOTLEY_SOURCE"]), pathlib.Path(os.environ["MOTLEY_BIN"])


def version(python):
    ask = "import torch, transformers; print(transformers.__version__)"
    answer = subprocess.run([python, "-c", ask], capture_output=True, text=True)
    return answer.stdout.strip() if answer.returncode == 0 else None


def main():
    pythons = os.environ.get("MOTLEY_TRANSFORMERS", os.environ.get("MOTLEY_TORCH", "python3")).split(":")
    found = {python: version(python) for python in pythons}
    if not any(found.values()):
        print("SKIP: no transformers in", ", ".join(pythons), "(set MOTLEY_TRANSFORMERS)")
        return 77
    with tempfile.TemporaryDirectory() as root:
        for python, number in found.items():
            if number is None:
                continue
            major = {"5": "transformers5", "4": "transformers4"}[number[0]]
            if number.startswith("4.") and int(number.split(".")[1]) < 53:
                major = "transformers4.31"
            subprocess.run([python, SOURCE / "tools/make_folders.py", f"{root}/{major}"], check=True,
                           stderr=subprocess.DEVNULL)
        return subprocess.run([BIN / "test_model_folders"], env={**os.environ, "MOTLEY_FOLDERS": root}).returncode


if __name__ == "__main__":
    sys.exit(main())
