"""Decoders that transformers computes: a fallback, which a spec has to ask for, for families torchtitan
lacks.

Layers are transformers'; attention is rlrun's, so that packed documents do not see each other, and so are the
experts and the head. Buffers that are not in the checkpoint (rotary frequencies, scales of embeddings) are
computed after the parameters have been laid out.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface, PreTrainedModel

from rlrun.models.architecture import Architecture
from rlrun.models.checked_values import abbreviated
from rlrun.models.computation.transformers_network import build_network, check_modules, fill_buffers
from rlrun.models.tensor_names import hf_tensors
from rlrun.runner.planning.rank_layout import check_layout
from rlrun.runner.trainer.compat.data_parallel import shard_data_parallel
from rlrun.runner.trainer.compat.meshes import ParallelDims
from rlrun.runner.trainer.compat.recomputation import checkpoint_activations
from rlrun.runner.trainer.model.attention import AttentionSettings, CutDocuments, Documents, packed_attention
from rlrun.runner.trainer.model.decoder import DecoderInputs
from rlrun.runner.trainer.model.decoder_options import DecoderOptions
from rlrun.runner.trainer.model.head import ResponseHead
from rlrun.runner.trainer.model.transformers_layers.transformers_layout import lay_out, replace_experts

ATTENTION = "rlrun_packed"


@dataclass(slots=True)
class _PackContext:
    """The documents of a pack, which transformers passes through its layers to `_attention`."""

    documents: Documents | CutDocuments
    num_calls: int = 0
    """How often attention has been called with these documents."""


class TransformersDecoder(nn.Module):
    """transformers' decoder with rlrun's head, and the interface of `PackedDecoder`."""

    def __init__(self, network: PreTrainedModel, model: Architecture, *, wide_head: bool = False) -> None:
        """`wide_head`: logits are float32.

        Raises ValueError if the model's modules are not named like Llama's, or its parameters differ from its
        files.
        """
        super().__init__()
        check_modules(network, model)
        self.model = network.model
        head = ResponseHead.Config(
            in_features=model.hidden, out_features=model.vocab, wide=wide_head, param_init={}
        )
        self.lm_head = head.build().to(network.dtype)
        self.enable_weight_tying = model.tied
        self.inputs: Sequence[DecoderInputs] = ()
        self._layers = model.layers
        self._logit_scale = model.logit_scale
        self.tie()
        self._check_names(model)

    @property
    def tok_embeddings(self) -> nn.Module:
        """torchtitan's name for this module."""
        embedding: nn.Module = self.model.embed_tokens
        return embedding

    @property
    def norm(self) -> nn.Module:
        """torchtitan's name for this module."""
        norm: nn.Module = self.model.norm
        return norm

    @property
    def layers(self) -> dict[str, nn.Module]:
        """The layers by their numbers, as in torchtitan's decoders."""
        return dict(self.model.layers.named_children())

    def tie(self) -> None:
        """Ties the embedding and the head, if the architecture does."""
        if self.enable_weight_tying:
            self.lm_head.weight = self.model.embed_tokens.weight

    def forward(self, tokens: torch.Tensor, place: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns log-probs and entropies `[R]` of `[1, T]` tokens; `place`: see `PackedDecoder.forward`."""
        inputs = self.inputs[len(place)]
        query = inputs.query
        self.lm_head.query = replace(query, temperature=query.temperature / self._logit_scale)
        pack = _PackContext(inputs.documents)
        states = self.model(
            input_ids=tokens, position_ids=_positions(inputs.documents)[None], use_cache=False, pack=pack
        ).last_hidden_state
        if pack.num_calls != self._layers:
            raise ValueError(
                f"transformers called attention {pack.num_calls} times for {self._layers} layers: packed "
                "documents would see each other, so this model cannot be trained here"
            )
        outputs: tuple[torch.Tensor, torch.Tensor] = self.lm_head(states)
        return outputs

    def _check_names(self, model: Architecture) -> None:
        parameters = {name for name, _ in self.named_parameters()} | set(_stored_buffers(self))
        stored = {tensor.parameter for tensor in hf_tensors(model)}
        if parameters != stored:
            differing = abbreviated(sorted(parameters ^ stored))
            raise ValueError(
                f"the checkpoint's tensors differ from transformers' parameters: {differing}; a model whose "
                "tensors transformers rearranges cannot be trained here"
            )


def build_transformers_decoder(
    folder: Path, model: Architecture, dims: ParallelDims | None, options: DecoderOptions
) -> TransformersDecoder:
    """Returns the decoder in memory with undefined parameters, as `build_model` does.

    Raises ValueError if transformers lacks the model, or the model cannot train on packed documents.
    """
    AttentionInterface.register(ATTENTION, _attention)
    parameter_dtype = options.parameter_dtype(sharded=dims is not None)
    network = build_network(folder, ATTENTION, parameter_dtype)
    with torch.device("meta"):
        replace_experts(network.model, parameter_dtype)
        decoder = TransformersDecoder(network, model, wide_head=options.head_dtype == "float32")
    if dims is not None:
        check_layout(model, options.parallel)
        lay_out(decoder, network.config, dims)
        decoder.tie()
    if options.checkpointing != "none":
        checkpoint_activations(decoder.model, options.checkpointing)
    if dims is not None:
        shard_data_parallel(decoder, dims, options.dtype, options.parallel)
    decoder.to_empty(device=options.device)
    fill_buffers(network)
    follow_documents(decoder.model)
    if dims is None:
        decoder.tie()
    return decoder.eval()  # turns dropout off, and changes nothing else


def _stored_buffers(module: nn.Module) -> Iterator[str]:
    """Yields the names of the buffers that checkpoints contain."""
    for prefix, part in module.named_modules():
        for name in part._buffers.keys() - part._non_persistent_buffers_set:
            yield f"{prefix}.{name}"


def _attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    s_aux: torch.Tensor | None = None,
    softcap: float | None = None,
    pack: _PackContext | None = None,
    **unused: Any,
) -> tuple[torch.Tensor, None]:
    """Attends within documents; transformers' interface: `[1, N, T, H]` inputs, `[1, T, N, H]` output."""
    if pack is None or softcap is not None or not getattr(module, "is_causal", True):
        raise ValueError(
            f"{type(module).__name__} needs a kind of attention that is not supported for packed documents: "
            "choose another model"
        )
    pack.num_calls += 1
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    queries, keys, values = (heads[0].transpose(0, 1) for heads in (query, key, value))
    output = packed_attention(
        queries, keys, values, pack.documents, AttentionSettings(scale, sliding_window, s_aux)
    )
    return output[None], None


def _positions(documents: Documents | CutDocuments) -> torch.Tensor:
    """Returns each token's position in its document, `[T]`."""
    assert isinstance(documents, Documents), "the rules refuse context parallelism"
    offsets, total = documents.offsets.long(), sum(documents.lengths)
    starts = offsets[:-1].repeat_interleave(offsets.diff(), output_size=total)
    return torch.arange(total, device=offsets.device) - starts


def follow_documents(model: nn.Module) -> None:
    """Replaces the forward pass of rotary modules whose frequencies depend on the length.

    With `dynamic` and `longrope`, transformers chooses frequencies for the longest sequence it has seen. In a
    pack that would be the longest document of this or an earlier pack; here every document gets the
    frequencies that it would have alone.
    """
    for module in model.modules():
        if _follows_length(module):
            module.forward = _by_document(type(module), module.config)


def _follows_length(module: nn.Module) -> bool:
    rope_type = getattr(module, "rope_type", None)
    # A dict in models with several kinds of layers.
    rope_types = rope_type.values() if isinstance(rope_type, dict) else [rope_type]
    return any(isinstance(name, str) and ("dynamic" in name or name == "longrope") for name in rope_types)


def _by_document(
    module_class: Callable[[Any], nn.Module], config: Any
) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    """Returns a forward pass that computes cosines and sines per document; a document begins at
    position 0.
    """

    def forward(
        x: torch.Tensor, position_ids: torch.Tensor, *arguments: Any, **options: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        starts = (position_ids[0] == 0).nonzero()[:, 0].tolist()
        ends = [*starts[1:], position_ids.shape[1]]
        by_document = []
        for start, end in zip(starts, ends, strict=True):
            with torch.device(x.device):
                rotary = module_class(config)  # a new module, because it remembers lengths
            by_document.append(rotary(x, position_ids[:, start:end], *arguments, **options))
        cosines, sines = zip(*by_document, strict=True)
        return torch.cat(cosines, dim=1), torch.cat(sines, dim=1)

    return forward
