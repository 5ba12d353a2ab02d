// Attention of one token per row to the blocks of its prompt, which neighbouring rows share, and to its own blocks.
//
// Decoding is bound by memory bandwidth, so rows of one prompt are processed together: each key and value of the prompt
// is read once for all of them. A block's keys are [dim][16], so that the scores of its 16 tokens are one vector and
// need no sum across lanes.
#pragma once
#include <algorithm>
#include <cmath>
#include <vector>

#include "rows.h"

namespace rlrun::kernels {

// The cache of one layer.
template <class T>
struct Cache {
  const T* keys;    // [blocks][kv][dim][16]
  const T* values;  // [blocks][kv][16][dim]
  Heads heads;

  const T* key(int32_t block, int64_t head) const { return keys + (block * heads.kv + head) * heads.dim * BLOCK; }
  const T* value(int32_t block, int64_t head) const { return values + (block * heads.kv + head) * heads.dim * BLOCK; }
};

// A sequence of `length` tokens, stored in blocks.
struct Span {
  const int32_t* blocks;
  int64_t length;
  int64_t count() const { return (length + BLOCK - 1) / BLOCK; }
};

// scores[q][0:16] = queries[q] . keys of one block, for N queries. Each query has U independent sums, because in a
// single chain each multiply-add would wait for the one before.
template <int N, class T>
inline void score_tile(const float* queries, int64_t dim, const T* keys, float* scores, int64_t stride) {
  constexpr int U = N == 1 ? 4 : N <= 3 ? 2 : 1;
  Vec sums[N][U] = {};
  for (int64_t d = 0; d < dim; d += U) {
    for (int u = 0; u < U; u++) {
      const Vec k = load(keys + (d + u) * BLOCK);
      for (int q = 0; q < N; q++) sums[q][u] += k * queries[q * dim + d + u];
    }
  }
  for (int q = 0; q < N; q++) {
    Vec total = sums[q][0];
    for (int u = 1; u < U; u++) total += sums[q][u];
    store(scores + q * stride, total);
  }
}

template <class T>
void score(int64_t count, const float* queries, int64_t dim, const T* keys, float* scores, int64_t stride) {
  for (; count >= 8; count -= 8, queries += 8 * dim, scores += 8 * stride)
    score_tile<8>(queries, dim, keys, scores, stride);
  for (; count >= 4; count -= 4, queries += 4 * dim, scores += 4 * stride)
    score_tile<4>(queries, dim, keys, scores, stride);
  if (count == 3) score_tile<3>(queries, dim, keys, scores, stride);
  if (count == 2) score_tile<2>(queries, dim, keys, scores, stride);
  if (count == 1) score_tile<1>(queries, dim, keys, scores, stride);
}

// out[q][0 : 16 V] += sum over tokens of weights[q][t] * values[t][0 : 16 V], for N queries.
// `values(b)` is the span's block b.
template <int N, int V, class T, class Values>
inline void mix_tile(const Span& span, Values&& values, int64_t dim, const float* weights, int64_t stride, float* out) {
  Vec sums[N][V];
  for (int q = 0; q < N; q++)
    for (int v = 0; v < V; v++) sums[q][v] = load(out + q * dim + v * W);
  for (int64_t b = 0; b < span.count(); b++) {
    const T* value = values(b);
    const int64_t tokens = std::min(BLOCK, span.length - b * BLOCK);
    for (int64_t t = 0; t < tokens; t++, value += dim) {
      Vec x[V];
      for (int v = 0; v < V; v++) x[v] = load(value + v * W);
      for (int q = 0; q < N; q++) {
        const float weight = weights[q * stride + b * BLOCK + t];
        for (int v = 0; v < V; v++) sums[q][v] += x[v] * weight;
      }
    }
  }
  for (int q = 0; q < N; q++)
    for (int v = 0; v < V; v++) store(out + q * dim + v * W, sums[q][v]);
}

template <int N, class T, class Values>
void mix_rows(const Span& span, Values&& values, int64_t dim, const float* weights, int64_t stride, float* out) {
  int64_t d = 0;
  auto shifted = [&](int64_t b) { return values(b) + d; };
  for (; d + 4 * W <= dim; d += 4 * W) mix_tile<N, 4, T>(span, shifted, dim, weights, stride, out + d);
  for (; d < dim; d += W) mix_tile<N, 1, T>(span, shifted, dim, weights, stride, out + d);
}

template <class T, class Values>
void mix(int64_t count, const Span& span, Values&& values, int64_t dim, const float* weights, int64_t stride,
         float* out) {
  for (; count >= 4; count -= 4, weights += 4 * stride, out += 4 * dim)
    mix_rows<4, T>(span, values, dim, weights, stride, out);
  if (count == 3) mix_rows<3, T>(span, values, dim, weights, stride, out);
  if (count == 2) mix_rows<2, T>(span, values, dim, weights, stride, out);
  if (count == 1) mix_rows<1, T>(span, values, dim, weights, stride, out);
}

// Turns scores into weights in place: exp(score - peak) over both spans, 0 where there is no token. Returns 1 / sum, by
// which the caller scales the output: it is shorter than the scores.
inline float soften(float* scores, const Span& prefix, const Span& own) {
  const int64_t begin[2] = {0, prefix.count() * BLOCK};
  const int64_t length[2] = {prefix.length, own.length}, blocks[2] = {prefix.count(), own.count()};
  Vec peaks = splat(-INFINITY);
  for (int part = 0; part < 2; part++) {
    float* s = scores + begin[part];
    for (int64_t t = length[part]; t < blocks[part] * BLOCK; t++) s[t] = -INFINITY;
    for (int64_t b = 0; b < blocks[part]; b++) peaks = maximum(peaks, load(s + b * BLOCK));
  }
  const float peak = maximum(peaks);
  Vec total{};
  for (int part = 0; part < 2; part++) {
    for (int64_t b = 0; b < blocks[part]; b++) {
      float* s = scores + begin[part] + b * BLOCK;
      const Vec weights = exponential(load(s) - peak);  // 0 for -infinity
      store(s, weights);
      total += weights;
    }
  }
  return 1.0f / sum(total);
}

// Starts to bring `count` elements into the caches.
template <class T>
void fetch(const T* from, int64_t count) {
  for (int64_t i = 0; i < count; i += 64 / sizeof(T)) __builtin_prefetch(from + i);
}

// Scratch memory of one thread.
struct Scratch {
  std::vector<float> queries, scores, out, scales;
};

// Attends with the queries of one key-value head of rows [first, last), which share a prompt. `queries(row)` and
// `out(row)` point to the row's [heads][dim]; `own(row)` is the span of the row's own tokens.
template <class T, class Queries, class Own, class Out>
void attend(const Cache<T>& cache, int64_t head, int64_t first, int64_t last, Span prefix, Queries&& queries, Own&& own,
            Out&& out, Scratch& scratch) {
  const int64_t dim = cache.heads.dim, group = cache.heads.queries / cache.heads.kv;
  const int64_t rows = last - first, count = rows * group, prefix_size = prefix.count() * BLOCK;
  int64_t longest = 0;
  for (int64_t r = first; r < last; r++) longest = std::max(longest, own(r).count() * BLOCK);
  const int64_t stride = prefix_size + longest;
  scratch.queries.resize(count * dim);
  scratch.out.assign(count * dim, 0.0f);
  scratch.scores.resize(count * stride);
  scratch.scales.resize(count);
  float *q = scratch.queries.data(), *scores = scratch.scores.data(), *mixed = scratch.out.data();

  const float scale = 1.0f / std::sqrt(static_cast<float>(dim));
  for (int64_t i = 0; i < count; i++) {
    const T* query = queries(first + i / group) + (head * group + i % group) * dim;
    for (int64_t d = 0; d < dim; d += W) store(q + i * dim + d, load(query + d) * scale);
  }
  // The next blocks are fetched into the caches meanwhile: a block's 2 KB are too short for the processor to notice.
  const auto fetch_keys = [&](const Span& span, int64_t b) {
    if (b < span.count()) fetch(cache.key(span.blocks[b], head), BLOCK * dim);
  };
  for (int64_t b = 0; b < prefix.count(); b++) {
    fetch_keys(own(first), b);
    score(count, q, dim, cache.key(prefix.blocks[b], head), scores + b * BLOCK, stride);
  }
  for (int64_t r = 0; r < rows; r++) {
    const Span span = own(first + r), next = r + 1 < rows ? own(first + r + 1) : Span{nullptr, 0};
    float* own_scores = scores + r * group * stride + prefix_size;
    for (int64_t b = 0; b < span.count(); b++) {
      fetch(cache.value(span.blocks[b], head), BLOCK * dim);
      score(group, q + r * group * dim, dim, cache.key(span.blocks[b], head), own_scores + b * BLOCK, stride);
    }
    for (int64_t i = r * group; i < (r + 1) * group; i++)
      scratch.scales[i] = soften(scores + i * stride, prefix, span);
    const auto values = [&](int64_t b) {
      fetch_keys(next, b);
      return cache.value(span.blocks[b], head);
    };
    mix<T>(group, span, values, dim, own_scores, stride, mixed + r * group * dim);
  }
  const auto values = [&](int64_t b) { return cache.value(prefix.blocks[b], head); };
  mix<T>(count, prefix, values, dim, scores, stride, mixed);
  for (int64_t i = 0; i < count; i++) {
    T* target = out(first + i / group) + (head * group + i % group) * dim;
    for (int64_t d = 0; d < dim; d += W) store(target + d, load(mixed + i * dim + d) * scratch.scales[i]);
  }
}

}  // namespace rlrun::kernels
