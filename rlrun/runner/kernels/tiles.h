// Prepares blocks of rows as operands of torch's small matrix kernels (brgemm).
//
// `brgemm` computes C [M, N] float32 (+)= A [M, K] B [K, N]. For bfloat16 it needs every two neighbouring rows of B
// interleaved, which is the layout that AMX and AVX512-BF16 multiply. "Operand" means this layout; for float32 it is
// the plain one.
#pragma once
#include <ATen/native/CPUBlas.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "vectors.h"

namespace rlrun {

// Tokens of a block: a multiple of LANES, and of the 16 rows of an AMX tile.
constexpr int64_t BLOCK = 32;

// On a CPU with AMX, a thread's first product of a shape configures the tile registers of that thread, and torch
// remembers the shape: the next product of the same shape does not configure them again. Any other oneDNN primitive
// that runs in between releases the registers, and the product then dies of SIGILL. So every thread that multiplies
// holds one of these: it makes torch forget the shape, as torch's own attention kernels do.
struct TileRegisters {
  TileRegisters() = default;
  TileRegisters(const TileRegisters&) = delete;
  TileRegisters& operator=(const TileRegisters&) = delete;
  ~TileRegisters() { at::native::cpublas::brgemm_release(); }
};

// Call it only while this thread holds a TileRegisters.
template <typename T>
void multiply(int64_t m, int64_t n, int64_t k, const T* a, const T* b, float* c, bool add) {
  at::native::cpublas::brgemm(m, n, k, k, n, n, add, a, b, c, sizeof(T) == 2);
}

// Returns whether brgemm multiplies bfloat16 on this CPU, by trying it: without such instructions oneDNN has no kernel.
inline bool has_bfloat16_kernels() {
  static const bool has = [] {
    const std::vector<at::BFloat16> a(4, at::BFloat16(1.f));
    float c[4];
    const TileRegisters registers;
    try {
      multiply(2, 2, 2, a.data(), a.data(), c, false);
    } catch (const std::exception&) {  // torch and oneDNN throw different types
      return false;
    }
    return true;
  }();
  return has;
}

// Calls f with a zero of the tensor's element type, and one of the type whose blocks brgemm is to multiply.
template <typename F>
void for_product_type(const at::Tensor& tensor, const F& f) {
  for_dtype(tensor, [&](auto zero) {
    if (has_bfloat16_kernels()) f(zero, zero);
    else f(zero, 0.f);
  });
}

// Rows `stride` elements apart: one head of one document within a packed tensor.
template <typename T>
struct Rows {
  T* data;
  int64_t stride;
  T* operator[](int64_t row) const { return data + row * stride; }
};

template <typename T>
Rows<T> rows_of(const at::Tensor& packed, int64_t start, int64_t head) {
  T* data = const_cast<T*>(packed.const_data_ptr<T>());
  return {data + start * packed.stride(0) + head * packed.stride(1), packed.stride(0)};
}

// The rows of the query heads that share a key-value head.
template <typename T>
struct Group {
  Rows<T> first;
  int64_t heads, stride;
  Rows<T> operator[](int64_t head) const { return {first.data + head * stride, first.stride}; }
};

template <typename T>
Group<T> group_of(const at::Tensor& packed, int64_t start, int64_t kv_head, int64_t heads) {
  return {rows_of<T>(packed, start, kv_head * heads), heads, packed.stride(1)};
}

// Copies `count` rows from `begin` on into a block [BLOCK, width], and fills the rest with zeros.
template <typename Stored, typename T>
void copy_block(Rows<Stored> rows, int64_t begin, int64_t count, int64_t width, T* out) {
  for (int64_t r = 0; r < count; ++r) std::copy_n(rows[begin + r], width, out + r * width);
  std::fill(out + count * width, out + BLOCK * width, T(0.f));
}

// Copies the same rows of all heads of a group into blocks, one below the other: [heads * BLOCK, width].
template <typename Stored, typename T>
void copy_stack(Group<Stored> group, int64_t begin, int64_t count, int64_t width, T* out) {
  for (int64_t head = 0; head < group.heads; ++head)
    copy_block(group[head], begin, count, width, out + head * BLOCK * width);
}

template <typename T>
void store_row(T* to, const float* from, int64_t width, float factor) {
  for_vectors(width, [&](int64_t i, int64_t n) { store(to + i, load(from + i, n) * factor, n); });
}

// Stores two neighbouring rows of an operand, up to LANES columns of each.
inline void store_pair(float* operand, int64_t columns, Vector a, Vector b, int64_t n) {
  store(operand, a, n);
  store(operand + columns, b, n);
}
inline void store_pair(at::BFloat16* operand, int64_t, Vector a, Vector b, int64_t n) {
  const Unsigned low = __builtin_convertvector(narrow<at::BFloat16>(a), Unsigned);
  const Unsigned high = __builtin_convertvector(narrow<at::BFloat16>(b), Unsigned);
  const Unsigned pairs = low | high << 16;
  std::memcpy(operand, &pairs, n * sizeof(uint32_t));
}

// The same for rows that have the operand's type.
inline void copy_pair(const float* a, const float* b, float* operand, int64_t columns, int64_t n) {
  store_pair(operand, columns, load(a, n), load(b, n), n);
}
inline void copy_pair(const at::BFloat16* a, const at::BFloat16* b, at::BFloat16* operand, int64_t, int64_t n) {
  Halves low{}, high{};
  std::memcpy(&low, a, n * sizeof(at::BFloat16));
  std::memcpy(&high, b, n * sizeof(at::BFloat16));
  const Unsigned pairs = __builtin_convertvector(low, Unsigned) | __builtin_convertvector(high, Unsigned) << 16;
  std::memcpy(operand, &pairs, n * sizeof(uint32_t));
}

// The offset of an element in an operand: a pair of rows begins where its first row would in the plain layout, and each
// of its columns holds two elements.
template <typename T>
int64_t pair_offset(int64_t row, int64_t column, int64_t columns) {
  return row * columns + column * (sizeof(T) == 2 ? 2 : 1);
}

// Packs one or several blocks [rows, width] as an operand.
template <typename T>
void pack(const T* block, int64_t rows, int64_t width, T* out) {
  for (int64_t r = 0; r < rows; r += 2)
    for_vectors(width, [&](int64_t i, int64_t n) {
      const T* from = block + r * width + i;
      copy_pair(from, from + width, out + pair_offset<T>(r, i, width), width, n);
    });
}

// Transposes in [rows, columns] of 32-bit words to out [columns, rows]; squares of LANES stay in registers.
inline void transpose(const uint32_t* in, int64_t rows, int64_t columns, uint32_t* out) {
  for (int64_t r = 0; r < rows; r += LANES) {
    int64_t c = 0;
    for (; r + LANES <= rows && c + LANES <= columns; c += LANES) {
      Unsigned square[LANES];
      for (int64_t i = 0; i < LANES; ++i) std::memcpy(&square[i], in + (r + i) * columns + c, sizeof(Unsigned));
      transpose_square(square);
      for (int64_t i = 0; i < LANES; ++i) std::memcpy(out + (c + i) * rows + r, &square[i], sizeof(Unsigned));
    }
    for (; c < columns; ++c)
      for (int64_t i = r; i < std::min(r + LANES, rows); ++i) out[c * rows + i] = in[i * columns + c];
  }
}

inline void transpose(const float* in, int64_t rows, int64_t columns, float* out) {
  transpose(reinterpret_cast<const uint32_t*>(in), rows, columns, reinterpret_cast<uint32_t*>(out));
}

// Packs the transpose of blocks [rows, width] as an operand [width, rows]. Two bfloat16 neighbours of a row become the
// interleaved pair of two rows, so that transposing 32-bit words does both at once.
template <typename T>
void pack_transposed(const T* block, int64_t rows, int64_t width, T* out) {
  const auto* words = reinterpret_cast<const uint32_t*>(block);
  transpose(words, rows, width * int64_t(sizeof(T)) / 4, reinterpret_cast<uint32_t*>(out));
}

// Transposes a block [BLOCK, width] to out [width, BLOCK].
inline void transpose_block(const float* block, int64_t width, float* out) { transpose(block, BLOCK, width, out); }
inline void transpose_block(const at::BFloat16* block, int64_t width, at::BFloat16* out) {
  pack_transposed(block, BLOCK, width, out);
  for (at::BFloat16* pair = out; pair < out + width * BLOCK; pair += 2 * BLOCK) {  // of two interleaved rows
    Unsigned words[BLOCK / LANES];
    std::memcpy(words, pair, sizeof(words));
    for (int64_t i = 0; i < BLOCK / LANES; ++i) {
      const Halves low = __builtin_convertvector(words[i], Halves);
      const Halves high = __builtin_convertvector(words[i] >> 16, Halves);
      std::memcpy(pair + i * LANES, &low, sizeof(low));
      std::memcpy(pair + BLOCK + i * LANES, &high, sizeof(high));
    }
  }
}

// One thread's memory, kept between calls: touching fresh pages costs more than the arithmetic on them. `take` returns
// the next part, aligned to a cache line.
class Scratch {
 public:
  explicit Scratch(int64_t bytes) {
    thread_local std::vector<std::byte> memory;
    if (int64_t(memory.size()) < bytes + LINE) memory.resize(bytes + LINE);
    next_ = reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(memory.data()) + LINE - 1) / LINE * LINE);
  }
  template <typename T>
  T* take(int64_t elements) {
    T* part = reinterpret_cast<T*>(next_);
    next_ += padded<T>(elements);
    return part;
  }
  template <typename T>
  static int64_t padded(int64_t elements) {
    return (elements * int64_t(sizeof(T)) + LINE - 1) / LINE * LINE;
  }

 private:
  static constexpr int64_t LINE = 64;
  std::byte* next_;
};

}  // namespace rlrun
