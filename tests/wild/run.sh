#!/usr/bin/env bash
# make wild: Motley beside the libraries. WILD_PYTHON names a Python that has them (requirements.txt); without it they
# are installed into build/wild-venv, once. Where they cannot be had it is skipped, and says so.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${WILD_PYTHON:-build/wild-venv/bin/python}
if [ -z "${WILD_PYTHON:-}" ] && [ ! -e build/wild-venv/ready ]; then
    { python3 -m venv build/wild-venv && build/wild-venv/bin/pip install --quiet --prefer-binary \
        --extra-index-url https://download.pytorch.org/whl/cpu -r tests/wild/requirements.txt; } ||
        { echo "make wild: skipped, the libraries of tests/wild/requirements.txt cannot be installed here"; exit 0; }
    touch build/wild-venv/ready
fi
exec "$python" tests/wild/wild.py 2>build/wild.log
