#include <fmt/format.h>
#include <mpi.h>
#include <torch/headeronly/version.h>
#include <zlib.h>

#include <nlohmann/json.hpp>

#include "comm/device_backend.h"
#include "train/run.h"

namespace meshard {

std::string version_text() {
  char mpi[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  MPI_Get_library_version(mpi, &length);
  std::string library(mpi, length);
  library = library.substr(0, library.find(", package"));
  return fmt::format(
      "meshard      {}\nLibTorch     {}\nMPI          {}\nbackends     {}\nfmt          {}\nzlib         {}\njson      "
      "   {}.{}.{}",
      MESHARD_VERSION, TORCH_VERSION, library, built_in_backends(), FMT_VERSION, zlibVersion(),
      NLOHMANN_JSON_VERSION_MAJOR, NLOHMANN_JSON_VERSION_MINOR, NLOHMANN_JSON_VERSION_PATCH);
}

}  // namespace meshard
