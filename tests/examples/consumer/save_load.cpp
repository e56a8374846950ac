// Saves named tensors of one's own, some cut over the ranks, some replicated, and loads them again: no training, no
// model. Python's torch.distributed.checkpoint reads the folder as well. Usage: mpirun -n N save_load FOLDER

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <cstdio>

#include "checkpoint/load.h"
#include "checkpoint/save.h"

using namespace meshard;

// A [4 * ranks, 3] table of which each rank holds four rows, and a counter that all of them hold.
StateDict state_of(const World& world, at::Tensor rows, at::Tensor counter) {
  StateDict state;
  TensorPart own_rows({4 * world.size(), 3}, {{4 * world.rank(), 0}, {4, 3}});
  state.tensors.push_back(sharded_tensor({"table"}, rows, own_rows, world.rank()));
  state.tensors.push_back(replicated_tensor({"counter"}, counter, world.size()));
  state.values.push_back({"note", {"note"}, pickle::Value::string("made by hand")});
  return state;
}

int main(int argc, char** argv) {
  World world;
  auto rows = (at::arange(12, at::kFloat) + 100 * world.rank()).view({4, 3});
  auto counter = at::full({}, 42, at::kLong);
  std::filesystem::path folder = argc > 1 ? argv[1] : "saved";

  Saver saver(world, posix_file_system(), /*async=*/true);
  saver.save(folder, state_of(world, rows, counter), {});
  saver.finish();

  auto loaded_rows = at::zeros({4, 3}), loaded_counter = at::zeros({}, at::kLong);
  CheckpointReader reader(posix_file_system(), folder);
  reader.read(state_of(world, loaded_rows, loaded_counter));
  bool same = at::equal(rows, loaded_rows) && at::equal(counter, loaded_counter) &&
              reader.read_value("note").text() == "made by hand" && reader.verify().sound();
  std::printf("rank %d: %s\n", world.rank(), same ? "saved and loaded" : "DIFFERENT");
  return same ? 0 : 1;
}
