#!/usr/bin/env bash
# launch_test.sh REPOSITORY: jobs/launch.sh with stand-ins for mpirun and the run, then with the real mpirun.
set -uo pipefail
launch=$1/jobs/launch.sh
work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT
set -m   # else bash starts background jobs with INT ignored, and launch.sh could not trap it
failures=0

check() {   # check WHAT EXPECTED ACTUAL
  if [[ $2 == "$3" ]]; then echo "ok: $1"
  else echo "FAILED: $1: expected '$2', got '$3'"; failures=$((failures + 1)); fi
}

# A run that notes its signals: 75 on USR1 after "saving", 1 on anything else that would end it.
cat >"$work/run" <<'EOF'
#!/usr/bin/env bash
log=$1; delay=${2-0}
sleep "$delay"
trap 'echo USR1 >>"$log"; sleep 0.3; exit 75' USR1
trap 'echo INT >>"$log"; exit 1' INT
trap 'echo TERM >>"$log"; exit 1' TERM
echo ready >>"$log"
for ((i = 0; i < 300; i++)); do sleep 0.1; done
EOF
# The same, but it will not stop when asked; mpirun, too, ends at once on INT.
cat >"$work/stubborn" <<'EOF'
#!/usr/bin/env bash
log=$1
trap '' USR1
trap 'echo INT >>"$log"; exit 1' INT
echo ready >>"$log"
for ((i = 0; i < 300; i++)); do sleep 0.1; done
EOF
chmod +x "$work/run" "$work/stubborn"

await() {   # await PATTERN FILE [COUNT]
  for ((n = 0; n < 200; n++)); do
    [[ $(grep -c "$1" "$2" 2>/dev/null) -ge ${3-1} ]] && return 0
    sleep 0.1
  done
  check "waiting for $1 in ${2##*/}" "to appear" "never"
}

# Catches: an exit code lost on the way, arguments split at blanks, a child that reads our terminal.
"$launch" bash -c 'exit 76'; check "exit code passes through" 76 $?
check "arguments are kept whole" "[a b][]" "$("$launch" printf '[%s]' 'a b' '')"
"$launch" bash -c '! read -r -t 2 line' <<<"input"; check "standard input is nowhere" 0 $?
# The batch system counts, suspends and kills what is in the job's session; Ctrl-C goes to the process group.
ids() { ps -o sid=,pgid= -p "$1" | xargs; }
read -r session group <<<"$("$launch" bash -c "$(declare -f ids)"'; ids $$')"
check "in our session" "$(ids $$ | cut -d ' ' -f 1)" "$session"
check "in a process group of its own" no "$([[ $group == "$(ids $$ | cut -d ' ' -f 2)" ]] && echo yes || echo no)"
"$launch" 2>/dev/null; check "no command is a usage error" 2 $?
"$launch" --with $$ 2>/dev/null; check "nor with --with" 2 $?
"$launch" --with no true 2>/dev/null; check "--with needs a process" 2 $?

# Catches: a signal that ends the launcher, is passed on as itself, or arrives as a kill.
for signal in INT TERM HUP USR1 USR2; do
  log=$work/$signal.log
  "$launch" "$work/run" "$log" 2>/dev/null & pid=$!
  await ready "$log"
  kill -"$signal" "$pid"; wait "$pid"
  check "$signal: exit code" 75 $?
  check "$signal: what the run got" "ready USR1" "$(xargs <"$log")"
done

# Catches: a request lost, or a run killed by it, because it came before the handlers were there.
log=$work/early.log
"$launch" "$work/run" "$log" 2 2>/dev/null & pid=$!
sleep 0.5; kill -TERM "$pid"; wait "$pid"
check "a request before the handlers: exit code" 70 $?

# Catches: a second Ctrl-C that does nothing.
log=$work/second.log
"$launch" "$work/stubborn" "$log" 2>/dev/null & pid=$!
await ready "$log"
kill -INT "$pid"; sleep 0.5
kill -0 "$pid" 2>/dev/null; check "one INT waits on" 0 $?
before=$SECONDS
kill -INT "$pid"; wait "$pid"
check "second INT: exit code" 130 $?
check "second INT: at once" yes "$([[ $((SECONDS - before)) -le 2 ]] && echo yes || echo "after $((SECONDS - before)) s")"
check "second INT: the run was told to end" "ready INT" "$(xargs <"$log")"

# Catches: ranks that mpirun kills, or that never hear of the request.
if command -v mpirun >/dev/null; then
  if [[ $(id -u) == 0 ]]; then export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1; fi
  for signal in INT TERM; do
    log=$work/mpi.$signal.log
    "$launch" mpirun -n 2 --oversubscribe --bind-to none "$work/run" "$log" 2>/dev/null & pid=$!
    await ready "$log" 2
    kill -"$signal" "$pid"; wait "$pid"
    check "mpirun, $signal: exit code" 75 $?
    check "mpirun, $signal: both ranks" 2 "$(grep -c USR1 "$log")"
    check "mpirun, $signal: nothing else" 0 "$(grep -c -e INT -e TERM "$log")"
  done
  for when in 0.02 0.1 0.5; do
    log=$work/mpi.$when.log
    "$launch" mpirun -n 2 --oversubscribe --bind-to none "$work/run" "$log" 1 2>/dev/null & pid=$!
    sleep "$when"; kill -USR2 "$pid"; wait "$pid"
    code=$?   # ranks that it kills have saved nothing; one that comes too early even for that is repeated
    check "mpirun, a request $when s after the start: exit code" "$(grep -qs USR1 "$log" && echo 75 || echo 70)" "$code"
  done

  # PBS tells all processes of a job's session. Catches: an mpirun that kills its ranks when it is told, too.
  log=$work/mpi.all.log
  "$launch" mpirun -n 2 --oversubscribe --bind-to none "$work/run" "$log" 2>/dev/null & pid=$!
  await ready "$log" 2
  mpirun=$(pgrep -P "$pid" -x mpirun)
  kill -TERM "$mpirun"; sleep 0.5; kill -TERM "$pid"; wait "$pid"
  check "mpirun, TERM to it and to launch.sh: exit code" 75 $?
  check "mpirun, TERM to it and to launch.sh: both ranks were asked" 2 "$(grep -c USR1 "$log")"

  # Catches: anything of a run that is left, or left stopped, when one process of the chain is killed.
  cat >"$work/script" <<'EOF'
#!/usr/bin/env bash
"$1" --with $$ mpirun -n 2 --oversubscribe --bind-to none "$2" "$3"
echo "$?" >"$3.status"
EOF
  chmod +x "$work/script"
  for who in script launch mpirun rank guard; do
    log=$work/killed.$who.log
    "$work/script" "$launch" "$work/run" "$log" 2>"$log.err" & script=$!
    await ready "$log" 2
    launched=$(pgrep -P "$script" -f launch.sh)
    guard=$(pgrep -P "$launched" -f guard.sh) mpirun=$(pgrep -P "$launched" -x mpirun)
    mapfile -t ranks < <(pgrep -P "$mpirun" -f "$work/run")
    members=("$script" $launched $guard $mpirun "${ranks[@]}")
    check "killed $who: all of them were there" 6 "${#members[@]}"
    [[ $who == guard ]] || kill -STOP "${ranks[0]}"   # who is asked to stop must be able to
    case $who in
      script) victim=$script ;; launch) victim=$launched ;; mpirun) victim=$mpirun ;; rank) victim=${ranks[1]} ;;
      guard) victim=$guard ;;
    esac
    kill -KILL "$victim"
    for ((n = 0; n < 200; n++)); do
      left=$(ps -o pid=,stat=,args= -p "${members[*]}" | grep -v ' Z') || break
      sleep 0.1
    done
    check "killed $who: nothing is left" "" "$left"
    [[ -z $left ]] || { cat "$log.err"; kill -KILL "${members[@]}"; }
    wait "$script" 2>/dev/null
  done
  check "killed guard: the run was asked to stop" 75 "$(cat "$work/killed.guard.log.status")"
else
  echo "skipped: no mpirun here"
fi

[[ $failures == 0 ]]
