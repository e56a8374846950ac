#!/usr/bin/env bash
# guard.sh MARK [PID]: what launch.sh starts beside a run, in a session of its own, with a pipe from launch.sh as its
# standard input.
#
# When the pipe is closed (launch.sh is done, or was killed), or the process PID is gone, it ends what is left of the run
# on this node: the processes with MARK in their environment. mpirun, whose id comes through the pipe, gets INT: it ends
# its ranks on all nodes and tidies up. Stopped processes are continued for that, and what is still there patience_s
# later is killed. Where mpirun itself is gone, ranks of other nodes end by themselves, as their daemons miss it.
set -u
mark=${1:?usage: guard.sh MARK [PID], by launch.sh} with=${2-} command=''
readonly settle_s=2 patience_s=5 insist_s=20
trap '' INT TERM HUP USR1 USR2

# Sets started: when process $1 started, in ticks. With its id that names it for good.
when_started() {
  local stat facts
  { read -r stat <"/proc/$1/stat"; } 2>/dev/null || return 1
  # shellcheck disable=SC2206  # numbers, and a letter
  facts=(${stat##*) })
  [[ ${facts[0]} != [ZX] ]] || return 1
  started=${facts[19]}
}

same_process() { [[ -z $with ]] || { when_started "$with" && [[ $started == "$since" ]]; }; }

# Sets left: the processes of the run.
look() {
  local file
  left=()
  while IFS=/ read -r _ _ file _; do left+=("$file"); done < <(grep -lszxF -- "$mark" /proc/[0-9]*/environ)
  [[ ${#left[@]} -gt 0 ]]
}

# await SECONDS: until nothing is left.
await() {
  local i
  for ((i = 0; i < $1 * 10; i++)); do
    look || return 0
    [[ -z ${2-} ]] || kill -s "$2" "${left[@]}" 2>/dev/null
    sleep 0.1
  done
  return 1
}

started=''
[[ -z $with ]] || when_started "$with"
since=$started
while :; do
  read -r -t 1 line
  case $?:$line in
    0:over) await "$settle_s" && exit 0; why="the run is over"; break ;;   # helpers of mpirun end a moment after it
    0:now) why="told so"; break ;;
    0:*) command=$line ;;
    1:*) why="launch.sh is gone"; break ;;
    *) same_process || { why="process $with is gone"; break; } ;;
  esac
done

look || exit 0
echo "guard.sh: $why: ending what is left of the run" >&2
kill -CONT "$PPID" "${left[@]}" 2>/dev/null
[[ " ${left[*]} " != *" $command "* ]] || kill -INT "$command" 2>/dev/null
await "$patience_s" && exit 0
await "$insist_s" KILL || echo "guard.sh: still there: processes ${left[*]}" >&2
