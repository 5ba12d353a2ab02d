// Causal attention within each document of a packed batch, forward and backward, at a cost of the sum of the squares
// of their lengths. A task is one head of one document, cut into blocks of BLOCK tokens; of the scores only a block's
// rows exist at a time, in cache, and the backward pass computes them again (Dao et al. 2022, arXiv:2205.14135).
//
// Products are torch's small matrix kernels `brgemm`: C [M, N] float32 (+)= A [M, K] B [K, N]. For bfloat16 they want B
// with each two neighbouring rows interleaved; "operand" below means that layout, which for float32 is the plain one.
#pragma once
#include <ATen/native/CPUBlas.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "vector.h"

namespace rlrun_trainer {

constexpr int64_t BLOCK = 32;

// Rows `stride` elements apart: one head of one document within a packed tensor.
template <typename T>
struct Rows {
  T* data;
  int64_t stride;
  T* operator[](int64_t row) const { return data + row * stride; }
};

template <typename T>
Rows<T> rows_of(const at::Tensor& packed, int64_t start, int64_t head) {
  T* data = const_cast<T*>(packed.const_data_ptr<T>());
  return {data + start * packed.stride(0) + head * packed.stride(1), packed.stride(0)};
}

// Index of element (row, column) of an operand with `columns` columns.
template <typename T>
int64_t operand_index(int64_t row, int64_t column, int64_t columns) {
  if constexpr (sizeof(T) == 4) return row * columns + column;
  return (row / 2 * columns + column) * 2 + row % 2;
}

template <typename T>
void multiply(int64_t m, int64_t n, int64_t k, const T* a, const T* b, float* c, bool add) {
  at::native::cpublas::brgemm(m, n, k, k, n, n, add, a, b, c, sizeof(T) == 2);
}

// A block of rows, zero beyond `count`, as it is, as an operand [BLOCK, width], or as one transposed [width, BLOCK].
template <typename T>
void copy_rows(Rows<T> rows, int64_t count, int64_t width, T* out) {
  for (int64_t r = 0; r < BLOCK; ++r) {
    if (r < count) std::copy_n(rows[r], width, out + r * width);
    else std::fill_n(out + r * width, width, T(0.f));
  }
}

template <typename T>
void pack(const T* block, int64_t width, T* out) {
  for (int64_t r = 0; r < BLOCK; ++r)
    for (int64_t i = 0; i < width; ++i) out[operand_index<T>(r, i, width)] = block[r * width + i];
}

template <typename E>
void transpose(const E* in, int64_t rows, int64_t columns, E* out) {
  for (int64_t c = 0; c < columns; ++c)
    for (int64_t r = 0; r < rows; ++r) out[c * rows + r] = in[r * columns + c];
}

// Interleaved rows of the transpose are pairs of neighbours in a row: words of 32 bits move for either type.
template <typename T>
void pack_transposed(const T* block, int64_t width, T* out) {
  const auto* words = reinterpret_cast<const uint32_t*>(block);
  transpose(words, BLOCK, width * int64_t(sizeof(T)) / 4, reinterpret_cast<uint32_t*>(out));
}

template <typename T>
void store_row(T* to, const float* from, int64_t width, float factor) {
  for_vectors(width, [&](int64_t i, int64_t n) { store(to + i, load(from + i, n) * factor, n); });
}

// Memory of one thread, kept between calls: fresh pages cost more than the arithmetic done on them.
template <typename Tag>
float* scratch(int64_t floats) {
  thread_local std::vector<float> memory;
  if (int64_t(memory.size()) < floats) memory.resize(floats);
  return memory.data();
}

// Hands out parts of a scratch, measured in elements of any type, each on its own cache lines.
struct Carver {
  float* next;
  template <typename T>
  T* take(int64_t elements) {
    T* part = reinterpret_cast<T*>(next);
    next += (elements * int64_t(sizeof(T)) + 63) / 64 * 16;
    return part;
  }
};

// Calls task(document, start, length, head) for all documents and heads, on whichever thread is free.
template <typename F>
void for_documents(at::IntArrayRef lengths, int64_t heads, const F& task) {
  std::vector<int64_t> starts(lengths.size());
  for (size_t d = 1; d < lengths.size(); ++d) starts[d] = starts[d - 1] + lengths[d - 1];
  const int64_t tasks = int64_t(lengths.size()) * heads;
#pragma omp parallel for schedule(dynamic) if (tasks > 1 && !at::in_parallel_region())
  for (int64_t t = 0; t < tasks; ++t) task(starts[t / heads], lengths[t / heads], t % heads);
}

// Softmax numerators of a row block's scores against blocks 0..last (the last one its own), and each query's sum and
// maximum.
template <typename T>
void exponentials(const float* scores, int64_t last, float scale, T* out, float* sums, float* maxima) {
  for (int64_t r = 0; r < BLOCK; ++r) {
    Vector most = Vector{} - INFINITY;
    for (int64_t j = 0; j < last; ++j)
      for (int64_t i = 0; i < BLOCK; i += LANES) most = larger(most, load(scores + (j * BLOCK + r) * BLOCK + i));
    float maximum = largest(most);
    const float* own = scores + (last * BLOCK + r) * BLOCK;
    for (int64_t i = 0; i <= r; ++i) maximum = std::max(maximum, own[i]);

    Vector sum{};
    for (int64_t j = 0; j <= last; ++j)
      for (int64_t i = 0; i < BLOCK; i += LANES) {
        const int64_t at = (j * BLOCK + r) * BLOCK + i;
        Vector e = exponential((load(scores + at) - maximum) * scale);
        if (j == last) e = first(e, r + 1 - i);
        sum += e;
        store(out + at, e);
      }
    sums[r] = total(sum);
    maxima[r] = maximum * scale;
  }
}

// q [T, heads, width], k and v [T, kv heads, width] -> output like q, and log-sum-exp of the scores [heads, T].
inline std::tuple<at::Tensor, at::Tensor> attention(
    const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, at::IntArrayRef lengths, double scale) {
  const int64_t tokens = q.size(0), heads = q.size(1), width = q.size(2), group = heads / k.size(1);
  const int64_t tile = BLOCK * BLOCK, panel = BLOCK * width;
  TORCH_CHECK(std::accumulate(lengths.begin(), lengths.end(), int64_t{0}) == tokens, "lengths do not add up to ", tokens);
  const int64_t most = (*std::max_element(lengths.begin(), lengths.end()) + BLOCK - 1) / BLOCK;
  auto output = at::empty(q.sizes(), q.options());
  auto log_sums = at::empty({heads, tokens}, q.options().dtype(at::kFloat));
  for_dtype(q, [&](auto zero) {
    using T = decltype(zero);
    for_documents(lengths, heads, [&](int64_t start, int64_t length, int64_t head) {
      const auto queries = rows_of<T>(q, start, head), keys = rows_of<T>(k, start, head / group);
      const auto values = rows_of<T>(v, start, head / group), out = rows_of<T>(output, start, head);
      float* log_sum = log_sums.mutable_data_ptr<float>() + head * tokens + start;
      Carver carver{scratch<struct Forward>(most * 2 * (panel + tile) + 3 * panel + 256)};
      T *block = carver.take<T>(panel), *key_blocks = carver.take<T>(most * panel);
      T *value_blocks = carver.take<T>(most * panel), *weights = carver.take<T>(most * tile);
      float *scores = carver.take<float>(most * tile), *sum = carver.take<float>(panel);
      float *sums = carver.take<float>(BLOCK), *maxima = carver.take<float>(BLOCK);
      for (int64_t i = 0; i * BLOCK < length; ++i) {
        const int64_t begin = i * BLOCK, count = std::min(BLOCK, length - begin);
        copy_rows<T>({keys[begin], keys.stride}, count, width, block);
        pack_transposed(block, width, key_blocks + i * panel);
        copy_rows<T>({values[begin], values.stride}, count, width, block);
        pack(block, width, value_blocks + i * panel);
        copy_rows<T>({queries[begin], queries.stride}, count, width, block);
        for (int64_t j = 0; j <= i; ++j)
          multiply(BLOCK, BLOCK, width, block, key_blocks + j * panel, scores + j * tile, false);
        exponentials(scores, i, float(scale), weights, sums, maxima);
        for (int64_t j = 0; j <= i; ++j)
          multiply(BLOCK, width, BLOCK, weights + j * tile, value_blocks + j * panel, sum, j > 0);
        for (int64_t r = 0; r < count; ++r) {
          store_row(out[begin + r], sum + r * width, width, 1.f / sums[r]);
          log_sum[begin + r] = maxima[r] + std::log(sums[r]);
        }
      }
    });
  });
  return {output, log_sums};
}

// One pair of blocks, keys as rows and queries as columns: from scores and the gradient of the softmax, the softmax
// `p`, and the gradient of the scores `ds` as rows and as an operand. `diagonal`: keys later than the query are hidden.
template <typename T>
void score_gradients(
    const float* scores, const float* dp, const float* log_sum, const float* dots, float scale, bool diagonal, T* p,
    T* ds, T* ds_operand) {
  for (int64_t r = 0; r < BLOCK; ++r) {
    for (int64_t c = 0; c < BLOCK; c += LANES) {
      const int64_t at = r * BLOCK + c;
      Vector weight = exponential(load(scores + at) * scale - load(log_sum + c));
      if (diagonal) weight -= first(weight, r - c);
      store(p + at, weight);
      store(ds + at, weight * (load(dp + at) - load(dots + c)) * scale);
    }
  }
  pack(ds, BLOCK, ds_operand);
}

// Gradients for q, k and v, from that of the output.
inline std::tuple<at::Tensor, at::Tensor, at::Tensor> attention_backward(
    const at::Tensor& grad, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& output,
    const at::Tensor& log_sums, at::IntArrayRef lengths, double scale) {
  const int64_t tokens = q.size(0), heads = q.size(1), width = q.size(2), group = heads / k.size(1);
  const int64_t tile = BLOCK * BLOCK, panel = BLOCK * width;
  const int64_t most = (*std::max_element(lengths.begin(), lengths.end()) + BLOCK - 1) / BLOCK;
  auto dq = at::empty(q.sizes(), q.options()), dk = at::empty(k.sizes(), k.options());
  auto dv = at::empty(v.sizes(), v.options());
  for_dtype(q, [&](auto zero) {
    using T = decltype(zero);
    for_documents(lengths, k.size(1), [&](int64_t start, int64_t length, int64_t kv_head) {
      Carver carver{scratch<struct Backward>(most * 5 * panel + 8 * panel + 5 * tile + 640)};
      T *key_blocks = carver.take<T>(most * panel), *value_blocks = carver.take<T>(most * panel);
      T* key_columns = carver.take<T>(most * panel);
      float *dkeys = carver.take<float>(most * panel), *dvalues = carver.take<float>(most * panel);
      T *query = carver.take<T>(panel), *query_operand = carver.take<T>(panel), *query_columns = carver.take<T>(panel);
      T *slope = carver.take<T>(panel), *slope_operand = carver.take<T>(panel), *slope_columns = carver.take<T>(panel);
      float *scores = carver.take<float>(tile), *dp = carver.take<float>(tile), *dquery = carver.take<float>(panel);
      float* dquery_rows = carver.take<float>(panel);
      T *p = carver.take<T>(tile), *ds = carver.take<T>(tile), *ds_operand = carver.take<T>(tile);
      float *dots = carver.take<float>(BLOCK), *log_sum = carver.take<float>(BLOCK);

      const auto keys = rows_of<T>(k, start, kv_head), values = rows_of<T>(v, start, kv_head);
      const int64_t blocks = (length + BLOCK - 1) / BLOCK;
      for (int64_t j = 0; j < blocks; ++j) {
        const int64_t begin = j * BLOCK, count = std::min(BLOCK, length - begin);
        copy_rows<T>({keys[begin], keys.stride}, count, width, key_blocks + j * panel);
        copy_rows<T>({values[begin], values.stride}, count, width, value_blocks + j * panel);
        transpose(key_blocks + j * panel, BLOCK, width, key_columns + j * panel);
      }
      std::fill_n(dkeys, blocks * panel, 0.f);
      std::fill_n(dvalues, blocks * panel, 0.f);
      for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
        const auto queries = rows_of<T>(q, start, head), slopes = rows_of<T>(grad, start, head);
        const auto outputs = rows_of<T>(output, start, head), dqueries = rows_of<T>(dq, start, head);
        const float* sums = log_sums.const_data_ptr<float>() + head * tokens + start;
        for (int64_t i = 0; i < blocks; ++i) {
          const int64_t begin = i * BLOCK, count = std::min(BLOCK, length - begin);
          copy_rows<T>({queries[begin], queries.stride}, count, width, query);
          pack(query, width, query_operand);
          pack_transposed(query, width, query_columns);
          copy_rows<T>({slopes[begin], slopes.stride}, count, width, slope);
          pack(slope, width, slope_operand);
          pack_transposed(slope, width, slope_columns);
          for (int64_t r = 0; r < BLOCK; ++r) {  // queries beyond the end have zero slopes: any finite sum will do
            Vector dot{};
            if (r < count)
              for_vectors(width, [&](int64_t c, int64_t n) {
                dot += load(slope + r * width + c, n) * load(outputs[begin + r] + c, n);
              });
            dots[r] = total(dot);
            log_sum[r] = r < count ? sums[begin + r] : 0.f;
          }
          for (int64_t j = 0; j <= i; ++j) {
            multiply(BLOCK, BLOCK, width, key_blocks + j * panel, query_columns, scores, false);
            multiply(BLOCK, BLOCK, width, value_blocks + j * panel, slope_columns, dp, false);
            score_gradients(scores, dp, log_sum, dots, float(scale), j == i, p, ds, ds_operand);
            multiply(BLOCK, width, BLOCK, p, slope_operand, dvalues + j * panel, true);
            multiply(BLOCK, width, BLOCK, ds, query_operand, dkeys + j * panel, true);
            multiply(width, BLOCK, BLOCK, key_columns + j * panel, ds_operand, dquery, j > 0);
          }
          transpose(dquery, width, BLOCK, dquery_rows);
          for (int64_t r = 0; r < count; ++r) store_row(dqueries[begin + r], dquery_rows + r * width, width, 1.f);
        }
      }
      const auto dk_rows = rows_of<T>(dk, start, kv_head), dv_rows = rows_of<T>(dv, start, kv_head);
      for (int64_t r = 0; r < length; ++r) {
        store_row(dk_rows[r], dkeys + r * width, width, 1.f);
        store_row(dv_rows[r], dvalues + r * width, width, 1.f);
      }
    });
  });
  return {dq, dk, dv};
}

}  // namespace rlrun_trainer
