#!/usr/bin/env bash
# launch.sh mpirun [OPTION...] meshard train CONFIG [OPTION...]
#
# Runs the command so that a request to stop reaches the ranks. Left to itself, mpirun kills them within two seconds of an
# INT or TERM, and Ctrl-C never reaches them. Here INT (Ctrl-C), TERM, HUP, USR1 and USR2 all become USR1 for mpirun, which
# passes it on to every rank; the run ends at the next step: with exit 75 if it saved a checkpoint, else 70. A second INT
# ends it at once (exit 130). The exit code is otherwise the command's own.
set -u
[[ $# -gt 0 ]] || { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0" >&2; exit 2; }

readonly repeat_s=5 patience_s=5
child='' repeater='' caught='' interrupts=0

# A request that comes while mpirun starts reaches no rank, so it is repeated; for a run that has it already that means
# nothing.
request_stop() {
  caught=yes
  [[ -n $child ]] || return 0
  kill -USR1 "$child" 2>/dev/null
  [[ -z $repeater ]] || return 0
  echo "launch.sh: $1: asked the run to stop (a second interrupt ends it at once)" >&2
  while sleep "$repeat_s" && kill -USR1 "$child" 2>/dev/null; do :; done >/dev/null 2>&1 &
  repeater=$!
}

end_at_once() {
  trap '' INT TERM HUP USR1 USR2
  echo "launch.sh: second interrupt; ending the run now, without saving" >&2
  kill -TERM "$child" 2>/dev/null   # mpirun ends its ranks
  for ((i = 0; i < patience_s * 10; i++)); do
    kill -0 "$child" 2>/dev/null || break
    sleep 0.1
  done
  kill -KILL -- "-$child" 2>/dev/null
  finish 130
}

finish() {
  [[ -z $repeater ]] || kill "$repeater" 2>/dev/null
  exit "$1"
}

interrupt() {
  interrupts=$((interrupts + 1))
  if [[ $interrupts -ge 2 && -n $child ]]; then end_at_once; fi
  request_stop INT
}

trap interrupt INT
for signal in TERM HUP USR1 USR2; do
  # shellcheck disable=SC2064  # the name of now
  trap "request_stop $signal" "$signal"
done

# A session of its own keeps the terminal's signals away from mpirun; as its leader it keeps the id that we know.
setsid "$@" </dev/null &
child=$!
if [[ -n $caught ]]; then request_stop "stopped while starting"; fi

# `wait` returns early, above 128, whenever a trapped signal arrives; asked again it has the command's own status.
while :; do
  caught=''
  wait "$child"
  status=$?
  [[ -n $caught ]] || break
done
# A rank (or mpirun) that a request killed had no handlers yet: the run was stopped before it began.
if [[ -n $repeater && $status == $((128 + $(kill -l USR1))) ]]; then
  echo "launch.sh: stopped before it began; no step was saved; give it more time than $SECONDS s" >&2
  status=70
fi
finish "$status"
