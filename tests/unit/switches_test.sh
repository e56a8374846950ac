#!/usr/bin/env bash
# switches_test.sh COMPILER FLAGS SOURCE_FOLDER: a new value of an enum must be an error wherever it is not thought of.
# Catches: rooms compiled without -Werror=switch; a switch over an enum of ours whose default takes what is new.
set -uo pipefail
compiler=$1 flags=$2 source=$3
failed=0

compiles() {  # CASES
  "$compiler" "@$flags" -std=c++20 -fsyntax-only -x c++ - 2>&1 <<CODE
enum class Colour { Red, Green };
int number(Colour colour) {
  switch (colour) {
    $1
  }
  throw 0;
}
CODE
}

text=$(compiles "case Colour::Red: return 1; case Colour::Green: return 2;") ||
  { echo "FAILED: a switch that names every value does not compile:"; echo "$text"; failed=1; }
text=$(compiles "case Colour::Red: return 1;") &&
  { echo "FAILED: a switch that forgets a value compiles"; failed=1; }
grep -q Green <<<"$text" || { echo "FAILED: what was forgotten is not named:"; echo "$text"; failed=1; }

# LibTorch's dtypes and what is read from a file are for a default to refuse.
defaults=$(find "$source/lib" "$source/app" -name '*.h' -o -name '*.cpp' -o -name '*.cu' | sort | xargs awk '
  /switch \(/ { head = $0 }
  FILENAME ~ /pickle_steps/ && head ~ /switch \(op\)/ { next }
  /^ *default:/ && head !~ /switch \((.*scalar_type\(\)|dtype|rows|char .*)\)/ { print FILENAME ":" FNR ": " head }')
[ -z "$defaults" ] || { echo "FAILED: a switch over an enum has a default:"; echo "$defaults"; failed=1; }
exit $failed
