#!/usr/bin/env bash
# in_memory.sh COMMAND …: runs it with TMPDIR, for what lives no longer than a test, in a new folder in memory. Tests make
# and remove thousands of small files, whose names and inodes cost ext4 a fifth of a service test's CPU time. Where the
# machine has no such place or too little memory, programs may not run there, or TMPDIR is set, the command runs as it is.
set -euo pipefail
place=/dev/shm
need_kib=$((8 << 20)) # tests side by side leave up to 2 GiB there, and need as much to run
# What a control group may have in KiB, in which files in memory count; else nothing.
limit_kib() {
    local file
    for file in /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes; do
        [ ! -r "$file" ] || awk '$1 != "max" && $1 < 2 ^ 60 {print int($1 / 1024)}' "$file"
    done
}
enough() {
    [ -z "${TMPDIR:-}" ] && [ -w "$place" ] && [ "$(stat -f -c %T "$place")" = tmpfs ] &&
        [ "$(limit_kib | sort -n | head -n 1 | grep . || echo "$need_kib")" -ge "$need_kib" ] &&
        [ "$(awk '$1 == "MemAvailable:" {print $2}' /proc/meminfo)" -ge "$need_kib" ] &&
        [ "$(df -k --output=avail "$place" | tail -n 1)" -ge $((need_kib / 2)) ]
}
if enough; then
    folder=$(mktemp -d "$place/motley-XXXXXX")
    trap 'rm -rf "$folder"' EXIT
    chmod 1777 "$folder" # as /tmp: PostgreSQL's user passes through it, and tests give up root and make folders there
    cp "$(type -P true)" "$folder/runs"
    if "$folder/runs" 2>/dev/null; then
        export TMPDIR=$folder
    fi
    rm "$folder/runs"
fi
"$@"
