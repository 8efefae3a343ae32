#!/usr/bin/env bash
# The hand-written network: K-FAC's loss ends at less than a quarter of SGD's lowest, alone and on two ranks, and the
# two runs agree. A number of ranks that does not divide the batch ends the whole job with a message.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
program=$DESCENT_BINARY_DIR/examples/kfac_by_hand

# check_run LOG: a head and ten lines "N steps SGD K-FAC".
check_run() {
    awk '/steps/ { lines++; kfac = $4; if (lowest == "" || $3 < lowest) lowest = $3 }
         END { exit !(lines == 10 && lowest > 0 && kfac > 0 && 4 * kfac < lowest) }' "$1" || { cat "$1"; exit 1; }
}

"$program" >"$work/alone"
check_run "$work/alone"

refuse x y
refuse 0.5 y
refuse 0.5 -1
refuse nan
refuse 0.5 0.1 more

[ -x "${DESCENT_MPIEXEC:-}" ] || exit 0
read -ra flags <<<"${DESCENT_MPIEXEC_FLAGS:-}"
"$DESCENT_MPIEXEC" "${flags[@]}" -n 2 "$program" >"$work/two"
check_run "$work/two"
# Later on a ReLU may switch on one side of its kink or the other, by rounding.
paste "$work/alone" "$work/two" | awk '
    function differ(x, y) { return x - y > 0.001 || y - x > 0.001 }
    /steps/ && $1 <= 75 { lines++; if (differ($3, $7) || differ($4, $8)) bad = 1 }
    END { exit !(lines == 5 && !bad) }' || { paste "$work/alone" "$work/two"; exit 1; }

if timeout 300 "$DESCENT_MPIEXEC" "${flags[@]}" -n 3 "$program" 2>"$work/error"; then
    echo "three ranks were not refused"
    exit 1
fi
grep -q "kfac_by_hand: a batch of 512 cannot be divided among 3 ranks" "$work/error"
