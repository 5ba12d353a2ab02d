// Causal attention whose result for a query depends on nothing but the query and the keys and values of its sequence, in
// the order of their positions: not on the other queries, nor on where the keys are stored.
//
//     score = one chain of multiply-adds along the head, of each key
//     sum   = of the exponentials, in LANES lanes: that of position p in lane p % LANES
//     out   = one chain of multiply-adds along the keys, of each element
//
// Keys and values come in blocks of 16 tokens, those of the engine's cache, and those into which the trainer's are
// copied. A query beyond whose sight a key is multiplies its value by 0, which changes nothing.
#pragma once
#include <algorithm>
#include <vector>

#include "rows.h"

namespace rlrun {

// Up to 16 tokens of one key-value head: keys [dim][16], values [16][dim].
template <typename T>
struct Block {
  const T* keys;
  const T* values;
  int64_t count;
};

template <typename T>
using Blocks = std::vector<Block<T>>;

constexpr int64_t QUERIES = 16;  // queries of one task of the trainer
constexpr int64_t PARTS = CACHE_BLOCK / LANES;  // vectors of a block's tokens
constexpr bool WIDE = LANES == 16;  // 32 registers instead of 16

// The scratch memory of one thread.
struct AttentionMemory {
  std::vector<float> queries, scores, sums, packed;
  std::vector<float> scales;
};

// scores[q][0 : 16 B] = queries[q] . keys of B blocks, for Q queries; each score is one chain.
template <int Q, int B, typename T>
void score_tile(const float* queries, int64_t dim, const Block<T>* blocks, float* scores, int64_t stride) {
  Vector acc[Q][B * PARTS] = {};
  for (int64_t d = 0; d < dim; ++d)
    for (int b = 0; b < B * PARTS; ++b) {
      const Vector keys = load(blocks[b / PARTS].keys + d * CACHE_BLOCK + b % PARTS * LANES);
      for (int q = 0; q < Q; ++q) acc[q][b] = fused(splat(queries[q * dim + d]), keys, acc[q][b]);
    }
  for (int b = 0; b < B; ++b) {
    for (int q = 0; q < Q; ++q)
      for (int p = 0; p < PARTS; ++p) store(scores + q * stride + p * LANES, acc[q][b * PARTS + p]);
    scores += blocks[b].count;  // the next block's scores replace those of tokens that this one does not have
  }
}

// Scores of all blocks, behind each other by position; writes up to 16 floats beyond the last. One query alone takes
// eight blocks at a time, because in few chains each multiply-add would wait for the one before.
template <int Q, typename T>
void score_rows(
    const float* queries, int64_t dim, const Block<T>* blocks, int64_t count, float* scores, int64_t stride) {
  constexpr int B = WIDE ? (Q == 1 ? 8 : Q <= 4 ? 4 : 2) : std::max(1, 8 / int(Q * PARTS));
  int64_t b = 0;
  for (; b + B <= count; b += B) {
    score_tile<Q, B>(queries, dim, blocks + b, scores, stride);
    for (int i = 0; i < B; ++i) scores += blocks[b + i].count;
  }
  for (; b < count; scores += blocks[b++].count) score_tile<Q, 1>(queries, dim, blocks + b, scores, stride);
}

// out[q][0 : LANES V] += sum over tokens, in their order, of weights[q][t] * values[t][0 : LANES V]; each sum is one
// chain.
template <int Q, int V, typename T>
void mix_tile(const Block<T>* blocks, int64_t limit, int64_t at, int64_t dim, const float* weights, int64_t stride,
              float* out) {
  Vector acc[Q][V];
  for (int q = 0; q < Q; ++q)
    for (int v = 0; v < V; ++v) acc[q][v] = load(out + q * dim + v * LANES);
  for (; limit > 0; limit -= blocks->count, weights += blocks->count, ++blocks) {
    const T* value = blocks->values + at;
    const int64_t tokens = std::min(blocks->count, limit);
    for (int64_t t = 0; t < tokens; ++t, value += dim)
      for (int v = 0; v < V; ++v) {
        const Vector x = load(value + v * LANES);
        for (int q = 0; q < Q; ++q) acc[q][v] = fused(splat(weights[q * stride + t]), x, acc[q][v]);
      }
  }
  for (int q = 0; q < Q; ++q)
    for (int v = 0; v < V; ++v) store(out + q * dim + v * LANES, acc[q][v]);
}

template <int Q, typename T>
void mix_rows(const Block<T>* blocks, int64_t limit, int64_t dim, const float* weights, int64_t stride, float* out) {
  constexpr int V = WIDE ? 4 : 2;
  int64_t d = 0;
  for (; d + V * LANES <= dim; d += V * LANES) mix_tile<Q, V>(blocks, limit, d, dim, weights, stride, out + d);
  for (; d < dim; d += LANES) mix_tile<Q, 1>(blocks, limit, d, dim, weights, stride, out + d);
}

// Calls f with the number of queries of a tile as a constant, for tiles of at most MOST queries.
template <int MOST, typename F>
void for_tiles(int64_t count, const F& f) {
  int64_t q = 0;
  for (; q + MOST <= count; q += MOST) f(std::integral_constant<int, MOST>{}, q);
  if constexpr (MOST > 1) {
    if (q < count)
      for_tiles<(MOST + 1) / 2>(count - q, [&](auto size, int64_t first) { f(size, q + first); });
  }
}

template <typename T>
void score(int64_t count, const float* queries, int64_t dim, const Block<T>* blocks, int64_t block_count, float* scores,
           int64_t stride) {
  for_tiles<WIDE ? 8 : 4>(count, [&](auto size, int64_t q) {
    score_rows<decltype(size)::value>(queries + q * dim, dim, blocks, block_count, scores + q * stride, stride);
  });
}

// `limit`: tokens after this many have weights of 0 for all queries.
template <typename T>
void mix(int64_t count, const Block<T>* blocks, int64_t limit, int64_t dim, const float* weights, int64_t stride,
         float* out) {
  for_tiles<6>(count, [&](auto size, int64_t q) {
    mix_rows<decltype(size)::value>(blocks, limit, dim, weights + q * stride, stride, out + q * dim);
  });
}

inline int64_t rounded(int64_t tokens) { return (tokens + CACHE_BLOCK - 1) / CACHE_BLOCK * CACHE_BLOCK; }

// Turns the scores of the first `seen` tokens into the softmax's numerators, and those of the others up to `limit`, a
// multiple of 16, into 0. Sets `reciprocal` to 1 / their sum; returns the log-sum-exp.
inline float soften(float* scores, int64_t seen, int64_t limit, float scale, float& reciprocal) {
  Vector maxima = splat(-INFINITY);
  for_vectors(seen, [&](int64_t i, int64_t n) { maxima = larger(maxima, first(load(scores + i), n, -INFINITY)); });
  const float maximum = largest(maxima);
  Vector sums{};
  for_vectors(seen, [&](int64_t i, int64_t n) {
    const Vector e = first(exponential((load(scores + i) - maximum) * scale), n);
    store(scores + i, e);
    sums += e;
  });
  const int64_t written = (seen + LANES - 1) / LANES * LANES;
  std::fill(scores + written, scores + std::max(limit, written), 0.f);
  const float sum = total(sums);
  reciprocal = 1.f / sum;
  return std::fma(maximum, scale, std::log(sum));
}

// Attends from `count` queries, the first of which sees `seen` tokens and each later one a token more; the blocks hold
// at least those. `query(i)` and `output(i)` point to their rows; `log_sums` may be null.
template <typename T, typename B, typename Query, typename Output>
void attend_in_order(const Blocks<B>& blocks, int64_t block_count, int64_t count, int64_t seen, int64_t dim, float scale,
                     const Query& query, const Output& output, float* log_sums, AttentionMemory& memory) {
  const int64_t limit = rounded(seen + count - 1), stride = limit + CACHE_BLOCK;
  memory.queries.resize(count * dim);
  memory.scores.resize(count * stride);
  memory.sums.assign(count * dim, 0.f);
  for (int64_t i = 0; i < count; ++i)
    for (int64_t d = 0; d < dim; d += LANES) store(memory.queries.data() + i * dim + d, load(query(i) + d));
  score(count, memory.queries.data(), dim, blocks.data(), block_count, memory.scores.data(), stride);
  memory.scales.resize(count);
  for (int64_t i = 0; i < count; ++i) {
    const float log_sum = soften(memory.scores.data() + i * stride, seen + i, limit, scale, memory.scales[i]);
    if (log_sums) log_sums[i] = log_sum;
  }
  mix(count, blocks.data(), seen + count - 1, dim, memory.scores.data(), stride, memory.sums.data());
  for (int64_t i = 0; i < count; ++i)
    for (int64_t d = 0; d < dim; d += LANES)
      store(output(i) + d, load(memory.sums.data() + i * dim + d) * memory.scales[i]);
}

}  // namespace rlrun
