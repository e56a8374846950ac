#!/usr/bin/env bash
# Submits a run, or points of a sweep, to Slurm or PBS with the site's settings (jobs/site.env), after checking what can
# be checked: settings, partition or queue, and whether the config fits the ranks.
#
#   jobs/submit.sh slurm|pbs [OPTION...] CONFIG.yaml [meshard train options]
#   jobs/submit.sh slurm|pbs [OPTION...] SWEEP_FOLDER [meshard train options]
#
#   --nodes N            default: that of the script, jobs/slurm/train.sbatch and the like; so are
#   --ranks-per-node N
#   --cores-per-rank N
#   --time TIME          HH:MM:SS, or as Slurm takes it: MINUTES (not on PBS), MM:SS, D-HH, D-HH:MM, D-HH:MM:SS
#   --array LIST         points of a sweep, such as 0-3,7,10-20:5; default: all. PBS takes one index or one range
#   --dry-run            shows the command and submits nothing
#
# Settings of jobs/site.env that are given in the environment, MESHARD_* and PREFLIGHT, go along with the job.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
# shellcheck source=jobs/batch.sh
. jobs/batch.sh

usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' jobs/submit.sh; }
case ${1-} in slurm | pbs) system=$1; shift ;; -h | --help) usage; exit 0 ;; *) usage >&2; exit 2 ;; esac

shape_nodes='' shape_ranks='' shape_cores='' time='' array='' dry_run=''
while [[ ${1-} == --* ]]; do
  case $1 in
    --dry-run) dry_run=yes; shift; continue ;;
    --help) usage; exit 0 ;;
    --nodes | --ranks-per-node | --cores-per-rank)
      # Six digits: products of them fit into bash's arithmetic.
      [[ ${2-} =~ ^[1-9][0-9]{0,5}$ ]] || refuse "$1 needs a whole number from 1 to 999999, not '${2-}'" ;;
    --time)
      [[ -n $(seconds_of "${2-}") ]] ||
        refuse "--time needs HH:MM:SS, MINUTES, MM:SS, D-HH, D-HH:MM or D-HH:MM:SS, not '${2-}'"
      [[ $system == slurm || $2 == *[:-]* ]] ||
        refuse "--time $2: minutes to Slurm, seconds to PBS; give HH:MM:SS" ;;
    --array) [[ -n ${2-} ]] || refuse "--array needs indices such as 0-11 or 0,3-5, not ''" ;;
    *) refuse "unknown option $1 (jobs/submit.sh --help)" ;;
  esac
  case $1 in
    --nodes) shape_nodes=$2 ;; --ranks-per-node) shape_ranks=$2 ;; --cores-per-rank) shape_cores=$2 ;;
    --time) time=$2 ;; --array) array=$2 ;;
  esac
  shift 2
done
[[ $# -gt 0 ]] || refuse "no config and no sweep folder given (jobs/submit.sh --help)"
what=$1; shift
unset MESHARD_RESTARTS MESHARD_CHAIN   # this is a first start, also where a job submits it
mapfile -t given < <(compgen -e MESHARD_; compgen -e -X '!PREFLIGHT')   # before site.env
read_site

# read_indices LIST POINTS: sets indices, those of a list such as 0-3,7,10-20:5%2.
read_indices() {
  local item='[0-9]{1,6}(-[0-9]{1,6}(:[0-9]{1,6})?)?' part first last step
  [[ $1 =~ ^$item(,$item)*(%[1-9][0-9]*)?$ ]] || refuse "--array needs indices such as 0-11 or 0,3-5, not '$1'"
  indices=()
  for part in $(tr ',' ' ' <<<"${1%%%*}"); do
    IFS=:- read -r first last step <<<"$part"
    first=$((10#$first)) last=$((10#${last:-$first})) step=$((10#${step:-1}))
    ((first <= last && step > 0)) || refuse "--array $1: $part names no index"
    ((last < $2)) || refuse "--array $1: $what has no point $last: its points are 0 to $(($2 - 1))"
    while ((first <= last)); do indices+=("$first"); first=$((first + step)); done
  done
  mapfile -t indices < <(printf '%s\n' "${indices[@]}" | sort -nu)
}

kind=train config=$what
if [[ -d $what ]]; then
  kind=array
  sweep_point "$what" 0
  points=$(wc -l <"$what/points.txt")
  array=${array:-0-$((points - 1))}
  read_indices "$array" "$points"
  [[ $system == slurm || $array != *,* ]] ||
    refuse "--array $array: PBS takes one index or one range, FIRST-LAST[:STEP]; submit the others apart"
  sweep_point "$what" "${indices[0]}"
  config=$point/point.yaml
elif [[ -n $array ]]; then
  refuse "--array goes with a sweep's folder; $what is none"
fi

# A default from the script's own directives.
from_script() { [[ -n ${!1} ]] || printf -v "$1" '%s' "$(sed -nE "s/^#(SBATCH|PBS) .*$2=([0-9]+([:-][0-9]+)*).*/\\2/p" "$script")"; }

check_slurm() {
  command -v sbatch >/dev/null || refuse "no sbatch here: submit where Slurm is, or use jobs/local.sh"
  local all default
  all=$(sinfo -h -o %P) || refuse "sinfo does not answer: is this a login node of the cluster?"
  default=$(sed -n 's/\*$//p' <<<"$all")
  all=$(tr -d '*' <<<"$all" | xargs)
  [[ -n $MESHARD_PARTITION || -n $default ]] ||
    refuse "this cluster has no default partition: set MESHARD_PARTITION in jobs/site.env to one of: $all"
  [[ -z $MESHARD_PARTITION || " ${all} " == *" $MESHARD_PARTITION "* ]] ||
    refuse "there is no partition '$MESHARD_PARTITION': set MESHARD_PARTITION in jobs/site.env to one of: $all"
}

check_pbs() {
  command -v qsub >/dev/null || refuse "no qsub here: submit where PBS is, or use jobs/local.sh"
  local all default
  all=$(qstat -Q | awk 'NR > 2 {print $1}' | xargs) || refuse "qstat does not answer: is this a login node of the cluster?"
  default=$(qstat -B -f 2>/dev/null | sed -n 's/^ *default_queue = //p')
  [[ -n $MESHARD_PARTITION || -n $default ]] ||
    refuse "this PBS has no default queue: set MESHARD_PARTITION in jobs/site.env to one of: $all"
  [[ -z $MESHARD_PARTITION || " ${all} " == *" $MESHARD_PARTITION "* ]] ||
    refuse "there is no queue '$MESHARD_PARTITION': set MESHARD_PARTITION in jobs/site.env to one of: $all"
}

# What sbatch is to hand on, where it is told not to hand on everything: the settings given here as well.
slurm_exports() {
  local word next='' exported=${SBATCH_EXPORT-ALL}
  for word in $MESHARD_SUBMIT_OPTIONS; do
    [[ -z $next ]] || exported=$word
    next=''
    case $word in --export=*) exported=${word#*=} ;; --export) next=yes ;; esac
  done
  if [[ ${#given[@]} == 0 || ,${exported^^}, == *,ALL,* ]]; then return 0; fi
  [[ ${exported^^} != @(NONE|NIL) ]] || exported=''
  echo "${exported:+$exported,}$(joined "${given[@]}")"
}

joined() { local IFS=,; echo "$*"; }

slurm_command() {
  command=(sbatch --nodes "$shape_nodes" --ntasks-per-node "$shape_ranks" --cpus-per-task "$shape_cores" --time "$time"
           --signal "B:USR1@$MESHARD_STOP_BEFORE_S")
  [[ -z $MESHARD_ACCOUNT ]] || command+=(--account "$MESHARD_ACCOUNT")
  [[ -z $MESHARD_PARTITION ]] || command+=(--partition "$MESHARD_PARTITION")
  [[ $MESHARD_GPUS_PER_NODE == 0 ]] || command+=(--gpus-per-node "$MESHARD_GPUS_PER_NODE")
  [[ $kind == train ]] || command+=(--array "$array")
  # shellcheck disable=SC2206  # several options in one setting
  command+=($MESHARD_SUBMIT_OPTIONS)
  local exports
  exports=$(slurm_exports)
  [[ -z $exports ]] || command+=(--export "$exports")
  command+=("$script" "$what" "$@")
}

# `meshard sweep` checked every point for these ranks, and shows them; other ones would be another run.
check_sweep_ranks() {
  local index wanted
  [[ -r $what/sweep.json ]] || return 0   # points that were written by hand
  for index in "${indices[@]}"; do
    sweep_point "$what" "$index"
    wanted=$(ranks_of_point "$what" "${point##*/}")
    [[ -z $wanted || $wanted == "$ranks" ]] ||
      refuse "point $index of $what is for $(counted "$wanted" rank) (sweep.json), not for $shape_nodes x $shape_ranks:" \
        "give --nodes and --ranks-per-node that make $wanted, or make a sweep with --ranks $ranks"
  done
}

clock() { printf '%02d:%02d:%02d\n' $(($1 / 3600)) $(($1 / 60 % 60)) $(($1 % 60)); }

pbs_command() {
  local chunk=ncpus=$((shape_ranks * shape_cores)):mpiprocs=$shape_ranks:ompthreads=$shape_cores names=OPTIONS
  [[ $MESHARD_GPUS_PER_NODE == 0 ]] || chunk+=:ngpus=$MESHARD_GPUS_PER_NODE
  command=(qsub -l "select=$shape_nodes:$chunk,walltime=$(clock "$seconds")")
  [[ -z $MESHARD_ACCOUNT ]] || command+=(-A "$MESHARD_ACCOUNT")
  [[ -z $MESHARD_PARTITION ]] || command+=(-q "$MESHARD_PARTITION")
  if [[ $kind == train ]]; then
    export CONFIG=$what; names+=,CONFIG
  else
    export SWEEP=$what; names+=,SWEEP
    # -J takes no single index.
    if [[ ${#indices[@]} -gt 1 ]]; then command+=(-J "$array"); else export INDEX=${indices[0]}; names+=,INDEX; fi
  fi
  local word
  for word in "$@"; do
    [[ $word != *[[:space:]]* ]] || refuse "'$word': an option with blanks cannot travel in qsub -v"
  done
  export OPTIONS="$*"
  # Names alone: qsub then quotes the values itself.
  [[ ${#given[@]} == 0 ]] || names+=,$(joined "${given[@]}")
  # shellcheck disable=SC2206  # several options in one setting
  command+=($MESHARD_SUBMIT_OPTIONS -v "$names" "$script")
}

if [[ $system == slurm ]]; then script=jobs/slurm/$kind.sbatch; else script=jobs/pbs/$kind.pbs; fi
if [[ $system == slurm ]]; then
  from_script shape_nodes --nodes; from_script shape_ranks --ntasks-per-node
  from_script shape_cores --cpus-per-task; from_script time --time
else
  from_script shape_nodes select; from_script shape_ranks mpiprocs
  from_script shape_cores ompthreads; from_script time walltime
fi
seconds=$(seconds_of "$time")
if [[ $system == pbs && $time != *[:-]* ]]; then seconds=$time; fi   # of the script, which speaks to PBS
((seconds > MESHARD_STOP_BEFORE_S)) ||
  refuse "--time $time is no longer than MESHARD_STOP_BEFORE_S, $MESHARD_STOP_BEFORE_S s: nothing would be trained"
# shellcheck disable=SC2034  # check_gpus reads it
nodes=$shape_nodes ranks=$((shape_nodes * shape_ranks))
[[ $kind == train ]] || check_sweep_ranks
"check_$system"
"${system}_command" "$@"
check_gpus
check_config "$config" "$ranks" "$@"

say "$(counted "$ranks" rank) on $(counted "$shape_nodes" node), $(counted "$shape_cores" core) a rank, $time"
printf ' %q' "${command[@]}"; echo
[[ -z $dry_run ]] || exit 0
answer=$("${command[@]}") ||
  refuse "not submitted. Account, partition or queue and further options are set in jobs/site.env"
echo "$answer"
if [[ $kind == array ]]; then
  # A sweep that is started again leaves these points alone.
  job=$(sed -nE 's/^(Submitted batch job )?([0-9]+[^ ;]*).*/\2/p' <<<"$answer" | tail -n 1)
  if [[ -z $job ]] || ! echo "$system $job $(joined "${indices[@]}")" >>"$what/jobs.txt"; then
    complain "could not note the job in $what/jobs.txt: \`meshard sweep\` started there would submit its points again"
  fi
else
  say "watch $run_folder/log.txt; the job's own output says more"
fi
