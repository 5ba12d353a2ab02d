"""Adapters against training the whole model, and against peft: memory, time and bytes per update.

    python benchmarks/lora.py [--size s|m] [--dtype bfloat16|float32] [--rank 8] [--threads 1]

Three sides take turns in one process on the same packed batch: rlrun with `[trainer.lora]`, rlrun without
it, and a plain loop of peft on transformers (the `plain` side of trainer_step.py, whose base is held in the
dtype that it computes in). `held` is what a side keeps between steps: weights and the optimizer's state.
`peak` is the most that a step takes on top. An update of the engines has all matrices of the model, with
adapters merged; adapters alone would have only their factors, in the same dtype. `trl_grpo.py --rank 8`
compares whole GRPO steps with those of TRL on peft. Prints JSON.
"""

import argparse
import json
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import peft
import torch
from bare_torchtitan import adamw
from peak import peak_bytes
from trainer_step import PARTS, SIZES, VOCABULARY, Ours, Plain, make_model, make_sequences, one_step

from rlrun.models.adapters import adapters
from rlrun.models.config_json import read_architecture
from rlrun.specs.sections.job import Spec

WITH, WITHOUT, PEFT = "rlrun, adapters", "rlrun, whole model", "peft"


class Peft(Plain):
    """The plain loop over peft's adapters on transformers."""

    def __init__(self, folder: Path, spec: Spec, device: torch.device) -> None:
        super().__init__(folder, spec, device)
        lora = spec.trainer.lora
        assert lora is not None
        config = peft.LoraConfig(
            r=lora.rank,
            lora_alpha=lora.alpha,
            target_modules=sorted({each.target for each in adapters(read_architecture(folder), lora.shape)}),
            task_type="CAUSAL_LM",
        )
        base = self.model.bfloat16() if self.half else self.model
        self.model = peft.get_peft_model(base, config).base_model.model
        self.optimizer = adamw(self.model, spec.trainer)

    def held(self) -> int:
        state = [tensor for values in self.optimizer.state.values() for tensor in values.values()]
        return nbytes([*self.model.parameters(), *state])


class Rlrun(Ours):
    """The trainer's own rank."""

    def held(self) -> int:
        policy = self.rank.policy
        return nbytes([*policy.parameters.held, *policy.optimizer.held])

    def update_bytes(self, dtype: torch.dtype) -> dict[str, int]:
        """Bytes of one update of the engines, by what is sent."""
        parameters = self.rank.policy.parameters
        merged = sum(tensor.nbytes for _, tensor in parameters.gather(dtype))
        factors = sum(tensor.numel() for _, tensor in parameters.gather_adapters()) * dtype.itemsize
        return {"merged": merged, "adapters_alone": factors}


def nbytes(tensors: Sequence[object]) -> int:
    """Bytes of tensors, each counted once."""
    distinct = {id(tensor): tensor.nbytes for tensor in tensors if isinstance(tensor, torch.Tensor)}
    return sum(distinct.values())


def make_spec(folder: Path, options: argparse.Namespace, rank: int) -> Spec:
    trainer: dict[str, object] = {
        "steps": 1,
        "dtype": options.dtype,
        "max_tokens_per_rank": options.budget,
        "lr": 1e-6,
    }
    if rank:
        trainer["lora"] = {"rank": rank, "alpha": 2 * rank}
    return Spec.model_validate({"model": {"path": str(folder)}, "data": {}, "trainer": trainer})


def measure(folder: Path, options: argparse.Namespace) -> dict[str, object]:
    with_lora = make_spec(folder, options, options.rank)
    sequences = make_sequences(options.documents, VOCABULARY[options.size])
    step = one_step(sequences, options.budget)
    ours = Rlrun(folder, with_lora, options.threads)
    whole = Rlrun(folder, make_spec(folder, options, 0), options.threads)
    plain = Peft(folder, with_lora, ours.device)
    sides = {WITH: ours, WITHOUT: whole, PEFT: plain}
    gaps = ours.log_probs(sequences, step) - plain.log_probs(sequences, step)
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
    for _ in range(options.repeat + 1):
        for name, side in sides.items():
            runs[name].append(side.step(sequences, step))
    report: dict[str, object] = {
        **vars(options),
        "device": ours.device.type,
        "tokens": sum(len(sequence.tokens) for sequence in sequences),
        "mean_abs_log_prob_difference": float(np.abs(gaps).mean()),
        "update_bytes": ours.update_bytes(getattr(torch, options.dtype)),
    }
    figures = {
        name: {part: statistics.median(run[part] for run in runs[name][1:]) for part in (*PARTS, "total")}
        | {
            "held_mib": side.held() / 2**20,
            "peak_mib": peak_bytes(lambda side=side: side.step(sequences, step), side.device) / 2**20,
        }
        for name, side in sides.items()
    }
    report |= {name: {key: round(value, 4) for key, value in row.items()} for name, row in figures.items()}
    report["ratios_to_adapters"] = {
        name: {key: round(value / figures[WITH][key], 3) for key, value in figures[name].items()}
        for name in (WITHOUT, PEFT)
    }
    for side in (ours, whole):
        side.rank.close()
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=SIZES, default="s")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--documents", type=int, default=64)
    parser.add_argument("--budget", type=int, default=4096)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        make_model(Path(name), options.size)
        print(json.dumps(measure(Path(name), options), indent=2))


if __name__ == "__main__":
    main()
