// Operations on one row (one token) at a time: norms, rotation with the write to the cache, and activation.
#pragma once
#include <cmath>

#include "vectors.h"

namespace rlrun::kernels {

constexpr int64_t BLOCK = 16;  // tokens of a cache block

template <class T>
float inverse_rms(const T* x, int64_t n, float eps) {
  Vec squares{};
  for_chunks(n, [&](int64_t i, int64_t m) {
    Vec v = load_chunk(x + i, m);
    squares += v * v;
  });
  return 1.0f / std::sqrt(sum(squares) / n + eps);
}

// y = x / rms(x) * weight
template <class T>
void rms_norm(const T* x, const T* weight, T* y, int64_t n, float eps) {
  const float scale = inverse_rms(x, n, eps);
  for_chunks(n, [&](int64_t i, int64_t m) {
    store_chunk(y + i, load_chunk(x + i, m) * scale * load_chunk(weight + i, m), m);
  });
}

// x += delta; y = x / rms(x) * weight
template <class T>
void add_rms_norm(T* x, const T* delta, const T* weight, T* y, int64_t n, float eps) {
  for_chunks(n, [&](int64_t i, int64_t m) { store_chunk(x + i, load_chunk(x + i, m) + load_chunk(delta + i, m), m); });
  rms_norm(x, weight, y, n, eps);
}

// Normalises one head in place, if there is a weight, then rotates the pairs (i, i + dim / 2).
template <class T>
void norm_rotate(T* x, const T* weight, const float* cos, const float* sin, int64_t dim, float eps) {
  const int64_t half = dim / 2;
  const float scale = weight ? inverse_rms(x, dim, eps) : 1.0f;
  for_chunks(half, [&](int64_t i, int64_t m) {
    Vec a = load_chunk(x + i, m) * scale, b = load_chunk(x + half + i, m) * scale;
    if (weight) {
      a *= load_chunk(weight + i, m);
      b *= load_chunk(weight + half + i, m);
    }
    const Vec c = load_chunk(cos + i, m), s = load_chunk(sin + i, m);
    store_chunk(x + i, a * c - b * s, m);
    store_chunk(x + half + i, b * c + a * s, m);
  });
}

struct Heads {
  int64_t queries, kv, dim;
};

// Normalises and rotates one token's queries and keys, and writes keys (transposed) and values to cache slot `slot`.
template <class T>
void rope_store(T* qkv, const T* q_norm, const T* k_norm, const float* cos, const float* sin, int64_t slot, T* keys,
                T* values, Heads heads, float eps) {
  const int64_t dim = heads.dim, block = slot / BLOCK, offset = slot % BLOCK;
  for (int64_t h = 0; h < heads.queries; h++) norm_rotate(qkv + h * dim, q_norm, cos, sin, dim, eps);
  for (int64_t h = 0; h < heads.kv; h++) {
    T* key = qkv + (heads.queries + h) * dim;
    norm_rotate(key, k_norm, cos, sin, dim, eps);
    T* cached = keys + (block * heads.kv + h) * dim * BLOCK + offset;
    for (int64_t d = 0; d < dim; d++) cached[d * BLOCK] = key[d];
    const T* value = qkv + (heads.queries + heads.kv + h) * dim;
    std::memcpy(values + ((block * heads.kv + h) * BLOCK + offset) * dim, value, dim * sizeof(T));
  }
}

// y = silu(gate) * up, where gate_up has gate and up side by side
template <class T>
void silu_mul(const T* gate_up, T* y, int64_t n) {
  for_chunks(n, [&](int64_t i, int64_t m) {
    const Vec gate = load_chunk(gate_up + i, m), up = load_chunk(gate_up + n + i, m);
    store_chunk(y + i, gate / (1.0f + exponential(-gate)) * up, m);
  });
}

}  // namespace rlrun::kernels
