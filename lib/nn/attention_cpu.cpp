#include "nn/attention_cpu.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <cmath>

#include "nn/kernel_dispatch.h"
#include "nn/tile_product.h"

namespace meshard {

namespace {

using simd::Floats;

constexpr std::int64_t kQueryBlock = 8 * kTileRows;
constexpr std::int64_t kKeyBlock = 512;  // a tile of scores is 48 x 512 fp32 = 96 KiB: it stays in the L2 cache
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

struct Sizes {
  Sizes(const at::Tensor& q, const at::Tensor& k, const RotaryTable::Slice& table)
      : batch(q.size(0)),
        seq(q.size(1)),
        heads(q.size(2)),
        kv_heads(k.size(2)),
        dim(q.size(3)),
        half(table.cos.size(1)),
        group(heads / kv_heads),
        width(round_up(dim, kTileColumns)),
        score_stride(std::min(kKeyBlock, round_up(seq, kTileColumns)) + 2 * kTileColumns),
        key_stride(round_up(seq, kTileColumns) + kTileColumns),
        scale(1.0f / std::sqrt(static_cast<float>(dim))),
        cos(table.cos.const_data_ptr<float>()),
        sin(table.sin.const_data_ptr<float>()) {}

  std::int64_t batch, seq, heads, kv_heads, dim;
  std::int64_t half;          // of the rotary dimensions
  std::int64_t group;         // query heads per key-value head
  std::int64_t width;         // head_dim padded for the tiles
  std::int64_t score_stride;  // of a tile of scores
  std::int64_t key_stride;    // of transposed keys and values: not a power of two, which would thrash the cache
  float scale;
  const float* cos;
  const float* sin;
};

/// Working memory of one thread, handed out in pieces.
class Scratch {
 public:
  explicit Scratch(std::int64_t floats) : memory_(at::empty({floats}, at::kFloat)) {
    next_ = memory_.mutable_data_ptr<float>();
  }
  RowMajor matrix(std::int64_t rows, std::int64_t stride) {
    RowMajor piece{next_, stride};
    next_ += rows * stride;
    return piece;
  }

 private:
  at::Tensor memory_;
  float* next_;
};

/// One head's rows of a [batch, seq, heads, dim] tensor.
template <class T>
struct HeadRows {
  HeadRows(T* data, const Sizes& n, std::int64_t batch, std::int64_t heads, std::int64_t head)
      : data(data + (batch * n.seq * heads + head) * n.dim), stride(heads * n.dim) {}
  T* row(std::int64_t position) const { return data + position * stride; }
  T* data;
  std::int64_t stride;
};

// direction +1: forward rotation, -1: its inverse.
void rotate_row(float* row, const Sizes& n, std::int64_t position, float direction) {
  const float* cos = n.cos + position * n.half;
  const float* sin = n.sin + position * n.half;
  simd::for_each(n.half, [&](std::int64_t i, std::int64_t count) {
    const Floats a = simd::load(row + i, count), b = simd::load(row + n.half + i, count);
    const Floats c = simd::load(cos + i, count), s = simd::load(sin + i, count) * direction;
    simd::store(row + i, a * c - b * s, count);
    simd::store(row + n.half + i, b * c + a * s, count);
  });
}

enum class Turn { No, Yes };

template <class T>
void pack(HeadRows<const T> from, std::int64_t begin, std::int64_t rows, const Sizes& n, Turn turn, float scale,
          RowMajor to) {
  for (std::int64_t r = 0; r < rows; ++r) {
    float* row = to.data + r * to.stride;
    simd::for_each(n.dim, [&](std::int64_t i, std::int64_t count) {
      simd::store(row + i, simd::load(from.row(begin + r) + i, count) * scale, count);
    });
    std::fill(row + n.dim, row + n.width, 0.0f);
    if (turn == Turn::Yes) rotate_row(row, n, begin + r, 1.0f);
  }
}

template <class T>
void unpack(RowMajor from, std::int64_t begin, std::int64_t rows, const Sizes& n, Turn turn, float scale,
            HeadRows<T> to) {
  for (std::int64_t r = 0; r < rows; ++r) {
    float* row = from.data + r * from.stride;
    if (turn == Turn::Yes) rotate_row(row, n, begin + r, -1.0f);
    simd::for_each(n.dim, [&](std::int64_t i, std::int64_t count) {
      simd::store(to.row(begin + r) + i, simd::load(row + i, count) * scale, count);
    });
  }
}

/// A tile of scores: queries [query, query + rows) against keys [key, key + keys), cut by the causal mask.
struct Tile {
  std::int64_t query, rows, key, keys;

  /// Keys that row r attends to.
  std::int64_t valid(std::int64_t r) const { return std::clamp(query + r + 1 - key, std::int64_t{0}, keys); }
  /// Keys that some row of the strip at r attends to.
  std::int64_t strip_valid(std::int64_t r) const { return valid(std::min(r + kTileRows, rows) - 1); }
  std::int64_t strip_rows(std::int64_t r) const { return std::min(kTileRows, rows - r); }
  /// Columns that hold a value or 0 in every row of the strip at r: what later products may read of it.
  std::int64_t strip_columns(std::int64_t r) const { return round_up(strip_valid(r) + kTileRows, kTileColumns); }
};

template <class Body>
void for_each_tile(std::int64_t query, std::int64_t rows, Body body) {
  for (std::int64_t key = 0; key < query + rows; key += kKeyBlock) {
    body(Tile{query, rows, key, std::min(kKeyBlock, query + rows - key)});
  }
}

LeftOperand rows_of(RowMajor m, std::int64_t row) {
  return {m.data + row * m.stride, m.stride, 1};
}
RowMajor from_row(RowMajor m, std::int64_t row) {
  return {m.data + row * m.stride, m.stride};
}

/// scores = left . columns, with `columns` a transposed matrix [dim, seq].
void score_product(const Tile& tile, const Sizes& n, RowMajor left, RowMajor columns, RowMajor scores) {
  for (std::int64_t r = 0; r < tile.rows; r += kTileRows) {
    strip_product(tile.strip_rows(r), round_up(tile.strip_valid(r), kTileColumns), n.dim, rows_of(left, r),
                  {columns.data + tile.key, columns.stride}, from_row(scores, r), false);
  }
}

/// to[row] += weights . from[keys of the tile].
void row_product(const Tile& tile, const Sizes& n, RowMajor weights, RowMajor from, RowMajor to, bool add) {
  for (std::int64_t r = 0; r < tile.rows; r += kTileRows) {
    strip_product(tile.strip_rows(r), n.width, tile.strip_valid(r), rows_of(weights, r), from_row(from, tile.key),
                  from_row(to, r), add);
  }
}

/// to[key] += sum over the tile's rows of weights[row][key] from[row]; rows before the key have weight 0 and are
/// skipped.
void key_product(const Tile& tile, const Sizes& n, RowMajor weights, RowMajor from, RowMajor to) {
  for (std::int64_t j = 0; j < tile.keys; j += kTileRows) {
    auto first = std::clamp(tile.key + j - tile.query, std::int64_t{0}, tile.rows);
    const LeftOperand transposed{weights.data + first * weights.stride + j, 1, weights.stride};
    strip_product(std::min(kTileRows, tile.keys - j), n.width, tile.rows - first, transposed, from_row(from, first),
                  from_row(to, tile.key + j), true);
  }
}

void zero_after(float* row, std::int64_t valid, std::int64_t columns) {
  std::fill(row + valid, row + columns, 0.0f);
}

/// Running maximum and sum of one query's softmax over the blocks of keys.
struct RunningSoftmax {
  float max = kMinusInfinity;
  float sum = 0.0f;

  /// Turns scores into exp(score - max); the factor by which everything before must be multiplied.
  float update(float* scores, std::int64_t count) {
    Floats highest = simd::splat(max);
    simd::for_each(count, [&](std::int64_t j, std::int64_t lanes) {
      highest = simd::max(highest, simd::keep_first(simd::load(scores + j, lanes), lanes, kMinusInfinity));
    });
    const float previous = max;
    max = simd::max(highest);
    Floats total = {};
    simd::for_each(count, [&](std::int64_t j, std::int64_t lanes) {
      const Floats p = simd::keep_first(simd::exp(simd::load(scores + j, lanes) - max), lanes, 0.0f);
      simd::store(scores + j, p, lanes);
      total += p;
    });
    const float factor = previous == kMinusInfinity ? 0.0f : std::exp(previous - max);
    sum = sum * factor + simd::sum(total);
    return factor;
  }
};

void scale_row(float* row, float factor, std::int64_t size) {
  simd::for_each(size, [&](std::int64_t i, std::int64_t count) {
    simd::store(row + i, simd::load(row + i, count) * factor, count);
  });
}

template <class T>
struct ForwardData {
  const T *q, *k, *v;
  T* output;
  float* logsumexp;
};

/// What the tasks of one thread reuse.
struct ForwardScratch {
  explicit ForwardScratch(const Sizes& n)
      : memory(n.seq * 2 * n.width + n.dim * n.key_stride + kQueryBlock * (2 * n.width + n.score_stride)),
        keys(memory.matrix(n.seq, n.width)),
        values(memory.matrix(n.seq, n.width)),
        keys_t(memory.matrix(n.dim, n.key_stride)),
        query(memory.matrix(kQueryBlock, n.width)),
        output(memory.matrix(kQueryBlock, n.width)),
        scores(memory.matrix(kQueryBlock, n.score_stride)) {}
  Scratch memory;
  RowMajor keys, values, keys_t, query, output, scores;
};

void forward_block(const Sizes& n, ForwardScratch& s, std::int64_t query, std::int64_t rows, float* logsumexp) {
  RunningSoftmax softmax[kQueryBlock];
  for_each_tile(query, rows, [&](const Tile& tile) {
    score_product(tile, n, s.query, s.keys_t, s.scores);
    for (std::int64_t r = 0; r < rows; ++r) {
      float* row = s.scores.data + r * s.scores.stride;
      const float factor = softmax[r].update(row, tile.valid(r));
      zero_after(row, tile.valid(r), tile.strip_columns(r / kTileRows * kTileRows));
      if (tile.key > 0) scale_row(s.output.data + r * s.output.stride, factor, n.width);
    }
    row_product(tile, n, s.scores, s.values, s.output, tile.key > 0);
  });
  for (std::int64_t r = 0; r < rows; ++r) {
    scale_row(s.output.data + r * s.output.stride, 1.0f / softmax[r].sum, n.width);
    logsumexp[query + r] = softmax[r].max + std::log(softmax[r].sum);
  }
}

template <class T>
void forward_task(const Sizes& n, ForwardScratch& s, const ForwardData<T>& data, std::int64_t batch,
                  std::int64_t kv_head) {
  pack<T>({data.k, n, batch, n.kv_heads, kv_head}, 0, n.seq, n, Turn::Yes, 1.0f, s.keys);
  pack<T>({data.v, n, batch, n.kv_heads, kv_head}, 0, n.seq, n, Turn::No, 1.0f, s.values);
  transpose(s.keys, n.seq, n.dim, s.keys_t);
  for (auto head = kv_head * n.group; head < (kv_head + 1) * n.group; ++head) {
    for (std::int64_t query = 0; query < n.seq; query += kQueryBlock) {
      auto rows = std::min(kQueryBlock, n.seq - query);
      pack<T>({data.q, n, batch, n.heads, head}, query, rows, n, Turn::Yes, n.scale, s.query);
      forward_block(n, s, query, rows, data.logsumexp + (batch * n.heads + head) * n.seq);
      unpack<T>(s.output, query, rows, n, Turn::No, 1.0f, {data.output, n, batch, n.heads, head});
    }
  }
}

template <class T>
struct BackwardData {
  const T *grad_output, *q, *k, *v, *output;
  const float* logsumexp;
  T *grad_q, *grad_k, *grad_v;
};

struct BackwardScratch {
  explicit BackwardScratch(const Sizes& n)
      : memory(n.seq * 4 * n.width + 2 * n.dim * n.key_stride + kQueryBlock * (4 * n.width + 2 * n.score_stride)),
        keys(memory.matrix(n.seq, n.width)),
        values(memory.matrix(n.seq, n.width)),
        grad_keys(memory.matrix(n.seq, n.width)),
        grad_values(memory.matrix(n.seq, n.width)),
        keys_t(memory.matrix(n.dim, n.key_stride)),
        values_t(memory.matrix(n.dim, n.key_stride)),
        query(memory.matrix(kQueryBlock, n.width)),
        grad_query(memory.matrix(kQueryBlock, n.width)),
        output(memory.matrix(kQueryBlock, n.width)),
        grad_output(memory.matrix(kQueryBlock, n.width)),
        scores(memory.matrix(kQueryBlock, n.score_stride)),
        grad_scores(memory.matrix(kQueryBlock, n.score_stride)) {}
  Scratch memory;
  RowMajor keys, values, grad_keys, grad_values, keys_t, values_t;
  RowMajor query, grad_query, output, grad_output, scores, grad_scores;
};

float dot(const float* a, const float* b, std::int64_t size) {
  Floats total = {};
  simd::for_each(
      size, [&](std::int64_t i, std::int64_t count) { total += simd::load(a + i, count) * simd::load(b + i, count); });
  return simd::sum(total);
}

/// Scores become probabilities p, and d(p) becomes d(score) = p (d(p) - delta).
void softmax_backward_row(float* scores, float* grad, std::int64_t count, float logsumexp, float delta) {
  simd::for_each(count, [&](std::int64_t j, std::int64_t lanes) {
    const Floats p = simd::exp(simd::load(scores + j, lanes) - logsumexp);
    simd::store(scores + j, p, lanes);
    simd::store(grad + j, p * (simd::load(grad + j, lanes) - delta), lanes);
  });
}

void backward_block(const Sizes& n, BackwardScratch& s, std::int64_t query, std::int64_t rows, const float* logsumexp) {
  float delta[kQueryBlock];
  for (std::int64_t r = 0; r < rows; ++r) {
    delta[r] = dot(s.grad_output.data + r * s.grad_output.stride, s.output.data + r * s.output.stride, n.width);
  }
  for_each_tile(query, rows, [&](const Tile& tile) {
    score_product(tile, n, s.query, s.keys_t, s.scores);
    score_product(tile, n, s.grad_output, s.values_t, s.grad_scores);
    for (std::int64_t r = 0; r < rows; ++r) {
      float* row = s.scores.data + r * s.scores.stride;
      float* grad = s.grad_scores.data + r * s.grad_scores.stride;
      auto columns = tile.strip_columns(r / kTileRows * kTileRows);
      softmax_backward_row(row, grad, tile.valid(r), logsumexp[query + r], delta[r]);
      zero_after(row, tile.valid(r), columns);
      zero_after(grad, tile.valid(r), columns);
    }
    key_product(tile, n, s.scores, s.grad_output, s.grad_values);
    key_product(tile, n, s.grad_scores, s.query, s.grad_keys);
    row_product(tile, n, s.grad_scores, s.keys, s.grad_query, tile.key > 0);
  });
}

template <class T>
void backward_task(const Sizes& n, BackwardScratch& s, const BackwardData<T>& data, std::int64_t batch,
                   std::int64_t kv_head) {
  pack<T>({data.k, n, batch, n.kv_heads, kv_head}, 0, n.seq, n, Turn::Yes, 1.0f, s.keys);
  pack<T>({data.v, n, batch, n.kv_heads, kv_head}, 0, n.seq, n, Turn::No, 1.0f, s.values);
  transpose(s.keys, n.seq, n.dim, s.keys_t);
  transpose(s.values, n.seq, n.dim, s.values_t);
  std::fill_n(s.grad_keys.data, n.seq * n.width, 0.0f);
  std::fill_n(s.grad_values.data, n.seq * n.width, 0.0f);
  for (auto head = kv_head * n.group; head < (kv_head + 1) * n.group; ++head) {
    for (std::int64_t query = 0; query < n.seq; query += kQueryBlock) {
      auto rows = std::min(kQueryBlock, n.seq - query);
      pack<T>({data.q, n, batch, n.heads, head}, query, rows, n, Turn::Yes, n.scale, s.query);
      pack<T>({data.output, n, batch, n.heads, head}, query, rows, n, Turn::No, 1.0f, s.output);
      pack<T>({data.grad_output, n, batch, n.heads, head}, query, rows, n, Turn::No, 1.0f, s.grad_output);
      backward_block(n, s, query, rows, data.logsumexp + (batch * n.heads + head) * n.seq);
      unpack<T>(s.grad_query, query, rows, n, Turn::Yes, n.scale, {data.grad_q, n, batch, n.heads, head});
    }
  }
  unpack<T>(s.grad_keys, 0, n.seq, n, Turn::Yes, 1.0f, {data.grad_k, n, batch, n.kv_heads, kv_head});
  unpack<T>(s.grad_values, 0, n.seq, n, Turn::No, 1.0f, {data.grad_v, n, batch, n.kv_heads, kv_head});
}

/// One task per (sequence, key-value head); the scratch is made once per thread.
template <class Memory, class Task>
void for_each_task(const Sizes& n, Task task) {
  at::parallel_for(0, n.batch * n.kv_heads, 1, [&](std::int64_t begin, std::int64_t end) {
    Memory scratch(n);
    for (auto i = begin; i < end; ++i) task(scratch, i / n.kv_heads, i % n.kv_heads);
  });
}

}  // namespace

AttentionForward rotary_attention_forward_cpu(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                              const RotaryTable::Slice& table) {
  const Sizes n(q, k, table);
  AttentionForward out{at::empty_like(q), at::empty({n.batch, n.heads, n.seq}, q.options().dtype(at::kFloat))};
  dispatch_kernel(q, "rotary_attention", [&]<class T>() {
    const ForwardData<T> data{q.const_data_ptr<T>(), k.const_data_ptr<T>(), v.const_data_ptr<T>(),
                              out.output.mutable_data_ptr<T>(), out.logsumexp.mutable_data_ptr<float>()};
    for_each_task<ForwardScratch>(n, [&](ForwardScratch& scratch, std::int64_t batch, std::int64_t kv_head) {
      forward_task<T>(n, scratch, data, batch, kv_head);
    });
  });
  return out;
}

AttentionBackward rotary_attention_backward_cpu(const at::Tensor& grad_output, const at::Tensor& q, const at::Tensor& k,
                                                const at::Tensor& v, const AttentionForward& forward,
                                                const RotaryTable::Slice& table) {
  const Sizes n(q, k, table);
  AttentionBackward out{at::empty_like(q), at::empty_like(k), at::empty_like(v)};
  dispatch_kernel(q, "rotary_attention_backward", [&]<class T>() {
    const BackwardData<T> data{grad_output.const_data_ptr<T>(),
                               q.const_data_ptr<T>(),
                               k.const_data_ptr<T>(),
                               v.const_data_ptr<T>(),
                               forward.output.const_data_ptr<T>(),
                               forward.logsumexp.const_data_ptr<float>(),
                               out.grad_q.mutable_data_ptr<T>(),
                               out.grad_k.mutable_data_ptr<T>(),
                               out.grad_v.mutable_data_ptr<T>()};
    for_each_task<BackwardScratch>(n, [&](BackwardScratch& scratch, std::int64_t batch, std::int64_t kv_head) {
      backward_task<T>(n, scratch, data, batch, kv_head);
    });
  });
  return out;
}

}  // namespace meshard
