#!/usr/bin/env bash
# A net of one's own learns its task, goes on from its checkpoint with the bits of the run that never stopped, and
# trains on two ranks that gossip.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
program=$DESCENT_BINARY_DIR/examples/own_net

# learned LOG: the accuracy in percent, the last number but one, is above 95.
learned() {
    awk '/accuracy/ { good = $(NF - 1) > 95 } END { exit !good }' "$1" || { cat "$1"; exit 1; }
}

mkdir "$work/stopped" "$work/whole"
(cd "$work/stopped" && "$program" 4 >/dev/null && "$program" 8 >log)
(cd "$work/whole" && "$program" 8 >log)
learned "$work/whole/log"
for file in checkpoint-480.safetensors latest; do
    cmp "$work/stopped/own_net_run/$file" "$work/whole/own_net_run/$file"
done

[ -x "${DESCENT_MPIEXEC:-}" ] || exit 0
read -ra flags <<<"${DESCENT_MPIEXEC_FLAGS:-}"
mkdir "$work/two"
(cd "$work/two" && "$DESCENT_MPIEXEC" "${flags[@]}" -n 2 "$program" 8 >log)
learned "$work/two/log"
