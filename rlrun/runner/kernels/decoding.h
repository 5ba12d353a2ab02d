// A whole decoding step of the engine in one call: for small models, calling operators from Python would take longer than
// the arithmetic.
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/linear.h>
#include <c10/core/InferenceMode.h>

#include "documents.h"
#include "products.h"

namespace rlrun {

// Returns x weight^T + bias. The weight may be packed in panels, or for oneDNN; at::linear does not accept packed weights.
inline at::Tensor multiply(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias) {
  if (weight.dim() == 3) return linear(x, weight, bias, false);
  using Linear = at::Tensor(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, std::string_view,
                            c10::List<std::optional<at::Scalar>>, std::optional<std::string_view>);
  if (!weight.is_mkldnn()) return at::linear(x, weight, bias);
  static const auto pointwise =
      c10::Dispatcher::singleton().findSchemaOrThrow("mkldnn::_linear_pointwise", "").typed<Linear>();
  return pointwise.call(x, weight, bias, "none", c10::List<std::optional<at::Scalar>>(), "");
}

// `columns` is batches.DecodeBatch.columns. `layers` has twelve tensors per layer, in the order of LayerWeights' fields.
// Returns normed states [M, H].
inline at::Tensor decode(
    const at::Tensor& columns, const at::Tensor& prefix_tables, const at::Tensor& suffix_tables,
    const at::Tensor& embedding, const c10::List<std::optional<at::Tensor>>& layers, const at::Tensor& norm,
    const at::Tensor& keys, const at::Tensor& values, const at::Tensor& cosines, const at::Tensor& sines, double eps) {
  enum {
    INPUT_NORM, QKV, QKV_BIAS, Q_NORM, K_NORM, OUTPUT, OUTPUT_BIAS, MLP_NORM, GATE_UP, GATE_UP_BIAS, DOWN, DOWN_BIAS,
    FIELDS
  };
  c10::InferenceMode guard;
  const CachedRows rows(columns, prefix_tables, suffix_tables);
  const auto part = [&](int64_t layer, int64_t index) { return layers.get(layer * FIELDS + index); };
  const int64_t count = keys.size(0);
  auto x = at::embedding(embedding, columns[0]);
  auto h = std::get<0>(rms_norm(x, *part(0, INPUT_NORM), eps));
  for (int64_t l = 0; l < count; ++l) {
    const auto layer_keys = keys[l], layer_values = values[l];
    const auto qkv = multiply(h, *part(l, QKV), part(l, QKV_BIAS));
    rope_store(qkv, part(l, Q_NORM), part(l, K_NORM), eps, cosines, sines, columns[1], columns[2], layer_keys, layer_values);
    const auto attended = decode_attention(qkv, rows, layer_keys, layer_values);
    h = add_rms_norm(x, multiply(attended, *part(l, OUTPUT), part(l, OUTPUT_BIAS)), *part(l, MLP_NORM), eps);
    const auto both = multiply(h, *part(l, GATE_UP), part(l, GATE_UP_BIAS));
    const int64_t inner = both.size(1) / 2;
    const auto product = silu_mul(at::slice(both, 1, 0, inner), at::slice(both, 1, inner));
    const auto next = l + 1 < count ? *part(l + 1, INPUT_NORM) : norm;
    h = add_rms_norm(x, multiply(product, *part(l, DOWN), part(l, DOWN_BIAS)), next, eps);
  }
  return h;
}

}  // namespace rlrun
