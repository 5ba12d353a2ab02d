// Vectors of sixteen float32 lanes, loaded from and stored to float32 or bfloat16. Sixteen lanes fill one AVX-512
// register; GCC's and Clang's vector extension splits them into several on narrower machines.
#pragma once
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#ifdef __AVX512BF16__
#include <immintrin.h>
#endif

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>

namespace rlrun_trainer {

constexpr int64_t LANES = 16;
using Vector = float __attribute__((vector_size(4 * LANES)));
using Integers = int32_t __attribute__((vector_size(4 * LANES)));
using Unsigned = uint32_t __attribute__((vector_size(4 * LANES)));
using Halves = uint16_t __attribute__((vector_size(2 * LANES)));

inline Vector widen(Vector x) { return x; }
inline Vector widen(Halves x) { return std::bit_cast<Vector>(__builtin_convertvector(x, Unsigned) << 16); }

template <typename T>
using Packed = std::conditional_t<std::is_same_v<T, float>, Vector, Halves>;

// Rounds to nearest, ties to even.
template <typename T>
Packed<T> narrow(Vector x) {
  if constexpr (std::is_same_v<T, float>) {
    return x;
  } else {
#ifdef __AVX512BF16__
    return std::bit_cast<Halves>(_mm512_cvtneps_pbh(std::bit_cast<__m512>(x)));
#else
    const Unsigned bits = std::bit_cast<Unsigned>(x);
    return __builtin_convertvector((bits + 0x7fff + ((bits >> 16) & 1)) >> 16, Halves);
#endif
  }
}

// Loads the first n of up to LANES elements; the other lanes are zero.
template <typename T>
Vector load(const T* from, int64_t n = LANES) {
  Packed<T> packed{};
  if (n == LANES) std::memcpy(&packed, from, sizeof(packed));
  else std::memcpy(&packed, from, n * sizeof(T));
  return widen(packed);
}

template <typename T>
void store(T* to, Vector x, int64_t n = LANES) {
  const Packed<T> packed = narrow<T>(x);
  if (n == LANES) std::memcpy(to, &packed, sizeof(packed));
  else std::memcpy(to, &packed, n * sizeof(T));
}

// Calls f(first, n) for each run of up to LANES out of `size` elements.
template <typename F>
void for_vectors(int64_t size, const F& f) {
  int64_t i = 0;
  for (; i + LANES <= size; i += LANES) f(i, LANES);
  if (i < size) f(i, size - i);
}

// Exchanges lanes that are S apart.
template <int S, size_t... I>
Vector exchanged(Vector x, std::index_sequence<I...>) {
#ifdef __clang__
  return __builtin_shufflevector(x, x, (I ^ S)...);
#else
  return __builtin_shuffle(x, Integers{int32_t(I ^ S)...});
#endif
}

// Combines all lanes by `both` in four steps; lane by lane it would take as long as sixty products of vectors.
template <typename F>
float reduced(Vector x, const F& both) {
  constexpr auto lanes = std::make_index_sequence<LANES>{};
  x = both(x, exchanged<8>(x, lanes));
  x = both(x, exchanged<4>(x, lanes));
  x = both(x, exchanged<2>(x, lanes));
  return both(x, exchanged<1>(x, lanes))[0];
}

inline float total(Vector x) {
  return reduced(x, [](Vector a, Vector b) { return a + b; });
}

// Returns x with the lanes from n on set to zero.
inline Vector first(Vector x, int64_t n) {
  Integers lanes;
  for (int32_t i = 0; i < LANES; ++i) lanes[i] = i;
  return lanes < int32_t(n) ? x : Vector{};
}

inline Vector larger(Vector a, Vector b) { return a < b ? b : a; }

inline float largest(Vector x) { return reduced(x, larger); }

// Returns e^x with a relative error of 2e-7: x = n ln 2 + r, a polynomial for e^r, and n added to the exponent. Clamped
// to [-86, 88], where the result is a normal float32. NaN stays NaN.
inline Vector exponential(Vector x) {
  x = x < -86.f ? Vector{} - 86.f : x;
  x = x > 88.f ? Vector{} + 88.f : x;
  const Vector shifted = x * 1.44269504f + 12582912.f;  // 1.5 * 2^23: the low bits are x / ln 2 as an integer
  const Vector n = shifted - 12582912.f;
  const Vector r = (x - n * 0.693359375f) + n * 2.12194440e-4f;  // ln 2 in two parts; n times the first is exact
  Vector p = r * (1.f / 5040) + 1.f / 720;
  p = p * r + 1.f / 120;
  p = p * r + 1.f / 24;
  p = p * r + 1.f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.f;
  p = p * r + 1.f;
  return std::bit_cast<Vector>(std::bit_cast<Unsigned>(p) + (std::bit_cast<Unsigned>(shifted) << 23));
}

// Calls f with a zero of the tensor's element type.
template <typename F>
void for_dtype(const at::Tensor& tensor, const F& f) {
  if (tensor.scalar_type() == at::kFloat) return f(float{});
  TORCH_CHECK(tensor.scalar_type() == at::kBFloat16, "float32 or bfloat16 expected, not ", tensor.scalar_type());
  f(at::BFloat16{});
}

// The fewest rows for which starting a thread pays off: about 16 thousand elements.
inline int64_t grain(int64_t width) { return 16384 / width + 1; }

}  // namespace rlrun_trainer
