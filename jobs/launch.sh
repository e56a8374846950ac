#!/usr/bin/env bash
# launch.sh [--with PID] mpirun [OPTION...] meshard train CONFIG [OPTION...]
#
# Runs the command so that a request to stop reaches the ranks. Left to itself, mpirun kills them within two seconds of an
# INT or TERM, and Ctrl-C never reaches them. Here INT (Ctrl-C), TERM, HUP, USR1 and USR2 all become USR1 for mpirun, which
# passes it on to every rank; the run ends at the next step: with exit 75 if it saved a checkpoint, else 70. A second INT
# ends it at once (exit 130). The exit code is otherwise the command's own.
#
# Nothing of the run is left when launch.sh ends or is killed, nor, with --with, when that process is gone (a job's script
# gives its own id): a guard beside the command sees to it.
set -u
with=''
if [[ ${1-} == --with ]]; then with=${2-}; shift 2 || shift; fi
[[ $# -gt 0 && $with =~ ^[0-9]*$ ]] || { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0" >&2; exit 2; }

readonly repeat_s=5
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

# finish CODE [WORD]: the guard ends what is left, within some seconds.
finish() {
  trap '' INT TERM HUP USR1 USR2
  trap - CHLD
  [[ -z $repeater ]] || kill "$repeater" 2>/dev/null
  { echo "${2-over}" >&"$guard_line"; exec {guard_line}>&-; } 2>/dev/null   # the guard may be gone, and its line with it
  wait "$guard_pid" 2>/dev/null
  exit "$1"
}

interrupt() {
  interrupts=$((interrupts + 1))
  if [[ $interrupts -ge 2 && -n $child ]]; then
    echo "launch.sh: second interrupt; ending the run now, without saving" >&2
    finish 130 now
  fi
  request_stop INT
}

# Without a guard, a kill of this shell would leave the run behind.
watch_guard() { kill -0 "$guard_pid" 2>/dev/null || request_stop "the guard is gone"; }

trap interrupt INT
for signal in TERM HUP USR1 USR2; do
  # shellcheck disable=SC2064  # the name of now
  trap "request_stop $signal" "$signal"
done

# What marks the processes of this run in their environment: this process, and when it started, in ticks.
read -r stat <"/proc/$$/stat"
read -ra facts <<<"${stat##*) }"
mark=MESHARD_LAUNCH_$$_${facts[19]}=1

# PBS tells every process of a job's session to end, mpirun among them. So mpirun is started with TERM blocked (it opens
# it again for the ranks, to whom it is a request to stop), and stays in the session: there the batch system counts what
# the run uses, suspends it and kills it. Nothing but programs can block a signal; env does since coreutils 8.31.
if env --block-signal=TERM true 2>/dev/null; then
  start=(env --block-signal=TERM "$mark")
elif command -v perl >/dev/null; then
  # shellcheck disable=SC2016  # perl's own $!
  start=(env "$mark" perl -MPOSIX -e 'sigprocmask(SIG_BLOCK, POSIX::SigSet->new(SIGTERM)); exec @ARGV or die "$!\n"' --)
else
  start=(env "$mark")
  echo "launch.sh: neither env --block-signal nor perl here: a TERM to all processes of a job ends the run unsaved" >&2
fi
# Where setpriv can (util-linux 2.33), mpirun is also told if this shell and the guard are killed at the same time.
if setpriv --pdeathsig INT true 2>/dev/null; then start=(setpriv --pdeathsig INT "${start[@]}"); fi

coproc guard { exec setsid "$(dirname -- "${BASH_SOURCE[0]}")/guard.sh" "$mark" "$with" >&2; }
# The names that coproc makes go when the guard does.
guard_pid=$guard_PID guard_line=${guard[1]}
trap watch_guard CHLD
trap : PIPE   # of a guard that is gone

# A process group of its own keeps the terminal's signals away from mpirun.
set -m
"${start[@]}" "$@" </dev/null &
child=$!
set +m
echo "$child" >&"$guard_line"
watch_guard
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
