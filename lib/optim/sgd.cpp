#include <ATen/ops/_fused_sgd.h>

#include "optim/decay_runs.h"
#include "optim/optimizer.h"

namespace meshard {

void Sgd::update(const FlatShard& shard, const StepArguments& arguments) {
  update_runs(shard, {shard.grad, shard.weight}, [&](bool decay, const Columns& columns) {
    at::_fused_sgd_(columns[1], columns[0], /*momentum_buffer_list=*/{}, decay ? options_.weight_decay : 0.0,
                    /*momentum=*/0.0, arguments.lr, /*dampening=*/0.0, /*nesterov=*/false, /*maximize=*/false,
                    /*is_first_step=*/false, arguments.divisor(shard));
  });
}

}  // namespace meshard
