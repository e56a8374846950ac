# cmake -DFOLDER=lib/runs -DOUT=report_page.cpp -P report_page.cmake: one page from its parts, as C++.
cmake_minimum_required(VERSION 3.22)
file(READ "${FOLDER}/report_page.html" page)
foreach(part report_page.css report_format.js report_plots.js report_maps.js report_table.js report_page.js)
  file(READ "${FOLDER}/${part}" text)
  string(REPLACE "@${part}@" "${text}" page "${page}")
endforeach()
file(WRITE "${OUT}" "#include \"runs/report_page.h\"

namespace meshard {

std::string_view report_page() {
  return R\"page(${page})page\";
}

}  // namespace meshard
")
