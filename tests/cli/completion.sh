#!/usr/bin/env bash
# Shell completion: the scripts know every command and every option, and the shells can read them.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

expect 2 "completion needs the name of a shell" completion
expect 2 "fish" completion fish
expect 0 "" completion zsh
has stdout "#compdef descent"
has stdout "--kfac-damping"
if command -v zsh >/dev/null; then
    zsh -n stdout || complain "zsh cannot read its completion"
fi
expect 0 "" completion bash
cp stdout descent.bash
bash -n descent.bash || complain "bash cannot read its completion"

# completes WORDS... : the completions of the last word contain the line in $want.
completes() {
    # shellcheck disable=SC1091 # written above
    (
        . ./descent.bash
        COMP_WORDS=("$@")
        COMP_CWORD=$(($# - 1))
        _descent
        printf '%s\n' "${COMPREPLY[@]}"
    ) >completions
    grep -qxF -e "$want" completions || complain "'$*' is not completed to '$want'"
}
want=train completes descent tr
want=--kfac-damping completes descent train --kfac-da
want=adamw completes descent train --optimizer ada
want=--checkpoint completes descent eval --check
want=sweep completes descent help sw
want=graphs completes descent list gr
want=zsh completes descent completion z
want=resnet50 completes descent train --model resnet5
want=hypercube completes descent train --graph hyp
for flag in $("$descent" train --help | sed -n 's/^  \(-., \)\?\(--[a-z0-9-]*\).*/\2/p'); do
    want=$flag completes descent train "$flag"
done
finish
