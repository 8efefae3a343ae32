#!/usr/bin/env bash
# The example averages an array: exactly after log2 n steps on the exponential graph, and ever closer on others.
# A graph that cannot work ends the whole job with a message.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
program=$DESCENT_BINARY_DIR/examples/average

# errors LOG: rank 0's errors, in one line.
errors() {
    awk '/^step/ { printf "%s ", $NF }' "$1"
}

"$program" exponential 2 >"$work/alone"
[ "$(errors "$work/alone")" = "0 0 " ] || { cat "$work/alone"; exit 1; }

refuse ring abc
refuse ring -5
refuse ring 3x
refuse ring 99999999999999999999
refuse ring 3 more

[ -x "${DESCENT_MPIEXEC:-}" ] || exit 0
read -ra flags <<<"${DESCENT_MPIEXEC_FLAGS:-}"
job() {
    timeout 300 "$DESCENT_MPIEXEC" "${flags[@]}" "$@"
}
job -n 2 "$program" exponential 2 >"$work/two"
[ "$(errors "$work/two")" = "0 0 " ] || { cat "$work/two"; exit 1; }
job -n 4 "$program" exponential 3 >"$work/four"
awk '/^step/ { e[++n] = $NF } END { exit !(n == 3 && e[1] > 0 && e[2] == 0 && e[3] == 0) }' "$work/four" ||
    { cat "$work/four"; exit 1; }
job -n 3 "$program" ring 20 >"$work/three"
awk '/^step/ { e[++n] = $NF } END { exit !(n == 20 && e[1] > 0.1 && e[20] < 0.01) }' "$work/three" ||
    { cat "$work/three"; exit 1; }

if job -n 3 "$program" hypercube 2>"$work/error"; then
    echo "a hypercube of three ranks was not refused"
    exit 1
fi
grep -q "average: .*hypercube" "$work/error"
