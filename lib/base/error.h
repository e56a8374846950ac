#pragma once
// Errors. One hierarchy: every failure of Meshard is an `Error` with a message that says what, where and what to do,
// the exit code that the process should end with, and the place that raised it. Rank and host are added where the error
// is printed (app/main.cpp). Status codes of libraries are converted where the call is made.

#include <source_location>
#include <stdexcept>
#include <string>

#include "base/exit_codes.h"

namespace meshard {

class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& message, std::source_location where = std::source_location::current());

  ExitCode code() const noexcept { return code_; }

  /// Where it was raised, as `file.cpp:123`.
  std::string place() const;

 private:
  ExitCode code_;
  std::source_location where_;
};

/// A configuration or command line that cannot be honoured. Nothing has started yet.
struct ConfigError : Error {
  explicit ConfigError(const std::string& message, std::source_location where = std::source_location::current())
      : Error(kExitUsage, message, where) {}
};

/// A caller broke the contract of a function: a bad argument.
struct ArgumentError : Error {
  explicit ArgumentError(const std::string& message, std::source_location where = std::source_location::current())
      : Error(kExitFailure, message, where) {}
};

/// A tensor of an illegal or unexpected shape, dtype or device.
struct ShapeError : ArgumentError {
  using ArgumentError::ArgumentError;
};

/// Calls in an order that the contract forbids (step before initialisation, a module sharded twice).
struct LogicError : Error {
  explicit LogicError(const std::string& message, std::source_location where = std::source_location::current())
      : Error(kExitFailure, message, where) {}
};

/// An operation that exists in principle but that this version does not do.
struct NotImplementedError : LogicError {
  using LogicError::LogicError;
};

/// MPI, NCCL or CUDA failed, or peers disagree.
struct CommError : Error {
  explicit CommError(const std::string& message, std::source_location where = std::source_location::current())
      : Error(kExitFailure, message, where) {}
};

/// A file that is missing, unreadable, not what it should be, or a disk that is full.
struct IoError : Error {
  explicit IoError(const std::string& message, std::source_location where = std::source_location::current())
      : Error(kExitFailure, message, where) {}
};

/// What should be bitwise the same on all ranks is not. Thrown on every rank.
struct ReplicaError : Error {
  explicit ReplicaError(const std::string& message, std::source_location where = std::source_location::current())
      : Error(kExitFailure, message, where) {}
};

/// Training met a value that is not finite.
struct NonFiniteError : Error {
  explicit NonFiniteError(const std::string& message, std::source_location where = std::source_location::current())
      : Error(kExitFailure, message, where) {}
};

}  // namespace meshard
