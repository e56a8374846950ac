#!/usr/bin/env bash
# Builds everything and runs all tests: unit, mpi (1 to 4 ranks on this machine), end to end, an installed copy.
#
#   tests/run.sh                    everything
#   tests/run.sh -R sharding        options of ctest: those whose name matches; -L unit: those of a label
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."

jobs/setup.sh --tests
# A test takes as many of the jobs as it has ranks: those of four ranks run alone on a small machine.
exec ctest --test-dir build --output-on-failure --no-tests=error -j "$(nproc)" "$@"
