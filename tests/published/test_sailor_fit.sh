#!/bin/bash
# Sailor's constants are what tools/fit_sailor.py fits to the homogeneous OPT-350 plans alone, and the program predicts
# what that script's own formulas do.
set -eu
exec python3 "$MOTLEY_SOURCE/tools/fit_sailor.py" --motley "$MOTLEY_BIN/motley"
