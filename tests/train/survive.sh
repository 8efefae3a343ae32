#!/usr/bin/env bash
# Ranks continue after the loss of another (survive.c). Skipped if the launcher ends the whole job with its first rank.
set -uo pipefail
ranks=3
read -r -a flags <<<"${DESCENT_MPIEXEC_FLAGS:-}"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

if ! "$DESCENT_MPIEXEC" --version 2>/dev/null | grep -q "Open MPI\|OpenRTE"; then
    echo "skipped: $DESCENT_MPIEXEC ends the job with its first rank: this needs Open MPI's mpirun --enable-recovery"
    exit 77
fi
timeout -k 5 600 "$DESCENT_MPIEXEC" "${flags[@]}" --enable-recovery -n $ranks "$DESCENT_BINARY_DIR/tests/train_survive" \
    >"$folder/out" 2>"$folder/err" </dev/null
for ((r = 0; r < ranks; r++)); do
    if ! grep -q "^rank $r fine\$" "$folder/out"; then
        echo "FAILED: rank $r"
        cat "$folder/out" "$folder/err"
        exit 1
    fi
done
