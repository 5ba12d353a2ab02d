// Registers the operators of `torch.ops.rlrun_exact`; operators.py documents what each computes.
#include <ATen/ops/add.h>
#include <ATen/ops/embedding.h>
#include <c10/core/InferenceMode.h>
#include <torch/library.h>

#include "documents.h"
#include "products.h"

namespace {

namespace ops = rlrun_exact;
using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

// Runs a whole decoding step in one call, as the engine's own `decode` does: for small models calling operators from
// Python would take longer than the arithmetic. `layers` has twelve tensors per layer, in the order of LayerWeights'
// fields, whose matrices are packed. Returns normed states [M, H].
Tensor decode(const Tensor& columns, const Tensor& prefix_tables, const Tensor& suffix_tables, const Tensor& embedding,
              const c10::List<OptionalTensor>& layers, const Tensor& norm, const Tensor& keys, const Tensor& values,
              const Tensor& cosines, const Tensor& sines, double eps) {
  enum { INPUT_NORM, QKV, QKV_BIAS, Q_NORM, K_NORM, OUTPUT, OUTPUT_BIAS, MLP_NORM, GATE_UP, GATE_UP_BIAS, DOWN, DOWN_BIAS, PARTS };
  c10::InferenceMode guard;
  const ops::CachedRows rows(columns, prefix_tables, suffix_tables);
  auto x = at::embedding(embedding, columns[0]);
  for (int64_t l = 0; l < keys.size(0); ++l) {
    const auto part = [&](int64_t index) { return layers.get(l * PARTS + index); };
    const auto layer_keys = keys[l], layer_values = values[l];
    const int64_t inner = part(DOWN)->size(1) * part(DOWN)->size(2);
    const auto h = std::get<0>(ops::rms_norm(x, *part(INPUT_NORM), eps));
    const auto qkv = ops::linear(h, *part(QKV), part(QKV_BIAS), false);
    ops::rope_store(qkv, part(Q_NORM), part(K_NORM), eps, cosines, sines, columns[1], columns[2], layer_keys, layer_values);
    const auto mixed = ops::decode_attention(qkv, rows, layer_keys, layer_values);
    x = at::add(x, ops::linear(mixed, *part(OUTPUT), part(OUTPUT_BIAS), false));
    const auto normed = std::get<0>(ops::rms_norm(x, *part(MLP_NORM), eps));
    const auto both = ops::linear(normed, *part(GATE_UP), part(GATE_UP_BIAS), false);
    const auto product = ops::silu_mul(at::slice(both, 1, 0, inner), at::slice(both, 1, inner));
    x = at::add(x, ops::linear(product, *part(DOWN), part(DOWN_BIAS), false));
  }
  return std::get<0>(ops::rms_norm(x, norm, eps));
}

}  // namespace

TORCH_LIBRARY(rlrun_exact, m) {
  m.def("pack(Tensor weight) -> Tensor");
  m.def("linear(Tensor x, Tensor packed, Tensor? bias, bool wide) -> Tensor");
  m.def("rms_norm(Tensor x, Tensor weight, float eps) -> (Tensor, Tensor)");
  m.def("rotate(Tensor x, Tensor cosines, Tensor sines) -> Tensor");
  m.def("silu_mul(Tensor gate, Tensor up) -> Tensor");
  m.def("log_softmax(Tensor logits, Tensor targets, Tensor temperatures) -> Tensor");
  m.def("attention(Tensor q, Tensor k, Tensor v, int[] lengths, Tensor? ends, float scale) -> (Tensor, Tensor)");
  m.def("rope_store(Tensor(a!) qkv, Tensor? q_norm, Tensor? k_norm, float eps, Tensor cosines, Tensor sines, "
        "Tensor positions, Tensor slots, Tensor(b!) keys, Tensor(c!) values) -> ()");
  m.def("continued_attention(Tensor q, Tensor keys, Tensor values, Tensor table, int start, float scale) -> Tensor");
  m.def("decode(Tensor columns, Tensor prefix_tables, Tensor suffix_tables, Tensor embedding, Tensor?[] layers, "
        "Tensor norm, Tensor(a!) keys, Tensor(b!) values, Tensor cosines, Tensor sines, float eps) -> Tensor");
}

TORCH_LIBRARY_IMPL(rlrun_exact, CPU, m) {
  m.impl("pack", &ops::pack);
  m.impl("linear", &ops::linear);
  m.impl("rms_norm", &ops::rms_norm);
  m.impl("rotate", &ops::rotate);
  m.impl("silu_mul", &ops::silu_mul);
  m.impl("log_softmax", &ops::log_softmax);
  m.impl("attention", &ops::attention);
  m.impl("rope_store", &ops::rope_store);
  m.impl("continued_attention", &ops::continued_attention);
  m.impl("decode", &decode);
}
