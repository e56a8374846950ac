#include "nn/device/launch.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>

#include "base/error.h"
#include "module/device_path.h"
#include "nn/device/calls.h"

namespace meshard {

namespace {

using kernels::Element;

std::atomic<const kernels::Table*> table = kernels::linked_table();

/// One call: the tensors it works on, all on the device and of the element of the first.
class Call {
 public:
  Call(const char* name, const at::Tensor& first)
      : name_(name), device_(first.device()), dtype_(first.scalar_type()), guard_(first.device()) {
    check(dtype_ == at::kFloat || dtype_ == at::kBFloat16, "takes fp32 or bf16");
  }

  void check(bool condition, const char* what) const {
    if (!condition) throw ShapeError(fmt::format("kernel {}: {}", name_, what));
  }

  const void* in(const at::Tensor& x) const {
    if (!x.defined()) return nullptr;
    check_tensor(x, dtype_);
    return x.const_data_ptr();
  }
  void* out(const at::Tensor& x) const {
    if (!x.defined()) return nullptr;
    check_tensor(x, dtype_);
    return x.mutable_data_ptr();
  }
  template <class T>
  const T* table_of(const at::Tensor& x) const {
    if (!x.defined()) return nullptr;
    check_tensor(x, c10::CppTypeToScalarType<T>::value);
    return x.const_data_ptr<T>();
  }

  template <class Launch, class Arguments>
  void run(Launch launch, const Arguments& arguments) const {
    auto* problem =
        (table.load()->*launch)(dtype_ == at::kFloat ? Element::Float : Element::BFloat16, arguments, stream());
    if (problem) throw CommError(fmt::format("kernel {}: CUDA: {}", name_, problem));
  }

 private:
  void check_tensor(const at::Tensor& x, at::ScalarType dtype) const {
    check(x.is_contiguous() && x.scalar_type() == dtype && x.device() == device_,
          "takes contiguous tensors of one dtype and device");
  }

  kernels::Stream stream() const {
    if (device_.is_cpu()) return nullptr;
    auto stream = c10::impl::VirtualGuardImpl(device_.type()).getStream(device_);
    return static_cast<kernels::Stream>(stream.native_handle());
  }

  const char* name_;
  at::Device device_;
  at::ScalarType dtype_;
  c10::OptionalDeviceGuard guard_;
};

void check_matrices(const Call& call, const at::Tensor& x, std::initializer_list<const at::Tensor*> others) {
  call.check(x.dim() == 2, "takes matrices");
  for (auto* other : others)
    call.check(!other->defined() || other->sizes() == x.sizes(), "takes matrices of one shape");
}

}  // namespace

bool has_kernels(const at::Tensor& tensor) {
  auto* now = table.load();
  return now != nullptr && on_device_path(tensor) && tensor.is_cpu() == now->on_host;
}

bool has_grouped_products(const at::Tensor& tensor, std::initializer_list<std::int64_t> widths) {
  if (tensor.scalar_type() != at::kBFloat16 || !has_kernels(tensor)) return false;
  const c10::OptionalDeviceGuard guard(tensor.device());
  return table.load()->architecture() == 90 && std::ranges::all_of(widths, [](auto width) { return width % 8 == 0; });
}

KernelScope::KernelScope(const kernels::Table& other) : before_(table.exchange(&other)) {}

KernelScope::~KernelScope() {
  table = before_;
}

RmsNormForward rms_norm_forward_device(const at::Tensor& x, const at::Tensor& addend, const at::Tensor& weight,
                                       double eps) {
  const Call call("rms_norm_forward", x);
  check_matrices(call, x, {&addend});
  call.check(weight.numel() == x.size(1), "takes a weight for each column");
  RmsNormForward out{addend.defined() ? at::empty_like(x) : at::Tensor(), at::empty_like(x),
                     at::empty({x.size(0)}, x.options().dtype(at::kFloat))};
  call.run(
      &kernels::Table::rms_norm_forward,
      kernels::RmsNormForward{call.in(x), call.in(addend), call.in(weight), call.out(out.sum), call.out(out.normed),
                              out.rstd.mutable_data_ptr<float>(), x.size(0), x.size(1), static_cast<float>(eps)});
  return out;
}

RmsNormBackward rms_norm_backward_device(const at::Tensor& grad_normed, const at::Tensor& grad_sum,
                                         const at::Tensor& sum, const at::Tensor& rstd, const at::Tensor& weight) {
  const Call call("rms_norm_backward", sum);
  check_matrices(call, sum, {&grad_normed, &grad_sum});
  auto rows = sum.size(0), size = sum.size(1);
  call.check(weight.numel() == size && rstd.numel() == rows, "takes a weight for each column and a scale for each row");
  RmsNormBackward out{at::empty_like(sum), at::empty({size}, rstd.options())};
  auto partials = at::empty({kernels::groups_of(rows, size), size}, rstd.options());
  call.run(
      &kernels::Table::rms_norm_backward,
      kernels::RmsNormBackward{call.in(grad_normed), call.in(grad_sum), call.in(sum), call.in(weight),
                               call.table_of<float>(rstd), call.out(out.grad_x), partials.mutable_data_ptr<float>(),
                               out.grad_weight.mutable_data_ptr<float>(), rows, size});
  return out;
}

void rotate_device(const at::Tensor& from, const at::Tensor& to, const at::Tensor& cos, const at::Tensor& sin,
                   kernels::Pairing pairing, float direction) {
  const Call call("rotary", from);
  call.check(from.dim() == 4 && to.sizes() == from.sizes(), "takes [batch, positions, heads, dim]");
  call.check(
      cos.dim() == 2 && cos.sizes() == sin.sizes() && cos.size(0) == from.size(1) && 2 * cos.size(1) <= from.size(3),
      "takes an angle for each position and pair of a head");
  call.run(&kernels::Table::rotary,
           kernels::Rotary{call.in(from), call.out(to), call.table_of<float>(cos), call.table_of<float>(sin),
                           from.size(0), from.size(1), from.size(2), from.size(3), cos.size(1), pairing, direction});
}

at::Tensor swiglu_forward_device(const at::Tensor& gate, const at::Tensor& up) {
  const Call call("swiglu_forward", gate);
  check_matrices(call, gate, {&up});
  auto product = at::empty_like(gate);
  call.run(&kernels::Table::swiglu_forward, kernels::SwigluForward{call.in(gate), call.in(up), call.out(product),
                                                                   gate.size(0), gate.size(1), gate.size(1)});
  return product;
}

SwigluBackward swiglu_backward_device(const at::Tensor& grad_product, const at::Tensor& gate, const at::Tensor& up) {
  const Call call("swiglu_backward", gate);
  check_matrices(call, gate, {&up, &grad_product});
  SwigluBackward out{at::empty_like(gate), at::empty_like(gate), at::empty_like(gate)};
  call.run(&kernels::Table::swiglu_backward,
           kernels::SwigluBackward{call.in(grad_product), call.in(gate), call.in(up), call.out(out.product),
                                   call.out(out.grad_gate), call.out(out.grad_up), gate.size(0), gate.size(1),
                                   gate.size(1)});
  return out;
}

namespace {

/// Where the second half of rows of gate, then up, begins.
template <class Pointer>
Pointer second_half(Pointer rows, const at::Tensor& gate_up) {
  using Byte = std::conditional_t<std::is_same_v<Pointer, const void*>, const char, char>;
  return static_cast<Byte*>(rows) + gate_up.size(1) / 2 * gate_up.element_size();
}

}  // namespace

at::Tensor swiglu_rows_forward_device(const at::Tensor& gate_up) {
  const Call call("swiglu_rows_forward", gate_up);
  check_matrices(call, gate_up, {});
  auto rows = gate_up.size(0), width = gate_up.size(1) / 2;
  auto product = at::empty({rows, width}, gate_up.options());
  auto* gate = call.in(gate_up);
  call.run(&kernels::Table::swiglu_forward,
           kernels::SwigluForward{gate, second_half(gate, gate_up), call.out(product), rows, width, 2 * width});
  return product;
}

SwigluRowsBackward swiglu_rows_backward_device(const at::Tensor& grad_product, const at::Tensor& gate_up) {
  const Call call("swiglu_rows_backward", gate_up);
  check_matrices(call, gate_up, {});
  auto rows = gate_up.size(0), width = gate_up.size(1) / 2;
  call.check(grad_product.dim() == 2 && grad_product.size(0) == rows && grad_product.size(1) == width,
             "takes a gradient half as wide as gate and up");
  SwigluRowsBackward out{at::empty_like(grad_product), at::empty_like(gate_up)};
  auto* gate = call.in(gate_up);
  auto* grad = call.out(out.grad_gate_up);
  call.run(&kernels::Table::swiglu_backward,
           kernels::SwigluBackward{call.in(grad_product), gate, second_half(gate, gate_up), call.out(out.product), grad,
                                   second_half(grad, gate_up), rows, width, 2 * width});
  return out;
}

at::Tensor gather_rows_device(const at::Tensor& x, const at::Tensor& index) {
  const Call call("gather_rows", x);
  check_matrices(call, x, {});
  auto out = at::empty({index.numel(), x.size(1)}, x.options());
  call.run(&kernels::Table::gather_rows, kernels::GatherRows{call.in(x), call.table_of<std::int64_t>(index),
                                                             call.out(out), index.numel(), x.size(1)});
  return out;
}

at::Tensor sum_rows_device(const at::Tensor& rows, const at::Tensor& row_of, const at::Tensor& weights) {
  const Call call("sum_rows", rows);
  check_matrices(call, rows, {});
  call.check(row_of.dim() == 2 && (!weights.defined() || weights.sizes() == row_of.sizes()),
             "takes a row and a weight for each token and choice");
  auto out = at::empty({row_of.size(0), rows.size(1)}, rows.options());
  call.run(&kernels::Table::sum_rows,
           kernels::SumRows{call.in(rows), call.table_of<std::int64_t>(row_of), call.table_of<float>(weights),
                            call.out(out), row_of.size(0), row_of.size(1), rows.size(1)});
  return out;
}

std::pair<at::Tensor, at::Tensor> sum_rows_backward_device(const at::Tensor& grad, const at::Tensor& rows,
                                                           const at::Tensor& row_of, const at::Tensor& weights) {
  const Call call("sum_rows_backward", rows);
  check_matrices(call, rows, {});
  call.check(row_of.dim() == 2 && weights.sizes() == row_of.sizes() && grad.size(0) == row_of.size(0) &&
                 grad.size(1) == rows.size(1),
             "takes a gradient for each token, and a row and a weight for each token and choice");
  auto grad_rows = at::empty_like(rows), grad_weights = at::empty_like(weights);
  call.run(
      &kernels::Table::sum_rows_backward,
      kernels::SumRowsBackward{call.in(grad), call.in(rows), call.table_of<std::int64_t>(row_of),
                               call.table_of<float>(weights), call.out(grad_rows),
                               grad_weights.mutable_data_ptr<float>(), row_of.size(0), row_of.size(1), rows.size(1)});
  return {grad_rows, grad_weights};
}

}  // namespace meshard
