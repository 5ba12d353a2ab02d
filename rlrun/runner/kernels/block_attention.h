// Causal attention within each document of a packed batch, forward and backward. Its cost is the sum of the squared
// lengths of the documents, or of their lengths times the window.
//
// A document may be a tree: sequences that share prefixes, each token once, in depth-first order. Query q then sees key
// k if k <= q < ends[k], where ends[k] is the end of the part of the tree that continues the sequence after token k.
//
// A task is one key-value head of one document, with all query heads that share it: their queries of the same BLOCK
// tokens are stacked, so that a product has more rows and a packed key serves all of them. Only the scores of one block
// of queries exist at a time; the backward pass computes them again (Dao et al. 2022, arXiv:2205.14135). Unlike there,
// the forward pass keeps all scores of a stack of queries (length x stack floats) and takes their maximum in a pass of
// its own, so that the output never has to be rescaled.
//
// `Stored` is the type of the tensors and T that of the factors of products: float32 for bfloat16 tensors on a CPU whose
// brgemm takes no bfloat16 (for_product_type).
#pragma once
#include <limits>
#include <numeric>

#include "tiles.h"

namespace rlrun {

// The sizes of one call: q [tokens, heads, width], k and v [tokens, heads / group, width]. A query sees `window` keys,
// its own included; 0: all up to its own. A stack has the queries of a block in all heads of a group, head by head.
struct Shape {
  int64_t tokens, heads, width, group, stack, panel, window, most_blocks;

  Shape(const at::Tensor& q, const at::Tensor& k, at::IntArrayRef lengths, int64_t window_)
      : tokens(q.size(0)), heads(q.size(1)), width(q.size(2)), group(heads / k.size(1)), stack(group * BLOCK),
        panel(BLOCK * width), window(window_ > 0 ? window_ : std::numeric_limits<int64_t>::max()) {
    const int64_t sum = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
    TORCH_CHECK(sum == tokens && tokens > 0, "the lengths add up to ", sum, ", not to ", tokens);
    most_blocks = blocks(*std::max_element(lengths.begin(), lengths.end()));
  }
  static int64_t blocks(int64_t length) { return (length + BLOCK - 1) / BLOCK; }
  // The first key that a query sees, and the first block of keys that a block of queries sees.
  int64_t first_key(int64_t query) const { return query < window ? 0 : query - window + 1; }
  int64_t first_block(int64_t block) const { return first_key(block * BLOCK) / BLOCK; }
};

// The keys that the queries of a tree see; of a plain document (ends null) all up to the query's own.
class Sight {
 public:
  // `ends` are those of the whole batch, counted from its first token; the tree's begin at `start`.
  Sight(const Shape& shape, const int32_t* ends, int64_t start, int64_t length) : shape_(shape), length_(length) {
    if (!ends) return;
    ends_.resize(Shape::blocks(length) * BLOCK);  // the zeros behind the end hide the keys there
    for (int64_t k = 0; k < length; ++k) ends_[k] = int32_t(ends[start + k] - start);
    for (int64_t j = 0; j < Shape::blocks(length); ++j) {
      const auto own = ends_.begin() + j * BLOCK, stop = own + BLOCK;
      farthest_.push_back(*std::max_element(own, stop));
      nearest_.push_back(*std::min_element(own, stop));
    }
  }
  // The blocks of keys that block i of queries sees, in order; i itself is the last one.
  const std::vector<int64_t>& blocks(int64_t i) {
    seen_.clear();
    for (int64_t j = shape_.first_block(i); j <= i; ++j)
      if (ends_.empty() || farthest_[j] > i * BLOCK) seen_.push_back(j);
    return seen_;
  }
  // Whether some query of block i does not see some key of block j because the key is on another branch.
  bool branches(int64_t i, int64_t j) const {
    return !ends_.empty() && nearest_[j] < std::min((i + 1) * BLOCK, length_);
  }
  const int32_t* ends(int64_t j) const { return ends_.data() + j * BLOCK; }

 private:
  const Shape& shape_;
  const int64_t length_;
  std::vector<int32_t> ends_, farthest_, nearest_;
  std::vector<int64_t> seen_;
};

// Returns x where the keys' ends are beyond the query, elsewhere `hidden`.
inline Vector on_path(Vector x, const int32_t* ends, int64_t query, float hidden) {
  Integers last;
  std::memcpy(&last, ends, sizeof(last));
  return last > int32_t(query) ? x : splat(hidden);
}

// Calls task(start, length, head) for all documents and heads. Scheduling is dynamic because the tasks' costs differ
// with the square of the length. Each task writes to memory of its own, so results do not depend on the number of
// threads.
template <typename F>
void for_documents(at::IntArrayRef lengths, int64_t heads, const F& task) {
  std::vector<int64_t> starts(lengths.size());
  std::exclusive_scan(lengths.begin(), lengths.end(), starts.begin(), int64_t{0});
  const int64_t tasks = int64_t(lengths.size()) * heads;
#pragma omp parallel if (tasks > 1)
  {
    const TileRegisters registers;
#pragma omp for schedule(dynamic)
    for (int64_t t = 0; t < tasks; ++t) task(starts[t / heads], lengths[t / heads], t % heads);
  }
}

// Computes the softmax numerators of a stack of queries (block number `own`) for the blocks of keys that it sees, and
// each query's sum and maximum. Scores and numerators are [stack, BLOCK] for one block of keys after the other. The
// maximum is subtracted before the exponential so that it cannot overflow.
template <typename T>
void exponentials(
    const Shape& shape, const Sight& sight, const std::vector<int64_t>& blocks, const float* scores, float scale,
    T* out, float* sums, float* maxima) {
  const int64_t own = blocks.back(), count = int64_t(blocks.size());
  for (int64_t r = 0; r < shape.stack; ++r) {
    const int64_t place = r % BLOCK, query = own * BLOCK + place;
    const int64_t hidden = shape.first_key(query);  // keys before this one are outside of the window
    Vector most = Vector{} - INFINITY;
    float maximum = -INFINITY;
    for (int64_t s = 0; s < count; ++s) {
      const int64_t j = blocks[s];
      const float* row = scores + (s * shape.stack + r) * BLOCK;
      const bool branches = sight.branches(own, j);
      // Whole vectors where the query sees all of the block, single keys at the diagonal and the window's edge.
      if (j < own && hidden <= j * BLOCK) {
        for (int64_t i = 0; i < BLOCK; i += LANES) {
          const Vector all = load(row + i);
          most = larger(most, branches ? on_path(all, sight.ends(j) + i, query, -INFINITY) : all);
        }
      } else {
        for (int64_t i = std::max(int64_t{0}, hidden - j * BLOCK); i < (j < own ? BLOCK : place + 1); ++i)
          if (!branches || sight.ends(j)[i] > query) maximum = std::max(maximum, row[i]);
      }
    }
    maximum = std::max(largest(most), maximum);

    Vector sum{};
    for (int64_t s = 0; s < count; ++s) {
      const int64_t j = blocks[s];
      const bool branches = sight.branches(own, j);
      for (int64_t i = 0; i < BLOCK; i += LANES) {
        const int64_t at = (s * shape.stack + r) * BLOCK + i;
        Vector e = exponential((load(scores + at) - maximum) * scale);
        if (j == own) e = first(e, place + 1 - i);
        if (hidden > j * BLOCK + i) e -= first(e, hidden - j * BLOCK - i);
        if (branches) e = on_path(e, sight.ends(j) + i, query, 0.f);
        sum += e;
        store(out + at, e);
      }
    }
    sums[r] = total(sum);
    maxima[r] = maximum * scale;
  }
}

inline const int32_t* data_of(const std::optional<at::Tensor>& ends, const Shape& shape) {
  if (!ends) return nullptr;
  TORCH_CHECK(ends->scalar_type() == at::kInt && ends->is_contiguous() && ends->numel() == shape.tokens,
              "ends must be contiguous int32, one for each of the ", shape.tokens, " tokens");
  TORCH_CHECK(shape.window == std::numeric_limits<int64_t>::max(), "trees have no windows");
  return ends->const_data_ptr<int32_t>();
}

// The forward pass of one key-value head of a document. Keys and values are packed once, when their block is the
// queries' own, and are read by all later blocks of queries.
template <typename Stored, typename T>
class Forward {
 public:
  Forward(const Shape& shape, float scale) : shape_(shape), scale_(scale), scratch_(bytes(shape)) {
    block_ = scratch_.take<T>(shape.panel);
    queries_ = scratch_.take<T>(shape.group * shape.panel);
    keys_ = scratch_.take<T>(shape.most_blocks * shape.panel);
    values_ = scratch_.take<T>(shape.most_blocks * shape.panel);
    weights_ = scratch_.take<T>(shape.most_blocks * shape.stack * BLOCK);
    scores_ = scratch_.take<float>(shape.most_blocks * shape.stack * BLOCK);
    output_ = scratch_.take<float>(shape.group * shape.panel);
    sums_ = scratch_.take<float>(shape.stack);
    maxima_ = scratch_.take<float>(shape.stack);
  }

  // `log_sums` [group, tokens] are those of the group's heads.
  void run(
      Group<Stored> queries, Rows<Stored> keys, Rows<Stored> values, Group<Stored> output, float* log_sums, Sight& sight,
      int64_t length) {
    const int64_t width = shape_.width, panel = shape_.panel, stack = shape_.stack;
    for (int64_t i = 0; i < Shape::blocks(length); ++i) {
      const int64_t begin = i * BLOCK, count = std::min(BLOCK, length - begin);
      copy_block(keys, begin, count, width, block_);
      pack_transposed(block_, BLOCK, width, keys_ + i * panel);
      copy_block(values, begin, count, width, block_);
      pack(block_, BLOCK, width, values_ + i * panel);
      copy_stack(queries, begin, count, width, queries_);
      const std::vector<int64_t>& blocks = sight.blocks(i);
      const int64_t seen = int64_t(blocks.size()), tile = stack * BLOCK;
      for (int64_t s = 0; s < seen; ++s)
        multiply(stack, BLOCK, width, queries_, keys_ + blocks[s] * panel, scores_ + s * tile, false);
      exponentials(shape_, sight, blocks, scores_, scale_, weights_, sums_, maxima_);
      for (int64_t s = 0; s < seen; ++s)
        multiply(stack, width, BLOCK, weights_ + s * tile, values_ + blocks[s] * panel, output_, s > 0);
      for (int64_t head = 0; head < shape_.group; ++head)
        for (int64_t r = 0; r < count; ++r) {
          const int64_t row = head * BLOCK + r;
          store_row(output[head][begin + r], output_ + row * width, width, 1.f / sums_[row]);
          log_sums[head * shape_.tokens + begin + r] = maxima_[row] + std::log(sums_[row]);
        }
    }
  }

 private:
  static int64_t bytes(const Shape& s) {
    return s.most_blocks * (2 * Scratch::padded<T>(s.panel) + 2 * Scratch::padded<float>(s.stack * BLOCK)) +
           (2 * s.group + 1) * Scratch::padded<float>(s.panel) + 2 * Scratch::padded<float>(s.stack);
  }

  const Shape& shape_;
  const float scale_;
  Scratch scratch_;
  T *block_, *queries_, *keys_, *values_, *weights_;
  float *scores_, *output_, *sums_, *maxima_;
};

// Maps q [T, heads, width] and k, v [T, kv heads, width] to the output, shaped like q, and the log-sum-exp of the
// scores [heads, T]. `ends` [T] int32: the documents are trees.
inline std::tuple<at::Tensor, at::Tensor> block_attention(
    const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, at::IntArrayRef lengths,
    const std::optional<at::Tensor>& ends, double scale, int64_t window) {
  const Shape shape(q, k, lengths, window);
  const int32_t* all_ends = data_of(ends, shape);
  auto output = at::empty(q.sizes(), q.options());
  auto log_sums = at::empty({shape.heads, shape.tokens}, q.options().dtype(at::kFloat));
  for_product_type(q, [&](auto stored, auto factor) {
    using Stored = decltype(stored);
    for_documents(lengths, k.size(1), [&](int64_t start, int64_t length, int64_t kv_head) {
      Sight sight(shape, all_ends, start, length);
      Forward<Stored, decltype(factor)>(shape, float(scale)).run(
          group_of<Stored>(q, start, kv_head, shape.group), rows_of<Stored>(k, start, kv_head), rows_of<Stored>(v, start, kv_head),
          group_of<Stored>(output, start, kv_head, shape.group),
          log_sums.mutable_data_ptr<float>() + kv_head * shape.group * shape.tokens + start, sight, length);
    });
  });
  return {output, log_sums};
}

// The backward pass of one key-value head of a document. One thread owns all query heads that share it, so that the
// gradients of keys and values need no atomics and are summed in a fixed order.
//
// Scores are transposed, with keys as rows and stacked queries as columns: brgemm takes its left factor unpacked, and
// the gradients of keys and values have the scores as left factor.
template <typename Stored, typename T>
class Backward {
 public:
  Backward(const Shape& shape, float scale) : shape_(shape), scale_(scale), scratch_(bytes(shape)) {
    const int64_t all = shape.most_blocks * shape.panel, panels = shape.group * shape.panel;
    for (T** part : {&keys_, &key_columns_, &values_}) *part = scratch_.take<T>(all);
    for (float** part : {&dkeys_, &dvalues_}) *part = scratch_.take<float>(all);
    for (T** part : {&queries_, &query_rows_, &query_columns_, &gradients_, &gradient_rows_, &gradient_columns_})
      *part = scratch_.take<T>(panels);
    for (float** part : {&dqueries_, &dquery_rows_}) *part = scratch_.take<float>(panels);
    for (T** part : {&weights_, &dscores_, &dscore_rows_}) *part = scratch_.take<T>(shape.stack * BLOCK);
    for (float** part : {&scores_, &dweights_}) *part = scratch_.take<float>(shape.stack * BLOCK);
    for (float** part : {&dots_, &log_sums_}) *part = scratch_.take<float>(shape.stack);
  }

  // `log_sums` [group, tokens] are those of the group's heads.
  void run(
      Group<Stored> queries, Rows<Stored> keys, Rows<Stored> values, Group<Stored> output, Group<Stored> grad,
      const float* log_sums, Group<Stored> dqueries, Rows<Stored> dkeys, Rows<Stored> dvalues, Sight& sight,
      int64_t length) {
    const int64_t width = shape_.width, panel = shape_.panel, stack = shape_.stack;
    pack_keys(keys, values, length);
    for (int64_t i = 0; i < Shape::blocks(length); ++i) {
      const int64_t begin = i * BLOCK, count = std::min(BLOCK, length - begin);
      take_queries(queries, output, grad, log_sums, begin, count);
      const std::vector<int64_t>& blocks = sight.blocks(i);
      for (const int64_t j : blocks) {
        multiply(BLOCK, stack, width, keys_ + j * panel, query_columns_, scores_, false);
        multiply(BLOCK, stack, width, values_ + j * panel, gradient_columns_, dweights_, false);
        score_gradients(i - j, sight.branches(i, j) ? sight.ends(j) : nullptr, begin);
        multiply(BLOCK, width, stack, weights_, gradient_rows_, dvalues_ + j * panel, true);
        multiply(BLOCK, width, stack, dscores_, query_rows_, dkeys_ + j * panel, true);
        multiply(width, stack, BLOCK, key_columns_ + j * panel, dscore_rows_, dqueries_, j > blocks.front());
      }
      transpose(dqueries_, width, stack, dquery_rows_);
      for (int64_t head = 0; head < shape_.group; ++head)
        for (int64_t r = 0; r < count; ++r)
          store_row(dqueries[head][begin + r], dquery_rows_ + (head * BLOCK + r) * width, width, 1.f);
    }
    for (int64_t r = 0; r < length; ++r) {
      store_row(dkeys[r], dkeys_ + r * width, width, 1.f);
      store_row(dvalues[r], dvalues_ + r * width, width, 1.f);
    }
  }

 private:
  static int64_t bytes(const Shape& s) {
    const int64_t all = s.most_blocks * s.panel;
    return 3 * Scratch::padded<T>(all) + 2 * Scratch::padded<float>(all) +
           8 * Scratch::padded<float>(s.group * s.panel) + 5 * Scratch::padded<float>(s.stack * BLOCK) +
           2 * Scratch::padded<float>(s.stack);
  }

  void pack_keys(Rows<Stored> keys, Rows<Stored> values, int64_t length) {
    for (int64_t j = 0; j < Shape::blocks(length); ++j) {
      const int64_t begin = j * BLOCK, count = std::min(BLOCK, length - begin), at = j * shape_.panel;
      copy_block(keys, begin, count, shape_.width, keys_ + at);
      copy_block(values, begin, count, shape_.width, values_ + at);
      transpose_block(keys_ + at, shape_.width, key_columns_ + at);
    }
    std::fill_n(dkeys_, Shape::blocks(length) * shape_.panel, 0.f);
    std::fill_n(dvalues_, Shape::blocks(length) * shape_.panel, 0.f);
  }

  // Packs a stack of queries and their gradients as operands, and computes each query's dot product of output and
  // gradient, which the softmax's gradient needs. Queries beyond the end are zero and so are their gradients: any
  // finite log-sum will do for them.
  void take_queries(
      Group<Stored> queries, Group<Stored> output, Group<Stored> grad, const float* log_sums, int64_t begin,
      int64_t count) {
    const int64_t width = shape_.width, stack = shape_.stack;
    copy_stack(queries, begin, count, width, queries_);
    pack(queries_, stack, width, query_rows_);
    pack_transposed(queries_, stack, width, query_columns_);
    copy_stack(grad, begin, count, width, gradients_);
    pack(gradients_, stack, width, gradient_rows_);
    pack_transposed(gradients_, stack, width, gradient_columns_);
    for (int64_t head = 0; head < shape_.group; ++head)
      for (int64_t r = 0; r < BLOCK; ++r) {
        const int64_t row = head * BLOCK + r;
        Vector dot{};
        if (r < count)
          for_vectors(width, [&](int64_t c, int64_t n) {
            dot += load(gradients_ + row * width + c, n) * load(output[head][begin + r] + c, n);
          });
        dots_[row] = total(dot);
        log_sums_[row] = r < count ? log_sums[head * shape_.tokens + begin + r] : 0.f;
      }
  }

  // Computes the softmax, and from its gradient that of the scores, for queries `distance` blocks after the keys. On
  // the diagonal a key is hidden from earlier queries; where the window ends, from later ones; and on a tree, from the
  // queries after its end in `tree_ends` (null: there are none; `begin` is the first query). Rows are taken in pairs
  // because a bfloat16 operand interleaves two of them.
  void score_gradients(int64_t distance, const int32_t* tree_ends, int64_t begin) {
    const bool diagonal = distance == 0, ends = (distance + 1) * BLOCK > shape_.window;
    const int64_t stack = shape_.stack;
    for (int64_t r = 0; r < BLOCK; r += 2)
      for (int64_t c = 0; c < stack; c += LANES) {
        const int64_t place = c % BLOCK;  // of the first of these queries in its block
        Vector gradients[2];
        for (int64_t row = r; row < r + 2; ++row) {
          const int64_t at = row * stack + c;
          Vector weight = exponential(load(scores_ + at) * scale_ - load(log_sums_ + c));
          if (diagonal) weight -= first(weight, row - place);
          if (ends) weight = first(weight, shape_.window + row - distance * BLOCK - place);
          if (tree_ends) weight = first(weight, tree_ends[row] - begin - place);
          gradients[row - r] = weight * (load(dweights_ + at) - load(dots_ + c)) * scale_;
          store(weights_ + at, weight);
          store(dscores_ + at, gradients[row - r]);
        }
        store_pair(dscore_rows_ + pair_offset<T>(r, c, stack), stack, gradients[0], gradients[1], LANES);
      }
  }

  const Shape& shape_;
  const float scale_;
  Scratch scratch_;
  T *keys_, *key_columns_, *values_;  // of the whole document; their gradients, summed in float32:
  float *dkeys_, *dvalues_;
  T *queries_, *query_rows_, *query_columns_;  // of one stack of queries, and the gradients of their outputs:
  T *gradients_, *gradient_rows_, *gradient_columns_;
  float *dqueries_, *dquery_rows_, *dots_, *log_sums_;
  T *weights_, *dscores_, *dscore_rows_;  // of one block of keys and one stack of queries
  float *scores_, *dweights_;
};

// Returns the gradients of q, k and v, given that of the output.
inline std::tuple<at::Tensor, at::Tensor, at::Tensor> attention_backward(
    const at::Tensor& grad, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& output,
    const at::Tensor& log_sums, at::IntArrayRef lengths, const std::optional<at::Tensor>& ends, double scale,
    int64_t window) {
  const Shape shape(q, k, lengths, window);
  const int32_t* all_ends = data_of(ends, shape);
  auto dq = at::empty(q.sizes(), q.options()), dk = at::empty(k.sizes(), k.options());
  auto dv = at::empty(v.sizes(), v.options());
  for_product_type(q, [&](auto stored, auto factor) {
    using Stored = decltype(stored);
    for_documents(lengths, k.size(1), [&](int64_t start, int64_t length, int64_t kv_head) {
      Sight sight(shape, all_ends, start, length);
      const auto group = [&](const at::Tensor& packed) { return group_of<Stored>(packed, start, kv_head, shape.group); };
      const auto rows = [&](const at::Tensor& packed) { return rows_of<Stored>(packed, start, kv_head); };
      Backward<Stored, decltype(factor)>(shape, float(scale)).run(
          group(q), rows(k), rows(v), group(output), group(grad),
          log_sums.const_data_ptr<float>() + kv_head * shape.group * shape.tokens + start, group(dq), rows(dk),
          rows(dv), sight, length);
    });
  });
  return {dq, dk, dv};
}

}  // namespace rlrun
