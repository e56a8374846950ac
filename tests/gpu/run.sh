#!/usr/bin/env bash
# On a machine with NVIDIA GPUs: builds Meshard with its NCCL backend in build-gpu/ and runs the tests of NCCL and every
# mpi test over NCCL. Needs no network, no root, and nothing but this clone and what the machine has. A test with more
# ranks than GPUs is skipped, and shown as skipped.
#
#   tests/gpu/run.sh [OPTION of ctest...]
#
# What it takes, and where from unless the environment names it:
#   MPI_HOME           Open MPI's prefix, with bin/mpicc and bin/mpirun     else: mpicc of the PATH
#   LIBTORCH_DIR       a LibTorch with CUDA, or an installed torch's folder else: the torch of PYTHON, python3 or .venv
#   NCCL_ROOT          a prefix with include/nccl.h and lib/libnccl.so*     else: the nvidia-nccl package beside torch
#   CUDAToolkit_ROOT   CUDA's headers and cudart                            else: nvcc of the PATH, /usr/local/cuda
#   CMAKE_PREFIX_PATH  yaml-cpp, fmt, nlohmann-json, CLI11, Boost.Test, zlib  else: the system's
#   MESHARD_JOBS       compilers at a time                                  else: one per core
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.."
case "${1-}" in -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;; esac

fail() { printf 'gpu: %s\n' "$@" >&2; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }

have nvidia-smi || fail "no nvidia-smi here: this needs a machine with NVIDIA GPUs and their driver"
nvidia-smi --query-gpu=index,name,memory.total,driver_version --format=csv,noheader

if [[ -n ${MPI_HOME-} ]]; then
  [[ -x $MPI_HOME/bin/mpirun ]] || fail "no bin/mpirun in MPI_HOME=$MPI_HOME"
  export PATH="$MPI_HOME/bin:$PATH" LD_LIBRARY_PATH="$MPI_HOME/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
  export OPAL_PREFIX="$MPI_HOME"   # an Open MPI that was moved finds its files by this
fi
for tool in mpicc mpirun cmake; do have "$tool" || fail "no $tool in the PATH"; done

torch_of() { "$1" -c 'import importlib.util as u; print(u.find_spec("torch").submodule_search_locations[0])' 2>/dev/null; }
libtorch=${LIBTORCH_DIR-}
for python in ${PYTHON:+"$PYTHON"} python3 .venv/bin/python; do
  [[ -z $libtorch ]] || break
  candidate=$(torch_of "$python") && [[ -e $candidate/lib/libtorch_cuda.so ]] && libtorch=$candidate
done
[[ -e $libtorch/lib/libtorch_cuda.so ]] ||
  fail "no LibTorch with CUDA: set LIBTORCH_DIR, or PYTHON to one that has a CUDA build of torch"

nccl=${NCCL_ROOT-}
if [[ -z $nccl && -e $libtorch/../nvidia/nccl/include/nccl.h ]]; then nccl=$(cd -- "$libtorch/../nvidia/nccl" && pwd); fi

options=(-DMESHARD_CUDA=ON -DMESHARD_TESTS=ON -DLIBTORCH_DIR="$libtorch")
if [[ -n $nccl ]]; then options+=(-DNCCL_ROOT="$nccl"); fi
if [[ ! -e build-gpu/CMakeCache.txt ]] && have ninja; then options+=(-G Ninja); fi
cmake -S . -B build-gpu "${options[@]}"
cmake --build build-gpu -j "${MESHARD_JOBS:-$(nproc)}"

# One test at a time: all of them share the GPUs.
export MESHARD_TEST_BACKEND=nccl
exec ctest --test-dir build-gpu --output-on-failure --no-tests=error -j 1 -L '^(mpi|nccl)$' "$@"
