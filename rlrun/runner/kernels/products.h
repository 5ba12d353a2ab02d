// Products with a matrix, x [rows, K] by weight [N, K] transposed.
//
// Every number of the result is one chain of multiply-adds along K, from the first element to the last, in one lane of
// one register. How many rows and columns are computed together changes nothing in it, so neither the batch's size nor
// the number of threads does.
//
// Matrices are packed into panels of PANEL columns, [panel][K / P][PANEL][P], where P is 2 for bfloat16, whose neighbours
// along K are multiplied by one instruction, else 1. The engine packs whole matrices, once per version of the weights. A
// packed tensor has the shape [N, K / P, P], by which it is told from a plain matrix; its memory continues beyond that to
// the end of the last panel. Of a plain matrix, `linear` packs each panel before its products, in cache: with the
// trainer's thousands of rows that takes a hundredth of their time.
#pragma once
#include <ATen/ops/slice.h>

#include <vector>

#include "vectors.h"

namespace rlrun {

// A tile has as many sums as registers hold, beside the loaded columns: 24 of the 32 of AVX-512, 12 of the 16 of others.
constexpr int64_t VECTORS = LANES == 16 ? 4 : 2;
constexpr int64_t PANEL = VECTORS * LANES;
constexpr int64_t TILE_ROWS = 6;
constexpr int64_t CHUNK_ROWS = 48;  // rows of a task, which read a panel together
constexpr int64_t GROUP_BYTES = 256 << 10;  // panels of a task, which stay in cache

template <typename T>
constexpr int64_t PAIR = sizeof(T) == 2 ? 2 : 1;

// Packs one panel, from words of 32 bits: a float32, or two neighbouring bfloat16. `rows` of the matrix are in it.
inline void pack_panel(const uint32_t* in, int64_t rows, int64_t words, uint32_t* out) {
  for (int64_t from = 0; from < words; from += LANES) {
    const int64_t width = std::min(LANES, words - from);
    for (int64_t column = 0; column < PANEL; column += LANES) {
      Unsigned square[LANES] = {};
      for (int64_t i = 0; i < std::min(LANES, rows - column); ++i)
        std::memcpy(&square[i], in + (column + i) * words + from, width * sizeof(uint32_t));
      transpose_square(square);
      for (int64_t i = 0; i < width; ++i) std::memcpy(out + (from + i) * PANEL + column, &square[i], sizeof(Unsigned));
    }
  }
}

inline int64_t panels_of(const at::Tensor& weight) { return (weight.size(0) + PANEL - 1) / PANEL; }

template <typename T>
void pack_panel(const at::Tensor& weight, int64_t panel, T* out) {
  const int64_t words = weight.size(1) / PAIR<T>;
  const auto* in = reinterpret_cast<const uint32_t*>(weight.const_data_ptr<T>());
  pack_panel(in + panel * PANEL * words, weight.size(0) - panel * PANEL, words, reinterpret_cast<uint32_t*>(out));
}

inline at::Tensor pack_matrix(const at::Tensor& weight) {
  const int64_t k = weight.size(1), panels = panels_of(weight);
  const auto rows = weight.contiguous();
  at::Tensor packed;
  for_dtype(rows, [&](auto zero) {
    using T = decltype(zero);
    TORCH_CHECK(k % PAIR<T> == 0, "bfloat16 matrices need an even number of columns, not ", k);
    packed = at::empty({panels * PANEL, k / PAIR<T>, PAIR<T>}, rows.options());
    T* out = packed.mutable_data_ptr<T>();
    at::parallel_for(0, panels, grain(PANEL * k), [&](int64_t begin, int64_t end) {
      for (int64_t panel = begin; panel < end; ++panel) pack_panel(rows, panel, out + panel * k * PANEL);
    });
  });
  return at::slice(packed, 0, 0, weight.size(0));
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

// Writes the products of one panel with rows [begin, end) of x, plus bias (null: none), to out [rows, columns].
template <typename T, typename Out>
void multiply_panel(const at::Tensor& x, int64_t begin, int64_t end, const T* panel, int64_t column, const T* bias,
                    const at::Tensor& output) {
  const int64_t k = x.size(1), stride = x.stride(0), columns = output.size(1);
  const T* in = x.const_data_ptr<T>();
  Out* out = output.mutable_data_ptr<Out>();
  for (int64_t row = begin; row < end; row += TILE_ROWS) {
    const auto finish = [&](int64_t r, int64_t first, Vector sums) {
      const int64_t at = column + first, count = std::min(LANES, columns - at);
      if (count <= 0) return;
      if (bias) sums += load(bias + at, count);
      store(out + (row + r) * columns + at, sums, count);
    };
    multiply_rows(std::min(TILE_ROWS, end - row), in + row * stride, stride, k, panel, finish);
  }
}

// Returns x [rows, K] times a matrix, packed or not, plus bias [columns]; `wide`: in float32, whatever x is.
inline at::Tensor linear(
    const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias, bool wide) {
  const bool packed = weight.dim() == 3;
  const int64_t rows = x.size(0), k = x.size(1), inner = packed ? weight.size(1) * weight.size(2) : weight.size(1);
  TORCH_CHECK(x.stride(1) == 1 && inner == k && x.scalar_type() == weight.scalar_type(), "x ", x.sizes(),
              " does not fit a matrix ", weight.sizes());
  const auto matrix = packed ? weight : weight.contiguous();
  auto output = at::empty({rows, weight.size(0)}, wide ? x.options().dtype(at::kFloat) : x.options());
  const int64_t chunks = (rows + CHUNK_ROWS - 1) / CHUNK_ROWS, panels = panels_of(weight);
  for_dtype(x, [&](auto zero) {
    using T = decltype(zero);
    TORCH_CHECK(k % PAIR<T> == 0, "bfloat16 matrices need an even number of columns, not ", k);
    // A chunk of many is multiplied by several panels, so that it is read from memory less often.
    const int64_t size = k * PANEL, fitting = GROUP_BYTES / (size * int64_t(sizeof(T)));
    const int64_t group = chunks < 4 ? 1 : std::clamp<int64_t>(fitting, 1, panels);
    const int64_t tasks = chunks * ((panels + group - 1) / group);
    at::parallel_for(0, tasks, grain(CHUNK_ROWS * k), [&](int64_t begin, int64_t end) {
      static thread_local std::vector<Vector> memory;
      if (!packed) memory.resize((group * size * sizeof(T) + sizeof(Vector) - 1) / sizeof(Vector));
      T* own = reinterpret_cast<T*>(memory.data());
      for (int64_t task = begin; task < end; ++task) {
        const int64_t first = task / chunks * group, last = std::min(first + group, panels);
        const int64_t row = task % chunks * CHUNK_ROWS, stop = std::min(row + CHUNK_ROWS, rows);
        for (int64_t panel = first; panel < last; ++panel) {
          T* copy = own + (panel - first) * size;
          if (!packed && (task == begin || row == 0)) pack_panel(matrix, panel, copy);
          const T* columns = packed ? matrix.const_data_ptr<T>() + panel * size : copy;
          const auto multiply_to = wide ? multiply_panel<T, float> : multiply_panel<T, T>;
          multiply_to(x, row, stop, columns, panel * PANEL, data_of<T>(bias), output);
        }
      }
    });
  });
  return output;
}

}  // namespace rlrun
