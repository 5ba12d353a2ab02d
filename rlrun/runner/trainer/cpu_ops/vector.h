// What all operators share: float32 and bfloat16 elements computed on as float32, in loops that a compiler vectorises.
#pragma once
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <bit>
#include <cmath>
#include <cstdint>

namespace rlrun_trainer {

inline float widen(float x) { return x; }
inline float widen(at::BFloat16 x) { return std::bit_cast<float>(uint32_t(x.x) << 16); }

template <typename T>
T narrow(float x);
template <>
inline float narrow<float>(float x) { return x; }
template <>
inline at::BFloat16 narrow<at::BFloat16>(float x) {  // to nearest, ties to even
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  return at::BFloat16(uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16), at::BFloat16::from_bits());
}

// e^x to 2e-7 of its value; below -86 it stays at e^-86. NaN stays NaN.
inline float fast_exp(float x) {
  x = x < -86.f ? -86.f : x;
  x = x > 88.f ? 88.f : x;
  const float shifted = x * 1.44269504f + 12582912.f;  // 1.5 * 2^23: the sum's low bits are the rounded integer
  const float n = shifted - 12582912.f;
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;  // ln 2 in two parts, the first exact times n
  float p = 1.f / 5040;
  p = p * r + 1.f / 720;
  p = p * r + 1.f / 120;
  p = p * r + 1.f / 24;
  p = p * r + 1.f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.f;
  p = p * r + 1.f;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(p) + (std::bit_cast<uint32_t>(shifted) << 23));
}

// Calls f with a zero of the tensor's element type.
template <typename F>
void for_dtype(const at::Tensor& tensor, const F& f) {
  if (tensor.scalar_type() == at::kFloat) return f(float{});
  TORCH_CHECK(tensor.scalar_type() == at::kBFloat16, "float32 or bfloat16 expected, not ", tensor.scalar_type());
  f(at::BFloat16{});
}

// Rows for one thread to be worth starting: some 16 thousand elements.
inline int64_t grain(int64_t width) { return 16384 / width + 1; }

}  // namespace rlrun_trainer
