// Vectors of float32 that fill one register, loaded from and stored to float32 or bfloat16. Wider ones, which GCC's vector
// extension would split, live in memory: products would take fifty times as long.
//
// In forward passes every multiplication that is followed by an addition is written as `fused`. Left to the compiler, it
// could be one instruction in one copy of a function and two in another, which round differently.
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
#include <utility>
#ifdef __FMA__
#include <immintrin.h>
#endif

namespace rlrun {

#if defined(__AVX512F__)
constexpr int64_t LANES = 16;
#elif defined(__AVX2__)
constexpr int64_t LANES = 8;
#else
constexpr int64_t LANES = 4;
#endif
using Vector = float __attribute__((vector_size(4 * LANES)));
using Integers = int32_t __attribute__((vector_size(4 * LANES)));
using Unsigned = uint32_t __attribute__((vector_size(4 * LANES)));
using Halves = uint16_t __attribute__((vector_size(2 * LANES)));

inline Vector splat(float x) { return x - Vector{}; }  // + would be an instruction: -0 + 0 is 0
inline Vector larger(Vector a, Vector b) { return a < b ? b : a; }

// Returns a * b + c, rounded once where the processor can.
inline Vector fused(Vector a, Vector b, Vector c) {
#if defined(__AVX512F__)
  return std::bit_cast<Vector>(
      _mm512_fmadd_ps(std::bit_cast<__m512>(a), std::bit_cast<__m512>(b), std::bit_cast<__m512>(c)));
#elif defined(__FMA__)
  return std::bit_cast<Vector>(
      _mm256_fmadd_ps(std::bit_cast<__m256>(a), std::bit_cast<__m256>(b), std::bit_cast<__m256>(c)));
#else
  return a * b + c;
#endif
}

// Returns the same numbers in 32 bits each.
inline Unsigned widened(Halves x) {
#if defined(__AVX512F__)  // GCC 12 converts each half of the vector by itself
  return std::bit_cast<Unsigned>(_mm512_cvtepu16_epi32(std::bit_cast<__m256i>(x)));
#else
  return __builtin_convertvector(x, Unsigned);
#endif
}

inline Vector widen(Vector x) { return x; }
inline Vector widen(Halves x) { return std::bit_cast<Vector>(widened(x) << 16); }

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

// Rounds to the precision of T.
template <typename T>
Vector round_to(Vector x) {
  return widen(narrow<T>(x));
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

// Combines all lanes by `both`, halves first; lane by lane sixteen would take as long as sixty products of vectors.
template <int S = LANES / 2, typename F>
float reduced(Vector x, const F& both) {
  x = both(x, exchanged<S>(x, std::make_index_sequence<LANES>{}));
  if constexpr (S > 1) return reduced<S / 2>(x, both);
  else return x[0];
}

inline float total(Vector x) {
  return reduced(x, [](Vector a, Vector b) { return a + b; });
}
inline float largest(Vector x) { return reduced(x, larger); }

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

// One step of transposing a square of LANES rows: exchanges the off-diagonal S x S blocks of rows a and b, which are S
// apart. Steps with S = LANES / 2, …, 2, 1 transpose the whole square without memory accesses.
template <int S, size_t... I>
void exchange(Unsigned& a, Unsigned& b, std::index_sequence<I...>) {
#ifdef __clang__
  const Unsigned mixed = __builtin_shufflevector(a, b, (I & S ? LANES + (I ^ S) : I)...);
  b = __builtin_shufflevector(a, b, (I & S ? LANES + I : I ^ S)...);
#else
  const Unsigned mixed = __builtin_shuffle(a, b, Unsigned{(I & S ? uint32_t(LANES) + (I ^ S) : I)...});
  b = __builtin_shuffle(a, b, Unsigned{(I & S ? uint32_t(LANES) + I : I ^ S)...});
#endif
  a = mixed;
}

template <int S = LANES / 2>
void transpose_square(Unsigned* rows) {
  for (int64_t r = 0; r < LANES; ++r)
    if (!(r & S)) exchange<S>(rows[r], rows[r + S], std::make_index_sequence<LANES>{});
  if constexpr (S > 1) transpose_square<S / 2>(rows);
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

}  // namespace rlrun
