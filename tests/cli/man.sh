#!/usr/bin/env bash
# The manual pages are roff without a warning.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

if ! command -v groff >/dev/null; then
    echo "skipped: groff is not installed"
    exit 77
fi
for command in "" train eval info bench report average find-lr sweep tokenize; do
    page=descent${command:+-$command}.1
    # shellcheck disable=SC2086 # no argument at all for the program's own page
    "$descent" --man $command >"$page"
    groff -ww -man -Tutf8 "$page" >text 2>warnings || complain "$page: groff fails"
    [ ! -s warnings ] || complain "$page: $(head -n 3 warnings)"
    if command -v man >/dev/null; then
        MANWIDTH=100 man --warnings -l "$page" >text 2>warnings || complain "$page: man fails"
        [ ! -s warnings ] || complain "$page: $(head -n 3 warnings)"
    fi
    has text "EXIT STATUS"
done
groff -man -Tascii -P-cbou descent-train.1 >text
has text "--batch-size N"
has text "Default: 128."
has text "--resume [auto|DIR|FILE]"
has text "--consensus allreduce|sgp|osgp|dpsgd|adpsgd"
has text "--peers-schedule E:N..."
expect 2 "unknown command 'plan'" --man plan
finish
