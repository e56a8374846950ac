#!/usr/bin/env bash
# Sets Meshard up and trains on this machine.
#
#   jobs/local.sh                                    the quickstart: 4 ranks, runs/quickstart
#   jobs/local.sh CONFIG.yaml [meshard train options]
#   RANKS=2 jobs/local.sh configs/quickstart.yaml --set parallel.dp_outer=1
#
# The quickstart starts anew each time, in its own folder, unless options say otherwise (--resume auto, --run-dir DIR).
# Ctrl-C asks the run to stop; twice ends it at once.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
case "${1-}" in -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;; esac

config=configs/quickstart.yaml
if [[ ${1-} == *.yaml || ${1-} == *.yml ]]; then config=$1; shift; fi
ranks=${RANKS:-4}

run_dir=''
options=(--expect-ranks "$ranks")
if [[ $config == configs/quickstart*.yaml && " $* " != *" --run-dir"[\ =]* ]]; then
  run_dir=runs/$(basename "$config" .yaml)
  options+=(--run-dir "$run_dir")
  if [[ " $* " != *" --resume"[\ =]* && " $* " != *" --overwrite "* ]]; then options+=(--overwrite); fi
fi
# A rank cannot know: its output is mpirun's.
if [[ -t 1 ]]; then options+=(--progress); fi

jobs/setup.sh

mpi=(-n "$ranks" --bind-to none)
if [[ $(id -u) == 0 ]]; then export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1; fi
# More ranks than cores: those that wait give their core away.
if [[ $ranks -gt $(nproc) ]]; then mpi+=(--oversubscribe --mca mpi_yield_when_idle 1); fi

. jobs/site.env
status=0
# shellcheck disable=SC2086  # several options in one setting
jobs/launch.sh --with $$ mpirun "${mpi[@]}" $MESHARD_MPI_OPTIONS $MESHARD_WRAPPER build/meshard train "$config" \
  "${options[@]}" "$@" || status=$?

if [[ $status == 0 ]]; then echo "done."; else echo "ended with exit code $status."; fi
if [[ -n $run_dir ]]; then
  echo "Results are in $PWD/$run_dir: metrics.jsonl (a line per logged step), log.txt, config.yaml (as it ran)"
fi
exit "$status"
