// Draws one row's token: counter-based randomness, limits, and the inverse of the cumulative distribution in two
// levels. sampling.py computes the same in torch; both have to draw the same tokens.
#pragma once
#include <algorithm>
#include <cmath>
#include <vector>

#include "vectors.h"

namespace rlrun::kernels {

inline uint64_t splitmix(uint64_t x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

// Returns a uniform number in (0, 1) that depends only on seed and position.
inline double uniform(int64_t seed, int64_t position) {
  const uint64_t hash = splitmix(splitmix(static_cast<uint64_t>(seed)) ^ static_cast<uint64_t>(position));
  return (static_cast<double>(hash >> 11) + 0.5) * 0x1p-53;
}

struct Drawn {
  int64_t token;
  float log_prob;
  float kept_log_prob;  // of the distribution over the tokens within the limits
};

// Tokens of the vocabulary whose weights are summed together. A draw finds the group first, by about vocabulary / 64
// sums, then the token in it.
constexpr int64_t GROUP = 64;

// The tokens that a row may draw: those not `forbidden` (null: none is), of these the `top_k` likeliest (below 1: all),
// as long as the tokens before have less than `top_p` of the probability.
struct Limits {
  float top_p = 1.0f;
  int64_t top_k = -1;
  const bool* forbidden = nullptr;
  bool nucleus() const { return top_p < 1.0f || top_k > 0; }
};

// Draws from softmax(logits / temperature) within the limits, or takes the likeliest at temperature 0: then it is the
// only token within the limits. The log-prob is that of the whole distribution.
template <class T>
class RowSampler {
 public:
  explicit RowSampler(int64_t vocab)
      : vocab_(vocab), weights_((vocab + GROUP - 1) / GROUP * GROUP), sums_(weights_.size() / GROUP) {}

  Drawn draw(const T* logits, float temperature, double uniform, const Limits& limits) {
    const bool greedy = temperature == 0.0f;
    const float inverse = greedy ? 1.0f : 1.0f / temperature;
    const float peak = maximum(logits) * inverse;
    const double total = weigh(logits, inverse, peak), log_total = std::log(total);
    double drawable = total;
    if (limits.forbidden) drawable = forbid(limits.forbidden);
    if (limits.nucleus()) drawable = restrict(limits, drawable);
    const int64_t token = greedy ? likeliest() : invert(uniform * drawable, drawable);
    const double scaled = at(logits, token) * inverse - peak;
    const double kept = greedy ? 0.0 : scaled - std::log(drawable);
    return {token, static_cast<float>(scaled - log_total), static_cast<float>(kept)};
  }

  // Returns the tokens that the last draw could choose from; the temperature must have been above 0.
  std::vector<int32_t> kept() const {
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < vocab_; i++)
      if (weights_[i] > 0) ids.push_back(static_cast<int32_t>(i));
    return ids;
  }

 private:
  int64_t vocab_;
  std::vector<float> weights_;  // zero beyond the vocabulary
  std::vector<double> sums_;    // of each group
  std::vector<int64_t> counts_, members_;
  std::vector<double> masses_;

  static float at(const T* logits, int64_t i) { return load(logits + i, 1)[0]; }

  float maximum(const T* logits) const {
    Vec peak = splat(-INFINITY);
    int64_t i = 0;
    for (; i + W <= vocab_; i += W) peak = kernels::maximum(peak, load(logits + i));
    float m = kernels::maximum(peak);
    for (; i < vocab_; i++) m = std::max(m, at(logits, i));
    return m;
  }

  // Sets weights and sums; returns the total.
  double weigh(const T* logits, float inverse, float peak) {
    for_chunks(vocab_, [&](int64_t i, int64_t m) {
      store_chunk(weights_.data() + i, exponential(load_chunk(logits + i, m) * inverse - peak), m);
    });
    return add_up();
  }

  double forbid(const bool* forbidden) {
    for (int64_t i = 0; i < vocab_; i++) weights_[i] = forbidden[i] ? 0.0f : weights_[i];
    return add_up();
  }

  // Sets the weights of tokens outside of top-k and top-p to zero; returns the sum of the others. Tokens are binned by
  // the leading bits of their weight, so that only the bin with the threshold has to be sorted, not the whole
  // vocabulary.
  double restrict(const Limits& limits, double total) {
    counts_.assign(BINS, 0);
    masses_.assign(BINS, 0.0);
    for (int64_t i = 0; i < vocab_; i++) {
      const int bin = bin_of(weights_[i]);
      counts_[bin]++;
      masses_[bin] += weights_[i];
    }
    const double mass = limits.top_p < 1.0f ? limits.top_p * total : INFINITY;
    const int64_t most = limits.top_k > 0 ? limits.top_k : vocab_;
    int64_t taken = 0, bin = BINS - 1;
    double before = 0;
    for (; bin > 0 && taken + counts_[bin] < most && before + masses_[bin] < mass; bin--) {
      taken += counts_[bin];
      before += masses_[bin];
    }
    members_.clear();
    for (int64_t i = 0; i < vocab_; i++) {
      const int own = bin_of(weights_[i]);
      if (own == bin) members_.push_back(i);
      if (own < bin) weights_[i] = 0;
    }
    std::stable_sort(members_.begin(), members_.end(), [&](int64_t a, int64_t b) { return weights_[a] > weights_[b]; });
    for (const int64_t i : members_) {
      const bool kept = taken == 0 || (taken < most && before < mass);
      before += weights_[i];
      taken++;
      if (!kept) weights_[i] = 0;
    }
    return add_up();
  }

  // Weights are in [0, 1], so their sign, exponent and first three bits of the fraction are below 1024, in their order.
  static constexpr int64_t BINS = 1024;
  static int bin_of(float weight) { return bit_cast<uint32_t>(weight) >> 20; }

  double add_up() {
    double total = 0;
    const float* w = weights_.data();
    for (size_t g = 0; g < sums_.size(); g++, w += GROUP)
      total += sums_[g] = sum((load(w) + load(w + W)) + (load(w + 2 * W) + load(w + 3 * W)));
    return total;
  }

  int64_t likeliest() const {
    int64_t best = 0;
    for (int64_t i = 1; i < vocab_; i++) best = weights_[i] > weights_[best] ? i : best;
    return best;
  }

  // Returns the first token whose cumulative weight exceeds the draw; finds its group first. A draw that rounding puts
  // behind the end takes the last token with a weight.
  int64_t invert(double target, double total) const {
    const int64_t groups = sums_.size();
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
};

}  // namespace rlrun::kernels
