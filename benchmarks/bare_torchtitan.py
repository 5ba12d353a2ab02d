"""A training step of torchtitan without rlrun, for trainer_step.py.

`Torchtitan`: torchtitan's own Qwen3, cross-entropy and AdamW in a loop as its trainer runs it on one device
(autocast over float32 weights). Its attention over documents has no kernel for CPUs, so it gets rlrun's.
`Loop`: the modules that rlrun trains, with its log-probs, in a loop without anything around them.
"""

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torchtitan.components.loss import IGNORE_INDEX, cross_entropy_loss
from torchtitan.models.common.config_utils import make_ffn_config, make_gqa_config
from torchtitan.models.common.rope import CosSinRoPE

from rlrun.converters.architecture import Architecture, read_architecture
from rlrun.converters.safetensors_folder import WeightFolder
from rlrun.runner.trainer.batch import Pack, make_pack
from rlrun.runner.trainer.compat import Embedding, Linear, Qwen3Model, Qwen3TransformerBlock, RMSNorm
from rlrun.runner.trainer.decoder import DecoderInputs, place_of
from rlrun.runner.trainer.head import HeadQuery
from rlrun.runner.trainer.layers import PackedAttention
from rlrun.runner.trainer.model import build_model
from rlrun.runner.trainer.parameters import Parameters
from rlrun.runner.trainer.rope import RopeTable
from rlrun.specs.job import Spec

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


class Torchtitan:
    """torchtitan's model, loss and optimizer."""

    def __init__(self, folder: Path, spec: Spec, device: torch.device) -> None:
        model = read_architecture(folder)
        with torch.device(device):
            self.model = stock_model(model)
        self.model.train()
        with WeightFolder(folder, model) as weights:
            Parameters([self.model], model, trained=False).load(lambda one: weights.read(one.name))
        self.optimizer = adamw(list(self.model.parameters()), spec)
        self.max_norm, self.half, self.device = (
            spec.trainer.max_grad_norm,
            spec.trainer.dtype == "bfloat16",
            device,
        )

    def forward(self, sequences, scales) -> torch.Tensor:
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


class Loop:
    """rlrun's modules, and nothing else of it."""

    def __init__(self, folder: Path, spec: Spec, device: torch.device) -> None:
        model = read_architecture(folder)
        half = spec.trainer.dtype == "bfloat16"
        dtype = torch.bfloat16 if half else torch.float32
        [self.model] = decoders = build_model(model, None, spec.trainer.parallel, dtype, device)
        self.parameters = Parameters(decoders, model)
        with WeightFolder(folder, model) as weights:
            self.parameters.load(lambda one: weights.read(one.name))
        masters = list(self.parameters.masters.values())
        self.optimizer, self.max_norm, self.device = (
            adamw(masters, spec),
            spec.trainer.max_grad_norm,
            device,
        )
        self.rope, self.chunk = RopeTable(model, device), spec.trainer.logits_chunk

    def inputs(self, pack: Pack) -> DecoderInputs:
        """What the modules need of a micro-batch beside its tokens."""
        query = HeadQuery(pack.rows, pack.targets, 1.0, self.chunk)
        return DecoderInputs(self.rope.rows(pack.positions, pack.longest), pack.documents, query)

    def forward(self, sequences, scales) -> torch.Tensor:
        """The loss of a micro-batch."""
        pack = make_pack(sequences, 1, self.device)
        self.model.inputs = [self.inputs(pack)]
        log_probs, _ = self.model(pack.tokens, place_of(0))
        weights = [scale * one.advantages for one, scale in zip(sequences, scales, strict=True)]
        weight = torch.from_numpy(np.concatenate(weights, dtype=np.float32)).to(self.device)
        ratio = (log_probs - log_probs.detach()).exp()
        return -torch.minimum(ratio * weight, ratio.clamp(0.8, 1.2) * weight).sum()

    def update(self) -> None:
        masters = self.parameters.masters.values()
        torch.nn.utils.clip_grad_norm_(masters, self.max_norm, foreach=True)
        self.optimizer.step()
        self.parameters.refresh()


def adamw(parameters: list[nn.Parameter], spec: Spec) -> torch.optim.AdamW:
    """torchtitan's own choice of implementation on one device."""
    trainer = spec.trainer
    return torch.optim.AdamW(
        parameters,
        lr=trainer.lr,
        betas=trainer.betas,
        eps=trainer.eps,
        weight_decay=trainer.weight_decay,
        fused=True,
    )
