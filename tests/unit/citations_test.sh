#!/usr/bin/env bash
# citations_test.sh SOURCE_FOLDER: what a comment sends its reader to is there.
# Catches: a document that was moved, renamed, or never was in this repository (a word that ends in .md is looked for
# from the citing file's folder, from lib/ and from the top); a section, by number or by a title in quotes, that its
# document does not have; a section of its own that a document of lib/ speaks of, and does not have.
set -uo pipefail
cd "$1" || exit 1

# FILE TAB LINE TAB DOCUMENT TAB SECTIONS. A citation may go on in the next line, behind that line's comment sign.
citations=$(find lib app tests jobs configs CMakeLists.txt README.md -type f -print0 |
  xargs -0 grep -IlZ -e '\.md' -e 'section' | xargs -0 awk '
  function scan(line, after,   text, name, found, own, behind_name) {
    own = line " " after
    behind_name = ends_in_name
    ends_in_name = line ~ /\.md$/
    while (match(line, /[A-Za-z0-9_.\/-]+\.md/)) {
      name = substr(line, RSTART, RLENGTH)
      line = substr(line, RSTART + RLENGTH)
      if (line ~ /^[A-Za-z0-9_]/) continue
      text = line " " after
      gsub(/[ \t]+/, " ", text)
      found = ""
      if (match(text, /^\)? sections? [0-9]+((,| and| to|, and) [0-9]+)*/) || match(text, /^ \("[^"]+"/))
        found = substr(text, 1, RLENGTH)
      print file "\t" number "\t" name "\t" found
    }
    if (file !~ /^lib\/.*\.md$/) return
    name = file
    sub(/.*\//, "", name)
    gsub(/[ \t]+/, " ", own)
    gsub(/\.md\)? sections? [0-9]+((,| and| to|, and) [0-9]+)*/, "", own)
    if (behind_name) sub(/^ ?sections? [0-9]+/, "", own)
    for (; match(own, / \(?sections? [0-9]+((,| and| to|, and) [0-9]+)*/); own = substr(own, RSTART + RLENGTH)) {
      found = substr(own, RSTART, RLENGTH)
      sub(/\(/, "", found)
      print file "\t" number "\t" name "\t" found
    }
  }
  function bare(line) { sub(/^[ \t]*(\/\/+<?|#+|\*)?[ \t]*/, "", line); return line }
  FNR == 1 { if (file) scan(last, ""); file = FILENAME; last = ""; number = 0 }
  { if (number) scan(last, bare($0)); last = $0; number = FNR }
  END { if (file) scan(last, "") }')
[ -n "$citations" ] || { echo "FAILED: no comment cites a document: is the search itself broken?"; exit 1; }

failed=0 told= none=$'\t'
complain() {
  failed=1
  [ "$told" != "$file$name$sections" ] || return 0  # two lines were read as one, twice
  told=$file$name$sections
  echo "FAILED: $file:$line cites $name$sections: $1"
}
while IFS= read -r citation; do
  file=${citation%%"$none"*} rest=${citation#*"$none"}
  line=${rest%%"$none"*} rest=${rest#*"$none"}
  name=${rest%%"$none"*} sections=${rest#*"$none"}
  document=
  for place in "$(dirname "$file")/$name" "lib/$name" "./${name#/}"; do
    [ -f "$place" ] && { document=$place; break; }
  done
  [ -n "$document" ] || { complain "there is no such document"; continue; }
  case $sections in
    *\"*) title=${sections#*\"} title=${title%\"*}
          grep -q "^##* \(.*\. \)\?$title\$" "$document" || complain "$document has no such title" ;;
    *to*) set -- ${sections//[^0-9]/ }
          for number in $(seq "$1" "${@: -1}"); do
            grep -q "^##* $number\. " "$document" || complain "$document has no section $number"
          done ;;
    *) for number in ${sections//[^0-9]/ }; do
         grep -q "^##* $number\. " "$document" || complain "$document has no section $number"
       done ;;
  esac
done <<<"$citations"
exit $failed
