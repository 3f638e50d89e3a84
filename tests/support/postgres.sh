#!/usr/bin/env bash
# postgres.sh DATA: makes the folder of a fresh PostgreSQL at DATA, owned, for root, by the user postgres (or nobody).
# initdb takes a second of a core, so it runs once in a build folder (MOTLEY_BUILD), and the other tests get copies.
set -euo pipefail
user=$(id -un)
[ "$(id -u)" != 0 ] || user=$(id -un postgres 2>/dev/null || echo nobody)
initdb=$(printf '%s\n' /usr/lib/postgresql/*/bin/initdb | sort -V | tail -n 1)
[ -x "$initdb" ] || initdb=$(command -v initdb)
made=$MOTLEY_BUILD/postgres-$("$initdb" --version | grep -oE '[0-9.]+' | head -n 1)
exec 9>"$made.lock"
flock 9
if [ ! -d "$made" ]; then
    fresh=$(mktemp -d)
    trap 'rm -rf "$fresh" "$made.part"' EXIT
    chmod 755 "$fresh" && mkdir "$fresh/data" && chown "$user" "$fresh/data"
    as=()
    [ "$(id -u)" != 0 ] || as=(setpriv --reuid="$user" --regid="$(id -g "$user")" --clear-groups)
    (cd / && "${as[@]}" "$initdb" -D "$fresh/data" -U motley -A trust -N -E UTF8 --locale=C --wal-segsize=1 --no-instructions >/dev/null)
    echo "fsync = off" >>"$fresh/data/postgresql.conf" # nothing here outlives the machine
    rm -rf "$made.part" && cp -a "$fresh/data" "$made.part" && mv "$made.part" "$made"
fi
flock -u 9
cp -a "$made" "$1"
