# shellcheck shell=bash
# What submit.sh and the batch scripts have in common. They source it from the clone's folder, under `set -euo pipefail`;
# a job's script then calls begin_slurm or begin_pbs, and train.

now() { echo "${EPOCHREALTIME:-$(date +%s.%N)}"; }
begun=$(now)
child='' stop='' asked=''   # launch.sh, while it runs; the last signal that asked for an end; whether `wait` saw one
terms=0                     # TERMs so far
run_folder='' config_minutes='' config_threads='' limit=()
config_before='' saved_before=''   # what the run's folder had when this start began
# shellcheck source=jobs/mpirun.sh
. jobs/mpirun.sh
# shellcheck source=jobs/requeue.sh
. jobs/requeue.sh

site_settings=(MESHARD_MODULES MESHARD_ACCOUNT MESHARD_PARTITION MESHARD_GPUS_PER_NODE MESHARD_SUBMIT_OPTIONS
               MESHARD_LAUNCHER MESHARD_MPI_OPTIONS MESHARD_SRUN_OPTIONS MESHARD_STOP_BEFORE_S MESHARD_MAX_REQUEUES
               MESHARD_WRAPPER PREFLIGHT)

say() { printf 'meshard: %s\n' "$*"; }
complain() { printf 'meshard: %s\n' "$@" >&2; }
refuse() { complain "$@"; exit 2; }   # nothing was started

# The settings are there and make sense, and there is something to run.
read_site() {
  [[ -r jobs/site.env ]] || refuse "no jobs/site.env in $PWD: it has the site's settings; take it from the repository"
  # shellcheck source=jobs/site.env
  . jobs/site.env
  local name problems=()
  for name in "${site_settings[@]}"; do
    [[ -v $name ]] || problems+=("jobs/site.env does not set $name; take its lines from the repository's copy")
  done
  [[ ${#problems[@]} == 0 ]] || refuse "${problems[@]}"
  for name in MESHARD_GPUS_PER_NODE MESHARD_STOP_BEFORE_S MESHARD_MAX_REQUEUES; do
    [[ ${!name} =~ ^(0|[1-9][0-9]{0,8})$ ]] || problems+=("$name is '${!name}', not a whole number (jobs/site.env)")
  done
  [[ $MESHARD_LAUNCHER == @(mpirun|srun) ]] ||
    problems+=("MESHARD_LAUNCHER is '$MESHARD_LAUNCHER', neither mpirun nor srun (jobs/site.env)")
  [[ $PREFLIGHT == [01] ]] || problems+=("PREFLIGHT is '$PREFLIGHT', neither 0 nor 1 (jobs/site.env)")
  [[ -x build/meshard ]] || problems+=("no build/meshard in $PWD: run jobs/setup.sh there first")
  set_binary
  [[ ${#problems[@]} == 0 ]] || refuse "${problems[@]}"
}

# Sets binary, how meshard is called once, and rank_binary, what the launcher starts on every rank.
set_binary() {
  local wrapper
  read -ra wrapper <<<"$MESHARD_WRAPPER"
  binary=("${wrapper[@]}" build/meshard) rank_binary=("${wrapper[@]}" build/meshard)
  [[ ${wrapper[0]-} == srun ]] || return 0
  # An srun in another's tasks would start every rank as often as there are ranks.
  [[ $MESHARD_LAUNCHER == srun ]] ||
    problems+=("MESHARD_WRAPPER is an srun: MESHARD_LAUNCHER must be srun, too (jobs/site.env)")
  binary=(srun --nodes=1 --ntasks=1 "${wrapper[@]:1}" build/meshard) rank_binary=(build/meshard)
  MESHARD_SRUN_OPTIONS+=" ${wrapper[*]:1}"
}

# counted NUMBER THING: "1 rank", "2 ranks".
counted() { if [[ $1 == 1 ]]; then echo "1 $2"; else echo "$1 $2s"; fi; }

# takes_value OPTION: whether it is an option of `meshard train` whose value is the next word.
takes_value() { [[ $1 == @(--set|--resume|--init-from|--run-dir|--expect-ranks) ]]; }

# check_config CONFIG RANKS [TRAIN OPTION...]: what `train` would refuse is refused now. Sets run_folder,
# config_minutes and config_threads (if it limits them), and sets to its --set options.
check_config() {
  local config=$1 wanted=$2 text; shift 2
  sets=()
  while [[ $# -gt 0 ]]; do
    # What train would take for a value: an option never is.
    if takes_value "$1"; then [[ -n ${2-} && $2 != --* ]] || refuse "$1 needs a value (meshard train --help)"; fi
    case $1 in
      --set) sets+=(--set "$2") ;;
      --set=*) sets+=("$1") ;;
      --run-dir) run_folder=$2 ;;
      --run-dir=*) run_folder=${1#*=} ;;
    esac
    case $1 in --set= | --run-dir= | --resume= | --init-from= | --expect-ranks=) refuse "${1%=} needs a value" ;; esac
    if takes_value "$1"; then shift; fi
    shift
  done
  [[ -r $config ]] || refuse "there is no config $config in $PWD"
  text=$("${binary[@]}" plan "$config" --ranks "$wanted" "${sets[@]}") ||
    refuse "$config does not fit $(counted "$wanted" rank), see above: change it, or the number of nodes or ranks of a node"
  [[ -n $run_folder ]] || run_folder=$(sed -n 's/^run folder  *//p' <<<"$text")
  config_minutes=$(sed -n 's/^time limit  *\([^ ]*\) min$/\1/p' <<<"$text")
  config_threads=$(sed -n 's/^threads  *\([0-9]*\) a rank$/\1/p' <<<"$text")
}

# sweep_point FOLDER INDEX: sets point, the folder of the sweep's point with that index.
point=''
sweep_point() {
  [[ -r $1/points.txt ]] || refuse "$1 is no sweep: there is no points.txt; make one with: build/meshard sweep"
  [[ $2 =~ ^[0-9]+$ ]] || refuse "'$2' is no index of a point"
  local name
  name=$(sed -n "$(($2 + 1))p" "$1/points.txt")
  [[ -n $name ]] || refuse "$1 has no point $2: its points are 0 to $(($(wc -l <"$1/points.txt") - 1))"
  # shellcheck disable=SC2034  # the scripts read it
  point=$1/$name
}

# ranks_of_point SWEEP NAME: as sweep.json says; nothing if it does not.
ranks_of_point() {
  grep -F -A1 "\"name\": \"$2\"," "$1/sweep.json" | sed -nE 's/^ *"ranks": ([0-9]+),?$/\1/p' | head -n 1
}

# seconds_of TIME: in the forms that Slurm takes, MINUTES, MM:SS, HH:MM:SS, D-HH, D-HH:MM or D-HH:MM:SS. Nothing for
# any other text.
seconds_of() {
  [[ $1 =~ ^([0-9]{1,5}-)?[0-9]{1,6}(:[0-5]?[0-9]){0,2}$ ]] || return 0
  local part hours=0 minutes=0 seconds=0 days=0
  IFS=: read -r -a part <<<"${1#*-}"
  case $1 in
    *-*) days=${1%%-*} hours=${part[0]} minutes=${part[1]:-0} seconds=${part[2]:-0} ;;
    *:*:*) hours=${part[0]} minutes=${part[1]} seconds=${part[2]} ;;
    *) minutes=${part[0]} seconds=${part[1]:-0} ;;
  esac
  echo $((((10#$days * 24 + 10#$hours) * 60 + 10#$minutes) * 60 + 10#$seconds))
}

# --- Slurm

begin_slurm() {
  job=${SLURM_JOB_ID:?run this with sbatch} ranks=${SLURM_NTASKS:?give sbatch --ntasks-per-node}
  # The last task of an array has the array's own id, which stands for every task of it.
  [[ ! -v SLURM_ARRAY_TASK_ID ]] || job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
  nodes=$SLURM_JOB_NUM_NODES hosts=$SLURM_JOB_NODELIST threads=${SLURM_CPUS_PER_TASK:-1}
  restarts=${SLURM_RESTART_COUNT:-0}
  requeue=requeue_slurm time_left=time_left_slurm
  unset SLURM_EXPORT_ENV   # after sbatch --export=NONE, srun would start mpirun's daemons without an environment
  trap_signals
  read_site
  if [[ $MESHARD_LAUNCHER == srun ]]; then
    # shellcheck disable=SC2206  # several options in one setting
    launcher=(srun $MESHARD_SRUN_OPTIONS -n "$ranks" -c "$threads" --cpu-bind=cores --wait=30)
    binding="each rank to cores of its own, by srun"
  else
    slurm_cpus
    set_mpirun
  fi
}

time_left_slurm() { seconds_of "$(squeue -h -j "$job" -o %L 2>/dev/null)"; }

# --- PBS

# begin_pbs SCRIPT: what a successor of this job is made from.
begin_pbs() {
  # shellcheck source=jobs/pbs/successor.sh
  . jobs/pbs/successor.sh
  script=$1
  job=${PBS_JOBID:?run this with qsub} ranks=$(wc -l <"${PBS_NODEFILE:?}")   # a line per rank
  hosts=$(sort -u "$PBS_NODEFILE" | xargs) threads=${OMP_NUM_THREADS:-1}
  nodes=$(wc -w <<<"$hosts") restarts=${MESHARD_RESTARTS:-0}
  requeue=requeue_pbs time_left=time_left_pbs
  trap_signals
  read_site
  [[ $MESHARD_LAUNCHER == mpirun ]] || refuse "MESHARD_LAUNCHER is srun, which PBS does not have (jobs/site.env)"
  job_facts=$(qstat -f -w "$job" 2>/dev/null || qstat -f "$job" 2>/dev/null || true)
  # A job that its server runs again has the variables of its first start.
  local run_count
  run_count=$(job_fact run_count)
  [[ ! $run_count =~ ^[0-9]+$ ]] || ((run_count < 2)) || restarts=$((restarts + run_count - 1))
  check_chunk "$(job_fact Resource_List.select)"
  wall_s=$(job_fact Resource_List.walltime | awk -F: 'NF { for (i = 1; i <= NF; i++) s = s * 60 + $i; print s }')
  pbs_cpus
  write_hostfile
  set_mpirun --hostfile "$hostfile"
  shield_agent
}

# An attribute of this job, as qstat tells it; nothing if it does not.
job_fact() { sed -n "s/^[[:space:]]*${1//./\\.} = //p" <<<"$job_facts"; }

time_left_pbs() { [[ -z $wall_s ]] || echo $((wall_s - SECONDS)); }

# ompthreads is ncpus unless it is given, and then every rank would claim all cores of its chunk. Chunks of several kinds
# are joined by +.
check_chunk() {
  local ncpus processes chunk part
  for chunk in ${1//+/ }; do
    ncpus='' processes=''
    for part in ${chunk//:/ }; do
      case $part in
        ncpus=*) ncpus=${part#*=} ;;
        mpiprocs=*) processes=${part#*=} ;;
      esac
    done
    [[ -n $ncpus && -n $processes ]] || continue
    ((threads * processes <= ncpus)) ||
      refuse "select=$1: $processes ranks x $threads cores are more than ncpus=$ncpus; add ompthreads=$((ncpus / processes))"
  done
}

# PBS kills a job a few seconds after its time: the run has to stop by itself, before that.
limit_time() {
  [[ -n $wall_s ]] || { say "qstat does not tell this job's walltime: train.max_minutes is left as it is"; return 0; }
  local minutes
  minutes=$(awk -v wall="$wall_s" -v before="$MESHARD_STOP_BEFORE_S" -v used="$SECONDS" -v own="$config_minutes" 'BEGIN {
    left = (wall - before > wall / 2) ? wall - before : wall / 2
    minutes = (left - used) / 60
    if (own != "" && own < minutes) print own
    else printf("%.2f", minutes < 0.01 ? 0.01 : minutes) }')
  say "walltime $wall_s s: train.max_minutes=$minutes"
  limit=(--set "train.max_minutes=$minutes")
}

# --- Both

trap_signals() {
  local signal
  # shellcheck disable=SC2064  # the name of now
  for signal in USR1 USR2 TERM; do trap "take_signal $signal" "$signal"; done
}

# launch.sh turns it into a request to every rank.
take_signal() {
  stop=$1 asked=yes
  [[ $1 != TERM ]] || terms=$((terms + 1))
  ask_to_stop
}

ask_to_stop() { [[ -z $child ]] || kill -USR1 "$child" 2>/dev/null || true; }

describe() {
  local gpus=(/dev/nvidia[0-9]*)
  [[ -e ${gpus[0]} ]] || gpus=()
  say "job $job, restart $restarts: $(counted "$ranks" rank) x $(counted "$threads" core)" \
    "on $(counted "$nodes" node): $hosts"
  say "$(mpirun --version 2>/dev/null | head -n 1 || echo "no mpirun"); launcher: ${launcher[*]}"
  say "binding: $binding"
  say "$HOSTNAME: $(awk -F': ' '/^model name/ {print $2; exit}' /proc/cpuinfo), $(nproc --all) CPUs," \
    "$(awk '/^MemTotal/ {printf "%.0f GB", $2 / 1e6}' /proc/meminfo), ${#gpus[@]} GPUs"
}

check_gpus() {
  local per_node=$(((ranks + nodes - 1) / nodes))
  ((MESHARD_GPUS_PER_NODE == 0 || per_node <= MESHARD_GPUS_PER_NODE)) ||
    refuse "$(counted "$per_node" rank) a node, but MESHARD_GPUS_PER_NODE is $MESHARD_GPUS_PER_NODE (jobs/site.env): each needs a GPU"
}

check_launcher() {
  command -v "$MESHARD_LAUNCHER" >/dev/null ||
    refuse "no $MESHARD_LAUNCHER here: name its module in jobs/site.env (MESHARD_MODULES)"
  [[ $MESHARD_LAUNCHER == mpirun || " $MESHARD_SRUN_OPTIONS " != *" --mpi=pmix"* || $(srun --mpi=list 2>&1) == *pmix* ]] ||
    refuse "this Slurm has no PMIx (srun --mpi=list): set MESHARD_LAUNCHER=mpirun in jobs/site.env"
}

# What a run begins from holds for its first start; once it has a checkpoint, later ones go on from that.
set_resume() {
  local word again=''
  resume=(--resume auto) options=()
  if ((restarts > 0)) && compgen -G "$run_folder/checkpoints/step-*/.metadata" >/dev/null; then again=yes; fi
  while [[ $# -gt 0 ]]; do
    word=$1; shift
    case $word in
      --resume) [[ -n $again ]] || { resume=("$word" "${1-}"); }; shift || true ;;
      --resume=*) [[ -n $again ]] || resume=("$word") ;;
      --overwrite) [[ -n $again ]] || options+=("$word") ;;
      *) options+=("$word") ;;
    esac
  done
}

# Runs meshard on every rank; sets status. The batch system's signals come to this shell alone, and `wait` returns
# early, above 128, whenever one arrives; asked again it has the command's own status.
on_every_rank() {
  jobs/launch.sh --with $$ "${launcher[@]}" "${rank_binary[@]}" "$@" &
  child=$!
  [[ -z $stop ]] || ask_to_stop
  while :; do
    asked='' status=0
    wait "$child" || status=$?
    [[ -n $asked ]] || break
  done
  child=''
}

# train CONFIG [TRAIN OPTION...]: checks, describes, runs, and says how it ended, in the batch system's terms.
train() {
  local config=$1; shift
  check_gpus
  check_launcher
  check_config "$config" "$ranks" "$@"
  [[ $requeue != requeue_pbs ]] || limit_time
  # Ranks that are not bound see all cores of the node, and would take them for theirs.
  [[ -z $unbound || -n $config_threads ]] || limit+=(--set "run.threads=$threads")
  set_resume "$@"
  describe
  say "run folder $run_folder; the scripts took $(awk -v a="$begun" -v b="$(now)" 'BEGIN {printf "%.2f", b - a}') s"
  config_before=$(config_written) saved_before=$(newest_checkpoint) status=0
  if [[ $PREFLIGHT == 1 ]]; then on_every_rank preflight --config "$config" "${sets[@]}" "${limit[@]}"; fi
  [[ $status != 0 ]] || on_every_rank train "$config" --expect-ranks "$ranks" "${resume[@]}" "${options[@]}" "${limit[@]}"
  # mpirun itself may break over a request, while it starts its daemons (nothing is lost then) or when all ranks are done.
  if [[ -n $stop && $status != @(0|2|75|76) ]] && { [[ $(config_written) == "$config_before" ]] || run_says_stopped; }; then
    status=75
  fi
  # Asked to stop before it had trained, which may be no fault of its own.
  [[ $status != 70 || $(end_of_run) != *' asked for it; no step was saved'* ]] || status=75
  conclude
}

# The last word of the run itself.
run_says_stopped() { [[ $(tail -n 1 "$run_folder/metrics.jsonl" 2>/dev/null) == '{"end":{"exit":75,'* ]]; }

# A start that has come as far as to train has written this file anew.
config_written() { stat -c %y "$run_folder/config.yaml" 2>/dev/null || true; }

# The newest complete checkpoint, and when it was made: with --overwrite one may take the place of another.
newest_checkpoint() {
  local names
  names=$(compgen -G "$run_folder/checkpoints/step-*/.metadata") || return 0
  stat -c '%n %y' "$(sort <<<"$names" | tail -n 1)" 2>/dev/null || true
}

conclude() {
  case $status in
    0) say "done: results lie in $run_folder" ;;
    75) stopped ;;
    2) complain "refused, see above: nothing was started" ;;
    76) complain "a rank hung; left for a person. The watchdog's summary is in $run_folder/dump/" ;;
    *) complain "failed with exit code $status, see above; left for a person. Dumps, if any, are in $run_folder/dump/" ;;
  esac
  exit "$status"
}
