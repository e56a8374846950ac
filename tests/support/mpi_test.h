#pragma once
// For tests that run on several ranks; mpi_main.cpp is their main. Every rank runs every test case. The verdict on a
// case is collective: a failure on any rank is printed with its rank and fails the test.

#include <string>

#include "comm/world/world.h"

/// Local. The World of this test program. Its backend is mpi, or what MESHARD_TEST_BACKEND says (mpi, nccl, auto;
/// nccl-late and nccl-early: over a stand-in for NCCL, on lanes of the host), its progress auto, or that of
/// MESHARD_TEST_PROGRESS (thread).
meshard::World& test_world();

/// Local. A folder of this test program alone, the same on every rank; removed at the end.
const std::string& test_folder();
