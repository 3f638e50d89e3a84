#!/usr/bin/env bash
# One target over its seeds and over what once went wrong: replay.sh PROGRAM TARGET
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 "$(dirname "$0")/seeds.py" "$folder"
"$1" "$folder/$2"
