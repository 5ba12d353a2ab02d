// Products with a matrix, x [rows, K] by weight [N, K] transposed.
//
// Every number of the result is one chain of multiply-adds along K, from the first element to the last, in one lane of
// one register. How many rows and columns are computed together changes nothing in it, so neither the batch's size nor
// the number of threads does.
//
// Matrices are packed into panels of PANEL columns, [panel][K / P][PANEL][P], where P is 2 for bfloat16, whose neighbours
// along K are multiplied by one instruction, else 1. A packed tensor has the shape [N, K / P, P], by which it is told
// from a plain matrix; its memory continues beyond that to the end of the last panel.
#pragma once
#include <ATen/ops/slice.h>

#include "lanes.h"

namespace rlrun_exact {

constexpr int64_t PANEL = 64, VECTORS = PANEL / LANES;
constexpr int64_t TILE_ROWS = 6;    // 24 accumulators, 4 columns' loads: the 32 registers of AVX-512
constexpr int64_t CHUNK_ROWS = 48;  // rows of a task, which read a panel together

template <typename T>
constexpr int64_t PAIR = sizeof(T) == 2 ? 2 : 1;

inline at::Tensor pack(const at::Tensor& weight) {
  const int64_t n = weight.size(0), k = weight.size(1), panels = (n + PANEL - 1) / PANEL;
  const auto rows = weight.contiguous();
  at::Tensor packed;
  for_dtype(rows, [&](auto zero) {
    using T = decltype(zero);
    constexpr int64_t P = PAIR<T>;
    TORCH_CHECK(k % P == 0, "bfloat16 matrices need an even number of columns, not ", k);
    packed = at::empty({panels * PANEL, k / P, P}, rows.options());
    const T* in = rows.const_data_ptr<T>();
    T* out = packed.mutable_data_ptr<T>();
    at::parallel_for(0, panels, grain(PANEL * k), [&](int64_t begin, int64_t end) {
      constexpr int64_t STRIP = 16;  // elements of each row at a time: a cache line of float32
      for (int64_t panel = begin; panel < end; ++panel)
        for (int64_t from = 0; from < k; from += STRIP)
          for (int64_t column = 0; column < PANEL; ++column) {
            const int64_t row = panel * PANEL + column;
            T* to = out + panel * k * PANEL + column * P;
            for (int64_t i = from; i < std::min(from + STRIP, k); ++i)
              to[i / P * PANEL * P + i % P] = row < n ? in[row * k + i] : T(0.f);
          }
    });
  });
  return at::slice(packed, 0, 0, n);
}

// Adds the products of one step along K, which is P elements, to a row's sums.
inline Vector multiply_add(const float* x, const float* columns, Vector sum) {
  return fused(splat(*x), load(columns), sum);
}
inline Vector multiply_add(const at::BFloat16* x, const at::BFloat16* columns, Vector sum) {
  uint32_t pair;
  std::memcpy(&pair, x, sizeof(pair));
  Unsigned words;
  std::memcpy(&words, columns, sizeof(words));
#if defined(__AVX512BF16__)
  return std::bit_cast<Vector>(_mm512_dpbf16_ps(
      std::bit_cast<__m512>(sum), std::bit_cast<__m512bh>(Unsigned{} + pair), std::bit_cast<__m512bh>(words)));
#else
  const Vector low = std::bit_cast<Vector>(words << 16), high = std::bit_cast<Vector>(words & 0xffff0000u);
  sum = fused(splat(std::bit_cast<float>(pair << 16)), low, sum);
  return fused(splat(std::bit_cast<float>(pair & 0xffff0000u)), high, sum);
#endif
}

// Multiplies R rows, `stride` elements apart, by one panel; calls finish(row, first column, sums) with 16 sums at a time.
template <int R, typename T, typename F>
void multiply_tile(const T* x, int64_t stride, int64_t k, const T* panel, const F& finish) {
  Vector acc[R][VECTORS] = {};
  for (int64_t i = 0; i < k; i += PAIR<T>, panel += PANEL * PAIR<T>)
    for (int r = 0; r < R; ++r)
      for (int v = 0; v < VECTORS; ++v)
        acc[r][v] = multiply_add(x + r * stride + i, panel + v * LANES * PAIR<T>, acc[r][v]);
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < VECTORS; ++v) finish(r, v * LANES, acc[r][v]);
}

template <typename T, typename F>
void multiply_rows(int64_t rows, const T* x, int64_t stride, int64_t k, const T* panel, const F& finish) {
  switch (rows) {
    case 1: return multiply_tile<1>(x, stride, k, panel, finish);
    case 2: return multiply_tile<2>(x, stride, k, panel, finish);
    case 3: return multiply_tile<3>(x, stride, k, panel, finish);
    case 4: return multiply_tile<4>(x, stride, k, panel, finish);
    case 5: return multiply_tile<5>(x, stride, k, panel, finish);
    default: return multiply_tile<TILE_ROWS>(x, stride, k, panel, finish);
  }
}

// Returns x [rows, K] times the packed matrix, plus bias [columns]; `wide`: in float32, whatever x is.
inline at::Tensor linear(
    const at::Tensor& x, const at::Tensor& packed, const std::optional<at::Tensor>& bias, bool wide) {
  const int64_t rows = x.size(0), k = x.size(1), columns = packed.size(0), stride = x.stride(0);
  const int64_t panels = (columns + PANEL - 1) / PANEL;
  TORCH_CHECK(packed.dim() == 3 && x.stride(1) == 1 && packed.size(1) * packed.size(2) == k &&
                  x.scalar_type() == packed.scalar_type(),
              "x ", x.sizes(), " does not fit a packed matrix ", packed.sizes());
  auto output = at::empty({rows, columns}, wide ? x.options().dtype(at::kFloat) : x.options());
  const int64_t chunks = (rows + CHUNK_ROWS - 1) / CHUNK_ROWS;
  for_dtype(x, [&](auto zero) {
    using T = decltype(zero);
    const T *in = x.const_data_ptr<T>(), *matrix = packed.const_data_ptr<T>(), *shift = data_of<T>(bias);
    void* out = output.mutable_data_ptr();
    at::parallel_for(0, chunks * panels, grain(CHUNK_ROWS * k), [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) {
        const int64_t panel = task / chunks, chunk = task % chunks * CHUNK_ROWS;
        for (int64_t row = chunk; row < std::min(chunk + CHUNK_ROWS, rows); row += TILE_ROWS) {
          const auto finish = [&](int64_t r, int64_t first, Vector sums) {
            const int64_t column = panel * PANEL + first, count = std::min(LANES, columns - column);
            if (count <= 0) return;
            if (shift) sums += load(shift + column, count);
            if (wide) store(static_cast<float*>(out) + (row + r) * columns + column, sums, count);
            else store(static_cast<T*>(out) + (row + r) * columns + column, sums, count);
          };
          const int64_t tile = std::min({TILE_ROWS, rows - row, chunk + CHUNK_ROWS - row});
          multiply_rows(tile, in + row * stride, stride, k, matrix + panel * k * PANEL, finish);
        }
      }
    });
  });
  return output;
}

}  // namespace rlrun_exact
