#!/usr/bin/env bash
# Builds everything and runs all tests: unit, mpi (1 to 4 ranks on this machine), end to end, an installed copy.
#
#   tests/run.sh                    everything
#   tests/run.sh -R sharding        options of ctest: those whose name matches; -L unit: those of a label
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."

jobs/setup.sh --tests
# Tests wait much, for ranks that start and for one another: twice as many as there are cores keep these busy. A test takes
# as many of the jobs as it has ranks at work.
exec ctest --test-dir build --output-on-failure --no-tests=error -j "$((2 * $(nproc)))" "$@"
