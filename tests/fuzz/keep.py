#!/usr/bin/env python3
"""Say what each target reached, and keep the smallest inputs that reach it.

    tests/fuzz/keep.py BUILD        after `make fuzz`: a row of a table each; with FUZZ_KEEP=1 writes tests/fuzz/kept/TARGET.zip

Kept are the inputs that libFuzzer's merge chooses out of the corpus of the run, of the seeds and of what was kept, from
the smallest on, up to KEPT_BYTES a target. seeds.py unpacks them: they are replayed in `make test`.
"""
import os
import re
import subprocess
import sys
import tempfile
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
KEPT_BYTES = 24 << 10  # compressed; 32 targets stay below 1 MB


def merged(program, name, build, folder):
    """The smallest inputs that together reach what all do, from the smallest on."""
    from_ = [os.path.join(build, kind, name) for kind in ("corpus", "seeds")]
    subprocess.run([program, "-merge=1", "-max_len=65536", "-rss_limit_mb=3000", folder, *filter(os.path.isdir, from_)], check=True,
                   capture_output=True, env={**os.environ, "ASAN_OPTIONS": "detect_leaks=0"}, timeout=600)
    inputs = [open(os.path.join(folder, file), "rb").read() for file in os.listdir(folder)]
    return sorted(inputs, key=lambda data: (len(data), data))


def keep(name, inputs):
    """Writes as many as there is room for; returns their number. Equal inputs give an equal file."""
    path, count = os.path.join(HERE, "kept", name + ".zip"), 0
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for data in inputs:
            if archive.fp.tell() + 60 * count + 160 + len(data) // 2 > KEPT_BYTES:  # 60: its entry in the list at the end
                continue
            archive.writestr(zipfile.ZipInfo("%d" % count), data, zipfile.ZIP_DEFLATED)
            count += 1
    return count


def main():
    build = os.path.abspath(sys.argv[1])
    print("| target | seconds | runs | edges (cov) | features (ft) | inputs kept |\n|---|---|---|---|---|---|")
    for log in sorted(file for file in os.listdir(build) if file.endswith(".log") and file != "compile.log"):
        name = log.removesuffix(".log")
        with open(os.path.join(build, log), encoding="utf-8", errors="replace") as file:
            text = file.read()
        reached = re.findall(r"cov: (\d+) ft: (\d+)", text)
        done = re.search(r"Done (\d+) runs in (\d+) second", text)
        if not reached or not done:
            print(f"| {name} | the run ended early | | | | |")
            continue
        count = ""
        if os.environ.get("FUZZ_KEEP"):
            with tempfile.TemporaryDirectory() as folder:
                count = keep(name, merged(os.path.join(build, "bin", "fuzz_" + name), name, build, folder))
        print(f"| {name} | {done.group(2)} | {done.group(1)} | {reached[-1][0]} | {reached[-1][1]} | {count} |", flush=True)


if __name__ == "__main__":
    main()
