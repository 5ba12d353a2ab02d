"""How far SGLang's `rl_on_policy_target = "fsdp"` is from the trainer, if every sum has the same order.

    python benchmarks/on_policy_target.py [--model FOLDER] [--samples 64] [--tokens 64]

Both sides compute the same sequences on a CPU, alone, with the same bfloat16 weights and the same products
of transformers' Qwen3, so that only the places where they round differ:

    target        embeddings, residual stream and norms in float32, products and log-probs in bfloat16
    trainer       all of these in bfloat16, its norms by torch; log-probs in float32
    with the key  the trainer's own decoder as `true_on_policy` builds it for GPUs, with the same attention

Prints JSON: for the decoder with the key, for the trainer without it, and for each of its two deviations
alone, the mean and largest difference from the target's log-probs of generated tokens, and the share of
tokens whose log-probs are equal.
"""

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional
from transformers import AutoModelForCausalLM
from transformers.models.qwen3 import modeling_qwen3

from rlrun.converters.families.model_folder import WeightFolder
from rlrun.models.config_json import read_architecture
from rlrun.runner.contracts.carriers import TrainSequence
from rlrun.runner.trainer.model import attention
from rlrun.runner.trainer.model.build_decoder import build_model
from rlrun.runner.trainer.model.decoder_options import DecoderOptions
from rlrun.runner.trainer.parameters.parameters import Parameters
from rlrun.runner.trainer.passes.packed_model import ModelSettings, PackedModel
from rlrun.specs.sections.trainer import ParallelSpec

QUICKSTART = Path(__file__).parents[1] / "rlrun/specs/recipes/quickstart/model"
PROMPT = 8


def main() -> None:
    """Prints one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=QUICKSTART, help="a folder with a Qwen3")
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=64)
    options = parser.parse_args()
    torch.manual_seed(0)
    narrow = _load(options.model, torch.bfloat16)
    wide = _load(options.model, torch.float32)
    samples = _generate(wide, options.samples, options.tokens)
    wide.load_state_dict({name: value.float() for name, value in narrow.state_dict().items()})
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        target = _log_probs(wide, samples)
    with torch.no_grad(), _layers_of_trainer():
        trainer = _log_probs(narrow, samples)
    pairs = {
        "with true_on_policy": (target["bfloat16"], _trainer_log_probs(options.model, samples)),
        "both": (target["bfloat16"], trainer["float32"]),
        "float32 embeddings, residual stream and norms": (target["float32"], trainer["float32"]),
        "log-probs rounded to bfloat16": (target["bfloat16"], target["float32"]),
    }
    print(json.dumps({name: _difference(*pair) for name, pair in pairs.items()}, indent=2))


def _load(folder: Path, dtype: torch.dtype) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa")


def _generate(model: Any, samples: int, tokens: int) -> list[torch.Tensor]:
    """Returns sequences `[1, T]` that continue random prompts."""
    lengths = {"max_new_tokens": tokens, "min_new_tokens": tokens}
    prompts = torch.randint(3, model.config.vocab_size, (samples, 1, PROMPT))
    return [model.generate(prompt, do_sample=True, top_k=0, **lengths) for prompt in prompts]


@contextmanager
def _layers_of_trainer() -> Iterator[None]:
    """Replaces transformers' norm and rotation by those of the trainer on GPUs."""
    angles, rotate = modeling_qwen3.Qwen3RotaryEmbedding.forward, modeling_qwen3.apply_rotary_pos_emb

    def wide_angles(self: Any, x: torch.Tensor, *others: Any, **named: Any) -> Any:
        return angles(self, x.float(), *others, **named)

    def wide_rotation(query: torch.Tensor, key: torch.Tensor, *others: Any, **named: Any) -> Any:
        turned = rotate(query.float(), key.float(), *others, **named)
        return tuple(part.to(query.dtype) for part in turned)

    with (
        mock.patch.object(modeling_qwen3.Qwen3RMSNorm, "forward", _torch_norm),
        mock.patch.object(modeling_qwen3.Qwen3RotaryEmbedding, "forward", wide_angles),
        mock.patch.object(modeling_qwen3, "apply_rotary_pos_emb", wide_rotation),
    ):
        yield


def _torch_norm(self: Any, hidden_states: torch.Tensor) -> torch.Tensor:
    """torch's norm, which rounds once, after the weight."""
    shape = hidden_states.shape[-1:]
    return functional.rms_norm(hidden_states, shape, self.weight, self.variance_epsilon)


def _log_probs(model: Any, samples: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    """Returns the log-probs of generated tokens, by the precision of the log-softmax."""
    found = []
    for sample in samples:
        logits = model(sample).logits[0, PROMPT - 1 : -1].bfloat16()
        every = torch.stack(
            [torch.log_softmax(logits.float(), dim=-1), _rounded_log_softmax(logits, -1).float()]
        )
        found.append(every[:, torch.arange(len(logits)), sample[0, PROMPT:]])
    exact, rounded = torch.cat(found, dim=1)
    return {"float32": exact, "bfloat16": rounded}


def _rounded_log_softmax(logits: torch.Tensor, dim: int) -> torch.Tensor:
    """Returns the log-softmax as SGLang's kernel computes it: in float32, rounded once.

    torch's own on a CPU rounds in between.
    """
    return functional.log_softmax(logits.float(), dim=dim).to(logits.dtype)


def _trainer_log_probs(folder: Path, samples: list[torch.Tensor]) -> torch.Tensor:
    """Returns the log-probs of generated tokens by the trainer's decoder with `true_on_policy` on GPUs."""
    model, layout = read_architecture(folder), ParallelSpec()
    device, dtype = torch.device("cpu"), torch.bfloat16
    options = DecoderOptions(parallel=layout, dtype=dtype, device=device, as_target=True)
    decoders = build_model(model, None, options)
    Parameters(decoders, model, trained=False).load(
        lambda tensor: WeightFolder(folder, model).read(tensor.name)
    )
    packed = PackedModel(
        decoders, model, None, ModelSettings(1.0, 4096, layout, device, dtype, as_target=True)
    )
    with (
        mock.patch.object(attention, "document_attention", _torch_attention),
        mock.patch.object(torch, "log_softmax", _rounded_log_softmax),
    ):
        passes = packed.log_probs([[_sequence(sample[0].numpy())] for sample in samples])
    return torch.cat([log_probs for (log_probs,) in passes])


def _sequence(tokens: NDArray[np.int64]) -> TrainSequence:
    response = np.zeros(len(tokens) - PROMPT, np.float32)
    return TrainSequence(tokens.astype(np.int32), PROMPT, response + 1, response, response, "0")


def _torch_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, lengths: tuple[int, ...], *_: Any
) -> torch.Tensor:
    """Attention of one document as transformers calls it: for keys and values of every query head."""
    assert len(lengths) == 1
    repeats = query.shape[1] // key.shape[1]
    heads = (query, key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1))
    output = functional.scaled_dot_product_attention(
        *(x.transpose(0, 1)[None] for x in heads), is_causal=True
    )
    return output[0].transpose(0, 1)


def _difference(first: torch.Tensor, second: torch.Tensor) -> dict[str, float]:
    gap = (first - second).abs()
    figures = {"mean": gap.mean(), "largest": gap.max(), "equal": (gap == 0).float().mean()}
    return {name: float(f"{value.item():.3g}") for name, value in figures.items()}


if __name__ == "__main__":
    main()
