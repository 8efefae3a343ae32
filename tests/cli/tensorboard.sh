#!/usr/bin/env bash
# --tensorboard: every record of the event files is decoded and compared with metrics.jsonl, also after a stop and a
# resumption and with gossip; separate folders; refused options.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
check() { /usr/bin/python3 "$DESCENT_SOURCE_DIR/tests/cli/tensorboard.py" "$@" || complain "event files of $*"; }

small=(train --model mlp --data synthetic:256 --batch-size 64 --threads 1)
if ! grep -q '^#define DSC_HAVE_PROTOBUF' "$DESCENT_BINARY_DIR/include/base/config.h"; then
    expect 2 "libprotobuf-c-dev" "${small[@]}" --steps 1 --out none-of-it --tensorboard
    [ ! -e none-of-it ] || complain "a start that was refused leaves its directory"
    finish
    echo "skipped: this build has no protobuf-c (libprotobuf-c-dev, protobuf-c-compiler)"
    exit 77
fi
expect 2 "name one (--out)" "${small[@]}" --steps 1 --out none --tensorboard
touch file
expect 2 "'file' is a file, not a directory" "${small[@]}" --steps 1 --out refused --tensorboard file

/usr/bin/python3 -c 'import google.protobuf' 2>/dev/null || { finish; echo "skipped: no python3-protobuf"; exit 77; }

# K-FAC; a stop after six steps and a resumption, which makes a second file and counts from the checkpoint on.
kfac=("${small[@]}" --epochs 3 --kfac-update-freq 2 --log-every 2 --lr-decay 1 2 --out kfac --tensorboard)
expect 0 "" "${kfac[@]}" --steps 6
expect 0 "" "${kfac[@]}" --resume
check kfac kfac 2 "--resumed" 6
expect 0 "" "${kfac[@]}" --steps 1 --overwrite
check kfac kfac 1

# A folder of its own, which --overwrite leaves alone; the inverse method has no eigenvalues.
expect 0 "" "${small[@]}" --epochs 1 --kfac-update-freq 2 --kfac-method inverse --out other --tensorboard events/of/it
check other events/of/it 1

if have_mpi; then
    job 2 "$descent" "${small[@]}" --epochs 1 --consensus sgp --distance-every 2 --kfac-update-freq 2 --out gossip --tensorboard \
        >stdout 2>stderr || complain "two ranks: $(tail -n 3 stderr)"
    check gossip gossip 1
fi

# A disk that is full: the run ends with the file's name. The hyper-parameters alone are larger than the limit, the first lines
# of metrics.jsonl are not.
status=0
(
    trap '' XFSZ
    ulimit -f 4
    exec "$descent" "${small[@]}" --steps 4 --log-every 4 --eval-every 0 --out full --tensorboard
) >stdout 2>stderr || status=$?
[ "$status" = 1 ] || complain "a full disk: exit status $status"
has stderr "cannot write 'full/events.out.tfevents."
finish
