// Attention of whole documents, as the trainer packs them and as the engine prefills prompts, and of rows over the
// engine's cache.
#pragma once
#include <numeric>

#include "attention.h"
#include "tiles.h"

namespace rlrun {

// Tokens [begin, end) of a packed batch, each of which continues the sequence of the one before. A document that is a
// tree has a run for each of its branches.
struct Run {
  int64_t begin, end, first_block;             // its blocks begin at this one of the document's
  std::vector<std::pair<int64_t, int64_t>> before;  // (run, number of its first tokens) that precede it in its sequence
  int64_t blocks() const { return (end - begin + CACHE_BLOCK - 1) / CACHE_BLOCK; }
};

// `ends` [T], null for plain documents, is `Forest.ends`: query q sees key k if k <= q < ends[k].
inline std::vector<Run> runs_of(int64_t start, int64_t length, const int32_t* ends) {
  std::vector<Run> runs;
  const int64_t stop = start + length;
  for (int64_t begin = start, block = 0; begin < stop; begin = runs.back().end) {
    Run run{begin, stop, block, {}};
    if (ends) {
      run.end = begin + 1;
      while (run.end < stop && ends[run.end - 1] > run.end) ++run.end;
      for (size_t r = 0; r < runs.size(); ++r) {
        int64_t known = 0;
        while (known < runs[r].end - runs[r].begin && ends[runs[r].begin + known] > begin) ++known;
        if (known > 0) run.before.emplace_back(r, known);
      }
    }
    block += run.blocks();
    runs.push_back(std::move(run));
  }
  return runs;
}

// Copies up to 16 keys and values of one head, from `keys` and `values` on, into a block of float32.
template <typename T>
void copy_block(Rows<T> keys, Rows<T> values, int64_t held, int64_t dim, float* block) {
  if (held < CACHE_BLOCK) std::fill_n(block, 2 * CACHE_BLOCK * dim, 0.f);
  float* copied = block + CACHE_BLOCK * dim;
  for (int64_t t = 0; t < held; ++t)
    for (int64_t d = 0; d < dim; d += LANES) store(copied + t * dim + d, load(values[t] + d));
  for (int64_t t = 0; t < held; t += LANES)
    for (int64_t d = 0; d < dim; d += LANES) {
      Unsigned square[LANES] = {};
      for (int64_t i = 0; i < std::min(LANES, held - t); ++i) square[i] = std::bit_cast<Unsigned>(load(keys[t + i] + d));
      transpose_square(square);
      for (int64_t i = 0; i < LANES; ++i)
        std::memcpy(block + (d + i) * CACHE_BLOCK + t, &square[i], sizeof(Unsigned));
    }
}

// Copies the keys and values of all runs of a document into blocks of `memory`.
template <typename T>
void copy_document(const std::vector<Run>& runs, Rows<T> keys, Rows<T> values, int64_t dim, std::vector<float>& memory) {
  const int64_t size = 2 * CACHE_BLOCK * dim;
  memory.resize((runs.back().first_block + runs.back().blocks()) * size);
  for (const Run& run : runs) {
    float* block = memory.data() + run.first_block * size;
    for (int64_t t = run.begin; t < run.end; t += CACHE_BLOCK, block += size)
      copy_block<T>({keys[t], keys.stride}, {values[t], values.stride}, std::min(CACHE_BLOCK, run.end - t), dim, block);
  }
}

inline void append_tokens(Blocks<float>& blocks, const float* memory, int64_t block, int64_t tokens, int64_t dim) {
  for (int64_t t = 0; t < tokens; t += CACHE_BLOCK, ++block) {
    const float* keys = memory + block * 2 * CACHE_BLOCK * dim;
    blocks.push_back({keys, keys + CACHE_BLOCK * dim, std::min(CACHE_BLOCK, tokens - t)});
  }
}

inline void check_heads(const at::Tensor& q, const at::Tensor& k) {
  TORCH_CHECK(q.size(2) % CACHE_BLOCK == 0 && q.stride(2) == 1 && k.stride(2) == 1 && q.size(1) % k.size(1) == 0,
              "heads of a multiple of 16 elements in one piece expected, not ", q.sizes(), " and ", k.sizes());
}

// Attends from `count` queries of one head, the first of which sees `known` + 1 tokens; `own` of the blocks hold their
// own tokens, from the last multiple of 16 on.
template <typename T, typename B>
void attend_run(const Blocks<B>& blocks, int64_t own, Rows<T> queries, int64_t count, int64_t known, int64_t dim,
                float scale, Rows<T> output, float* log_sums, AttentionMemory& memory) {
  const int64_t earlier = int64_t(blocks.size()) - own;
  for (int64_t i = 0; i < count; i += QUERIES) {
    const int64_t number = std::min(QUERIES, count - i), aligned = (i + number + CACHE_BLOCK - 1) / CACHE_BLOCK;
    attend_in_order<T>(
        blocks, earlier + std::min(aligned, own), number, known + i + 1, dim, scale,
        [&](int64_t r) { return queries[i + r]; }, [&](int64_t r) { return output[i + r]; },
        log_sums ? log_sums + i : nullptr, memory);
  }
}

// Maps q [T, heads, dim] and k, v [T, kv heads, dim] to the output, shaped like q, and the log-sum-exp of the scores
// [heads, T].
inline std::tuple<at::Tensor, at::Tensor> attention(
    const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, at::IntArrayRef lengths,
    const std::optional<at::Tensor>& ends, double scale) {
  check_heads(q, k);
  const int64_t tokens = q.size(0), heads = q.size(1), dim = q.size(2), kv = k.size(1), group = heads / kv;
  auto output = at::empty(q.sizes(), q.options());
  auto log_sums = at::empty({heads, tokens}, q.options().dtype(at::kFloat));
  const int32_t* all_ends = data_of<int32_t>(ends);
  std::vector<int64_t> starts(lengths.size());
  std::exclusive_scan(lengths.begin(), lengths.end(), starts.begin(), int64_t{0});
  const int64_t tasks = int64_t(lengths.size()) * kv;
  TORCH_CHECK(!lengths.empty() && starts.back() + lengths.back() == tokens, "the lengths do not add up to ", tokens);
  TORCH_CHECK(!ends || (ends->is_contiguous() && ends->numel() == tokens), "ends must be contiguous, one for each of the ",
              tokens, " tokens");
  for_dtype(q, [&](auto zero) {
    using T = decltype(zero);
    // Scheduling is dynamic because the tasks' costs differ with the square of the length.
#pragma omp parallel for schedule(dynamic) if (tasks > 1)
    for (int64_t task = 0; task < tasks; ++task) {
      static thread_local AttentionMemory memory;
      Blocks<float> blocks;
      const int64_t head = task % kv;
      const std::vector<Run> runs = runs_of(starts[task / kv], lengths[task / kv], all_ends);
      if (runs.empty()) continue;
      copy_document(runs, rows_of<T>(k, 0, head), rows_of<T>(v, 0, head), dim, memory.packed);
      for (const Run& run : runs) {
        const int64_t count = run.end - run.begin;
        int64_t known = 0;
        blocks.clear();
        for (const auto& [earlier, number] : run.before) {
          append_tokens(blocks, memory.packed.data(), runs[earlier].first_block, number, dim);
          known += number;
        }
        append_tokens(blocks, memory.packed.data(), run.first_block, count, dim);
        for (int64_t h = head * group; h < (head + 1) * group; ++h)
          attend_run<T>(blocks, run.blocks(), rows_of<T>(q, run.begin, h), count, known, dim, float(scale),
                        rows_of<T>(output, run.begin, h),
                        log_sums.mutable_data_ptr<float>() + h * tokens + run.begin, memory);
      }
    }
  });
  return {output, log_sums};
}

// Appends the blocks of `length` tokens of one head of a layer's cache.
template <typename T>
void append_blocks(Blocks<T>& blocks, const at::Tensor& keys, const at::Tensor& values, int64_t head,
                   const int32_t* table, int64_t length) {
  const int64_t kv = keys.size(1), size = keys.size(2) * CACHE_BLOCK;
  const T *first_keys = keys.const_data_ptr<T>(), *first_values = values.const_data_ptr<T>();
  for (int64_t begin = 0; begin < length; begin += CACHE_BLOCK) {
    const int64_t at = (table[begin / CACHE_BLOCK] * kv + head) * size;
    blocks.push_back({first_keys + at, first_values + at, std::min(CACHE_BLOCK, length - begin)});
  }
}

// Attends from the tokens q [R, heads, dim] of one prompt, which follow `start` others, over the cache blocks `table` of
// the whole prompt.
inline at::Tensor continued_attention(const at::Tensor& q, const at::Tensor& keys, const at::Tensor& values,
                                      const at::Tensor& table, int64_t start, double scale) {
  const int64_t count = q.size(0), heads = q.size(1), dim = q.size(2), kv = keys.size(1), group = heads / kv;
  check_heads(q, keys.transpose(2, 3));
  auto output = at::empty(q.sizes(), q.options());
  for_dtype(q, [&](auto zero) {
    using T = decltype(zero);
#pragma omp parallel for schedule(dynamic)
    for (int64_t head = 0; head < heads; ++head) {
      static thread_local AttentionMemory memory;
      Blocks<T> blocks;
      append_blocks(blocks, keys, values, head / group, table.const_data_ptr<int32_t>(), start + count);
      for (int64_t i = 0; i < count; i += QUERIES) {
        const int64_t number = std::min(QUERIES, count - i), seen = start + i + number;
        const auto queries = rows_of<T>(q, i, head), out = rows_of<T>(output, i, head);
        attend_in_order<T>(
            blocks, rounded(seen) / CACHE_BLOCK, number, start + i + 1, dim, float(scale),
            [&](int64_t r) { return queries[r]; }, [&](int64_t r) { return out[r]; }, nullptr, memory);
      }
    }
  });
  return output;
}

// The rows of a decoding step: a row's sequence is its prompt, which neighbouring rows share, and its own tokens.
// `columns` is batches.DecodeBatch.columns.
struct CachedRows {
  CachedRows(const at::Tensor& columns, const at::Tensor& prefix_tables, const at::Tensor& suffix_tables)
      : count(columns.size(1)), prefix_table_(prefix_tables.const_data_ptr<int32_t>()),
        suffix_table_(suffix_tables.const_data_ptr<int32_t>()), prefix_width_(prefix_tables.size(1)),
        suffix_width_(suffix_tables.size(1)) {
    TORCH_CHECK(columns.size(0) == 7 && columns.stride(1) == 1, "rows must be [7, M], columns in one piece");
    const auto column = [&](int64_t index) { return columns.const_data_ptr<int64_t>() + index * columns.stride(0); };
    own_length = column(3), seat_ = column(4), prefix_seat_ = column(5), prefix_length = column(6);
    // Chunks become smaller where there would be fewer of them than threads.
    const int64_t most = std::clamp<int64_t>(count / at::get_num_threads(), 1, 8);
    for (int64_t first = 0, last; first < count; first = last) {
      last = first + 1;
      while (last < count && last - first < most && prefix_seat_[last] == prefix_seat_[first]) ++last;
      chunks.emplace_back(first, last);
    }
  }
  const int32_t* prefix(int64_t row) const { return prefix_table_ + prefix_seat_[row] * prefix_width_; }
  const int32_t* own(int64_t row) const { return suffix_table_ + seat_[row] * suffix_width_; }

  int64_t count;
  const int64_t *own_length, *prefix_length;
  std::vector<std::pair<int64_t, int64_t>> chunks;  // of at most 8 neighbouring rows that share a prompt

 private:
  const int32_t *prefix_table_, *suffix_table_;
  int64_t prefix_width_, suffix_width_;
  const int64_t *seat_, *prefix_seat_;
};

// Starts to bring `count` elements into the caches: a block's 2 KB are too short for the processor to notice.
template <typename T>
void fetch(const T* from, int64_t count) {
  for (int64_t i = 0; i < count; i += 64 / int64_t(sizeof(T))) __builtin_prefetch(from + i);
}

// Attends from one token of each row of a chunk; qkv [M, (heads + 2 kv) * dim]. Rows of one prompt are processed
// together, so that each of its keys and values is read once for all of them. Meanwhile the blocks that come next are
// fetched into the caches.
template <typename T>
void attend_rows(const CachedRows& rows, std::pair<int64_t, int64_t> chunk, int64_t head, const at::Tensor& qkv,
                 const at::Tensor& keys, const at::Tensor& values, const at::Tensor& output, AttentionMemory& memory) {
  const int64_t dim = keys.size(2), kv = keys.size(1), width = qkv.size(1), group = (width / dim - 2 * kv) / kv;
  const auto [begin, end] = chunk;
  const int64_t count = (end - begin) * group, shared = rows.prefix_length[begin];
  const int64_t longest = shared + *std::max_element(rows.own_length + begin, rows.own_length + end);
  const int64_t stride = rounded(longest) + CACHE_BLOCK;
  const float scale = 1.f / std::sqrt(float(dim));
  memory.queries.resize(count * dim);
  memory.scores.resize(count * stride);
  memory.sums.assign(count * dim, 0.f);
  memory.scales.resize(count);
  float *queries = memory.queries.data(), *scores = memory.scores.data(), *sums = memory.sums.data();
  for (int64_t i = 0; i < count; ++i) {
    const T* query = qkv.const_data_ptr<T>() + (begin + i / group) * width + (head * group + i % group) * dim;
    for (int64_t d = 0; d < dim; d += LANES) store(queries + i * dim + d, load(query + d));
  }
  Blocks<T> blocks;  // of the prompt, then of each row's own tokens
  append_blocks(blocks, keys, values, head, rows.prefix(begin), shared);
  std::vector<int64_t> starts{int64_t(blocks.size())};
  for (int64_t r = begin; r < end; ++r) {
    append_blocks(blocks, keys, values, head, rows.own(r), rows.own_length[r]);
    starts.push_back(int64_t(blocks.size()));
  }
  const auto fetch_keys = [&](int64_t from, int64_t to) {
    for (int64_t b = from; b < to; ++b) fetch(blocks[b].keys, CACHE_BLOCK * dim);
  };
  fetch_keys(starts[0], starts[1]);
  score(count, queries, dim, blocks.data(), starts[0], scores, stride);
  for (int64_t r = 0; r < end - begin; ++r) {
    const int64_t at = r * group, seen = shared + rows.own_length[begin + r];
    if (begin + r + 1 < end) fetch_keys(starts[r + 1], starts[r + 2]);
    for (int64_t b = starts[r]; b < starts[r + 1]; ++b) fetch(blocks[b].values, CACHE_BLOCK * dim);
    score(group, queries + at * dim, dim, blocks.data() + starts[r], starts[r + 1] - starts[r],
          scores + at * stride + shared, stride);
    for (int64_t i = at; i < at + group; ++i) soften(scores + i * stride, seen, 0, scale, memory.scales[i]);
  }
  mix(count, blocks.data(), shared, dim, scores, stride, sums);
  for (int64_t r = 0; r < end - begin; ++r) {
    const int64_t at = r * group;
    mix(group, blocks.data() + starts[r], rows.own_length[begin + r], dim, scores + at * stride + shared, stride,
        sums + at * dim);
  }
  for (int64_t i = 0; i < count; ++i) {
    T* to = output.mutable_data_ptr<T>() + (begin + i / group) * output.size(1) + (head * group + i % group) * dim;
    for (int64_t d = 0; d < dim; d += LANES) store(to + d, load(sums + i * dim + d) * memory.scales[i]);
  }
}

inline at::Tensor decode_attention(const at::Tensor& qkv, const CachedRows& rows, const at::Tensor& keys,
                                   const at::Tensor& values) {
  const int64_t kv = keys.size(1), dim = keys.size(2);
  auto output = at::empty({rows.count, qkv.size(1) - 2 * kv * dim}, qkv.options());
  for_dtype(qkv, [&](auto zero) {
    using T = decltype(zero);
    at::parallel_for(0, int64_t(rows.chunks.size()) * kv, 1, [&](int64_t begin, int64_t end) {
      static thread_local AttentionMemory memory;
      for (int64_t task = begin; task < end; ++task)
        attend_rows<T>(rows, rows.chunks[task / kv], task % kv, qkv, keys, values, output, memory);
    });
  });
  return output;
}

}  // namespace rlrun
