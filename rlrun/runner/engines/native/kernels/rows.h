// What is done to one row (one token) at a time: norms, rotation and cache write, activation, sampling.
#pragma once
#include <cmath>
#include <vector>

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

// One head, in place: x / rms(x) * weight (where there is a weight), then rotated.
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

// Norms and rotates one token's queries and keys, and writes keys (transposed) and values to slot `slot`.
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

// y = silu(gate) * up, from gate and up side by side
template <class T>
void silu_mul(const T* gate_up, T* y, int64_t n) {
  for_chunks(n, [&](int64_t i, int64_t m) {
    const Vec gate = load_chunk(gate_up + i, m), up = load_chunk(gate_up + n + i, m);
    store_chunk(y + i, gate / (1.0f + exponential(-gate)) * up, m);
  });
}

inline uint64_t splitmix(uint64_t x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

// Uniform in (0, 1), a function of seed and position alone.
inline double uniform(int64_t seed, int64_t position) {
  const uint64_t hash = splitmix(splitmix(static_cast<uint64_t>(seed)) ^ static_cast<uint64_t>(position));
  return (static_cast<double>(hash >> 11) + 0.5) * 0x1p-53;
}

struct Drawn {
  int64_t token;
  float log_prob;
};

constexpr int64_t GROUP = 64;  // tokens of the vocabulary summed together

// Draws from softmax(logits / temperature), or takes the likeliest at temperature 0, among `allowed` (null: all).
// The log-prob is that of the whole distribution.
template <class T>
class RowSampler {
 public:
  explicit RowSampler(int64_t vocab) : vocab_(vocab), weights_((vocab + GROUP - 1) / GROUP * GROUP) {}

  Drawn draw(const T* logits, float temperature, double uniform, const bool* allowed) {
    const bool greedy = temperature == 0.0f;
    const float inverse = greedy ? 1.0f : 1.0f / temperature;
    const float peak = maximum(logits) * inverse;
    double total = weigh(logits, inverse, peak);
    const double log_total = std::log(total);
    if (allowed) {
      for (int64_t i = 0; i < vocab_; i++) weights_[i] = allowed[i] ? weights_[i] : 0.0f;
    }
    const int64_t token = greedy ? likeliest() : invert(uniform);
    return {token, static_cast<float>(static_cast<double>(at(logits, token) * inverse - peak) - log_total)};
  }

 private:
  int64_t vocab_;
  std::vector<float> weights_;

  static float at(const T* logits, int64_t i) { return load(logits + i, 1)[0]; }

  float maximum(const T* logits) const {
    Vec peak = splat(-INFINITY);
    int64_t i = 0;
    for (; i + W <= vocab_; i += W) peak = kernels::maximum(peak, load(logits + i));
    float m = kernels::maximum(peak);
    for (; i < vocab_; i++) m = std::max(m, at(logits, i));
    return m;
  }

  double weigh(const T* logits, float inverse, float peak) {
    double total = 0;
    for (int64_t start = 0; start < vocab_; start += GROUP) {
      Vec group{};
      for_chunks(std::min(GROUP, vocab_ - start), [&](int64_t i, int64_t m) {
        Vec w = exponential(load_chunk(logits + start + i, m) * inverse - peak);
        store_chunk(weights_.data() + start + i, w, m);
        group += m == W ? w : load(weights_.data() + start + i, m);
      });
      total += sum(group);
    }
    return total;
  }

  double group_sum(int64_t start) const {
    double s = 0;
    for (int64_t i = start; i < std::min(start + GROUP, vocab_); i++) s += weights_[i];
    return s;
  }

  int64_t likeliest() const {
    int64_t best = 0;
    for (int64_t i = 1; i < vocab_; i++) best = weights_[i] > weights_[best] ? i : best;
    return best;
  }

  // The first token whose cumulative weight exceeds the draw: first its group, then itself.
  int64_t invert(double uniform) {
    double total = 0;
    const int64_t groups = weights_.size() / GROUP;
    sums_.resize(groups);
    for (int64_t g = 0; g < groups; g++) total += sums_[g] = group_sum(g * GROUP);
    const double target = uniform * total;
    double before = 0;
    int64_t found = 0, last = 0;
    for (; found < groups; found++) {
      if (sums_[found] > 0) last = found;
      if (before + sums_[found] > target) break;
      before += sums_[found];
    }
    if (found == groups) {
      found = last;
      before = total - sums_[last];
    }
    int64_t token = found * GROUP;
    for (int64_t i = found * GROUP; i < std::min((found + 1) * GROUP, vocab_); i++) {
      if (weights_[i] <= 0) continue;
      token = i;
      before += weights_[i];
      if (before > target) break;
    }
    return token;
  }

  std::vector<double> sums_;
};

}  // namespace rlrun::kernels
