#!/bin/sh
# liblathe exports what lathe.h declares, nothing that no public header declares, and is below 1 MB without its symbols.
# Arguments: the library, the folder of the headers.
set -eu
library=$1
headers=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
names() { sed -e 's,/\*.*\*/,,g' "$@" | grep -v '^ \*' | grep -o 'lathe_[a-z0-9_]*(' | tr -d '(' | sort -u; }
names "$headers/lathe.h" > "$work/declared"
names "$headers/lathe.h" "$headers/lathe_status.h" > "$work/allowed"
nm -D --defined-only "$library" | awk '$2 == "T" { sub(/@.*/, "", $3); print $3 }' | sort -u > "$work/exported"
nm -D --defined-only "$library" | awk '$2 != "T" && $2 != "A" { print $3 }' > "$work/others"
failed=0
for name in $(comm -23 "$work/declared" "$work/exported"); do
    echo "lathe.h declares $name, the library does not export it"
    failed=1
done
for name in $(comm -13 "$work/allowed" "$work/exported") $(cat "$work/others"); do
    echo "the library exports $name, no public header declares it"
    failed=1
done
strip -o "$work/stripped" "$library"
size=$(wc -c < "$work/stripped")
echo "$(wc -l < "$work/exported") functions exported, $size bytes stripped"
if [ "$size" -ge 1000000 ]; then
    echo "the stripped library has $size bytes, at most 1000000 are allowed"
    failed=1
fi
exit $failed
