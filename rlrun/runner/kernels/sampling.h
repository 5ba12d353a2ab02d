// Draws one row's token: counter-based randomness, limits, and the inverse of the cumulative distribution in two
// levels. sampling.py computes the same in torch; both have to draw the same tokens.
#pragma once
#include <algorithm>
#include <cmath>
#include <vector>

#include "softmax.h"

namespace rlrun {

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
    const float cool = greedy ? 1.0f : 1.0f / temperature, maximum = largest_of(logits, vocab_);
    const float sum = weigh(logits, cool, maximum);
    double drawable = add_up();
    if (limits.forbidden) drawable = forbid(limits.forbidden);
    if (limits.nucleus()) drawable = restrict(limits, drawable);
    const int64_t token = greedy ? likeliest() : invert(uniform * drawable, drawable);
    const float kept_sum = limits.forbidden || limits.nucleus() ? kept_weight() : sum;
    const auto log_prob = [&](float total) { return log_prob_of(float(logits[token]), maximum, cool, std::log(total)); };
    return {token, log_prob(sum), greedy ? 0.0f : log_prob(kept_sum)};
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

  // Sets the weights; returns their sum, added in the order of `log_softmax`.
  float weigh(const T* logits, float cool, float maximum) {
    Vector sums{};
    for_vectors(vocab_, [&](int64_t i, int64_t n) {
      const Vector e = first(exponential((load(logits + i, n) - maximum) * cool), n);
      store(weights_.data() + i, e, n);
      sums += e;
    });
    return total(sums);
  }

  // Returns the sum of the weights that are left, added in the same order.
  float kept_weight() const {
    Vector sums{};
    for (size_t i = 0; i < weights_.size(); i += LANES) sums += load(weights_.data() + i);
    return total(sums);
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
  static int bin_of(float weight) { return std::bit_cast<uint32_t>(weight) >> 20; }

  double add_up() {
    double all = 0;
    const float* w = weights_.data();
    for (size_t g = 0; g < sums_.size(); g++, w += GROUP) {
      Vector sum{};
      for (int64_t i = 0; i < GROUP; i += LANES) sum += load(w + i);
      all += sums_[g] = total(sum);
    }
    return all;
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

// Draws a token for every row, and calls `each(row, drawn, sampler, limits)` from several threads. logits [B, V];
// temperatures float32 [B]; seeds, positions int64 [B]. Limits, all or none: top_ps float32 [B], top_ks int64 [B],
// forbidden bool [B, V].
template <typename F>
void draw_rows(const at::Tensor& logits, const at::Tensor& temperatures, const at::Tensor& seeds, const at::Tensor& positions,
               const std::optional<at::Tensor>& top_ps, const std::optional<at::Tensor>& top_ks, const std::optional<at::Tensor>& forbidden, const F& each) {
  const int64_t count = logits.size(0), vocab = logits.size(1);
  auto limits = [&](int64_t row) {
    if (!forbidden) return Limits{};
    return Limits{top_ps->const_data_ptr<float>()[row], top_ks->const_data_ptr<int64_t>()[row],
                           forbidden->const_data_ptr<bool>() + row * vocab};
  };
  for_dtype(logits, [&](auto zero) {
    using T = decltype(zero);
    at::parallel_for(0, count, 1, [&](int64_t begin, int64_t end) {
      RowSampler<T> sampler(vocab);
      for (int64_t r = begin; r < end; r++) {
        const double draw = uniform(seeds.const_data_ptr<int64_t>()[r], positions.const_data_ptr<int64_t>()[r]);
        const Limits own = limits(r);
        const float temperature = temperatures.const_data_ptr<float>()[r];
        each(r, sampler.draw(logits.const_data_ptr<T>() + r * vocab, temperature, draw, own), sampler, own);
      }
    });
  });
}

inline std::tuple<at::Tensor, at::Tensor> sample(const at::Tensor& logits, const at::Tensor& temperatures, const at::Tensor& seeds,
                                  const at::Tensor& positions, const std::optional<at::Tensor>& top_ps, const std::optional<at::Tensor>& top_ks,
                                  const std::optional<at::Tensor>& forbidden) {
  auto tokens = at::empty({logits.size(0)}, seeds.options());
  auto log_probs = at::empty({logits.size(0)}, temperatures.options());
  draw_rows(logits, temperatures, seeds, positions, top_ps, top_ks, forbidden,
            [&](int64_t r, const Drawn& drawn, const auto&, const Limits&) {
              tokens.data_ptr<int64_t>()[r] = drawn.token;
              log_probs.data_ptr<float>()[r] = drawn.log_prob;
            });
  return {tokens, log_probs};
}

inline std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> sample_with_masks(const at::Tensor& logits, const at::Tensor& temperatures,
                                                                     const at::Tensor& seeds, const at::Tensor& positions,
                                                                     const at::Tensor& top_ps, const at::Tensor& top_ks,
                                                                     const at::Tensor& forbidden) {
  const int64_t count = logits.size(0);
  auto tokens = at::empty({count}, seeds.options());
  auto log_probs = at::empty({count}, temperatures.options());
  auto kept_log_probs = at::empty({count}, temperatures.options());
  std::vector<std::vector<int32_t>> masks(count);
  draw_rows(logits, temperatures, seeds, positions, top_ps, top_ks, forbidden,
            [&](int64_t r, const Drawn& drawn, const auto& sampler, const Limits& limits) {
              tokens.data_ptr<int64_t>()[r] = drawn.token;
              log_probs.data_ptr<float>()[r] = drawn.log_prob;
              kept_log_probs.data_ptr<float>()[r] = limits.nucleus() ? drawn.kept_log_prob : drawn.log_prob;
              if (!limits.nucleus()) return;
              const bool greedy = temperatures.const_data_ptr<float>()[r] == 0.0f;
              masks[r] = greedy ? std::vector<int32_t>{static_cast<int32_t>(drawn.token)} : sampler.kept();
            });
  auto lengths = at::empty({count}, seeds.options());
  int64_t total = 0;
  for (int64_t r = 0; r < count; r++) total += lengths.data_ptr<int64_t>()[r] = masks[r].size();
  auto ids = at::empty({total}, seeds.options().dtype(at::kInt));
  int32_t* next = ids.data_ptr<int32_t>();
  for (const auto& mask : masks) next = std::copy(mask.begin(), mask.end(), next);
  return {tokens, log_probs, kept_log_probs, lengths, ids};
}

}  // namespace rlrun
