#!/usr/bin/env bash
# submit_test.sh SOURCE_FOLDER MESHARD: what jobs/submit.sh refuses, and how, before a batch system sees it. Commands of
# the batch systems are stand-ins that know one partition or queue, `main`; nothing is submitted.
# Catches: a number that bash's arithmetic takes for octal or cannot hold, in any setting or option; an option whose
# value is missing; a sweep that is started on other ranks than it was checked for.
set -uo pipefail
source=$1 meshard=$2 failed=0
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
cp -r "$source/jobs" "$place/jobs"
mkdir "$place/build" "$place/bin"
cp "$meshard" "$place/build/meshard"   # `meshard sweep` looks for the scripts beside itself
ln -s "$source/configs" "$place/configs"
for name in sbatch qsub; do printf '#!/bin/sh\necho "submitted: $*"\nexit 1\n' >"$place/bin/$name"; done
printf '#!/bin/sh\necho "main*"\n' >"$place/bin/sinfo"
printf '#!/bin/sh\n[ "$1" = -B ] && echo "    default_queue = main" || printf "Queue\\n---\\nmain\\n"\n' >"$place/bin/qstat"
chmod +x "$place"/bin/*
for name in $(compgen -e MESHARD_) PREFLIGHT; do unset "$name"; done
export PATH=$place/bin:$PATH
cd "$place" || exit 1
tiny=configs/tests/tiny.yaml
shape=(--nodes 2 --ranks-per-node 1 --cores-per-rank 1)

fail() { failed=1; echo "FAILED: $*"; sed 's/^/    /' <<<"$text"; }
submit() { text=$(jobs/submit.sh "$@" 2>&1); }
accepted() {  # PATTERN COMMAND...
  local pattern=$1; shift
  submit "$@" || fail "exit code $?: submit.sh $*"
  grep -qE -- "$pattern" <<<"$text" || fail "/$pattern/ is not said: submit.sh $*"
}
refused() {  # PATTERN COMMAND...
  local pattern=$1 code=0; shift
  submit "$@" || code=$?
  [[ $code == 2 ]] || fail "exit code $code, not 2: submit.sh $*"
  [[ $(grep -cE -- "$pattern" <<<"$text") == 1 ]] || fail "/$pattern/ is not said once: submit.sh $*"
  ! grep -qE 'line [0-9]+: ' <<<"$text" || fail "bash itself complains: submit.sh $*"
}

for system in slurm pbs; do
  accepted '2 ranks on 2 nodes, 1 core a rank' $system "${shape[@]}" --dry-run $tiny
  accepted '1 rank on 1 node, 2 cores a rank' \
    $system --nodes 1 --ranks-per-node 1 --cores-per-rank 2 --dry-run $tiny --set train.steps=3 --run-dir=here
  for value in 08 0 -1 1.5 1e3 '' 9999999 99999999999999999999; do
    for option in --nodes --ranks-per-node --cores-per-rank; do
      refused "$option needs a whole number from 1 to 999999, not '$value'" $system $option "$value" --dry-run $tiny
    done
  done
  for option in --nodes --ranks-per-node --cores-per-rank --time --array; do
    refused "$option needs .*, not ''" $system --dry-run $option
  done
  for option in --set --resume --init-from --run-dir --expect-ranks; do
    refused "$option needs a value" $system "${shape[@]}" --dry-run $tiny $option
    refused "$option needs a value" $system "${shape[@]}" --dry-run $tiny $option ''
    refused "$option needs a value" $system "${shape[@]}" --dry-run $tiny $option --overwrite
    refused "$option needs a value" $system "${shape[@]}" --dry-run $tiny $option=
  done
done

for name in MESHARD_GPUS_PER_NODE MESHARD_STOP_BEFORE_S MESHARD_MAX_REQUEUES; do
  for value in 08 00 9999999999 -1 1.5 5m ' '; do
    export "$name=$value"
    refused "$name is '$value', not a whole number" slurm "${shape[@]}" --dry-run $tiny
  done
  export "$name="
  if grep -q "^: \"\${$name:=" jobs/site.env; then
    accepted '2 ranks' slurm "${shape[@]}" --dry-run $tiny   # empty is unset: the site's own
  else
    refused "$name is '', not a whole number" slurm "${shape[@]}" --dry-run $tiny
  fi
  unset "$name"
done

# The sweep's folder is written before its points are submitted, which fails here.
printf 'schema: 1\nbase: %s\ngrid: {run.seed: [1, 2]}\n' $tiny >sweep.yaml
text=$(build/meshard sweep sweep.yaml --out sweep --ranks 2 --launcher slurm 2>&1)
for system in slurm pbs; do
  accepted '2 ranks on 2 nodes' $system "${shape[@]}" --dry-run sweep
  for array in 1 0-1; do
    refused "point ${array%%-*} of sweep is for 2 ranks \\(sweep.json\\), not for 3 x 1:" $system --nodes 3 \
      --ranks-per-node 1 --cores-per-rank 1 --array $array --dry-run sweep
  done
  refused '--array 0-2: sweep has no point 2' $system "${shape[@]}" --array 0-2 --dry-run sweep
  refused '--array needs indices such as' $system "${shape[@]}" --array 99999999999999999999 --dry-run sweep
done
# Points made by hand, without sweep.json, take any ranks.
rm sweep/sweep.json
cp $tiny sweep/seed=1/point.yaml
accepted '3 ranks on 3 nodes' slurm --nodes 3 --ranks-per-node 1 --cores-per-rank 1 --dry-run sweep
exit $failed
