#!/usr/bin/env bash
# mpirun.sh RANKS PROGRAM [ARG...]: starts PROGRAM on RANKS ranks of this machine, beside other tests: a rank that waits
# gives its core away.
set -euo pipefail
ranks=$1; shift
options=(--bind-to none --oversubscribe --mca mpi_yield_when_idle 1)
if [ "$(id -u)" = 0 ]; then export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1; fi
exec mpirun -n "$ranks" "${options[@]}" "$@" </dev/null
