#!/usr/bin/env bash
# checkpoint_reshard_test.sh MPIRUN.SH PROGRAM: every mesh of 1 to 4 ranks saves a checkpoint, every mesh loads some.
set -uo pipefail
mpirun=$1 program=$2
MESHARD_RESHARD_FOLDER=$(mktemp -d)
export MESHARD_RESHARD_FOLDER
trap 'rm -rf "$MESHARD_RESHARD_FOLDER"' EXIT

for phase in every_layout_saves,groups_of_one_unit_save every_layout_loads_another,groups_of_one_unit_load; do
  for ranks in 1 2 3 4; do
    echo "== $ranks ranks"
    "$mpirun" "$ranks" "$program" --run_test="$phase" || { echo "FAILED: $phase on $ranks ranks"; exit 1; }
  done
done
