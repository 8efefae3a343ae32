#!/usr/bin/env bash
# What a user sees in a terminal, whose screen tmux keeps. The bar is one line that is redrawn in its place, in 80 and
# in 50 columns; Ctrl-C removes it and leaves the message; under the launcher there are lines instead of a bar.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

command -v tmux >/dev/null || {
    echo "SKIPPED: tmux is not installed"
    exit 77
}
export LC_ALL=C.UTF-8 TMUX=
trap 'terminal kill-server 2>/dev/null || true; remove_work' EXIT
socket=0
terminal() { tmux -S "$work/socket$socket" -f /dev/null "$@"; }

# start COLUMNS COMMAND: a terminal with this number of columns, in which a shell runs the command and prints its
# status.
start() {
    terminal kill-server 2>/dev/null || true
    socket=$((socket + 1)) # the server of the old one may still be ending
    terminal new-session -d -x "$1" -y 30 "$2; echo status \$?; sleep 100"
}

# until_seen TEXT: waits until the screen shows it; `screen` is the file with what it shows then.
until_seen() {
    for ((i = 0; i < 600; i++)); do
        terminal capture-pane -p >screen
        ! grep -q -e "$1" screen || return 0
        sleep 0.1
    done
    complain "the screen never shows '$1': $(cat screen)"
    return 0
}

# has_colour PATTERN: the screen shows it soon; between two epochs the bar is away for a moment.
has_colour() {
    for ((i = 0; i < 50; i++)); do
        terminal capture-pane -p -e >coloured
        ! grep -q -e "$1" coloured || return 0
        sleep 0.1
    done
    return 1
}

training="$descent train --model mlp --data synthetic:4096 --batch-size 4 --threads 1 --lr 0.01 --eval-every 0 --epochs 100 --out none"
for columns in 80 50; do
    start $columns "$training"
    until_seen '%  *loss'
    sleep 0.5 # it is drawn several times
    until_seen '^epoch [0-9]*/100.*%  *loss'
    [ "$(grep -c '%  *loss' screen)" = 1 ] || complain "$columns columns: the bar is there more than once: $(cat screen)"
    [ -z "$(sed '1,/%  *loss/d' screen | tr -d '\n ')" ] || complain "$columns columns: there is text below the bar: $(cat screen)"
    if [ $columns = 80 ]; then
        grep -q '▕█*.*▏.*images/s.*left$' screen || complain "the bar does not tell the time left: $(cat screen)"
        has_colour "$(printf '\033')\[32m" || complain "the bar has no colour"
    fi
    terminal send-keys C-c
    until_seen '^status'
    grep -q '^status 3$' screen || complain "$columns columns: Ctrl-C does not end with status 3: $(cat screen)"
    grep -q 'descent: .*stopped' screen || complain "$columns columns: no message: $(cat screen)"
    ! grep -q '%  *loss' screen || complain "$columns columns: a part of the bar is left: $(cat screen)"
done

start 80 "NO_COLOR=1 $training"
until_seen '▕'
terminal capture-pane -p -e >coloured
! grep -q "$(printf '\033')" coloured || complain "there are colours, although NO_COLOR is set"

if have_mpi; then
    start 80 "$DESCENT_MPIEXEC ${DESCENT_MPIEXEC_FLAGS:-} -n 2 $training --steps 60 --progress-every 0.01"
    until_seen '^status'
    grep -q '^status 0$' screen || complain "two ranks fail: $(cat screen)"
    grep -qE '^epoch 1/100, step [0-9]+/512: loss .* left(, mfu [0-9.]+ %)? *$' screen || complain "two ranks: no lines about steps: $(cat screen)"
    ! grep -q '▕' screen || complain "two ranks draw a bar: $(cat screen)"
fi
finish
