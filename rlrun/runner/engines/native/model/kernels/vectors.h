// Vectors of sixteen floats, one AVX-512 register; with GCC's and Clang's vector extension the compiler splits them for
// narrower machines.
#pragma once
#include <array>
#include <cstdint>
#include <cstring>
#ifdef __AVX512F__
#include <immintrin.h>
#endif

namespace rlrun::kernels {

constexpr int64_t W = 16;
using Vec = float __attribute__((vector_size(64)));
using Ints = int32_t __attribute__((vector_size(64)));
using UInts = uint32_t __attribute__((vector_size(64)));
using Halves = uint16_t __attribute__((vector_size(32)));

// A bfloat16, the upper half of a float.
struct BF16 {
  uint16_t bits;
};

template <class To, class From>
inline To bit_cast(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(To));
  return to;
}

inline Vec splat(float x) { return Vec{} + x; }
inline Vec maximum(Vec a, Vec b) { return a > b ? a : b; }

inline Vec load(const float* p) {
  Vec v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}
inline Vec load(const BF16* p) {
  Halves h;
  std::memcpy(&h, p, sizeof(h));
#if defined(__AVX512F__)  // GCC 12 converts each half of the vector by itself
  return bit_cast<Vec>(bit_cast<UInts>(_mm512_cvtepu16_epi32(bit_cast<__m256i>(h))) << 16);
#else
  return bit_cast<Vec>(__builtin_convertvector(h, UInts) << 16);
#endif
}

inline void store(float* p, Vec v) { std::memcpy(p, &v, sizeof(v)); }
// Rounds to nearest, ties to even; NaN stays NaN. The instruction for it takes numbers below 2^-126 as zero.
inline void store(BF16* p, Vec v) {
#if defined(__AVX512BF16__)
  const auto h = _mm512_cvtneps_pbh(bit_cast<__m512>(v));
#else
  UInts bits = bit_cast<UInts>(v);
  UInts rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  rounded = (v != v) ? UInts{} + 0x7fc0 : rounded;
  const Halves h = __builtin_convertvector(rounded, Halves);
#endif
  std::memcpy(p, &h, sizeof(h));
}

// Loads the first n < 16 elements; the other lanes are zero.
template <class T>
inline Vec load(const T* p, int64_t n) {
  T part[W] = {};
  std::memcpy(part, p, n * sizeof(T));
  return load(part);
}
template <class T>
inline void store(T* p, Vec v, int64_t n) {
  T part[W];
  store(part, v);
  std::memcpy(p, part, n * sizeof(T));
}

// Calls f(first, count) for each run of up to 16 out of n elements.
template <class F>
inline void for_chunks(int64_t n, F&& f) {
  int64_t i = 0;
  for (; i + W <= n; i += W) f(i, W);
  if (i < n) f(i, n - i);
}
template <class T>
inline Vec load_chunk(const T* p, int64_t n) {
  return n == W ? load(p) : load(p, n);
}
template <class T>
inline void store_chunk(T* p, Vec v, int64_t n) {
  n == W ? store(p, v) : store(p, v, n);
}

// Combines the lanes pairwise, halving the vector each time: four dependent steps instead of fifteen, and a fixed
// order.
template <class F>
inline float reduce(Vec v, F&& f) {
  using Eight = float __attribute__((vector_size(32)));
  using Four = float __attribute__((vector_size(16)));
  const auto eights = bit_cast<std::array<Eight, 2>>(v);
  const auto fours = bit_cast<std::array<Four, 2>>(f(eights[0], eights[1]));
  const Four four = f(fours[0], fours[1]);
  return f(f(four[0], four[2]), f(four[1], four[3]));
}
inline float sum(Vec v) {
  return reduce(v, [](auto a, auto b) { return a + b; });
}
inline float maximum(Vec v) {
  return reduce(v, [](auto a, auto b) { return a > b ? a : b; });
}

// Returns e^x within two units in the last place; 0 below -87.
inline Vec exponential(Vec x) {
  const Vec low = splat(-87.0f), high = splat(88.0f);
  const Ints tiny = x < low;
  x = maximum(x, low);
  x = x < high ? x : high;
  // x = k ln 2 + r, |r| <= ln 2 / 2; adding 1.5 * 2^23 rounds to a whole number.
  const float magic = 12582912.0f;
  const Vec shifted = x * 1.44269504f + magic;
  const Vec k = shifted - magic;
  const Vec r = (x - k * 0.693359375f) + k * 2.12194440e-4f;
  Vec p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const Ints exponent = (bit_cast<Ints>(shifted) - bit_cast<Ints>(splat(magic))) << 23;
  const Vec y = bit_cast<Vec>(bit_cast<Ints>(p) + exponent);
  return tiny ? Vec{} : y;
}

}  // namespace rlrun::kernels
