#!/usr/bin/env bash
# make wild: Motley beside the libraries, then the readers of what jobs leave. WILD_PYTHON names a Python that has the
# libraries of requirements.txt, WILD_PYTHON_OLD one with those of requirements-old.txt; without them they are installed
# into build/wild-venv and build/wild-venv-old, once (pip's own variables hold, such as PIP_EXTRA_INDEX_URL for PyTorch
# without CUDA). What cannot be had is skipped, and says so.
set -euo pipefail
cd "$(dirname "$0")/../.."

# make_venv FOLDER REQUIREMENTS: a new environment, or none of it.
make_venv()
{
    [ -e "$1/ready" ] && return
    python3 -m venv "$1" && { [ -z "${3:-}" ] || echo "$3" >"$(echo "$1"/lib/python3*/site-packages)/newer.pth"; } &&
        "$1/bin/pip" install --quiet --prefer-binary --retries 1 -r "$2" && touch "$1/ready" ||
        { echo "make wild: the libraries of $2 cannot be installed here"; return 1; }
}

if [ -z "${WILD_PYTHON:-}" ]; then
    make_venv build/wild-venv tests/wild/requirements.txt || { echo "make wild: skipped"; exit 0; }
    WILD_PYTHON=$PWD/build/wild-venv/bin/python
fi
if [ -z "${WILD_PYTHON_OLD:-}" ]; then
    newer=$("$WILD_PYTHON" -c 'import os, torch; print(os.path.dirname(os.path.dirname(torch.__file__)))')
    ! make_venv build/wild-venv-old tests/wild/requirements-old.txt "$newer" ||
        WILD_PYTHON_OLD=$PWD/build/wild-venv-old/bin/python
fi
export WILD_PYTHON WILD_PYTHON_OLD
status=0
"$WILD_PYTHON" tests/wild/wild.py 2>build/wild.log || status=$?
[ -n "${WILD_KINDS:-}" ] || python3 tests/wild/readers.py 2>>build/wild.log || status=$?
exit $status
