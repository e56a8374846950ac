#include "nn/attention.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/scaled_dot_product_attention.h>

#include "module/device_path.h"
#include "nn/attention_cpu.h"
#include "nn/device/launch.h"
#include "nn/gradients.h"

namespace meshard {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// q, k and v of one input: one node, whose input gradient is summed inside the products.
struct ProjectFunction : torch::autograd::Function<ProjectFunction> {
  static variable_list forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& q_weight,
                               const at::Tensor& k_weight, const at::Tensor& v_weight,
                               const std::optional<at::Tensor>& q_bias, const std::optional<at::Tensor>& k_bias,
                               const std::optional<at::Tensor>& v_bias, const std::vector<Parameter>& parameters) {
    auto rows = as_matrix(x);
    context->save_for_backward({rows, q_weight, k_weight, v_weight});
    context->saved_data["shape"] = x.sizes();
    remember(context, parameters);
    auto shape = x.sizes().vec();
    shape.back() = -1;
    auto product = [&](const at::Tensor& weight, const std::optional<at::Tensor>& bias) {
      return linear_product(rows, weight, bias.value_or(at::Tensor())).view(shape);
    };
    return {product(q_weight, q_bias), product(k_weight, k_bias), product(v_weight, v_bias)};
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    auto saved = context->get_saved_variables();
    auto& parameters = remembered(context);
    variable_list result(8);
    at::Tensor grad_x;
    for (int i = 0; i < 3; ++i) {
      auto grad = as_matrix(grads[i]);
      auto &weight = parameters[i], &bias = parameters[3 + i];
      if (context->needs_input_grad(1 + i)) result[1 + i] = weight_gradient(weight, grad, saved[0]);
      if (bias && context->needs_input_grad(4 + i)) result[4 + i] = bias_gradient(bias, grad);
      if (!context->needs_input_grad(0)) continue;
      grad_x = grad_x.defined() ? grad_x.addmm_(grad, saved[1 + i]) : at::mm(grad, saved[1 + i]);
    }
    if (grad_x.defined()) result[0] = grad_x.view(context->saved_data["shape"].toIntVector());
    return result;
  }
};

struct RotaryAttentionFunction : torch::autograd::Function<RotaryAttentionFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const at::Tensor& cos, const at::Tensor& sin) {
    auto out = rotary_attention_forward_cpu(q, k, v, {cos, sin});
    context->save_for_backward({q, k, v, cos, sin, out.output, out.logsumexp});
    return out.output;
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    auto saved = context->get_saved_variables();
    auto out = rotary_attention_backward_cpu(grads[0].contiguous(), saved[0], saved[1], saved[2], {saved[5], saved[6]},
                                             {saved[3], saved[4]});
    return {out.grad_q, out.grad_k, out.grad_v, at::Tensor(), at::Tensor()};
  }
};

// In place: the projection, or the norm, that made x keeps nothing of it, and attention keeps it turned.
struct RotateFunction : torch::autograd::Function<RotateFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& cos,
                            const at::Tensor& sin) {
    context->save_for_backward({cos, sin});
    auto turned = x.detach();
    rotate_device(turned, turned, cos, sin, kernels::Pairing::Halves, 1.0f);
    return turned;
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    auto saved = context->get_saved_variables();
    auto grad = grads[0].contiguous(), turned = at::empty_like(grad);
    rotate_device(grad, turned, saved[0], saved[1], kernels::Pairing::Halves, -1.0f);
    return {turned, at::Tensor(), at::Tensor()};
  }
};

at::Tensor rotate_on_device(const at::Tensor& x, const RotaryTable::Slice& table) {
  return has_kernels(x) ? RotateFunction::apply(x.contiguous(), table.cos, table.sin) : rotate(x, table);
}

}  // namespace

Attention::Attention(const DecoderOptions& options, const RotaryTable& table, const at::TensorOptions& tensor_options)
    : options_(options),
      table_(table),
      q_proj_(options.hidden_size, options.num_attention_heads * options.head_dim, options.attention_bias,
              options.initializer_range, tensor_options),
      k_proj_(options.hidden_size, options.num_key_value_heads * options.head_dim, options.attention_bias,
              options.initializer_range, tensor_options),
      v_proj_(options.hidden_size, options.num_key_value_heads * options.head_dim, options.attention_bias,
              options.initializer_range, tensor_options),
      o_proj_(options.num_attention_heads * options.head_dim, options.hidden_size, options.attention_output_bias,
              options.initializer_range, tensor_options) {
  add_child("q_proj", q_proj_);
  add_child("k_proj", k_proj_);
  add_child("v_proj", v_proj_);
  add_child("o_proj", o_proj_);
  if (!options.use_qk_norm) return;
  add_child("q_norm", q_norm_.emplace(options.head_dim, options.rms_norm_eps, tensor_options));
  add_child("k_norm", k_norm_.emplace(options.head_dim, options.rms_norm_eps, tensor_options));
}

at::Tensor Attention::forward(const at::Tensor& input) {
  const std::vector parameters{q_proj_.weight(), k_proj_.weight(), v_proj_.weight(),
                               q_proj_.bias(),   k_proj_.bias(),   v_proj_.bias()};
  auto qkv = ProjectFunction::apply(input, parameters[0].tensor(), parameters[1].tensor(), parameters[2].tensor(),
                                    optional_tensor(parameters[3]), optional_tensor(parameters[4]),
                                    optional_tensor(parameters[5]), parameters);
  auto seq = input.size(1);
  for (auto& x : qkv) x = x.view({input.size(0), seq, -1, options_.head_dim});
  if (q_norm_) {
    qkv[0] = q_norm_->add(qkv[0], {}).normed;
    qkv[1] = k_norm_->add(qkv[1], {}).normed;
  }
  auto mixed = rotary_attention(qkv[0], qkv[1], qkv[2], table_.first(seq, input.device()));
  return o_proj_(mixed.flatten(2));
}

at::Tensor rotary_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const RotaryTable::Slice& table) {
  if (on_device_path(q)) return rotary_attention_aten(q, k, v, table);
  return RotaryAttentionFunction::apply(q.contiguous(), k.contiguous(), v.contiguous(), table.cos, table.sin);
}

at::Tensor rotary_attention_aten(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                 const RotaryTable::Slice& table) {
  auto turned_q = rotate_on_device(q, table).transpose(1, 2), turned_k = rotate_on_device(k, table).transpose(1, 2);
  return at::scaled_dot_product_attention(turned_q, turned_k, v.transpose(1, 2), std::nullopt, 0.0, /*is_causal=*/true,
                                          std::nullopt, /*enable_gqa=*/true)
      .transpose(1, 2)
      .contiguous();
}

}  // namespace meshard
