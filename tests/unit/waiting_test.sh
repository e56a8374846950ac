#!/usr/bin/env bash
# waiting_test.sh BUILD_FOLDER: what waits in a test gives its core away, for tests share the cores.
# Catches: a test without SHARED_CORES, whose threads or ranks spin for one another while others need the cores: three
# copies of unit.nn_model at once took 52 s so, and take 1.5.
set -uo pipefail
spinning=$(find "$1/tests" -name CTestTestfile.cmake -exec grep -h '^set_tests_properties' {} + |
  grep -v 'OMP_WAIT_POLICY=passive;OMPI_MCA_mpi_yield_when_idle=1' | sed 's/^set_tests_properties(\(\S*\).*/\1/')
[ -z "$spinning" ] || { echo "FAILED: tests without ENVIRONMENT \"\${SHARED_CORES}\":"; echo "$spinning"; exit 1; }
