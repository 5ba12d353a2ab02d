// The vocabulary head's softmax over a chunk of logits. It computes in float32 whatever their type, a vector at a time,
// so that no float32 copy of half-precision logits has to fit into memory.
#pragma once
#include "vectors.h"

namespace rlrun {

// Returns the largest of a row's logits. It must be known before the exponentials: a running maximum would need further
// exponentials to rescale the sums.
template <typename T>
float largest_of(const T* logits, int64_t width) {
  Vector maxima = splat(-INFINITY);
  for_vectors(width, [&](int64_t i, int64_t n) { maxima = larger(maxima, first(load(logits + i, n), n, -INFINITY)); });
  return largest(maxima);
}

// Returns the log-prob of a logit, given the largest logit and the logarithm of the sum of e^((logit - maximum) * cool).
inline float log_prob_of(float logit, float maximum, float cool, float log_total) {
  return std::fma(logit - maximum, cool, -log_total);
}

// Returns [4, rows] float32 of z = logits [rows, vocabulary] / temperatures [rows]: the target's log-prob, the
// log-sum-exp, the entropy, and the target's z. `RowSampler` computes the same log-probs for the tokens that it draws.
inline at::Tensor log_softmax(const at::Tensor& logits, const at::Tensor& targets, const at::Tensor& temperatures) {
  const int64_t rows = logits.size(0), width = logits.size(1);
  auto result = at::empty({4, rows}, logits.options().dtype(at::kFloat));
  for_dtype(logits, [&](auto zero) {
    using T = decltype(zero);
    const int64_t* target = targets.const_data_ptr<int64_t>();
    const float* temperature = temperatures.const_data_ptr<float>();
    float* out = result.mutable_data_ptr<float>();
    at::parallel_for(0, rows, grain(width), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const T* l = logits.const_data_ptr<T>() + row * logits.stride(0);
        const float cool = 1.f / temperature[row], maximum = largest_of(l, width);
        Vector sums{}, weighted{};
        for_vectors(width, [&](int64_t i, int64_t n) {
          const Vector z = (load(l + i, n) - maximum) * cool, e = first(exponential(z), n);
          sums += e;
          weighted = fused(e, z, weighted);
        });
        const float log_total = std::log(total(sums)), chosen = float(l[target[row]]);
        out[row] = log_prob_of(chosen, maximum, cool, log_total);
        out[rows + row] = std::fma(maximum, cool, log_total);
        out[2 * rows + row] = log_total - total(weighted) / total(sums);
        out[3 * rows + row] = chosen * cool;
      }
    });
  });
  return result;
}

// Replaces logits by the loss's gradient for them, given its gradients [rows] for the target's log-prob, which is
// z_target - log_sum, and for the entropy. `ours` [rows] is 0 where the target is in another rank's slice of the
// vocabulary, else 1.
inline void softmax_gradients_(
    at::Tensor logits,
    const at::Tensor& targets,
    const at::Tensor& ours,
    const at::Tensor& log_sums,
    const at::Tensor& log_prob_gradients,
    const std::optional<at::Tensor>& entropies,
    const std::optional<at::Tensor>& entropy_gradients,
    double temperature) {
  const int64_t rows = logits.size(0), width = logits.size(1);
  for_dtype(logits, [&](auto zero) {
    using T = decltype(zero);
    T* in = logits.mutable_data_ptr<T>();
    const int64_t* target = targets.const_data_ptr<int64_t>();
    const float *own = ours.const_data_ptr<float>(), *log_sum = log_sums.const_data_ptr<float>();
    const float* gradient = log_prob_gradients.const_data_ptr<float>();
    const float* entropy = entropies ? entropies->const_data_ptr<float>() : nullptr;
    const float* entropy_gradient = entropy_gradients ? entropy_gradients->const_data_ptr<float>() : nullptr;
    const float cool = 1.f / float(temperature);
    at::parallel_for(0, rows, grain(width), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        T* l = in + row * width;
        const float direct = gradient[row] * cool, h = entropy_gradient ? entropy_gradient[row] * cool : 0.f;
        const float constant = -direct - (entropy ? entropy[row] * h : 0.f), shift = log_sum[row];
        const auto gradient_of = [&](Vector log_prob) { return exponential(log_prob) * (constant - h * log_prob); };
        // Read before the loop overwrites the target's logit.
        const float at_target = gradient_of(splat(float(l[target[row]]) * cool - shift))[0];
        for_vectors(width, [&](int64_t i, int64_t n) { store(l + i, gradient_of(load(l + i, n) * cool - shift), n); });
        l[target[row]] = T(at_target + direct * own[row]);
      }
    });
  });
}

}  // namespace rlrun
