#!/usr/bin/env bash
# consumer_test.sh SOURCE BUILD: installs BUILD into a folder of its own, then builds and runs tests/examples/consumer
# against nothing but that.
# Catches: a header or target that is not installed, a package that leads back into the build folder.
set -euo pipefail
source=$1 build=$2
work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT

cmake --install "$build" --prefix "$work/first" >"$work/install.log" || { cat "$work/install.log"; exit 1; }
mv "$work/first" "$work/prefix"   # what is installed can be moved
if grep -rnF -e "$build" -e "$source/lib" -e "$work/first" "$work/prefix/lib/cmake"; then
  echo "FAILED: the package names folders of the build (above)"
  exit 1
fi
# Its own copy, so that no header of ours is found by being next door.
cp -r "$source/tests/examples/consumer" "$work/consumer"
cmake -S "$work/consumer" -B "$work/build" -DCMAKE_PREFIX_PATH="$work/prefix" -DCMAKE_BUILD_TYPE=Release
cmake --build "$work/build"
"$source/tests/support/mpirun.sh" 2 "$work/build/consumer"
"$source/tests/support/mpirun.sh" 3 "$work/build/save_load" "$work/saved"
echo "ok: consumer"
