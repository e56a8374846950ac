#include <fmt/format.h>
#include <mpi.h>
#include <torch/headeronly/version.h>
#include <zlib.h>

#include <nlohmann/json.hpp>

#include "comm/nccl/device_backend.h"
#include "train/run.h"

namespace meshard {

std::string version_text() {
  char mpi[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  MPI_Get_library_version(mpi, &length);
  std::string library(mpi, length);
  library = library.substr(0, library.find(", package"));
  auto json =
      fmt::format("{}.{}.{}", NLOHMANN_JSON_VERSION_MAJOR, NLOHMANN_JSON_VERSION_MINOR, NLOHMANN_JSON_VERSION_PATCH);
  std::string text;
  for (auto& [name, version] : std::initializer_list<std::pair<const char*, std::string>>{
           {"meshard", MESHARD_VERSION},
           {"LibTorch", TORCH_VERSION},
           {"MPI", library},
           {"backends", built_in_backends()},
           {"yaml-cpp", MESHARD_YAML_CPP_VERSION},
           {"CLI11", MESHARD_CLI11_VERSION},
           {"fmt", fmt::format("{}.{}.{}", FMT_VERSION / 10000, FMT_VERSION / 100 % 100, FMT_VERSION % 100)},
           {"zlib", zlibVersion()},
           {"json", json}}) {
    text += fmt::format("{}{:<12} {}", text.empty() ? "" : "\n", name, version);
  }
  return text;
}

}  // namespace meshard
