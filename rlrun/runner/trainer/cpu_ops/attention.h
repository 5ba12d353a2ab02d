// Causal attention within each document of a packed batch, forward and backward, at a cost of the sum of the squares
// of their lengths. A task is one head of one document, cut into blocks of BLOCK tokens; of the scores only a block's
// rows exist at a time, in cache, and the backward pass computes them again (Dao et al. 2022, arXiv:2205.14135).
//
// Products are torch's small matrix kernels `brgemm`: C [M, N] float32 (+)= A [M, K] B [K, N]. For bfloat16 they want B
// with each two neighbouring rows interleaved; "operand" below means that layout, which for float32 is the plain one.
#pragma once
#include <ATen/native/CPUBlas.h>

#include <algorithm>
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

template <typename T>
void pack_transposed(const T* block, int64_t width, T* out) {
  for (int64_t i = 0; i < width; ++i)
    for (int64_t r = 0; r < BLOCK; ++r) out[operand_index<T>(i, r, BLOCK)] = block[r * width + i];
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

// Softmax numerators of a row block's scores against blocks 0..last (the last one its own), each query's sum and maximum.
template <typename T>
void exponentials(const float* scores, int64_t last, float scale, T* out, float* sums, float* maxima) {
  for (int64_t r = 0; r < BLOCK; ++r) {
    float maximum = scores[last * BLOCK * BLOCK + r * BLOCK];
    for (int64_t j = 0; j <= last; ++j) {
      const float* s = scores + (j * BLOCK + r) * BLOCK;
      const int64_t visible = j < last ? BLOCK : r + 1;
#pragma omp simd reduction(max : maximum)
      for (int64_t i = 0; i < visible; ++i) maximum = std::max(maximum, s[i]);
    }
    float sum = 0;
    for (int64_t j = 0; j <= last; ++j) {
      const float* s = scores + (j * BLOCK + r) * BLOCK;
      T* p = out + (j * BLOCK + r) * BLOCK;
      const int64_t visible = j < last ? BLOCK : r + 1;
#pragma omp simd reduction(+ : sum)
      for (int64_t i = 0; i < BLOCK; ++i) {
        const float e = i < visible ? fast_exp((s[i] - maximum) * scale) : 0.f;
        sum += e;
        p[i] = narrow<T>(e);
      }
    }
    sums[r] = sum;
    maxima[r] = maximum * scale;
  }
}

// q [T, heads, width], k and v [T, kv heads, width] -> output like q, and log-sum-exp of the scores [heads, T].
inline std::tuple<at::Tensor, at::Tensor> attention(
    const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, at::IntArrayRef lengths, double scale) {
  const int64_t tokens = q.size(0), heads = q.size(1), width = q.size(2), group = heads / k.size(1);
  const int64_t tile = BLOCK * BLOCK, panel = BLOCK * width;
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
        const int64_t first = i * BLOCK, count = std::min(BLOCK, length - first);
        copy_rows<T>({keys[first], keys.stride}, count, width, block);
        pack_transposed(block, width, key_blocks + i * panel);
        copy_rows<T>({values[first], values.stride}, count, width, block);
        pack(block, width, value_blocks + i * panel);
        copy_rows<T>({queries[first], queries.stride}, count, width, block);
        for (int64_t j = 0; j <= i; ++j)
          multiply(BLOCK, BLOCK, width, block, key_blocks + j * panel, scores + j * tile, false);
        exponentials(scores, i, float(scale), weights, sums, maxima);
        for (int64_t j = 0; j <= i; ++j)
          multiply(BLOCK, width, BLOCK, weights + j * tile, value_blocks + j * panel, sum, j > 0);
        for (int64_t r = 0; r < count; ++r) {
          for (int64_t c = 0; c < width; ++c) out[first + r][c] = narrow<T>(sum[r * width + c] / sums[r]);
          log_sum[first + r] = maxima[r] + std::log(sums[r]);
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
    const int64_t hidden = diagonal ? r : 0;
#pragma omp simd
    for (int64_t c = 0; c < BLOCK; ++c) {
      const int64_t at = r * BLOCK + c;
      const float weight = c < hidden ? 0.f : fast_exp(scores[at] * scale - log_sum[c]);
      p[at] = narrow<T>(weight);
      ds[at] = narrow<T>(weight * (dp[at] - dots[c]) * scale);
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
      Carver carver{scratch<struct Backward>(most * 5 * panel + 8 * panel + 5 * tile + 512)};
      T *key_blocks = carver.take<T>(most * panel), *value_blocks = carver.take<T>(most * panel);
      T* key_columns = carver.take<T>(most * panel);
      float *dkeys = carver.take<float>(most * panel), *dvalues = carver.take<float>(most * panel);
      T *query = carver.take<T>(panel), *query_operand = carver.take<T>(panel), *query_columns = carver.take<T>(panel);
      T *slope = carver.take<T>(panel), *slope_operand = carver.take<T>(panel), *slope_columns = carver.take<T>(panel);
      float *scores = carver.take<float>(tile), *dp = carver.take<float>(tile), *dquery = carver.take<float>(panel);
      T *p = carver.take<T>(tile), *ds = carver.take<T>(tile), *ds_operand = carver.take<T>(tile);
      float *dots = carver.take<float>(BLOCK), *log_sum = carver.take<float>(BLOCK);

      const auto keys = rows_of<T>(k, start, kv_head), values = rows_of<T>(v, start, kv_head);
      const int64_t blocks = (length + BLOCK - 1) / BLOCK;
      for (int64_t j = 0; j < blocks; ++j) {
        const int64_t first = j * BLOCK, count = std::min(BLOCK, length - first);
        copy_rows<T>({keys[first], keys.stride}, count, width, key_blocks + j * panel);
        copy_rows<T>({values[first], values.stride}, count, width, value_blocks + j * panel);
        for (int64_t c = 0; c < width; ++c)
          for (int64_t r = 0; r < BLOCK; ++r)
            key_columns[j * panel + c * BLOCK + r] = key_blocks[j * panel + r * width + c];
      }
      std::fill_n(dkeys, blocks * panel, 0.f);
      std::fill_n(dvalues, blocks * panel, 0.f);
      for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
        const auto queries = rows_of<T>(q, start, head), slopes = rows_of<T>(grad, start, head);
        const auto outputs = rows_of<T>(output, start, head), dqueries = rows_of<T>(dq, start, head);
        const float* sums = log_sums.const_data_ptr<float>() + head * tokens + start;
        for (int64_t i = 0; i < blocks; ++i) {
          const int64_t first = i * BLOCK, count = std::min(BLOCK, length - first);
          copy_rows<T>({queries[first], queries.stride}, count, width, query);
          pack(query, width, query_operand);
          pack_transposed(query, width, query_columns);
          copy_rows<T>({slopes[first], slopes.stride}, count, width, slope);
          pack(slope, width, slope_operand);
          pack_transposed(slope, width, slope_columns);
          for (int64_t r = 0; r < BLOCK; ++r) {  // queries beyond the end have zero slopes: any finite sum will do
            float dot = 0;
            if (r < count)
#pragma omp simd reduction(+ : dot)
              for (int64_t c = 0; c < width; ++c) dot += widen(slope[r * width + c]) * widen(outputs[first + r][c]);
            dots[r] = dot;
            log_sum[r] = r < count ? sums[first + r] : 0.f;
          }
          for (int64_t j = 0; j <= i; ++j) {
            multiply(BLOCK, BLOCK, width, key_blocks + j * panel, query_columns, scores, false);
            multiply(BLOCK, BLOCK, width, value_blocks + j * panel, slope_columns, dp, false);
            score_gradients(scores, dp, log_sum, dots, float(scale), j == i, p, ds, ds_operand);
            multiply(BLOCK, width, BLOCK, p, slope_operand, dvalues + j * panel, true);
            multiply(BLOCK, width, BLOCK, ds, query_operand, dkeys + j * panel, true);
            multiply(width, BLOCK, BLOCK, key_columns + j * panel, ds_operand, dquery, j > 0);
          }
          for (int64_t r = 0; r < count; ++r)
            for (int64_t c = 0; c < width; ++c) dqueries[first + r][c] = narrow<T>(dquery[c * BLOCK + r]);
        }
      }
      const auto dk_rows = rows_of<T>(dk, start, kv_head), dv_rows = rows_of<T>(dv, start, kv_head);
      for (int64_t r = 0; r < length; ++r)
        for (int64_t c = 0; c < width; ++c) {
          dk_rows[r][c] = narrow<T>(dkeys[r * width + c]);
          dv_rows[r][c] = narrow<T>(dvalues[r * width + c]);
        }
    });
  });
  return {dq, dk, dv};
}

}  // namespace rlrun_trainer
