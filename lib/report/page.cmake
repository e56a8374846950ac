# cmake -DFOLDER=lib/report -DOUT=page.cpp -P page.cmake: one page from its parts, as C++.
cmake_minimum_required(VERSION 3.22)
file(READ "${FOLDER}/page.html" page)
foreach(part page.css format.js plots.js maps.js table.js page.js)
  file(READ "${FOLDER}/${part}" text)
  string(REPLACE "@${part}@" "${text}" page "${page}")
endforeach()
file(WRITE "${OUT}" "#include \"report/page.h\"

namespace meshard {

std::string_view report_page() {
  return R\"page(${page})page\";
}

}  // namespace meshard
")
