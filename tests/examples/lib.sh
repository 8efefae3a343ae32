# shellcheck shell=bash
# What the scripts in this folder share. Sourced; `program` is set behind it.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# refuse ARGS...: arguments that are no numbers, or too many, end the program with its usage and status 2.
refuse() {
    local status=0
    "$program" "$@" >"$work/refused" 2>&1 || status=$?
    if [ "$status" != 2 ] || ! grep -q "^usage: " "$work/refused"; then
        echo "arguments '$*': status $status"
        cat "$work/refused"
        exit 1
    fi
}
