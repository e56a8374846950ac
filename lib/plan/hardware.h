#pragma once
// What the cost model knows of the machines: a small YAML file (configs/hardware/, `preflight --write-hardware`). All
// rates are those that a rank achieves, not a data sheet's peaks, except where a key says peak.

#include <filesystem>
#include <optional>
#include <string>

#include "config/config.h"

namespace meshard {

/// A way between ranks.
struct Link {
  double gb_per_s = 0.0;    ///< that one rank sends while all of them do, 1e9 bytes
  double latency_us = 0.0;  ///< of one hop from rank to rank
  bool operator==(const Link&) const = default;
};

/// What collectives cost a rank's own core: over MPI between CPUs it is the core that copies and folds.
struct CoreRates {
  double gather_gb_per_s = 0.0;  ///< of the bytes that a rank sends in a gather or an all-to-all
  double reduce_gb_per_s = 0.0;  ///< in a reduction
  bool operator==(const CoreRates&) const = default;
};

/// The fields' own values are H100s by eight: configs/hardware/h100_8.yaml.
struct Hardware {
  std::string name = "h100_8";
  int ranks_per_node = 8;     ///< ranks fill node after node
  double fp32_tflops = 45.0;  ///< of large products
  double bf16_tflops = 640.0;
  std::optional<double> peak_tflops = 989.0;  ///< for mfu; none: the achieved rate stands for it
  double attention_share = 0.6;               ///< of a product's rate that attention reaches
  double memory_gb_per_s = 2800.0;            ///< read and written
  double memory_gb = 80.0;
  double kernel_us = 2.5;       ///< what starting one kernel adds
  double collective_us = 15.0;  ///< what starting one collective adds
  std::optional<Link> node = Link{350.0, 2.0};
  std::optional<Link> network = Link{45.0, 5.0};
  std::optional<CoreRates> core = {};  ///< none: collectives take nothing of the time of computation
  bool operator==(const Hardware&) const = default;

  /// Local. Floating-point operations a second of one rank.
  double flops(Dtype dtype) const { return 1e12 * (dtype == Dtype::Bf16 ? bf16_tflops : fp32_tflops); }
};

/// Local. Reads a file strictly. Throws ConfigError with all its problems, one a line, as a config's:
/// `file:line:column  key.path: what is wrong`. Unknown keys are refused; only sections and `peak_tflops` may be left
/// out, and are then absent.
Hardware load_hardware(const std::filesystem::path& file);

/// Local. The same from text; `name` stands for the file in messages.
Hardware parse_hardware(const std::string& text, const std::string& name);

/// Local. The file's text: parse_hardware() of it gives the same. `remark`: what its first lines say, a comment.
std::string hardware_yaml(const Hardware& hardware, const std::string& remark = "");

/// Local. Rounded: no more digits are known of what was measured or predicted.
double three_digits(double value);

}  // namespace meshard
