// Operations on one row (one token) at a time: norms, rotation with the write to the engine's cache, and activation,
// with their gradients. They compute in float32 and round once, at the end of an operation.
#pragma once
#include "vectors.h"

namespace rlrun {

constexpr int64_t CACHE_BLOCK = 16;  // tokens of a block of the engine's cache

template <typename T>
float inverse_rms(const T* x, int64_t width, float eps) {
  Vector squares{};
  for_vectors(width, [&](int64_t i, int64_t n) { squares = fused(load(x + i, n), load(x + i, n), squares); });
  return 1.f / std::sqrt(total(squares) / float(width) + eps);
}

// Writes x / sqrt(mean(x^2) + eps) * weight to y, which may be x; returns 1 / sqrt(...).
template <typename T>
float norm_row(const T* x, const T* weight, T* y, int64_t width, float eps) {
  const float scale = inverse_rms(x, width, eps);
  for_vectors(width, [&](int64_t i, int64_t n) { store(y + i, load(x + i, n) * scale * load(weight + i, n), n); });
  return scale;
}

// Rotates the pairs (i, i + half) of x; y may be x. `prepared(i, n)` is what is rotated of x[i : i + n].
template <typename T, typename F>
void rotate_row(const F& prepared, const float* cosines, const float* sines, float sign, T* y, int64_t half) {
  for_vectors(half, [&](int64_t i, int64_t n) {
    const Vector a = prepared(i, n), b = prepared(half + i, n), c = load(cosines + i, n), s = load(sines + i, n) * sign;
    store(y + i, fused(a, c, -b * s), n);
    store(y + half + i, fused(b, c, a * s), n);
  });
}

// Normalises one head in place, if there is a weight, and rotates it. The norm is rounded, as in the trainer, where it is
// an operation of its own.
template <typename T>
void norm_rotate(T* x, const T* weight, const float* cosines, const float* sines, int64_t dim, float eps) {
  if (!weight) return rotate_row([&](int64_t i, int64_t n) { return load(x + i, n); }, cosines, sines, 1.f, x, dim / 2);
  const float scale = inverse_rms(x, dim, eps);
  const auto normed = [&](int64_t i, int64_t n) { return round_to<T>(load(x + i, n) * scale * load(weight + i, n)); };
  rotate_row(normed, cosines, sines, 1.f, x, dim / 2);
}

// Returns the normed x [..., width], and 1 / sqrt(...) of each row, for the backward pass.
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
      for (int64_t r = begin; r < end; ++r) scale[r] = norm_row(in + r * width, w, out + r * width, width, float(eps));
    });
  });
  return {y, scales};
}

// Adds delta to x [rows, width] in place, and returns the norm of the sum: one pass over memory instead of two.
inline at::Tensor add_rms_norm(const at::Tensor& x, const at::Tensor& delta, const at::Tensor& weight, double eps) {
  const int64_t width = x.size(1);
  auto y = at::empty_like(x);
  for_dtype(x, [&](auto zero) {
    using T = decltype(zero);
    T *sums = x.mutable_data_ptr<T>(), *out = y.mutable_data_ptr<T>();
    const T *added = delta.const_data_ptr<T>(), *w = weight.const_data_ptr<T>();
    at::parallel_for(0, x.size(0), grain(width), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin * width; r < end * width; r += width) {
        for_vectors(width, [&](int64_t i, int64_t n) {
          store(sums + r + i, load(sums + r + i, n) + load(added + r + i, n), n);
        });
        norm_row(sums + r, w, out + r, width, float(eps));
      }
    });
  });
  return y;
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

// Rotates x [tokens, heads, width] by each token's angles; with `back` by the opposite ones, which is the gradient.
// `cosines` and `sines` [tokens, width / 2] may have any distance between rows.
inline at::Tensor rotate(const at::Tensor& x, const at::Tensor& cosines, const at::Tensor& sines, bool back) {
  const int64_t tokens = x.size(0), heads = x.size(1), width = x.size(2);
  auto y = at::empty_like(x);
  for_dtype(x, [&](auto zero) {
    using T = decltype(zero);
    const T* in = x.const_data_ptr<T>();
    T* out = y.mutable_data_ptr<T>();
    const float *c = cosines.const_data_ptr<float>(), *s = sines.const_data_ptr<float>(), sign = back ? -1.f : 1.f;
    at::parallel_for(0, tokens, grain(heads * width), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin * heads; row < end * heads; ++row) {
        const int64_t token = row / heads;
        const T* from = in + row * width;
        rotate_row([&](int64_t i, int64_t n) { return load(from + i, n); }, c + token * cosines.stride(0),
                   s + token * sines.stride(0), sign, out + row * width, width / 2);
      }
    });
  });
  return y;
}

// Normalises (where there is a norm) and rotates the queries and keys of qkv [T, (queries + 2 kv) * dim] in place, and
// writes keys and values to one layer's cache: keys [blocks, kv, dim, 16] and values [blocks, kv, 16, dim].
inline void rope_store(
    const at::Tensor& qkv, const std::optional<at::Tensor>& q_norm, const std::optional<at::Tensor>& k_norm, double eps,
    const at::Tensor& cosines, const at::Tensor& sines, const at::Tensor& positions, const at::Tensor& slots,
    const at::Tensor& keys, const at::Tensor& values) {
  const int64_t kv = keys.size(1), dim = keys.size(2), width = qkv.size(1), queries = width / dim - 2 * kv;
  const int64_t *position = positions.const_data_ptr<int64_t>(), *slot = slots.const_data_ptr<int64_t>();
  for_dtype(qkv, [&](auto zero) {
    using T = decltype(zero);
    const T* norms[2] = {data_of<T>(q_norm), data_of<T>(k_norm)};
    at::parallel_for(0, qkv.size(0), grain(width), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        T* x = qkv.mutable_data_ptr<T>() + row * width;
        const float* cosine = cosines.const_data_ptr<float>() + position[row] * (dim / 2);
        const float* sine = sines.const_data_ptr<float>() + position[row] * (dim / 2);
        for (int64_t h = 0; h < queries + kv; ++h)
          norm_rotate(x + h * dim, norms[h >= queries], cosine, sine, dim, float(eps));
        const int64_t block = slot[row] / CACHE_BLOCK, offset = slot[row] % CACHE_BLOCK;
        for (int64_t h = 0; h < kv; ++h) {
          const T *key = x + (queries + h) * dim, *value = key + kv * dim;
          T* cached = keys.mutable_data_ptr<T>() + (block * kv + h) * dim * CACHE_BLOCK + offset;
          for (int64_t d = 0; d < dim; ++d) cached[d * CACHE_BLOCK] = key[d];
          T* cached_value = values.mutable_data_ptr<T>() + ((block * kv + h) * CACHE_BLOCK + offset) * dim;
          std::memcpy(cached_value, value, dim * sizeof(T));
        }
      }
    });
  });
}

// Returns silu(gate) * up, [rows, width]; the rows of both may have any distance.
inline at::Tensor silu_mul(const at::Tensor& gate, const at::Tensor& up) {
  const int64_t rows = gate.size(0), width = gate.size(1);
  auto y = at::empty({rows, width}, gate.options());
  for_dtype(gate, [&](auto zero) {
    using T = decltype(zero);
    at::parallel_for(0, rows, grain(width), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const T *g = gate.const_data_ptr<T>() + row * gate.stride(0), *u = up.const_data_ptr<T>() + row * up.stride(0);
        T* out = y.mutable_data_ptr<T>() + row * width;
        for_vectors(width, [&](int64_t i, int64_t n) {
          const Vector x = load(g + i, n);
          store(out + i, x / (1.f + exponential(-x)) * load(u + i, n), n);
        });
      }
    });
  });
  return y;
}

// Returns the gradients of gate and up, which are contiguous. The sigmoid is computed again, so that the forward pass
// need not store it.
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

}  // namespace rlrun
