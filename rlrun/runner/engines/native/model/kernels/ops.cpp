// Registers the engine's operations on a CPU as torch.ops.rlrun_engine.*; torch_ops.py and sampling.py document what
// each computes.
#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/linear.h>
#include <c10/core/InferenceMode.h>
#include <torch/library.h>

#include "attention.h"
#include "exact_ops/products.h"
#include "sampling.h"

namespace rlrun {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using kernels::BF16;
using kernels::Heads;
using kernels::Span;

template <class T>
T* data(const Tensor& t) {
  return reinterpret_cast<T*>(t.data_ptr());
}
template <class T>
const T* data(const OptionalTensor& t) {
  return t ? data<T>(*t) : nullptr;
}

// Calls f with a value of the tensor's element type.
template <class F>
void dispatch(const Tensor& t, F&& f) {
  TORCH_CHECK(t.scalar_type() == at::kFloat || t.scalar_type() == at::kBFloat16, "float32 or bfloat16, not ", t.dtype());
  t.scalar_type() == at::kFloat ? f(float{}) : f(BF16{});
}

// Returns x weight^T + bias. The weight may be packed in panels, or for oneDNN; at::linear does not accept packed weights.
Tensor multiply(const Tensor& x, const Tensor& weight, const OptionalTensor& bias) {
  if (weight.dim() == 3) return rlrun_exact::linear(x, weight, bias, false);
  using Linear = Tensor(const Tensor&, const Tensor&, const OptionalTensor&, std::string_view,
                        c10::List<std::optional<at::Scalar>>, std::optional<std::string_view>);
  if (!weight.is_mkldnn()) return at::linear(x, weight, bias);
  static const auto pointwise =
      c10::Dispatcher::singleton().findSchemaOrThrow("mkldnn::_linear_pointwise", "").typed<Linear>();
  return pointwise.call(x, weight, bias, "none", c10::List<std::optional<at::Scalar>>(), "");
}

// Whether products with panels are faster than oneDNN's on this machine: they need AVX-512, in bfloat16 with its products
// of pairs, and do not use AMX.
bool has_fast_panels(at::ScalarType dtype) {
#if defined(__AVX512BF16__) && !defined(__AMX_BF16__)
  return dtype == at::kFloat || dtype == at::kBFloat16;
#elif defined(__AVX512F__)
  return dtype == at::kFloat;
#else
  return false;
#endif
}

constexpr int64_t GRAIN = 8;  // the fewest rows for which a thread pays off

Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps) {
  auto y = at::empty_like(x);
  dispatch(x, [&](auto type) {
    using T = decltype(type);
    const int64_t n = x.size(1);
    at::parallel_for(0, x.size(0), GRAIN, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; r++)
        kernels::rms_norm(data<T>(x) + r * n, data<T>(weight), data<T>(y) + r * n, n, eps);
    });
  });
  return y;
}

// Adds delta to x in place, and returns the norm of the sum: one pass over memory instead of two.
Tensor add_rms_norm(const Tensor& x, const Tensor& delta, const Tensor& weight, double eps) {
  auto y = at::empty_like(x);
  dispatch(x, [&](auto type) {
    using T = decltype(type);
    const int64_t n = x.size(1);
    at::parallel_for(0, x.size(0), GRAIN, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; r++)
        kernels::add_rms_norm(data<T>(x) + r * n, data<T>(delta) + r * n, data<T>(weight), data<T>(y) + r * n, n, eps);
    });
  });
  return y;
}

Tensor silu_mul(const Tensor& gate_up) {
  const int64_t n = gate_up.size(1) / 2;
  auto y = at::empty({gate_up.size(0), n}, gate_up.options());
  dispatch(gate_up, [&](auto type) {
    using T = decltype(type);
    at::parallel_for(0, gate_up.size(0), GRAIN, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; r++)
        kernels::silu_mul(data<T>(gate_up) + r * 2 * n, data<T>(y) + r * n, n);
    });
  });
  return y;
}

// Changes qkv [T, (queries + 2 kv) * dim] in place, and writes to one layer's cache: keys [blocks, kv, dim, 16] and
// values [blocks, kv, 16, dim].
void rope_store(const Tensor& qkv, const OptionalTensor& q_norm, const OptionalTensor& k_norm, double eps,
                const Tensor& cos, const Tensor& sin, const Tensor& positions, const Tensor& slots, const Tensor& keys,
                const Tensor& values) {
  const int64_t kv = keys.size(1), dim = keys.size(2), width = qkv.size(1);
  const Heads heads{width / dim - 2 * kv, kv, dim};
  const int64_t *position = positions.const_data_ptr<int64_t>(), *slot = slots.const_data_ptr<int64_t>();
  const float *c = cos.const_data_ptr<float>(), *s = sin.const_data_ptr<float>();
  dispatch(qkv, [&](auto type) {
    using T = decltype(type);
    at::parallel_for(0, qkv.size(0), GRAIN, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; r++) {
        const int64_t at = position[r] * dim / 2;
        kernels::rope_store(data<T>(qkv) + r * width, data<T>(q_norm), data<T>(k_norm), c + at, s + at, slot[r],
                          data<T>(keys), data<T>(values), heads, eps);
      }
    });
  });
}

// The rows of a decoding step; `packed` is batches.DecodeBatch.columns.
struct Rows {
  explicit Rows(const Tensor& packed, const Tensor& prefix_tables, const Tensor& suffix_tables)
      : count(packed.size(1)),
        prefix_table(prefix_tables.const_data_ptr<int32_t>()),
        prefix_width(prefix_tables.size(1)),
        suffix_table(suffix_tables.const_data_ptr<int32_t>()),
        suffix_width(suffix_tables.size(1)) {
    TORCH_CHECK(packed.size(0) == 7 && packed.stride(1) == 1, "rows must be [7, M], columns in one piece");
    auto column = [&](int64_t index) { return packed.const_data_ptr<int64_t>() + index * packed.stride(0); };
    suffix_length = column(3);
    seat = column(4);
    prefix_seat = column(5);
    prefix_length = column(6);
    chunk();
  }

  Span prefix(int64_t row) const { return {prefix_table + prefix_seat[row] * prefix_width, prefix_length[row]}; }
  Span own(int64_t row) const { return {suffix_table + seat[row] * suffix_width, suffix_length[row]}; }

  int64_t count;
  // Runs of at most 8 neighbouring rows that share a prompt, each processed by one thread.
  std::vector<std::pair<int64_t, int64_t>> chunks;

 private:
  const int32_t* prefix_table;
  int64_t prefix_width;
  const int32_t* suffix_table;
  int64_t suffix_width;
  const int64_t *seat, *prefix_seat, *prefix_length, *suffix_length;

  // Chunks become smaller where there would be fewer of them than threads. More than 8 rows would not share more reads:
  // score takes at most 8 queries at a time.
  void chunk() {
    const int64_t largest = std::clamp<int64_t>(count / at::get_num_threads(), 1, 8);
    for (int64_t first = 0; first < count;) {
      int64_t last = first + 1;
      while (last < count && last - first < largest && prefix_seat[last] == prefix_seat[first]) last++;
      chunks.emplace_back(first, last);
      first = last;
    }
  }
};

Tensor attention(const Tensor& qkv, const Rows& rows, const Tensor& keys, const Tensor& values) {
  const int64_t kv = keys.size(1), dim = keys.size(2), width = qkv.size(1), queries = width / dim - 2 * kv;
  auto out = at::empty({rows.count, queries * dim}, qkv.options());
  dispatch(qkv, [&](auto type) {
    using T = decltype(type);
    const kernels::Cache<T> cache{data<T>(keys), data<T>(values), {queries, kv, dim}};
    const T* q = data<T>(qkv);
    T* o = data<T>(out);
    at::parallel_for(0, static_cast<int64_t>(rows.chunks.size()) * kv, 1, [&](int64_t begin, int64_t end) {
      static thread_local kernels::Scratch scratch;
      for (int64_t task = begin; task < end; task++) {
        const auto [first, last] = rows.chunks[task / kv];
        kernels::attend(
            cache, task % kv, first, last, rows.prefix(first), [&](int64_t r) { return q + r * width; },
            [&](int64_t r) { return rows.own(r); }, [&](int64_t r) { return o + r * queries * dim; }, scratch);
      }
    });
  });
  return out;
}

// Runs a whole decoding step; one call per step, because for small models calling torch's operators from Python would
// take longer than the arithmetic. `packed` is batches.DecodeBatch.columns. `layers` has twelve tensors per layer, in
// the order of LayerWeights' fields. Returns normed states [M, H].
Tensor decode(const Tensor& packed, const Tensor& prefix_tables, const Tensor& suffix_tables, const Tensor& embedding,
              const c10::List<OptionalTensor>& layers, const Tensor& norm, const Tensor& keys, const Tensor& values,
              const Tensor& cos, const Tensor& sin, double eps) {
  enum { INPUT_NORM, QKV, QKV_BIAS, Q_NORM, K_NORM, OUTPUT, OUTPUT_BIAS, MLP_NORM, GATE_UP, GATE_UP_BIAS, DOWN, DOWN_BIAS, PARTS };
  c10::InferenceMode guard;
  const Rows rows(packed, prefix_tables, suffix_tables);
  const auto tokens = packed[0], positions = packed[1], slots = packed[2];
  const int64_t count = keys.size(0);
  auto part = [&](int64_t layer, int64_t index) { return layers.get(layer * PARTS + index); };
  auto x = at::embedding(embedding, tokens);
  auto h = rms_norm(x, *part(0, INPUT_NORM), eps);
  for (int64_t l = 0; l < count; l++) {
    const auto layer_keys = keys[l], layer_values = values[l];
    auto qkv = multiply(h, *part(l, QKV), part(l, QKV_BIAS));
    rope_store(qkv, part(l, Q_NORM), part(l, K_NORM), eps, cos, sin, positions, slots, layer_keys, layer_values);
    auto attended = attention(qkv, rows, layer_keys, layer_values);
    h = add_rms_norm(x, multiply(attended, *part(l, OUTPUT), part(l, OUTPUT_BIAS)), *part(l, MLP_NORM), eps);
    auto inner = silu_mul(multiply(h, *part(l, GATE_UP), part(l, GATE_UP_BIAS)));
    const auto next = l + 1 < count ? *part(l + 1, INPUT_NORM) : norm;
    h = add_rms_norm(x, multiply(inner, *part(l, DOWN), part(l, DOWN_BIAS)), next, eps);
  }
  return h;
}

// Draws a token for every row, and calls `each(row, drawn, sampler, limits)` from several threads. logits [B, V];
// temperatures float32 [B]; seeds, positions int64 [B]. Limits, all or none: top_ps float32 [B], top_ks int64 [B],
// forbidden bool [B, V].
template <class F>
void draw_rows(const Tensor& logits, const Tensor& temperatures, const Tensor& seeds, const Tensor& positions,
               const OptionalTensor& top_ps, const OptionalTensor& top_ks, const OptionalTensor& forbidden, F&& each) {
  const int64_t count = logits.size(0), vocab = logits.size(1);
  auto limits = [&](int64_t row) {
    if (!forbidden) return kernels::Limits{};
    return kernels::Limits{top_ps->const_data_ptr<float>()[row], top_ks->const_data_ptr<int64_t>()[row],
                           forbidden->const_data_ptr<bool>() + row * vocab};
  };
  dispatch(logits, [&](auto type) {
    using T = decltype(type);
    at::parallel_for(0, count, 1, [&](int64_t begin, int64_t end) {
      kernels::RowSampler<T> sampler(vocab);
      for (int64_t r = begin; r < end; r++) {
        const double draw = kernels::uniform(seeds.const_data_ptr<int64_t>()[r], positions.const_data_ptr<int64_t>()[r]);
        const kernels::Limits own = limits(r);
        const float temperature = temperatures.const_data_ptr<float>()[r];
        each(r, sampler.draw(data<T>(logits) + r * vocab, temperature, draw, own), sampler, own);
      }
    });
  });
}

std::tuple<Tensor, Tensor> sample(const Tensor& logits, const Tensor& temperatures, const Tensor& seeds,
                                  const Tensor& positions, const OptionalTensor& top_ps, const OptionalTensor& top_ks,
                                  const OptionalTensor& forbidden) {
  auto tokens = at::empty({logits.size(0)}, seeds.options());
  auto log_probs = at::empty({logits.size(0)}, temperatures.options());
  draw_rows(logits, temperatures, seeds, positions, top_ps, top_ks, forbidden,
            [&](int64_t r, const kernels::Drawn& drawn, const auto&, const kernels::Limits&) {
              tokens.data_ptr<int64_t>()[r] = drawn.token;
              log_probs.data_ptr<float>()[r] = drawn.log_prob;
            });
  return {tokens, log_probs};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> sample_with_masks(const Tensor& logits, const Tensor& temperatures,
                                                                     const Tensor& seeds, const Tensor& positions,
                                                                     const Tensor& top_ps, const Tensor& top_ks,
                                                                     const Tensor& forbidden) {
  const int64_t count = logits.size(0);
  auto tokens = at::empty({count}, seeds.options());
  auto log_probs = at::empty({count}, temperatures.options());
  auto kept_log_probs = at::empty({count}, temperatures.options());
  std::vector<std::vector<int32_t>> masks(count);
  draw_rows(logits, temperatures, seeds, positions, top_ps, top_ks, forbidden,
            [&](int64_t r, const kernels::Drawn& drawn, const auto& sampler, const kernels::Limits& limits) {
              tokens.data_ptr<int64_t>()[r] = drawn.token;
              log_probs.data_ptr<float>()[r] = drawn.log_prob;
              kept_log_probs.data_ptr<float>()[r] = limits.nucleus() ? drawn.kept_log_prob : drawn.log_prob;
              if (!limits.nucleus()) return;
              const bool greedy = temperatures.const_data_ptr<float>()[r] == 0.0f;
              masks[r] = greedy ? std::vector<int32_t>{static_cast<int32_t>(drawn.token)} : sampler.kept();
            });
  auto lengths = at::empty({count}, seeds.options());
  int64_t total = 0;
  for (int64_t r = 0; r < count; r++) total += lengths.data_ptr<int64_t>()[r] = masks[r].size();
  auto ids = at::empty({total}, seeds.options().dtype(at::kInt));
  int32_t* next = ids.data_ptr<int32_t>();
  for (const auto& mask : masks) next = std::copy(mask.begin(), mask.end(), next);
  return {tokens, log_probs, kept_log_probs, lengths, ids};
}

}  // namespace

TORCH_LIBRARY(rlrun_engine, m) {
  m.def("has_fast_panels(ScalarType dtype) -> bool", &has_fast_panels);
  m.def("pack(Tensor weight) -> Tensor", &rlrun_exact::pack);
  m.def("linear(Tensor x, Tensor packed, Tensor? bias, bool wide) -> Tensor", &rlrun_exact::linear);
  m.def("rms_norm(Tensor x, Tensor weight, float eps) -> Tensor", &rms_norm);
  m.def("add_rms_norm(Tensor(a!) x, Tensor delta, Tensor weight, float eps) -> Tensor", &add_rms_norm);
  m.def("silu_mul(Tensor gate_up) -> Tensor", &silu_mul);
  m.def(
      "rope_store(Tensor(a!) qkv, Tensor? q_norm, Tensor? k_norm, float eps, Tensor cos, Tensor sin, Tensor positions, "
      "Tensor slots, Tensor(b!) keys, Tensor(c!) values) -> ()",
      &rope_store);
  m.def(
      "decode(Tensor packed, Tensor prefix_tables, Tensor suffix_tables, Tensor embedding, Tensor?[] layers, Tensor norm, "
      "Tensor(a!) keys, Tensor(b!) values, Tensor cos, Tensor sin, float eps) -> Tensor",
      &decode);
  m.def(
      "sample(Tensor logits, Tensor temperatures, Tensor seeds, Tensor positions, Tensor? top_ps, Tensor? top_ks, "
      "Tensor? forbidden) -> (Tensor, Tensor)",
      &sample);
  m.def(
      "sample_with_masks(Tensor logits, Tensor temperatures, Tensor seeds, Tensor positions, Tensor top_ps, Tensor top_ks, "
      "Tensor forbidden) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
      &sample_with_masks);
}

}  // namespace rlrun
