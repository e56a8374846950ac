#!/usr/bin/env bash
# The benchmark: Meshard and the same model in Python PyTorch (peer/), in turn on this machine, as a table of ratios.
#
#   tests/bench/run.sh                        all parts, about 30 minutes on a quiet machine
#   tests/bench/run.sh single hsdp            some: single fsdp hsdp moe startup plan wire checkpoint metrics quickstart
#   tests/bench/run.sh --repeats 5 single     more pairs
#
# Not a test: nothing fails when a target is missed. Results also go to build/bench/results.json.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.."

jobs/setup.sh
python=${PYTHON:-.venv/bin/python}
# What the peer needs of torch beyond the libraries.
"$python" -c 'import numpy, torch' 2>/dev/null ||
  "$python" -m pip install --disable-pip-version-check -q numpy "torch==$("$python" -m pip show torch | awk '/^Version:/ {print $2}')"
cmake --build build --target routing_cost checkpoint_speed metrics_cost
exec "$python" tests/bench/compare.py "$@"
