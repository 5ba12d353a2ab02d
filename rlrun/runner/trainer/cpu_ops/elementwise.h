// RMSNorm, rotary position embedding and the gated activation, each with its gradient. All tensors are contiguous.
#pragma once
#include "vector.h"

namespace rlrun_trainer {

// y = x / sqrt(mean(x^2) + eps) * weight over the last dimension; x [rows, width] -> y, and 1 / sqrt(...) [rows].
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
        float squares = 0;
#pragma omp simd reduction(+ : squares)
        for (int64_t i = 0; i < width; ++i) squares += widen(xr[i]) * widen(xr[i]);
        const float s = scale[row] = 1.f / std::sqrt(squares / float(width) + float(eps));
#pragma omp simd
        for (int64_t i = 0; i < width; ++i) yr[i] = narrow<T>(widen(xr[i]) * s * widen(w[i]));
      }
    });
  });
  return {y, scales};
}

// Gradients for x and weight. Each thread sums the weight's over its rows, then the threads' sums are added in order.
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
        float dot = 0;
#pragma omp simd reduction(+ : dot)
        for (int64_t i = 0; i < width; ++i) dot += widen(gr[i]) * widen(w[i]) * widen(xr[i]);
        const float shrink = dot * s * s / float(width);
#pragma omp simd
        for (int64_t i = 0; i < width; ++i) {
          const float g = widen(gr[i]), v = widen(xr[i]);
          dr[i] = narrow<T>(s * (g * widen(w[i]) - v * shrink));
          sum[i] += g * v * s;
        }
      }
    });
    for (int64_t i = 0; i < width; ++i) {
      float total = 0;
      for (int64_t t = 0; t < threads; ++t) total += all_sums[t * width + i];
      dw[i] = narrow<T>(total);
    }
  });
  return {dx, dweight};
}

// Turns the pairs (i, i + width / 2) of x [tokens, heads, width] by their token's angle, or back when `back`; a row of
// table [tokens, 2, width] is cosines (two equal halves), then sines.
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
#pragma omp simd
        for (int64_t i = 0; i < half; ++i) {
          const float a = widen(from[i]), b = widen(from[half + i]), s = sign * sine[i];
          to[i] = narrow<T>(a * cosine[i] - b * s);
          to[half + i] = narrow<T>(b * cosine[i] + a * s);
        }
      }
    });
  });
  return y;
}

// silu(gate) * up
inline at::Tensor silu_mul(const at::Tensor& gate, const at::Tensor& up) {
  auto y = at::empty_like(gate);
  for_dtype(gate, [&](auto zero) {
    using T = decltype(zero);
    const T *gates = gate.const_data_ptr<T>(), *ups = up.const_data_ptr<T>();
    T* out = y.mutable_data_ptr<T>();
    at::parallel_for(0, y.numel(), grain(1), [&](int64_t begin, int64_t end) {
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) {
        const float g = widen(gates[i]);
        out[i] = narrow<T>(g / (1.f + fast_exp(-g)) * widen(ups[i]));
      }
    });
  });
  return y;
}

inline std::tuple<at::Tensor, at::Tensor> silu_mul_backward(
    const at::Tensor& grad, const at::Tensor& gate, const at::Tensor& up) {
  auto dgate = at::empty_like(gate), dup = at::empty_like(up);
  for_dtype(gate, [&](auto zero) {
    using T = decltype(zero);
    const T *gs = grad.const_data_ptr<T>(), *gates = gate.const_data_ptr<T>(), *ups = up.const_data_ptr<T>();
    T *dg = dgate.mutable_data_ptr<T>(), *du = dup.mutable_data_ptr<T>();
    at::parallel_for(0, grad.numel(), grain(1), [&](int64_t begin, int64_t end) {
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) {
        const float d = widen(gs[i]), g = widen(gates[i]), sigmoid = 1.f / (1.f + fast_exp(-g));
        dg[i] = narrow<T>(d * widen(ups[i]) * sigmoid * (1.f + g * (1.f - sigmoid)));
        du[i] = narrow<T>(d * g * sigmoid);
      }
    });
  });
  return {dgate, dup};
}

}  // namespace rlrun_trainer
