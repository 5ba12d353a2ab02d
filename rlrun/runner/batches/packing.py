"""Packs sequences into micro-batches with a token budget, and gives every data rank the same work.

Whole sequences are packed into micro-batches by best-fit decreasing, and given to ranks so that the estimated
work (linear layers plus causal attention) is the same on each; every rank runs the same number of
micro-batches, because FSDP's collectives are issued micro-batch by micro-batch. Only lengths and shared
prefixes decide, so the order of the samples does not matter.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlrun.models.config_defaults import with_family_defaults
from rlrun.runner.batches.assignment import Budget, pack_by_prefix, pack_units
from rlrun.runner.batches.reduction import Reduction, token_scales
from rlrun.runner.batches.units import Units, separate_units
from rlrun.runner.contracts.carriers import MicroBatches, TrainSequence, TrainStep


@dataclass(frozen=True, slots=True)
class Cost:
    """Estimated work of one sequence, in units of one token's linear layers."""

    attention: float = 0.0
    """Work of one attended position, relative to a token's linear layers: heads * head_dim * layers /
    parameters.
    """

    @classmethod
    def of_model(cls, config: Mapping[str, Any]) -> "Cost":
        """Returns the cost of a model from its `config.json`: the active parameters of layers and head, and
        attention by heads and layers.
        """
        config = with_family_defaults(config)
        hidden, layers = config["hidden_size"], config["num_hidden_layers"]
        heads = config["num_attention_heads"]
        head_dim = config.get("head_dim") or hidden // heads
        keys_values = config.get("num_key_value_heads") or heads
        if experts := config.get("num_experts_per_tok"):
            experts += config.get("n_shared_experts") or 0
            feed_forward = 3 * experts * config.get("moe_intermediate_size", config["intermediate_size"])
        else:
            feed_forward = 3 * config["intermediate_size"]
        linear = layers * hidden * (feed_forward + 2 * (heads + keys_values) * head_dim)
        return cls(layers * heads * head_dim / (linear + hidden * config["vocab_size"]))

    def __call__(self, lengths: NDArray[np.int64]) -> NDArray[np.float64]:
        """Returns `[N]`, the work of sequences of these lengths."""
        return lengths * (1.0 + self.attention * lengths)


def plan_steps(
    sequences: Sequence[TrainSequence],
    *,
    optimizer_steps: int,
    reduction: Reduction,
    max_batch_tokens: int,
    max_length: int,
    max_response_tokens: int,
    data_degree: int,
    cost: Cost = Cost(),
    together: bool = False,
    micro_batch_size: int | None = None,
    share_prefixes: bool = False,
) -> list[TrainStep]:
    """Splits a step's sequences into optimizer steps, and each of these into micro-batches for `data_degree`
    ranks.

    Executions keep their order and are split evenly over `optimizer_steps`; the sequences of one execution
    stay in one step. Indices in the result are positions in `sequences`. `max_batch_tokens` limits a
    micro-batch (a longer sequence is alone in its own), `max_length` is the model's limit. ValueError for a
    longer sequence, or for fewer executions than optimizer steps. `together` keeps the sequences of an
    execution side by side in one micro-batch (pairs of responses whose loss is one number).
    `micro_batch_size`: micro-batches have so many sequences, some perhaps fewer, whatever their tokens.
    `share_prefixes`: sequences that share a prefix go to the same micro-batch where ranks stay equally busy,
    and its tokens count once.
    """
    lengths = np.array([len(sequence.tokens) for sequence in sequences], dtype=np.int64)
    _check_lengths(lengths, max_length)
    budget = Budget(max_batch_tokens, micro_batch_size)
    steps = []
    for members in _split_executions([sequence.execution for sequence in sequences], optimizer_steps):
        units = separate_units(members, sequences, cost, together=together)
        packed = (
            pack_by_prefix(units, sequences, cost, budget, data_degree)
            if share_prefixes
            else pack_units(units, budget, data_degree)
        )
        chosen = [sequences[member] for member in members]
        scales = token_scales(
            [sequence.loss_mask for sequence in chosen],
            [sequence.execution for sequence in chosen],
            reduction,
            max_response_tokens,
        )
        steps.append(TrainStep(packed.batches, dict(zip(members, scales.tolist(), strict=True))))
    return steps


def all_micro_batches(steps: Sequence[TrainStep]) -> MicroBatches:
    """Returns the micro-batches of all optimizer steps together, for one pass over all sequences."""
    return tuple(
        tuple(batch for rank in ranks for batch in rank)
        for ranks in zip(*(step.micro_batches for step in steps), strict=True)
    )


def micro_batches(
    lengths: NDArray[np.int64], max_batch_tokens: int, data_degree: int, cost: Cost = Cost()
) -> MicroBatches:
    """Packs sequences of these lengths under the token budget, for `data_degree` ranks.

    A rank's micro-batches come with the most work first, so that ranks that wait for each other run batches
    of similar size side by side. Micro-batches are empty if there are fewer sequences than ranks.
    """
    single = [[index] for index in range(len(lengths))]
    return pack_units(Units(single, lengths, cost(lengths)), Budget(max_batch_tokens), data_degree).batches


def _check_lengths(lengths: NDArray[np.int64], longest: int) -> None:
    if len(lengths) and lengths.max() > longest:
        raise ValueError(
            f"a training sequence has {lengths.max()} tokens, the model allows {longest} "
            "(max_position_embeddings); lower rollout.max_prompt_tokens or rollout.max_response_tokens"
        )


def _split_executions(executions: Sequence[str], parts: int) -> list[list[int]]:
    """Returns the indices of each optimizer step: executions in order of appearance, divided evenly."""
    number = {name: place for place, name in enumerate(dict.fromkeys(executions))}
    if len(number) < parts:
        raise ValueError(
            f"{len(number)} samples cannot make {parts} optimizer steps; lower trainer.optimizer_steps or "
            "raise rollout.batch_size (filters and failed samples count against it)"
        )
    steps: list[list[int]] = [[] for _ in range(parts)]
    for index, name in enumerate(executions):
        steps[number[name] * parts // len(number)].append(index)
    return steps
