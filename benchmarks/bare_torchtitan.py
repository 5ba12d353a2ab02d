"""A training step of torchtitan without rlrun, for trainer_step.py: torchtitan's own Qwen3, cross-entropy and
AdamW in a loop as its trainer runs it on one device (autocast over float32 weights).

Its attention over documents has no kernel for CPUs, so it gets rlrun's.
"""

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torchtitan.components.loss import IGNORE_INDEX, cross_entropy_loss
from torchtitan.models.common.config_utils import make_ffn_config, make_gqa_config
from torchtitan.models.common.rope import CosSinRoPE

from rlrun.converters.families.model_folder import WeightFolder
from rlrun.models.architecture import Architecture
from rlrun.models.config_json import read_architecture
from rlrun.runner.contracts.carriers import TrainSequence
from rlrun.runner.trainer.compat.modules import Embedding, Linear, Qwen3Model, Qwen3TransformerBlock, RMSNorm
from rlrun.runner.trainer.model.layers import PackedAttention
from rlrun.runner.trainer.parameters.parameters import Parameters
from rlrun.runner.trainer.passes.packed_batch import make_pack
from rlrun.specs.sections.job import Spec
from rlrun.specs.sections.trainer import TrainerSpec

KEPT: dict[str, Any] = {}
"""Parameters are loaded, not initialised."""


def stock_model(model: Architecture) -> Qwen3Model:
    """torchtitan's decoder of this shape, in float32."""

    def norm(size: int) -> RMSNorm.Config:
        return RMSNorm.Config(normalized_shape=size, eps=model.norm_eps, param_init=KEPT)

    attention = make_gqa_config(
        dim=model.hidden,
        n_heads=model.heads,
        n_kv_heads=model.kv_heads,
        head_dim=model.head_dim,
        wqkv_param_init=KEPT,
        wo_param_init=KEPT,
        inner_attention=PackedAttention.Config(),
        rope=CosSinRoPE.Config(dim=model.head_dim, max_seq_len=model.max_positions, theta=model.rope.theta),
        qk_norm=norm(model.head_dim),
    )
    feed_forward = make_ffn_config(
        dim=model.hidden, hidden_dim=model.intermediate, w1_param_init=KEPT, w2w3_param_init=KEPT
    )
    block = Qwen3TransformerBlock.Config(
        attention_norm=norm(model.hidden),
        ffn_norm=norm(model.hidden),
        attention=attention,
        feed_forward=feed_forward,
    )
    built: Qwen3Model = Qwen3Model.Config(
        vocab_size=model.vocab,
        dim=model.hidden,
        norm=norm(model.hidden),
        enable_weight_tying=model.tied,
        layers=[block] * model.layers,
        tok_embeddings=Embedding.Config(
            num_embeddings=model.vocab, embedding_dim=model.hidden, param_init=KEPT
        ),
        lm_head=Linear.Config(in_features=model.hidden, out_features=model.vocab, param_init=KEPT),
    ).build()
    return built


def adamw(model: torch.nn.Module, trainer: TrainerSpec) -> torch.optim.AdamW:
    """torch's own, as the trainer's is set."""
    return torch.optim.AdamW(
        model.parameters(),
        lr=trainer.lr,
        betas=trainer.betas,
        eps=trainer.eps,
        weight_decay=trainer.weight_decay,
        fused=True,
    )


class Torchtitan:
    """torchtitan's model, loss and optimizer."""

    def __init__(self, folder: Path, spec: Spec, device: torch.device) -> None:
        model = read_architecture(folder)
        with torch.device(device):
            self.model = stock_model(model)
        self.model.train()
        with WeightFolder(folder, model) as weights:
            Parameters([self.model], model, trained=False).load(lambda one: weights.read(one.name))
        trainer = spec.trainer
        self.optimizer = adamw(self.model, trainer)
        self.max_norm, self.device = trainer.max_grad_norm, device
        self.half = trainer.dtype == "bfloat16"

    def forward(self, sequences: Sequence[TrainSequence]) -> torch.Tensor:
        """The loss of a micro-batch."""
        pack = make_pack(sequences, 1, self.device)
        labels = torch.full_like(pack.tokens, IGNORE_INDEX)
        labels[0, pack.rows] = pack.targets
        kind = self.device.type
        precision = torch.autocast(kind, torch.bfloat16) if self.half else contextlib.nullcontext()
        with precision:
            logits = self.model(pack.tokens, pack.positions[None], pack.documents)
            return cross_entropy_loss(logits, labels) / len(pack.targets)

    def update(self) -> None:
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.max_norm, foreach=True)
        self.optimizer.step()
