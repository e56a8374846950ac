#pragma once
// The page of a report without its data: page.html with its style and scripts, put together by
// page.cmake when the library is built.

#include <string_view>

namespace meshard {

/// Stands in the page where the data goes, as JSON in an element of its own.
inline constexpr std::string_view kPageData = "@DATA@";

/// Local.
std::string_view report_page();

}  // namespace meshard
