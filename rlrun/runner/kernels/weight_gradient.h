// The gradient of a weight in float32: the product of two matrices over the tokens, which are the rows of both. oneDNN
// and MKL copy a left factor that is stored by columns, for a third of the product's time; here blocks of it are
// transposed in cache.
#pragma once
#include "tiles.h"

namespace rlrun {

constexpr int64_t SIDE = 64;                    // rows and columns of the gradient in one product
constexpr int64_t DEPTH = 256;                  // tokens of one product: SIDE columns of them are 64 KB
constexpr int64_t LEFT_STRIDE = DEPTH + LANES;  // no power of two, or rows would evict each other

// Transposes rows [tokens, columns] of a wider matrix to out [columns, LEFT_STRIDE]. Rows are fetched some steps before
// their use, because no CPU foresees such long strides.
inline void transpose_rows(Rows<float> in, int64_t tokens, int64_t columns, float* out) {
  for (int64_t t = 0; t < tokens; t += LANES) {
    for (int64_t ahead = t + 3 * LANES; ahead < std::min(t + 4 * LANES, tokens); ++ahead)
      for (int64_t c = 0; c < columns; c += LANES) __builtin_prefetch(in[ahead] + c);
    for (int64_t c = 0; c < columns; c += LANES) {
      Unsigned square[LANES] = {};
      const int64_t n = std::min(LANES, columns - c);
      for (int64_t i = 0; i < std::min(LANES, tokens - t); ++i)
        square[i] = std::bit_cast<Unsigned>(load(in[t + i] + c, n));
      transpose_square(square);
      for (int64_t i = 0; i < n; ++i) std::memcpy(out + (c + i) * LEFT_STRIDE + t, &square[i], sizeof(Unsigned));
    }
  }
}

// Adds gradients^T input to sums [rows, columns], for gradients [tokens, rows] and input [tokens, columns], in the
// tokens' order whatever the number of threads.
inline void add_weight_gradient_(at::Tensor sums, const at::Tensor& gradients, const at::Tensor& input) {
  const int64_t tokens = gradients.size(0), rows = gradients.size(1), columns = input.size(1);
  TORCH_CHECK(gradients.stride(1) == 1 && input.stride(1) == 1 && input.size(0) == tokens,
              "two matrices of the same number of rows expected, not ", gradients.sizes(), " and ", input.sizes());
  const auto a = rows_of<float>(gradients, 0, 0), b = rows_of<float>(input, 0, 0), out = rows_of<float>(sums, 0, 0);
  at::parallel_for(0, (rows + SIDE - 1) / SIDE, 1, [&](int64_t begin, int64_t end) {
    const TileRegisters registers;
    Scratch scratch(Scratch::padded<float>(SIDE * LEFT_STRIDE));
    float* left = scratch.take<float>(SIDE * LEFT_STRIDE);
    for (int64_t t = 0, k; t < tokens; t += k) {
      k = std::min(DEPTH, tokens - t);
      if (k > BLOCK) k = k / BLOCK * BLOCK;  // few different sizes, because each gets code of its own
      for (int64_t r = begin * SIDE; r < std::min(end * SIDE, rows); r += SIDE) {
        const int64_t m = std::min(SIDE, rows - r);
        transpose_rows({a[t] + r, a.stride}, k, m, left);
        for (int64_t c = 0; c < columns; c += SIDE)
          at::native::cpublas::brgemm(m, std::min(SIDE, columns - c), k, LEFT_STRIDE, b.stride, out.stride, true, left,
                                      b[t] + c, out[r] + c, false);
      }
    }
  });
}

}  // namespace rlrun
