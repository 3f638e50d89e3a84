#!/usr/bin/env bash
# Real rows for the demo: what Debian packages are, from this machine's own package lists.
# Usage: tools/demo_rows.sh TRAIN.jsonl HELD-OUT.jsonl [TRAIN_ROWS [HELD_OUT_ROWS]]     (400 and 50)
# Deterministic for given lists: packages are taken in the order of a hash of their names. No package and no description
# stands in both files. Two phrasings take turns.
set -euo pipefail
export LC_ALL=C

train=${1:?usage: demo_rows.sh TRAIN.jsonl HELD-OUT.jsonl [TRAIN_ROWS [HELD_OUT_ROWS]]}
held=${2:?usage: demo_rows.sh TRAIN.jsonl HELD-OUT.jsonl [TRAIN_ROWS [HELD_OUT_ROWS]]}
train_rows=${3:-400}
held_rows=${4:-50}

# package, section and first line of the description, one a line, tab-separated.
stanzas() {
    awk '
        function out() {
            if (name != "" && section != "" && what != "") printf "%s\t%s\t%s\n", name, section, what
            name = section = what = ""
        }
        /^$/ { out(); next }
        /^Package: / { name = substr($0, 10) }
        /^Section: / { section = substr($0, 10) }
        /^Description(-en)?: / { what = substr($0, index($0, ": ") + 2) }
        END { out() }'
}

# Keep plain, short, distinct ones, with the hash of the name in front.
choose() {
    awk -F '\t' '
        BEGIN { for (i = 1; i < 256; i++) ord[sprintf("%c", i)] = i }
        $3 ~ /[^ -~]/ || length($3) < 12 || length($3) > 72 { next }
        tolower($3) ~ /transitional|dummy|metapackage|debug symbols|obsolete/ { next }
        $1 ~ /-dbg(sym)?$/ || seen_name[$1]++ || seen_what[tolower($3)]++ { next }
        {
            sub(/^.*\//, "", $2)
            h = 7
            for (i = 1; i <= length($1); i++) h = (h * 131 + ord[substr($1, i, 1)]) % 2147483647
            for (i = 0; i < 4; i++) h = (h * 48271 + 11) % 2147483647
            printf "%010d\t%s\t%s\t%s\n", h, $1, $2, $3
        }' | sort
}

rows() {
    awk -F '\t' '
        function json(s) { gsub(/\\/, "\\\\", s); gsub(/"/, "\\\"", s); return s }
        {
            answer = $4
            if (answer !~ /\.$/) answer = answer "."
            if (NR % 2 == 1)
                printf "{\"instruction\": \"Say in one line what the Debian package %s is.\", \"input\": \"\", \"output\": \"%s\"}\n", json($2), json(answer)
            else
                printf "{\"instruction\": \"What is this Debian package for?\", \"input\": \"%s (section %s)\", \"output\": \"%s\"}\n", json($2), json($3), json(answer)
        }'
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
need=$((train_rows + held_rows))
{ apt-cache dumpavail 2>/dev/null || true; } | stanzas | choose >"$work/chosen"
if [ "$(wc -l <"$work/chosen")" -lt "$need" ]; then
    { apt-cache dumpavail 2>/dev/null || true; cat /var/lib/dpkg/status; } | stanzas | choose >"$work/chosen"
fi
found=$(wc -l <"$work/chosen")
if [ "$found" -lt "$need" ]; then
    echo "demo_rows: $need packages are needed and this machine's lists describe $found; run apt-get update" >&2
    exit 1
fi
sed -n "1,${train_rows}p" "$work/chosen" | rows >"$work/train"
sed -n "$((train_rows + 1)),${need}p" "$work/chosen" | rows >"$work/held"
mv "$work/train" "$train"
mv "$work/held" "$held"
