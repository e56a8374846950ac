#include "plan/compute_time.h"

#include <algorithm>

#include "model/options.h"
#include "nn/cross_entropy.h"

namespace meshard {

namespace {

constexpr double kGradient = 4.0;  // bytes of a weight's gradient where a product makes it

/// Adds up what kernels take.
class Meter {
 public:
  Meter(const Hardware& hardware, Dtype dtype, double element)
      : hardware_(hardware), rate_(hardware.flops(dtype)), element_(element) {}

  /// y [rows, out] = x [rows, in] W for `count` matrices W, in as many kernels.
  Meter& product(double rows, double in, double out, double count = 1.0) {
    auto bytes = element_ * (rows * in + in * out + rows * out);
    return add(2.0 * rows * in * out, bytes, count);
  }
  /// What product() needs backward: the gradient of x, and that of W.
  Meter& product_backward(double rows, double in, double out, double count = 1.0) {
    product(rows, out, in, count);
    return add(2.0 * rows * in * out, element_ * rows * (in + out) + kGradient * in * out, count);
  }
  Meter& attention(double flops) {
    seconds_ += flops / (rate_ * hardware_.attention_share);
    return stream(0.0);
  }
  /// A pass over memory, values of the model's dtype.
  Meter& stream(double values, int kernels = 1) {
    seconds_ += memory_time(values * element_, kernels, hardware_);
    return *this;
  }
  double seconds() const { return seconds_; }

 private:
  Meter& add(double flops, double bytes, double count) {
    seconds_ +=
        count * std::max(flops / rate_, memory_time(bytes, 0, hardware_)) + memory_time(0.0, 1, hardware_) * count;
    return *this;
  }

  const Hardware& hardware_;
  double rate_, element_;
  double seconds_ = 0.0;
};

class Pieces {
 public:
  Pieces(const Config& config, int expert, const Hardware& hardware)
      : model_(config.model), expert_(expert), hardware_(hardware), dtype_(config.precision.param) {
    element_ = static_cast<double>(at::elementSize(scalar_type(dtype_)));
    tokens_ = static_cast<double>(config.train.micro_batch_size * config.train.seq_len);
    sequence_ = static_cast<double>(config.train.seq_len);
    hidden_ = static_cast<double>(model_.hidden_size);
    query_ = static_cast<double>(model_.num_attention_heads * model_.head_dim);
    key_ = static_cast<double>(model_.num_key_value_heads * model_.head_dim);
    vocabulary_ = static_cast<double>(model_.vocab_size);
  }

  PassTimes embedding() const {
    auto row = tokens_ * hidden_;
    return {meter().stream(2 * row).seconds(), meter().stream(row * (1 + 2 * kGradient / element_)).seconds()};
  }

  PassTimes attention() const {
    auto row = tokens_ * hidden_, heads = tokens_ * (query_ + 2 * key_);
    auto turned = tokens_ * (query_ + key_) * (model_.use_qk_norm ? 2 : 1);  // rotary, and norms of heads
    auto scores = 2.0 * tokens_ * sequence_ * query_;  // two products over the half of them that is not masked
    auto forward = meter().stream(8 * row, 2).product(tokens_, hidden_, query_).product(tokens_, hidden_, key_, 2);
    forward.stream(2 * turned).attention(scores).stream(heads + tokens_ * query_).product(tokens_, query_, hidden_);
    auto backward = meter().stream(14 * row, 4).product_backward(tokens_, hidden_, query_);
    backward.product_backward(tokens_, hidden_, key_, 2).stream(3 * turned);
    backward.attention(2.5 * scores).stream(3 * (heads + tokens_ * query_));  // it makes the scores anew
    backward.product_backward(tokens_, query_, hidden_);
    return {forward.seconds(), backward.seconds()};
  }

  /// A SwiGLU of that width.
  PassTimes mlp(double width) const {
    if (width == 0.0) return {};
    return {meter()
                .product(tokens_, hidden_, width, 2)
                .stream(3 * tokens_ * width)
                .product(tokens_, width, hidden_)
                .seconds(),
            meter()
                .product_backward(tokens_, hidden_, width, 2)
                .stream(6 * tokens_ * width, 2)
                .product_backward(tokens_, width, hidden_)
                .seconds()};
  }

  PassTimes router() const {
    auto experts = static_cast<double>(model_.moe->n_routed_experts);
    auto scores = tokens_ * experts * 4 / element_;
    return {meter().product(tokens_, hidden_, experts).stream(8 * scores, 16).seconds(),
            meter().product_backward(tokens_, hidden_, experts).stream(8 * scores, 12).seconds()};
  }

  PassTimes routed() const {
    auto& moe = *model_.moe;
    auto rows = tokens_ * static_cast<double>(moe.num_experts_per_tok);
    auto local = std::max(1.0, static_cast<double>(moe.n_routed_experts) / expert_);
    auto width = static_cast<double>(moe.moe_intermediate_size);
    auto moved = rows * hidden_ * (expert_ > 1 ? 6 : 4) + tokens_ * hidden_;  // to the experts' order, back, summed up
    auto each = rows / local;
    return {meter()
                .stream(moved, 4)
                .product(each, hidden_, 2 * width, local)
                .stream(3 * rows * width)
                .product(each, width, hidden_, local)
                .seconds(),
            meter()
                .stream(moved, 4)
                .product_backward(each, hidden_, 2 * width, local)
                .stream(6 * rows * width, 2)
                .product_backward(each, width, hidden_, local)
                .seconds()};
  }

  PassTimes head() const {
    auto slices = std::max(1.0, tokens_ / static_cast<double>(logit_slice_rows(model_.vocab_size)));
    auto again = (slices - 1) / slices;  // all logits but the last slice's are made twice
    auto logits = tokens_ * vocabulary_, row = tokens_ * hidden_;
    auto in_float = logits * 4 / element_;
    return {meter().stream(4 * row).product(tokens_, hidden_, vocabulary_).stream(2 * in_float, 2).seconds(),
            meter()
                .product(again * tokens_, hidden_, vocabulary_)
                .stream((1 + again) * 2 * in_float, 2)
                .product_backward(tokens_, hidden_, vocabulary_)
                .stream(6 * row)
                .seconds()};
  }

 private:
  Meter meter() const { return Meter(hardware_, dtype_, element_); }

  const ModelConfig& model_;
  int expert_;
  const Hardware& hardware_;
  Dtype dtype_;
  double element_, tokens_, sequence_, hidden_, query_, key_, vocabulary_;
};

}  // namespace

double memory_time(double bytes, int kernels, const Hardware& hardware) {
  return bytes / (hardware.memory_gb_per_s * 1e9) + kernels * hardware.kernel_us * 1e-6;
}

ComputeTimes compute_times(const Config& config, int expert, const Hardware& hardware) {
  Pieces pieces(config, expert, hardware);
  auto& model = config.model;
  ComputeTimes times{.embedding = pieces.embedding(),
                     .attention = pieces.attention(),
                     .dense = pieces.mlp(static_cast<double>(model.intermediate_size)),
                     .head = pieces.head()};
  if (model.moe) {
    times.router = pieces.router();
    times.routed = pieces.routed();
    times.shared = pieces.mlp(static_cast<double>(model.moe->n_shared_experts * model.moe->moe_intermediate_size));
  }
  return times;
}

double flops_per_token(const Config& config, std::int64_t active_parameters) {
  auto& model = config.model;
  auto embedding = model.tie_word_embeddings ? 0 : model.vocab_size * model.hidden_size;
  auto attention = 12.0 * static_cast<double>(model.num_hidden_layers * model.num_attention_heads * model.head_dim) *
                   static_cast<double>(config.train.seq_len);
  return 6.0 * static_cast<double>(active_parameters - embedding) + attention;
}

}  // namespace meshard
