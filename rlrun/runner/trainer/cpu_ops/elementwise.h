// RMSNorm, rotary position embedding and the gated activation, each with its gradient. They compute in float32 and
// round once at the end. All tensors are contiguous.
#pragma once
#include "vector.h"

namespace rlrun_trainer {

// Computes y = x / sqrt(mean(x^2) + eps) * weight over the last dimension of x [rows, width]. Returns y, and 1 /
// sqrt(...) [rows] for the backward pass.
inline std::tuple<at::Tensor, at::Tensor> rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const int64_t width = x.size(-1), rows = x.numel() / width;
  auto y = at::empty_like(x);
  auto scales = at::empty({rows}, x.options().dtype(at::kFloat));
  for_dtype(x, [&](auto zero) {
    using T = decltype(zero);
    const T *in = x.const_data_ptr<T>(), *w = weight.const_data_ptr<T>();
    T* out = y.mutable_data_ptr<T>();
    float* scale = scales.mutable_data_ptr<float>();
    at::parallel_for(0, rows, grain(width), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const T* xr = in + row * width;
        T* yr = out + row * width;
        Vector squares{};
        for_vectors(width, [&](int64_t i, int64_t n) { squares += load(xr + i, n) * load(xr + i, n); });
        const float s = scale[row] = 1.f / std::sqrt(total(squares) / float(width) + float(eps));
        for_vectors(width, [&](int64_t i, int64_t n) { store(yr + i, load(xr + i, n) * s * load(w + i, n), n); });
      }
    });
  });
  return {y, scales};
}

// Returns the gradients of x and weight. Each thread sums the weight's gradient over its rows in its own row of `sums`,
// and these are added in the order of the threads: atomics would make the sum depend on timing. It still depends on the
// number of threads.
inline std::tuple<at::Tensor, at::Tensor> rms_norm_backward(
    const at::Tensor& grad, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& scales) {
  const int64_t width = x.size(-1), rows = x.numel() / width, threads = at::get_num_threads();
  auto dx = at::empty_like(x), dweight = at::empty_like(weight);
  auto sums = at::zeros({threads, width}, scales.options());
  for_dtype(x, [&](auto zero) {
    using T = decltype(zero);
    const T *gs = grad.const_data_ptr<T>(), *in = x.const_data_ptr<T>(), *w = weight.const_data_ptr<T>();
    T *out = dx.mutable_data_ptr<T>(), *dw = dweight.mutable_data_ptr<T>();
    const float* scale = scales.const_data_ptr<float>();
    float* all_sums = sums.mutable_data_ptr<float>();
    at::parallel_for(0, rows, grain(width), [&](int64_t begin, int64_t end) {
      float* sum = all_sums + at::get_thread_num() * width;
      for (int64_t row = begin; row < end; ++row) {
        const T *gr = gs + row * width, *xr = in + row * width;
        T* dr = out + row * width;
        const float s = scale[row];
        Vector dots{};
        for_vectors(width, [&](int64_t i, int64_t n) { dots += load(gr + i, n) * load(w + i, n) * load(xr + i, n); });
        const float shrink = total(dots) * s * s / float(width);
        for_vectors(width, [&](int64_t i, int64_t n) {
          const Vector g = load(gr + i, n), v = load(xr + i, n);
          store(dr + i, s * (g * load(w + i, n) - v * shrink), n);
          store(sum + i, load(sum + i, n) + g * v * s, n);
        });
      }
    });
    for_vectors(width, [&](int64_t i, int64_t n) {
      Vector sum{};
      for (int64_t t = 0; t < threads; ++t) sum += load(all_sums + t * width + i, n);
      store(dw + i, sum, n);
    });
  });
  return {dx, dweight};
}

// Rotates the pairs (i, i + width / 2) of x [tokens, heads, width] by their token's angle; with `back` by the opposite
// angle, which is the gradient. A row of table [tokens, 2, width] has the cosines (two equal halves), then the sines.
inline at::Tensor rotate(const at::Tensor& x, const at::Tensor& table, bool back) {
  const int64_t tokens = x.size(0), heads = x.size(1), width = x.size(2), half = width / 2;
  auto y = at::empty_like(x);
  for_dtype(x, [&](auto zero) {
    using T = decltype(zero);
    const T* in = x.const_data_ptr<T>();
    T* out = y.mutable_data_ptr<T>();
    const float *angles = table.const_data_ptr<float>(), sign = back ? -1.f : 1.f;
    at::parallel_for(0, tokens, grain(heads * width), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin * heads; row < end * heads; ++row) {
        const T* from = in + row * width;
        T* to = out + row * width;
        const float *cosine = angles + row / heads * 2 * width, *sine = cosine + width;
        for_vectors(half, [&](int64_t i, int64_t n) {
          const Vector a = load(from + i, n), b = load(from + half + i, n);
          const Vector c = load(cosine + i, n), d = load(sine + i, n) * sign;
          store(to + i, a * c - b * d, n);
          store(to + half + i, b * c + a * d, n);
        });
      }
    });
  });
  return y;
}

// Returns silu(gate) * up.
inline at::Tensor silu_mul(const at::Tensor& gate, const at::Tensor& up) {
  auto y = at::empty_like(gate);
  for_dtype(gate, [&](auto zero) {
    using T = decltype(zero);
    const T *gates = gate.const_data_ptr<T>(), *ups = up.const_data_ptr<T>();
    T* out = y.mutable_data_ptr<T>();
    at::parallel_for(0, y.numel(), grain(1), [&](int64_t begin, int64_t end) {
      for_vectors(end - begin, [&](int64_t i, int64_t n) {
        const Vector g = load(gates + begin + i, n), u = load(ups + begin + i, n);
        store(out + begin + i, g / (1.f + exponential(-g)) * u, n);
      });
    });
  });
  return y;
}

// Returns the gradients of gate and up. The sigmoid is computed again, so that the forward pass need not store it.
inline std::tuple<at::Tensor, at::Tensor> silu_mul_backward(
    const at::Tensor& grad, const at::Tensor& gate, const at::Tensor& up) {
  auto dgate = at::empty_like(gate), dup = at::empty_like(up);
  for_dtype(gate, [&](auto zero) {
    using T = decltype(zero);
    const T *gs = grad.const_data_ptr<T>(), *gates = gate.const_data_ptr<T>(), *ups = up.const_data_ptr<T>();
    T *dg = dgate.mutable_data_ptr<T>(), *du = dup.mutable_data_ptr<T>();
    at::parallel_for(0, grad.numel(), grain(1), [&](int64_t begin, int64_t end) {
      for_vectors(end - begin, [&](int64_t i, int64_t n) {
        const Vector d = load(gs + begin + i, n), g = load(gates + begin + i, n), u = load(ups + begin + i, n);
        const Vector sigmoid = 1.f / (1.f + exponential(-g));
        store(dg + begin + i, d * u * sigmoid * (1.f + g * (1.f - sigmoid)), n);
        store(du + begin + i, d * g * sigmoid, n);
      });
    });
  });
  return {dgate, dup};
}

}  // namespace rlrun_trainer
