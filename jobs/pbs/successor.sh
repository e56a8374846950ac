# shellcheck shell=bash
# The successor of a PBS job, which the job itself submits: it has what the job has. batch.sh reads this file in a PBS job.

# Options of qsub: each with the attribute that tells what this job was given, and the value that stands for nothing.
carried=(-A Account_Name '' -P project _pbs_project_default -p Priority 0 -m Mail_Points '' -M Mail_Users '' -j Join_Path ''
         -k Keep_Files n -S Shell_Path_List '' -o Output_Path '' -e Error_Path '')

# The mom says so in the job's output before it signals, once, at the walltime. A TERM more than that is qdel's.
said_before=$(stat -L -c %s "/proc/$$/fd/2" 2>/dev/null || echo 0)
terms_of_walltime() {
  [[ -f /proc/$$/fd/2 ]] || { echo 0; return 0; }
  tail -c "+$((said_before + 1))" "/proc/$$/fd/2" 2>/dev/null | grep -acm 1 '=>> PBS: job killed: walltime' || true
}

# own_fact ATTRIBUTE: as the successor may have it; nothing where the server made it for this job.
own_fact() {
  local fact number=${job%%[.[]*}
  fact=$(job_fact "$1")
  case $1 in
    Output_Path | Error_Path) [[ $fact != *.[oe]"$number" && $fact != *.[oe]"$number".* ]] || return 0 ;;
    Mail_Points) fact=${fact//j/} ;;   # j is of arrays
    Priority) [[ $fact =~ ^-?[0-9]{1,4}$ ]] || return 0 ;;
  esac
  echo "$fact"
}

# -l of the successor: as far as qstat tells, else as the nodefile shows. What is of a chunk stands in select alone: the
# server sums it up itself.
own_resources() {
  local fact text name value per_node=$((ranks / nodes)) select schedselect
  select=$(job_fact Resource_List.select)
  schedselect=$(job_fact schedselect)
  text=select=${select:-$nodes:ncpus=$((per_node * threads)):mpiprocs=$per_node:ompthreads=$threads}
  for name in place walltime; do
    fact=$(job_fact "Resource_List.$name")
    [[ -z $fact ]] || text+=,$name=$fact
  done
  while IFS='=' read -r name value; do
    case $name in
      '' | select | place | walltime | node | nodes | nodect | neednodes | ncpus | mpiprocs | ompthreads) continue ;;
    esac
    [[ ":${select//+/:}:${schedselect//+/:}" != *":$name="* ]] || continue
    [[ $value != *[,[:space:]]* ]] || value="\"$value\""
    text+=,$name=$value
  done < <(sed -n 's/^[[:space:]]*Resource_List\.\([^ ]*\) = /\1=/p' <<<"$job_facts")
  echo "$text"
}

# Names of the variables that came with this job, and are to go along: what it was given, not what site.env made of it.
own_variables() {
  local name names=MESHARD_RESTARTS,MESHARD_CHAIN
  while read -r name; do
    case $name in
      PBS_*) ;;
      *) if [[ ,$names, != *",$name,"* ]] && printenv "$name" >/dev/null; then names+=,$name; fi ;;
    esac
  done < <(printf '%s\n' CONFIG SWEEP INDEX OPTIONS "${site_settings[@]}"; compgen -e MESHARD_ || true
           job_fact Variable_List | grep -oE '(^|,)[A-Za-z_][A-Za-z0-9_]*=' | tr -d ',=')
  echo "$names"
}

# Sets options: all of the successor but its variables and script. Of the site's further options those stay that this
# job's attributes do not tell.
own_options() {
  local i fact word skip=''
  options=(-N "${PBS_JOBNAME:-meshard}" -l "$(own_resources)")
  for word in $MESHARD_SUBMIT_OPTIONS; do
    if [[ -n $skip ]]; then
      skip=''
    elif [[ -n $job_facts && $word == -[AJMNPSejklmopqrv]* ]]; then
      [[ ${#word} -gt 2 ]] || skip=yes
    else
      options+=("$word")
    fi
  done
  for ((i = 0; i < ${#carried[@]}; i += 3)); do
    fact=$(own_fact "${carried[i + 1]}")
    [[ -n $fact || ${carried[i]} != -A ]] || fact=$MESHARD_ACCOUNT
    [[ -z $fact || $fact == "${carried[i + 2]}" ]] || options+=("${carried[i]}" "$fact")
  done
  fact=$(job_fact group_list)
  [[ -z $fact || " $MESHARD_SUBMIT_OPTIONS" == *group_list=* ]] || options+=(-W "group_list=$fact")
  [[ $(job_fact Rerunable) != False ]] || options+=(-r n)
  fact=${PBS_O_QUEUE:-$MESHARD_PARTITION}
  [[ -z $fact ]] || options+=(-q "$fact")
}

requeue_pbs() {
  local options successor
  # The successor takes the folder that this job has made for its own.
  export MESHARD_RESTARTS=$((restarts + 1)) MESHARD_CHAIN=${MESHARD_CHAIN:-$job}
  own_options
  say "stopped: submitting restart $MESHARD_RESTARTS of at most $MESHARD_MAX_REQUEUES"
  # A TERM must not part qsub from the id that it is about to tell.
  successor=$(trap '' TERM USR1 USR2; exec qsub "${options[@]}" -v "$(own_variables)" "$script") ||
    { complain "qsub failed; to go on, submit it again"; return 0; }
  [[ ! -v SWEEP ]] || echo "pbs $successor $INDEX" >>"$SWEEP/jobs.txt"   # a sweep started again leaves it alone
  if ended_for_good; then
    qdel "$successor" || complain "job $successor, which was to go on, could not be deleted: delete it by hand"
    say "stopped by $wish: job $successor does not go on. To go on, submit it again"
    return 0
  fi
  say "job $successor goes on"
  exit 0
}
