// The vocabulary head's softmax over a chunk of logits. It computes in float32 whatever their type, a vector at a time,
// so that no float32 copy of half-precision logits has to fit into memory.
#pragma once
#include "vector.h"

namespace rlrun_trainer {

// Returns [4, rows] float32 statistics of z = logits [rows, vocabulary] / temperature: the maximum m, the sum of
// e^(z - m), the target's z, and the sum of e^(z - m) (z - m). The entropy is log(second) - fourth / second.
//
// There are two passes over a row, the first for the maximum, which must be known before the exponentials: a running
// maximum would need further exponentials to rescale the sums.
inline at::Tensor softmax_statistics(const at::Tensor& logits, const at::Tensor& targets, double temperature) {
  const int64_t rows = logits.size(0), width = logits.size(1);
  auto statistics = at::empty({4, rows}, logits.options().dtype(at::kFloat));
  for_dtype(logits, [&](auto zero) {
    using T = decltype(zero);
    const T* in = logits.const_data_ptr<T>();
    const int64_t* target = targets.const_data_ptr<int64_t>();
    float* out = statistics.mutable_data_ptr<float>();
    const float cool = 1.f / float(temperature);
    at::parallel_for(0, rows, grain(width), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const T* l = in + row * width;
        Vector maxima = Vector{} - INFINITY;
        const int64_t whole = width / LANES * LANES;
        for (int64_t i = 0; i < whole; i += LANES) maxima = larger(maxima, load(l + i));
        float maximum = largest(maxima);
        for (int64_t i = whole; i < width; ++i) maximum = std::max(maximum, float(l[i]));
        Vector sums{}, weighted{};
        for_vectors(width, [&](int64_t i, int64_t n) {
          const Vector z = (load(l + i, n) - maximum) * cool;
          const Vector e = n == LANES ? exponential(z) : first(exponential(z), n);
          sums += e;
          weighted += e * z;
        });
        out[row] = maximum * cool;
        out[rows + row] = total(sums);
        out[2 * rows + row] = float(l[target[row]]) * cool;
        out[3 * rows + row] = total(weighted);
      }
    });
  });
  return statistics;
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
        const float at_target = gradient_of(Vector{} + (float(l[target[row]]) * cool - shift))[0];
        for_vectors(width, [&](int64_t i, int64_t n) { store(l + i, gradient_of(load(l + i, n) * cool - shift), n); });
        l[target[row]] = T(at_target + direct * own[row]);
      }
    });
  });
}

}  // namespace rlrun_trainer
