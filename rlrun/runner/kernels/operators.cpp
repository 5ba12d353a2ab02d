// Registers the operators of `torch.ops.rlrun`; operators.py lists what each computes.
#include <torch/library.h>

#include "block_attention.h"
#include "decoding.h"
#include "sampling.h"
#include "weight_gradient.h"

namespace {

// Whether products with panels are faster than oneDNN's on this machine: they use AVX-512 or AVX2, for bfloat16 the
// products of AVX-512, and never AMX.
bool has_fast_panels(at::ScalarType dtype) {
#if defined(__AVX512BF16__) && !defined(__AMX_BF16__)
  if (dtype == at::kBFloat16) return true;
#endif
#if defined(__AVX2__)
  return dtype == at::kFloat;
#else
  return false;
#endif
}

}  // namespace

TORCH_LIBRARY(rlrun, m) {
  m.def("has_fast_panels(ScalarType dtype) -> bool", &has_fast_panels);
  m.def("pack(Tensor weight) -> Tensor");
  m.def("linear(Tensor x, Tensor packed, Tensor? bias, bool wide) -> Tensor");
  m.def("rms_norm(Tensor x, Tensor weight, float eps) -> (Tensor, Tensor)");
  m.def("rms_norm_backward(Tensor grad, Tensor x, Tensor weight, Tensor scales) -> (Tensor, Tensor)");
  m.def("rotate(Tensor x, Tensor cosines, Tensor sines, bool back) -> Tensor");
  m.def("silu_mul(Tensor gate, Tensor up) -> Tensor");
  m.def("silu_mul_backward(Tensor grad, Tensor gate, Tensor up) -> (Tensor, Tensor)");
  m.def("log_softmax(Tensor logits, Tensor targets, Tensor temperatures) -> Tensor");
  m.def("softmax_gradients_(Tensor(a!) logits, Tensor targets, Tensor ours, Tensor log_sums, "
        "Tensor log_prob_gradients, Tensor? entropies, Tensor? entropy_gradients, float temperature) -> ()");
  m.def("attention(Tensor q, Tensor k, Tensor v, int[] lengths, Tensor? ends, float scale) -> (Tensor, Tensor)");
  m.def("block_attention(Tensor q, Tensor k, Tensor v, int[] lengths, Tensor? ends, float scale, "
        "int window) -> (Tensor, Tensor)");
  m.def("attention_backward(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor output, Tensor log_sums, "
        "int[] lengths, Tensor? ends, float scale, int window) -> (Tensor, Tensor, Tensor)");
  m.def("add_weight_gradient_(Tensor(a!) sums, Tensor gradients, Tensor input) -> ()");
  m.def("rope_store(Tensor(a!) qkv, Tensor? q_norm, Tensor? k_norm, float eps, Tensor cosines, Tensor sines, "
        "Tensor positions, Tensor slots, Tensor(b!) keys, Tensor(c!) values) -> ()");
  m.def("continued_attention(Tensor q, Tensor keys, Tensor values, Tensor table, int start, float scale) -> Tensor");
  // Not for a backend: matrices may be packed for oneDNN's.
  m.def("decode(Tensor columns, Tensor prefix_tables, Tensor suffix_tables, Tensor embedding, Tensor?[] layers, "
        "Tensor norm, Tensor(a!) keys, Tensor(b!) values, Tensor cosines, Tensor sines, float eps) -> Tensor",
        &rlrun::decode);
  m.def("sample(Tensor logits, Tensor temperatures, Tensor seeds, Tensor positions, Tensor? top_ps, Tensor? top_ks, "
        "Tensor? forbidden) -> (Tensor, Tensor)");
  m.def("sample_with_masks(Tensor logits, Tensor temperatures, Tensor seeds, Tensor positions, Tensor top_ps, "
        "Tensor top_ks, Tensor forbidden) -> (Tensor, Tensor, Tensor, Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(rlrun, CPU, m) {
  m.impl("pack", &rlrun::pack_matrix);
  m.impl("linear", &rlrun::linear);
  m.impl("rms_norm", &rlrun::rms_norm);
  m.impl("rms_norm_backward", &rlrun::rms_norm_backward);
  m.impl("rotate", &rlrun::rotate);
  m.impl("silu_mul", &rlrun::silu_mul);
  m.impl("silu_mul_backward", &rlrun::silu_mul_backward);
  m.impl("log_softmax", &rlrun::log_softmax);
  m.impl("softmax_gradients_", &rlrun::softmax_gradients_);
  m.impl("attention", &rlrun::attention);
  m.impl("block_attention", &rlrun::block_attention);
  m.impl("attention_backward", &rlrun::attention_backward);
  m.impl("add_weight_gradient_", &rlrun::add_weight_gradient_);
  m.impl("rope_store", &rlrun::rope_store);
  m.impl("continued_attention", &rlrun::continued_attention);
  m.impl("sample", &rlrun::sample);
  m.impl("sample_with_masks", &rlrun::sample_with_masks);
}
