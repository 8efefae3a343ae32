#!/usr/bin/env bash
# The program in docs/tutorial.md compiles as it stands there, and learns to separate the spirals on two ranks.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
# Of the page's C programs, the one that uses the library; the test docs-tutorial runs the others.
awk '/^```c$/ { on = 1; text = ""; next }
     /^```/ { if (on && text ~ /<descent\/descent.h>/) printf "%s", text; on = 0 }
     on { text = text $0 "\n" }' "$DESCENT_SOURCE_DIR/docs/tutorial.md" >"$work/spirals.c"
[ -s "$work/spirals.c" ] || { echo "docs/tutorial.md has no program"; exit 1; }
"${CC:-cc}" -std=c11 -Wall -Wextra -Werror "$work/spirals.c" -o "$work/spirals" -I"$DESCENT_SOURCE_DIR/include" \
    -I"$DESCENT_BINARY_DIR/include" -L"$DESCENT_BINARY_DIR" -Wl,-rpath,"$DESCENT_BINARY_DIR" -ldescent -lm

# learnt LOG: the last accuracy is above 95 %.
learnt() {
    awk '/accuracy/ { last = $4 } END { exit !(last > 95) }' "$1" || { cat "$1"; exit 1; }
}

"$work/spirals" "$work/one" >"$work/one.log"
learnt "$work/one.log"
[ -f "$work/one/metrics.jsonl" ] && [ -f "$work/one/latest" ] || { echo "no files were written"; exit 1; }
[ -x "${DESCENT_MPIEXEC:-}" ] || exit 0
read -ra flags <<<"${DESCENT_MPIEXEC_FLAGS:-}"
timeout 120 "$DESCENT_MPIEXEC" "${flags[@]}" -n 2 "$work/spirals" "$work/two" >"$work/two.log"
learnt "$work/two.log"
