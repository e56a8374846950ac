#pragma once
// A look at the machines before a long run: where the ranks are, whether that fits the mesh, how fast the axes are, and
// whether a node is slower than the others. It takes some ten seconds and changes nothing.

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "comm/world/world.h"
#include "mesh/bandwidth.h"
#include "mesh/mesh_shape.h"

namespace meshard {

struct PreflightOptions {
  std::vector<std::int64_t> sizes{4 << 10, 1 << 20, 64 << 20};  ///< bytes per rank, ascending, multiples of 4
  double seconds = 8.0;                                         ///< for the bandwidths
  int threads = 0;                      ///< of a rank; 0: cores of the node / ranks on it, as run.threads: auto
  std::int64_t most_bytes = 1LL << 30;  ///< of a rank's buffers; never more than a quarter of its share of free memory
};

struct RankFacts {
  RankPlace place;
  std::vector<int> cores;    ///< that it may run on
  int node_cores = 0;        ///< online
  int threads = 1;           ///< that training would use
  std::string gpu;           ///< PCI bus id; empty: none is used
  double gflops = 0.0;       ///< fp32 matrix product (GPU: bf16) while all ranks compute, 1e9 a second
  double copy_gb_per_s = 0;  ///< memory read and written by a copy while all ranks copy
};

struct PreflightReport {
  MeshShape shape{1, 1, 1};
  Backend backend = Backend::Mpi;
  std::vector<RankFacts> ranks;
  std::vector<Bandwidth> bandwidths;
  std::vector<std::string> warnings;
  double seconds = 0.0;
};

/// Collective over world. The same report on every rank. Sets the number of threads of this process.
PreflightReport preflight(const Mesh& mesh, const PreflightOptions& options);

/// Collective over world (a barrier before it). Work per second of the median burst of half a second, while all ranks
/// call `call`, which does `work`: what a neighbour takes away counts, a single hiccup does not.
double median_rate(World& world, double work, const std::function<void()>& call);

/// Local. What is wrong with the places and speeds of the ranks of a report: axes over node borders, cores that are
/// shared, nodes (and GPUs) more than a fifth slower than the median.
std::vector<std::string> preflight_warnings(const PreflightReport& report);

/// Local. Tables for people.
std::string preflight_text(const PreflightReport& report);

/// Local. {"ranks", "backend", "mesh", "places": [...], "nodes": [...], "bandwidths": [...], "warnings": [...],
/// "seconds"}
nlohmann::ordered_json preflight_json(const PreflightReport& report);

}  // namespace meshard
