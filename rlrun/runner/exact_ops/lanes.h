// Vectors of sixteen float32 lanes, one AVX-512 register, loaded from and stored to float32 or bfloat16.
//
// Every multiplication that is followed by an addition is written as `fused`. Left to the compiler, it could be one
// instruction in one copy of a function and two in another, which round differently.
#pragma once
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#ifdef __FMA__
#include <immintrin.h>
#endif

namespace rlrun_exact {

constexpr int64_t LANES = 16;
using Vector = float __attribute__((vector_size(64)));
using Integers = int32_t __attribute__((vector_size(64)));
using Unsigned = uint32_t __attribute__((vector_size(64)));
using Halves = uint16_t __attribute__((vector_size(32)));

inline Vector splat(float x) { return Vector{} + x; }
inline Vector larger(Vector a, Vector b) { return a < b ? b : a; }

// Returns a * b + c.
inline Vector fused(Vector a, Vector b, Vector c) {
#if defined(__AVX512F__)
  return std::bit_cast<Vector>(
      _mm512_fmadd_ps(std::bit_cast<__m512>(a), std::bit_cast<__m512>(b), std::bit_cast<__m512>(c)));
#elif defined(__FMA__)
  struct Pair { __m256 low, high; };
  const auto x = std::bit_cast<Pair>(a), y = std::bit_cast<Pair>(b), z = std::bit_cast<Pair>(c);
  return std::bit_cast<Vector>(
      Pair{_mm256_fmadd_ps(x.low, y.low, z.low), _mm256_fmadd_ps(x.high, y.high, z.high)});
#else
  for (int64_t i = 0; i < LANES; ++i) c[i] = std::fma(a[i], b[i], c[i]);
  return c;
#endif
}

inline Vector widen(Vector x) { return x; }
inline Vector widen(Halves x) { return std::bit_cast<Vector>(__builtin_convertvector(x, Unsigned) << 16); }

template <typename T>
using Packed = std::conditional_t<std::is_same_v<T, float>, Vector, Halves>;

// Rounds to nearest, ties to even; NaN stays NaN. The instruction for it takes numbers below 2^-126 as zero.
template <typename T>
Packed<T> narrow(Vector x) {
  if constexpr (std::is_same_v<T, float>) {
    return x;
  } else {
#if defined(__AVX512BF16__)
    return std::bit_cast<Halves>(_mm512_cvtneps_pbh(std::bit_cast<__m512>(x)));
#endif
    const Unsigned bits = std::bit_cast<Unsigned>(x);
    Unsigned rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    rounded = x != x ? Unsigned{} + 0x7fc0 : rounded;
    return __builtin_convertvector(rounded, Halves);
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

inline float total(Vector x) {
  float sum = 0;
  for (int64_t i = 0; i < LANES; ++i) sum += x[i];
  return sum;
}

inline float largest(Vector x) {
  float most = x[0];
  for (int64_t i = 1; i < LANES; ++i) most = x[i] > most ? x[i] : most;
  return most;
}

// Returns x with the lanes from n on set to `rest`.
inline Vector first(Vector x, int64_t n, float rest = 0.f) {
  if (n >= LANES) return x;
  Integers lanes;
  for (int32_t i = 0; i < LANES; ++i) lanes[i] = i;
  return lanes < int32_t(n) ? x : splat(rest);
}

// Returns e^x with a relative error of 2e-7, and 0 below -87: x = n ln 2 + r, a polynomial for e^r, and n added to the
// exponent. NaN stays NaN.
inline Vector exponential(Vector x) {
  const Integers tiny = x < splat(-87.f);
  x = x > splat(88.f) ? splat(88.f) : x;
  x = tiny ? splat(-87.f) : x;
  const Vector shifted = fused(x, splat(1.44269504f), splat(12582912.f));  // 1.5 * 2^23: the low bits are x / ln 2
  const Vector n = shifted - 12582912.f;
  const Vector r = fused(n, splat(2.12194440e-4f), fused(n, splat(-0.693359375f), x));  // ln 2 in two parts
  Vector p = fused(r, splat(1.f / 5040), splat(1.f / 720));
  for (const float c : {1.f / 120, 1.f / 24, 1.f / 6, 0.5f, 1.f, 1.f}) p = fused(p, r, splat(c));
  p = std::bit_cast<Vector>(std::bit_cast<Unsigned>(p) + (std::bit_cast<Unsigned>(shifted) << 23));
  return tiny ? Vector{} : p;
}

// Calls f with a zero of the tensor's element type.
template <typename F>
void for_dtype(const at::Tensor& tensor, const F& f) {
  if (tensor.scalar_type() == at::kFloat) return f(float{});
  TORCH_CHECK(tensor.scalar_type() == at::kBFloat16, "float32 or bfloat16 expected, not ", tensor.scalar_type());
  f(at::BFloat16{});
}

template <typename T>
const T* data_of(const std::optional<at::Tensor>& tensor) {
  return tensor ? tensor->const_data_ptr<T>() : nullptr;
}

// The fewest rows for which starting a thread pays off: about 16 thousand elements.
inline int64_t grain(int64_t width) { return 16384 / width + 1; }

}  // namespace rlrun_exact
