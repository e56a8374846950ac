#!/usr/bin/env bash
# failures_test.sh MPIRUN.SH PROGRAM: how a run ends when a rank fails. One `ok:` or `FAILED:` line per check.
set -uo pipefail
mpirun=$1 program=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
failed=0

check() {  # check NAME CONDITION...
  local name=$1; shift
  if "$@"; then echo "ok: $name"; else echo "FAILED: $name"; failed=1; fi
}
run() {  # run RANKS MODE [DUMP]: sets code, seconds, $folder/out
  local start=$SECONDS
  timeout -k 5 60 "$mpirun" "$1" "$program" "${@:2}" >"$folder/out" 2>&1
  code=$?
  seconds=$((SECONDS - start))
}
count() { grep -c -- "$1" "$folder/out"; }
is() { [ "$1" = "$2" ] || { echo "  got '$1', expected '$2'"; tail -30 "$folder/out"; return 1; }; }
says() { grep -q -- "$1" "$folder/out" || { echo "  '$1' is not in:"; tail -30 "$folder/out"; return 1; }; }

# Catches: a stopped rank that hangs the run for ever, or whose summary blames another rank or collective.
run 3 stop "$folder/dump"
check "a stopped rank ends the run with 76" is "$code" 76
check "within the timeout and ten seconds" [ "$seconds" -le 15 ]
check "the summary names rank, collective, axis and unit" \
  says "hang: rank 1 (host .*) did not enter all_gather #.* on axis dp_shard, unit layer.300 .*shows no sign of life"
check "the summary is printed once" is "$(count '^hang:')" 1
check "and written once" is "$(ls "$folder"/dump/hang-*.txt | wc -l)" 1
check "the phase is named" says "phase training"

# Catches: a watchdog that takes long work for a hang.
run 2 compute
check "computing longer than the timeout is no hang" is "$code" 0

# Catches: peers that wait for ever for a rank that threw, or that it waits for; an error without its rank.
run 3 one
check "an error on one rank ends all with 70" is "$code" 70
check "it is printed once, with rank and host" is "$(count '^rank 1 on .*: cannot write metrics.jsonl')" 1
check "long before the watchdog" [ "$seconds" -le 40 ]

# Catches: an error of all ranks printed by each.
run 3 all
check "an error of all ranks ends with its code" is "$code" 2
check "it is printed once, as it is" is "$(count '^3 problems in run.yaml')" 1

run 3 each
check "different errors end with 70" is "$code" 70
check "each is printed" is "$(count '^problem of rank')" 3

# Catches: a destructor that waits for peers while an exception passes.
run 3 unwind
check "an exception through the World ends all with 70" is "$code" 70
check "it reaches main" says "nobody caught this inside"
check "long before the watchdog" [ "$seconds" -le 40 ]

# Catches: a thread that goes on with what an exception left behind, or that keeps the process from ending.
run 3 flight
check "an error while collectives are in flight ends all with 70" is "$code" 70
check "it is printed once, with rank and host" is "$(count '^rank 1 on .*: left in flight')" 1
check "long before the watchdog" [ "$seconds" -le 40 ]
run 3 flight_all
check "of all ranks, too" is "$code" 70
check "then it is printed as it is" is "$(count '^left in flight')" 1

# Catches: a world of another size that trains nevertheless.
run 2 expect
check "another number of ranks than expected is refused" is "$code" 2
check "once, with the numbers" is "$(count 'this run has 2 ranks, not the 64 of --expect-ranks')" 1

exit $failed
