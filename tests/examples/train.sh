#!/usr/bin/env bash
# The example trains alone and on two ranks, its loss falls, and a wrong data set ends the whole job with a message.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
program=$DESCENT_BINARY_DIR/examples/train_small

# check_run LOG: two epochs of two lines, the last training loss below the first.
check_run() {
    awk '{ lines++ } /training/ { loss = $5; if (!first) first = loss }
         END { exit !(lines == 4 && first > 0 && loss > 0 && loss < first) }' "$1" || { cat "$1"; exit 1; }
}

"$program" synthetic:512 2 >"$work/alone"
check_run "$work/alone"
if "$program" nonsense 2>"$work/error" || ! grep -q "train_small: .*nonsense" "$work/error"; then
    echo "a wrong data set was not refused"
    exit 1
fi

refuse synthetic:512 abc
refuse synthetic:512 0
refuse synthetic:512 ""
refuse synthetic:512 1 more

[ -x "${DESCENT_MPIEXEC:-}" ] || exit 0
read -ra flags <<<"${DESCENT_MPIEXEC_FLAGS:-}"
"$DESCENT_MPIEXEC" "${flags[@]}" -n 2 "$program" synthetic:512 2 >"$work/two"
check_run "$work/two"
if timeout 300 "$DESCENT_MPIEXEC" "${flags[@]}" -n 2 "$program" nonsense 2>"$work/error"; then
    echo "a wrong data set was not refused on two ranks"
    exit 1
fi
grep -q "train_small: rank [01]: .*nonsense" "$work/error"
