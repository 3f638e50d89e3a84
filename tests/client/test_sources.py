#!/usr/bin/env python3
"""The client's sources: models and operations are what api/openapi.yaml gives, and strictly typed.

What it needs from PyPI (PyYAML, basedpyright) lies in .cache/client, and node is Debian's; a visible skip without them."""
import os
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from claims import SLOW, SOURCE, expect, main, skip  # noqa: E402

PACKAGES = os.path.join(SOURCE, ".cache", "client")
CLIENT = os.path.join(SOURCE, "client")
if not os.path.isdir(os.path.join(PACKAGES, "basedpyright")):
    skip("PyYAML and basedpyright are not in .cache/client: tools/pypi_packages.sh client fetches them")
sys.path[:0] = [PACKAGES, CLIENT]
import generate  # noqa: E402
import yaml  # noqa: E402


def models_and_operations_are_what_openapi_gives():
    done = subprocess.run([sys.executable, os.path.join(CLIENT, "generate.py"), "--check"], capture_output=True, text=True, check=False,
                          env={**os.environ, "PYTHONPATH": PACKAGES}, timeout=60 * SLOW)
    expect(done.returncode == 0, done.stdout + done.stderr[-1000:])


def every_operation_has_a_method_or_is_known_to_be_by_hand():
    with open(generate.SOURCE, encoding="utf-8") as handle:
        document = yaml.safe_load(handle)
    every = {path[method]["operationId"] for path in document["paths"].values() for method in generate.METHODS if method in path}
    made = {name for name, _, _ in generate.Generator(document).operations()}
    left = {one for one in every if generate.snake(one) not in made}
    expect(left == {"followJob", "followCluster", "putFile", "getFile", "headFile", "getArtifact"}, left)
    return f"{len(made)} methods"


def the_generator_refuses_what_it_does_not_know():
    for schema in ({"type": "object", "properties": {"a": {"oneOf": []}}}, {"type": "file"}, {"type": "string", "of steps": None}):
        try:
            generate.Generator({}).kind(schema, "Thing", False)
        except generate.Unknown as refused:
            expect("Thing" in str(refused), refused)
        else:
            expect(False, f"{schema} was taken")


USES = """from motley import AsyncClient, Client

def good(client: Client) -> float | None:
    for line in client.list_jobs(state=['running']):
        print(line.name.upper())
        client.cancel_job(line)
    client.fetch(client.submit({}), 'out')
    return client.get_job(17).loss

async def awaited(client: AsyncClient) -> int:
    return (await client.get_job(17)).id

def bad(client: Client, other: AsyncClient) -> str:
    client.get_job('17')
    client.list_metrics(1, kind='loss')
    print(other.get_job(17).id)
    return client.get_job(17).los
"""


def the_sources_are_strictly_typed_and_so_is_what_their_users_write():
    """basedpyright is pyright with its JavaScript inside the wheel. In strict mode it has nothing to say about the sources, and finds
    a wrong argument, a wrong word, a forgotten await and a wrong member in USES: types come through the descriptors."""
    node = shutil.which("node")
    if not node:
        skip("node is not installed (Debian package nodejs): types are not checked")
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(CLIENT, "pyproject.toml"), encoding="utf-8") as handle:
            settings = handle.read()
        expect('typeCheckingMode = "strict"' in settings and 'include = ["src"]' in settings, settings)
        with open(os.path.join(folder, "pyproject.toml"), "w", encoding="utf-8") as handle:
            handle.write(settings.replace('include = ["src"]', f'include = [".", "{CLIENT}/src"]\nextraPaths = ["{CLIENT}/src"]'))
        with open(os.path.join(folder, "uses.py"), "w", encoding="utf-8") as handle:
            handle.write(USES)
        done = subprocess.run([node, os.path.join(PACKAGES, "basedpyright", "index.js"), "-p", folder, "--pythonpath", sys.executable],
                              capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": PACKAGES}, timeout=300 * SLOW)
    found = [line for line in done.stdout.splitlines() if re.search(r":\d+ - \w+: ", line)]
    expect(all("uses.py" in line for line in found), "\n".join(found))
    lines = sorted({int(line.split("uses.py:")[1].split(":")[0]) for line in found})
    expect(lines == [14, 15, 16, 17], done.stdout[-3000:] + done.stderr[-1000:])


main(models_and_operations_are_what_openapi_gives, every_operation_has_a_method_or_is_known_to_be_by_hand,
     the_generator_refuses_what_it_does_not_know, the_sources_are_strictly_typed_and_so_is_what_their_users_write)
