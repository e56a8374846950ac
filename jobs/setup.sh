#!/usr/bin/env bash
# Sets up what Meshard needs and builds it: build/meshard. Can be run again at any time; what is there already is left
# alone, so a second run takes seconds, and one that was interrupted is repaired.
#
#   jobs/setup.sh            packages, LibTorch, text, the binary
#   jobs/setup.sh --tests    the same, and everything the tests need
#
# Needs Debian 12 or Ubuntu 22.04 or newer and root or sudo if packages are missing. Elsewhere it takes what the system or
# its modules provide (jobs/site.env) and says what is missing.
#   MESHARD_TORCH    another pip requirement ("torch==2.12.0"), or a folder with a LibTorch or an installed torch
#   LIBTORCH_DIR     a LibTorch that is there already: no virtual environment is made
#   MESHARD_CUDA     AUTO (default), ON or OFF: the NCCL backend
#   MESHARD_JOBS     compilers at a time; default: one per core and per 2 GiB of memory
set -euo pipefail
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
cd -- "$root"
. jobs/site.env

tests=no
case "${1-}" in
  "") ;;
  --tests) tests=yes ;;
  *) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; [[ $1 == -h || $1 == --help ]] && exit 0 || exit 2 ;;
esac

torch_default=torch==2.13.0
torch_cpu_index=https://download.pytorch.org/whl/cpu
packages=(g++ cmake ninja-build ccache openmpi-bin libopenmpi-dev libyaml-cpp-dev libboost-test-dev libcli11-dev
          nlohmann-json3-dev libfmt-dev zlib1g-dev python3 python3-venv)

say() { printf 'setup: %s\n' "$*"; }
fail() { printf 'setup: %s\n' "$@" >&2; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }

# as_root COMMAND...: false if nobody here may install packages.
as_root() {
  if [[ $(id -u) == 0 ]]; then "$@"
  elif ! have sudo; then return 1
  elif [[ -t 0 ]]; then sudo "$@"
  else sudo -n "$@"; fi
}

what_is_needed() {
  cat <<EOF
Meshard is built from: a C++20 compiler (g++ 11 or newer), CMake 3.22, ninja or make, Open MPI 4.1 with mpicc and mpirun,
yaml-cpp 0.7, CLI11 2.1, nlohmann-json 3.11, fmt 8.1, zlib, Boost.Test 1.74 (for the tests), and LibTorch 2.11 to 2.14.
Debian and Ubuntu packages: ${packages[*]}
Elsewhere: install them by other means, or name modules in jobs/site.env (MESHARD_MODULES), and set LIBTORCH_DIR, or have
python3 with venv and pip so that LibTorch can be installed into .venv. Libraries in unusual places: CMAKE_PREFIX_PATH.
EOF
}

lists_updated=''

# apt_install NAME...: false if some could not be installed.
apt_install() {
  local name missing=()
  have dpkg-query && have apt-get || return 1
  for name in "$@"; do
    [[ $(dpkg-query -W -f='${db:Status-Status}' "$name" 2>/dev/null) == installed ]] || missing+=("$name")
  done
  [[ ${#missing[@]} -gt 0 ]] || return 0
  say "installing ${missing[*]}"
  # A third-party package source that does not answer must not stop us: what counts is the installation.
  if [[ -z $lists_updated ]]; then
    as_root apt-get -q update >build/apt.log 2>&1 || say "apt-get update was not complete (build/apt.log); going on"
    lists_updated=yes
  fi
  as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -y --no-install-recommends -o DPkg::Lock::Timeout=300 \
    install "${missing[@]}" >>build/apt.log 2>&1
}

install_packages() {
  if apt_install "${packages[@]}"; then return 0; fi
  ! have apt-get || say "could not install packages (build/apt.log). As root: apt-get install ${packages[*]}"
  say "going on with what is there"
  local name
  for name in cmake mpicc mpirun; do
    have "$name" || fail "no $name here." "$(what_is_needed)"
  done
  have c++ || have g++ || [[ -n ${CXX-} ]] || fail "no C++ compiler here." "$(what_is_needed)"
}

# A Slurm of the tests' own.
batch_daemons() {
  apt_install slurm-wlm munge slurm-wlm-torque ||
    say "SKIPPED: no Slurm to be had (build/apt.log); the batch scripts are not tested under one"
}

# What the tests of the report's page look at it with.
browser() {
  local name
  for name in chromium chromium-browser google-chrome; do
    if have "$name"; then return 0; fi
  done
  apt_install chromium || say "SKIPPED: no browser to be had (build/apt.log); the report's page is not looked at in one"
}

is_libtorch() { [[ -e $1/include/ATen/core/Tensor.h && -e $1/lib/libtorch.so ]]; }

# The folder of a completely installed torch package: pip writes RECORD last.
torch_in_venv() {
  local folder
  for folder in .venv/lib/python3*/site-packages; do
    if is_libtorch "$folder/torch" && compgen -G "$folder/torch-*.dist-info/RECORD" >/dev/null; then
      printf '%s\n' "$root/$folder/torch"
      return 0
    fi
  done
  return 1
}

make_venv() {
  # Of an installation that was interrupted pip would believe that it is complete.
  torch_in_venv >/dev/null || rm -rf .venv/lib/python3*/site-packages/{torch,torch-*.dist-info}
  if .venv/bin/python -m pip --version >/dev/null 2>&1; then return 0; fi
  have python3 || fail "no python3 here, and no LIBTORCH_DIR." "$(what_is_needed)"
  say "making .venv"
  python3 -m venv --clear .venv || fail "python3 could not make a virtual environment (Debian: python3-venv)"
}

pip_install() { .venv/bin/python -m pip install --disable-pip-version-check -q "$@"; }

# Sets libtorch. A CPU build from PyTorch's own index needs none of torch's Python dependencies and is a tenth of what
# the package of the general index is; that one, CUDA libraries included, is taken where the first cannot be had.
find_libtorch() {
  if [[ -n $LIBTORCH_DIR || -d $MESHARD_TORCH ]]; then
    local given=${LIBTORCH_DIR:-$MESHARD_TORCH} folder
    for folder in "$given" "$given/torch" "$given"/lib/python3*/site-packages/torch; do
      if is_libtorch "$folder"; then libtorch=$(cd -- "$folder" && pwd); return 0; fi
    done
    fail "no LibTorch in '$given': neither there nor in its torch/ or site-packages are include/ATen and lib/libtorch.so"
  fi
  if [[ -z $MESHARD_TORCH ]] && libtorch=$(torch_in_venv); then return 0; fi
  make_venv
  if [[ -n $MESHARD_TORCH ]]; then
    pip_install "$MESHARD_TORCH" || fail "pip could not install '$MESHARD_TORCH' (MESHARD_TORCH)"
  else
    say "installing $torch_default into .venv (CPU build, about 190 MB)"
    pip_install --no-deps --retries 1 --timeout 20 --index-url "$torch_cpu_index" "$torch_default" 2>build/pip.log ||
      { say "no CPU build to be had; taking the general package, several GB with its CUDA libraries"
        pip_install "$torch_default"; } ||
      fail "pip could not install $torch_default (first try: build/pip.log)." \
           "Without a network: set LIBTORCH_DIR, or MESHARD_TORCH to a wheel file."
  fi
  libtorch=$(torch_in_venv) || fail "pip ended well, but there is no LibTorch in .venv: remove .venv and run this again"
}

# What the NCCL backend is compiled against, without CUDA or a GPU: headers, no tools.
nccl_headers() {
  if compgen -G ".venv/lib/python3*/site-packages/nvidia/nccl/include/nccl.h" >/dev/null; then return 0; fi
  if have nvcc && [[ -e /usr/include/nccl.h ]]; then return 0; fi
  make_venv
  say "installing the headers of NCCL and CUDA into .venv"
  pip_install --no-deps nvidia-cuda-runtime nvidia-cuda-crt nvidia-cuda-cccl 2>build/pip-nccl.log &&
    pip_install --no-deps nvidia-nccl-cu13 2>>build/pip-nccl.log ||
    say "SKIPPED: no NCCL headers to be had (build/pip-nccl.log); the NCCL backend is not compiled here"
}

# The text of the quickstart. Unpacked, not installed: slim systems drop everything below /usr/share/doc.
fetch_text() {
  local text=build/data/jargon.txt.gz
  [[ ! -s $text ]] || return 0
  if ! { have apt-get && have dpkg-deb && unpack_text "$text"; }; then
    say "could not fetch the public-domain Jargon File (Debian package jargon-text): training of configs/quickstart.yaml"
    say "needs it as $text; or train on any text of yours: --set 'data.files=[my.txt]'"
  fi
}

unpack_text() (
  work=$(mktemp -d)
  trap 'rm -rf -- "$work"' EXIT
  chmod 755 "$work"   # apt's own user reads here
  mkdir -p "$work/lists/partial" "$work/archives/partial" "$work/download" build/data
  own_lists=(-o "Dir::State::Lists=$work/lists" -o "Dir::Cache=$work")
  cd -- "$work/download"
  # Package lists may be missing, and whoever is not root cannot fetch the system's: then private ones do.
  apt-get -qq -o APT::Sandbox::User=root download jargon-text >"$work/log" 2>&1 || {
    apt-get -qq -o APT::Sandbox::User=root "${own_lists[@]}" update
    apt-get -qq -o APT::Sandbox::User=root "${own_lists[@]}" download jargon-text
  } >"$work/log" 2>&1 || { sed 's/^/setup: /' "$work/log" >&2; exit 1; }
  dpkg-deb -x jargon-text_*.deb "$work/tree"
  cp -- "$work/tree/usr/share/doc/jargon-text/jargon.txt.gz" "$root/$1.part"
  mv -- "$root/$1.part" "$root/$1"
  say "text: $1"
)

build() {
  # A build folder that was moved along with its clone is configured anew.
  if [[ -e build/CMakeCache.txt ]] && ! grep -qxF "CMAKE_HOME_DIRECTORY:INTERNAL=$root" build/CMakeCache.txt; then
    rm -rf build/CMakeCache.txt build/CMakeFiles
  fi
  local options=(-DLIBTORCH_DIR="$libtorch") target=(--target meshard) log=build/configure.log
  if [[ -n ${MESHARD_CUDA-} ]]; then options+=(-DMESHARD_CUDA="$MESHARD_CUDA"); fi
  if [[ $tests == yes ]]; then options+=(-DMESHARD_TESTS=ON); target=()
  elif [[ ! -e build/CMakeCache.txt ]]; then options+=(-DMESHARD_TESTS=OFF); fi
  if [[ ! -e build/CMakeCache.txt ]] && have ninja; then options+=(-G Ninja); fi
  if ! cmake -S . -B build "${options[@]}" >"$log" 2>&1; then
    cat "$log" >&2
    fail "CMake could not configure the build." "$(what_is_needed)"
  fi
  grep -E '^-- meshard' "$log" || true
  local jobs=${MESHARD_JOBS-}
  if [[ -z $jobs ]]; then
    local memory; memory=$(awk '/^MemAvailable:/ {print int($2 / 2097152)}' /proc/meminfo)
    jobs=$(nproc)
    if [[ $memory -lt $jobs ]]; then jobs=$((memory > 0 ? memory : 1)); fi
  fi
  cmake --build build "${target[@]}" -j "$jobs"
}

mkdir -p build
if have flock; then exec 9>build/.setup.lock; flock 9; fi   # two set-ups at once wait for one another
install_packages
find_libtorch
if [[ $tests == yes ]]; then batch_daemons; browser; nccl_headers; fi
fetch_text
# Others' programs, for the tests alone, are fetched while the compilers work.
peers=''
if [[ $tests == yes ]]; then
  tests/interop/setup.sh >build/setup-interop.log 2>&1 &
  peers=$!
fi
build
if [[ -n $peers ]]; then wait "$peers"; cat build/setup-interop.log; fi
say "the binary is $root/build/meshard"
