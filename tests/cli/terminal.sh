#!/usr/bin/env bash
# The output of a training: on terminals of several widths, through pipes, and under the launcher, which gives the
# ranks a pseudo-terminal as standard output, although its own output is no terminal.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

python3 "$DESCENT_SOURCE_DIR/tests/cli/terminal.py" "$descent" || failures=1

training=(train --model mlp --data synthetic:2048 --batch-size 8 --threads 1 --lr 0.01 --eval-every 0 --epochs 2 --checkpoint-every=-1)

# Through a pipe: a line as often as requested.
"$descent" "${training[@]}" --out pipe --progress-every 0.01 2>stderr | cat >stdout
[ ! -s stderr ] || complain "a run writes to stderr: $(head -n 3 stderr)"
[ "$(grep -cE '^epoch [12]/2, step [0-9]+/256: loss [0-9.]+, [0-9]+ images/s, .*s left(, mfu [0-9.]+ %)?$' stdout)" -ge 2 ] || complain "no lines about steps"
[ "$(grep -v '^device' stdout | wc -L)" -le 80 ] || complain "a line through a pipe has more than 80 columns"
expect 0 "done: 2 epochs" "${training[@]}" --out none --progress-every 0
! grep -q ', step ' stdout || complain "lines about steps, although there shall be none"

if have_mpi; then
    job 2 "$descent" "${training[@]}" --out ranks --progress-every 0.01 >stdout 2>stderr </dev/null || complain "two ranks fail"
    [ "$(grep -c ', step .* left' stdout)" -ge 2 ] || complain "no lines about steps under the launcher"
    ! grep -q "$(printf '\033')" stdout stderr || complain "control sequences under the launcher"
    grep -q '^ranks  *2 of batch 8, 16 images a step' stdout || complain "the start does not tell of two ranks"
    job 2 "$descent" "${training[@]}" --out none --steps 1 --consensus dpsgd >gossip 2>&1 </dev/null || complain "dpsgd fails"
    grep -q "^consensus  dpsgd, graph bipartite-exponential" gossip || complain "the start does not tell the graph"
    [ "$(grep -v '^device' stdout | wc -L)" -le 81 ] || complain "a line under the launcher has more than 80 columns" # and maybe a return
fi
finish
