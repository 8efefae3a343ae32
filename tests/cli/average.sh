#!/usr/bin/env bash
# descent average: exact graphs are seen to be exact, others follow their rate, what cannot work is refused with the reason.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

# When a job has failed, Open MPI gives the other ranks a second to end. Here they have nothing left to do.
export OMPI_MCA_odls_base_sigkill_timeout=0

# distances: those of the JSON in stdout, one a line, the start first.
distances() {
    sed -n 's/^ *"distance": \([0-9.e+-]*\),\{0,1\}$/\1/p' stdout | head -n -1
}

# value KEY: of the JSON's outer object.
value() {
    sed -n "s/^  \"$1\": \(.*\)/\1/p" stdout | sed 's/,$//'
}

# average RANKS ARGS...: JSON in stdout; complains unless it ends with status 0.
average() {
    local ranks=$1 got=0
    shift
    job "$ranks" "$descent" average --threads 1 --size 1000 --json "$@" >stdout 2>stderr || got=$?
    [ "$got" = 0 ] || { complain "average $* on $ranks ranks: status $got"; cat stderr; }
    [ "$(value ranks)" = "$ranks" ] || complain "average $* says $(value ranks) ranks instead of $ranks"
}

# refused RANKS TEXT ARGS...: status 2 and TEXT, printed once.
refused() {
    local ranks=$1 text=$2 got=0
    shift 2
    job "$ranks" "$descent" average --threads 1 "$@" >stdout 2>stderr || got=$?
    [ "$got" = 2 ] || { complain "average $* on $ranks ranks: status $got instead of 2"; cat stderr; }
    grep -qF -e "$text" stderr || { complain "average $* on $ranks ranks: does not say '$text'"; cat stderr; }
    [ "$(grep -c '^descent: ' stderr)" = 1 ] || complain "average $*: printed $(grep -c '^descent: ' stderr) times"
}

# One process: nothing to do.
expect 0 "theory: exact after" average --steps 3 --threads 1
has stdout "1 rank, graph exponential"
expect 0 '"distance": 0.0' average --steps 3 --threads 1 --json
[ "$(value bytes_per_step)" = 0.0 ] || complain "a single process sends $(value bytes_per_step) bytes"
expect 0 "" average --steps 2 --threads 1 --no-plot
! grep -q 'log10' stdout || complain "--no-plot plots"

have_mpi || finish
have_mpi || exit 0

# Powers of two: the distance is exactly 0 after log2 n steps, and not before.
for graph in exponential hypercube bipartite-exponential; do
    average 2 --graph $graph --steps 3
    [ "$(distances | tr '\n' ' ')" = "1.0 0.0 0.0 0.0 " ] || complain "$graph, 2 ranks: $(distances | tr '\n' ' ')"
    [ "$(value exact)" = 1 ] || complain "$graph, 2 ranks: exact after $(value exact)"
    average 4 --graph $graph --steps 3
    distances | awk '{ d[NR] = $1 } END { exit !(NR == 4 && d[1] == 1 && d[2] > 0.1 && d[3] == 0 && d[4] == 0) }' ||
        complain "$graph, 4 ranks: $(distances | tr '\n' ' ')"
    [ "$(value exact)" = 2 ] || complain "$graph, 4 ranks: exact after $(value exact)"
    theory=$(sed -n 's/^ *"theory": \(.*\),$/\1/p' stdout | tr '\n' ' ')
    [ "$theory" = "1.0 null 0.0 0.0 " ] || complain "$graph, 4 ranks: theory $theory"
    [ "$(value bytes_per_step)" = 4000.0 ] || complain "$graph sends $(value bytes_per_step) bytes instead of 4 |x|"
done
average 4 --algorithm push-pull --steps 2 --tolerance 0
[ "$(value graph)" = '"bipartite-exponential"' ] || complain "push-pull runs on $(value graph)"

# Three ranks: base-2 is exact up to rounding; the others fall as rho^t says, up to a constant.
average 3 --algorithm push-pull --steps 3 --tolerance 1e-6
[ "$(value graph)" = '"base-2"' ] || complain "push-pull on three ranks runs on $(value graph)"
[ "$(value exact)" = 3 ] || complain "base-2, 3 ranks: exact after $(value exact)"
average 3 --graph ring --steps 12
awk -v rho="$(value rho)" 'BEGIN { exit !(rho > 0.4999 && rho < 0.5001) }' || complain "ring of 3: rho $(value rho)"
distances | awk '{ d[NR] = $1 } END { for (i = 1; i < NR; i++) if (!(d[i + 1] < 0.75 * d[i])) exit 1
                                      exit !(d[NR] > 0.1 / 4096 && d[NR] < 10 / 4096) }' ||
    complain "ring of 3 does not follow rho^t: $(distances | tr '\n' ' ')"
average 3 --graph complete --steps 1 --tolerance 1e-6
[ "$(value bytes_per_step)" = 8000.0 ] || complain "complete of 3 sends $(value bytes_per_step) bytes"

# Messages in 16-bit types: the result is near the mean but not equal, with half the bytes.
average 2 --wire bf16 --steps 4 --tolerance 0.01
awk -v d="$(value distance)" 'BEGIN { exit !(d > 0) }' || complain "bf16 averages without rounding"
[ "$(value bytes_per_step)" = 2000.0 ] || complain "bf16 sends $(value bytes_per_step) bytes"

# The same seed gives the same numbers, another one others.
average 2 --graph ring --steps 1 --seed 1
first=$(value start)
average 2 --graph ring --steps 1 --seed 1
[ "$(value start)" = "$first" ] || complain "one seed, two vectors"
average 2 --graph ring --steps 1 --seed 2
[ "$(value start)" != "$first" ] || complain "two seeds, one vector"

# Text: a table, the theory, the plot; only rank 0 prints.
job 4 "$descent" average --threads 1 --graph ring --steps 10 >stdout 2>stderr || complain "as text: status $?"
[ "$(grep -c '^4 ranks, graph ring' stdout)" = 1 ] || complain "the head is printed $(grep -c '^4 ranks' stdout) times"
has stdout "theory: the distance falls as rho^step, rho = 0.7071"
[ "$(grep -cE '^ +[0-9]+  +[0-9.]+e[+-][0-9]+  +[0-9.]+e[+-][0-9]+$' stdout)" = 11 ] || complain "the table lacks lines"
has stdout "log10 of the distance"
has stdout "theory: 0.7071^step"

# A tolerance that is missed is a failure while running.
got=0
job 2 "$descent" average --threads 1 --graph ring --wire bf16 --steps 1 --tolerance 0 >stdout 2>stderr || got=$?
[ "$got" = 1 ] || complain "a missed tolerance: status $got instead of 1"
[ "$(grep -c '^descent: .*the distance after 1 step is .*, above --tolerance 0' stderr)" = 1 ] || complain "a missed tolerance is not reported once"

# Options that cannot work.
refused 3 "hypercube" --graph hypercube
refused 3 "bipartite-linear" --graph bipartite-linear
refused 2 "peers" --graph exponential --peers 2
refused 4 "matching" --graph exponential --algorithm push-pull
refused 2 "rign" --graph rign
refused 2 "no/such.graph" --graph no/such.graph

# Graph files: one that is not regular, on which push-sum weights differ; then errors, named with their line.
printf '# a hub\nranks 3\nstep\n0 1 0.25\n0 2 0.25\nstep\n1 0\n2 0 0.75\n' >hub.graph
average 3 --graph hub.graph --steps 40 --tolerance 1e-5
[ "$(value regular)" = false ] || complain "the hub counts as regular"
[ "$(value period)" = 2 ] || complain "the hub has a period of $(value period)"
awk -v weight="$(sed -n 's/.*"max_weight": \([0-9.]*\).*/\1/p' stdout | tail -n 1)" 'BEGIN { exit !(weight > 1.1) }' ||
    complain "no weight gathers in the hub"
job 3 "$descent" average --threads 1 --graph ./hub.graph --steps 3 >stdout 2>stderr || complain "the hub as text: status $?"
has stdout "weights"
# FILE's text | what the message must hold.
while IFS='|' read -r text message; do
    # shellcheck disable=SC2059 # the text holds line breaks
    printf "$text" >wrong.graph
    refused 2 "${message# }" --graph wrong.graph
done <<'TABLE'
| wrong.graph: empty
ranks two\nstep\n0 1\n1 0\n| wrong.graph:1:
ranks 3\nstep\n0 1\n1 0\n| wrong.graph:1: the graph is made for 3 ranks and there are 2
ranks 2\n0 1\n| wrong.graph:2:
ranks 2\nstep\n0 0\n1 0\n| wrong.graph:3: rank 0 sends to itself
ranks 2\nstep\n0 1\n1 5\n| wrong.graph:4: rank 5
ranks 2\nstep\n0 1 1.5\n1 0\n| wrong.graph:3: share 1.5
ranks 2\nstep\n0 1\n| no path from rank 1 to rank 0
TABLE
finish
