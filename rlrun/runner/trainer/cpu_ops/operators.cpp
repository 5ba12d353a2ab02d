// Registers the operators of `torch.ops.rlrun_trainer`; the headers beside this file document what each computes.
#include <torch/library.h>

#include "attention.h"
#include "elementwise.h"
#include "softmax.h"
#include "weight_gradient.h"

namespace ops = rlrun_trainer;

TORCH_LIBRARY(rlrun_trainer, m) {
  m.def("rms_norm(Tensor x, Tensor weight, float eps) -> (Tensor, Tensor)");
  m.def("rms_norm_backward(Tensor grad, Tensor x, Tensor weight, Tensor scales) -> (Tensor, Tensor)");
  m.def("rotate(Tensor x, Tensor table, bool back) -> Tensor");
  m.def("silu_mul(Tensor gate, Tensor up) -> Tensor");
  m.def("silu_mul_backward(Tensor grad, Tensor gate, Tensor up) -> (Tensor, Tensor)");
  m.def("softmax_statistics(Tensor logits, Tensor targets, float temperature) -> Tensor");
  m.def("softmax_gradients_(Tensor(a!) logits, Tensor targets, Tensor ours, Tensor log_sums, "
        "Tensor log_prob_gradients, Tensor? entropies, Tensor? entropy_gradients, float temperature) -> ()");
  m.def("attention(Tensor q, Tensor k, Tensor v, int[] lengths, Tensor? ends, float scale, "
        "int window) -> (Tensor, Tensor)");
  m.def("attention_backward(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor output, Tensor log_sums, "
        "int[] lengths, Tensor? ends, float scale, int window) -> (Tensor, Tensor, Tensor)");
  m.def("add_weight_gradient_(Tensor(a!) sums, Tensor gradients, Tensor input) -> ()");
}

TORCH_LIBRARY_IMPL(rlrun_trainer, CPU, m) {
  m.impl("rms_norm", &ops::rms_norm);
  m.impl("rms_norm_backward", &ops::rms_norm_backward);
  m.impl("rotate", &ops::rotate);
  m.impl("silu_mul", &ops::silu_mul);
  m.impl("silu_mul_backward", &ops::silu_mul_backward);
  m.impl("softmax_statistics", &ops::softmax_statistics);
  m.impl("softmax_gradients_", &ops::softmax_gradients_);
  m.impl("attention", &ops::attention);
  m.impl("attention_backward", &ops::attention_backward);
  m.impl("add_weight_gradient_", &ops::add_weight_gradient_);
}
