"""TRL's losses beside rlrun's, on the same model and tokens: the value, and the gradient of every parameter.

    python -m venv trl && trl/bin/pip install -e '.[run]' 'trl==1.16.*'
    trl/bin/python benchmarks/trl_losses.py

A tiny model scores eight responses to two prompts. Old and reference log-probs differ from its own, so that
ratios reach the bounds. Both sides get rlrun's advantages; docs/conform.md compares TRL's own. Prints a line
of JSON for each loss; `--table` prints the table of docs/conform.md.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer
from trl import (
    DPOConfig,
    DPOTrainer,
    GRPOConfig,
    GRPOTrainer,
    KTOConfig,
    KTOTrainer,
    RewardConfig,
    RewardTrainer,
    RLOOConfig,
    RLOOTrainer,
)
from trl.experimental.cpo import CPOConfig, CPOTrainer
from trl.experimental.online_dpo import OnlineDPOConfig, OnlineDPOTrainer
from trl.experimental.orpo import ORPOConfig, ORPOTrainer

sys.path.insert(0, str(Path(__file__).parents[1]))

from rlrun.plugins.registry import build
from rlrun.plugins.testing import group
from rlrun.plugins.types import Group, LossInputs
from rlrun.runner.batches.reduction import Reduction, token_scales
from tests.tiny_models import make_tiny_model

PROMPT, LONGEST = 5, 9
"""Tokens of every prompt, and of the longest response."""
LENGTHS = (9, 4, 7, 1, 5, 8, 2, 6)
REWARDS = ((1.0, 0.0, 0.25, 0.5), (0.0, 3.0, -1.0, 1.0))
Loss = Callable[["Bench", "Case"], torch.Tensor]


@dataclass(frozen=True)
class Case:
    """One of TRL's losses, and rlrun's algorithm with the same settings."""

    trainer: str
    settings: Mapping[str, Any]
    """TRL's."""
    algorithm: str
    params: Mapping[str, Any] = field(default_factory=dict)
    reduction: Reduction = "per_sample_mean"
    note: str = ""
    """What has to be added for the two to be equal, or why they differ."""
    gradient_factor: float = 1.0
    """TRL's gradient over rlrun's, where the losses differ by a constant factor."""
    on_policy: bool = False
    odds_alone: bool = False
    """Without the likelihood of the preferred responses (ORPO)."""


class Bench:
    """The model, its tokens, and the log-probs of the other models."""

    def __init__(self, folder: Path) -> None:
        make_tiny_model(folder)
        self.folder = folder
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.tokenizer.pad_token = self.tokenizer.pad_token or self.tokenizer.eos_token
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        generator = torch.Generator().manual_seed(0)
        vocabulary, count = self.model.config.vocab_size, len(LENGTHS)
        prompts = torch.randint(5, vocabulary, (2, PROMPT), generator=generator)
        self.prompts = prompts.repeat_interleave(count // 2, 0)
        self.responses = torch.randint(5, vocabulary, (count, LONGEST), generator=generator)
        self.mask = (torch.arange(LONGEST)[None] < torch.tensor(LENGTHS)[:, None]).long()
        with torch.no_grad():
            self.own = self.log_probs()

        def noise(scale: float) -> torch.Tensor:
            return scale * torch.randn(self.own.shape, generator=generator)

        self.old, self.reference = self.own + noise(0.3), self.own + noise(0.5)

    def log_probs(self) -> torch.Tensor:
        """Returns `[B, R]` the model's log-probs of the responses, with gradient."""
        logits = self.model(self.tokens, attention_mask=self.attention).logits[:, PROMPT - 1 : -1]
        return logits.log_softmax(-1).gather(-1, self.responses[..., None])[..., 0]

    @property
    def tokens(self) -> torch.Tensor:
        """`[B, P + R]`"""
        return torch.cat([self.prompts, self.responses], 1)

    @property
    def attention(self) -> torch.Tensor:
        """`[B, P + R]` 0 on padding."""
        return torch.cat([torch.ones_like(self.prompts), self.mask], 1)

    def flat(self, values: torch.Tensor) -> torch.Tensor:
        """Returns the values of all response tokens, without padding."""
        return values[self.mask.bool()]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--table", action="store_true", help="print docs/conform.md's table")
    options = parser.parse_args()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        if options.table:
            print("| TRL 1.16 | rlrun | loss | gradients | |\n| --- | --- | --- | --- | --- |")
        for name, case in CASES.items():
            result = compare(bench, name, case)
            print(row(result) if options.table else json.dumps(result), flush=True)


def as_toml(value: Any) -> str:
    """Returns a value as a spec has it."""
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{key} = {as_toml(own)}' for key, own in value.items())} }}"
    return json.dumps(value)


def row(result: Mapping[str, Any]) -> str:
    """Returns a result as a row of the table."""
    differences = (result[name] for name in ("loss_difference", "gradient_difference"))
    shown = (f"{value:.0e}" if value < 1e-3 else "differs" for value in differences)
    cells = (result["trl"], result["rlrun"], *shown, result["note"])
    return "".join(f"| {cell} " if cell else "| " for cell in cells) + "|"


def compare(bench: Bench, name: str, case: Case) -> dict[str, Any]:
    """Returns the relative differences of loss and gradients."""
    theirs = THEIRS[case.trainer](bench, case)
    their_gradients = gradients(bench.model, theirs)
    ours = our_loss(bench, case)
    our_gradients = gradients(bench.model, ours) * case.gradient_factor
    scale = their_gradients.abs().max()
    settings = [f"{key} = {as_toml(value)}" for key, value in case.params.items()]
    if case.reduction != "per_sample_mean":
        settings.append(f'reduction = "{case.reduction}"')
    return {
        "trl": name,
        "rlrun": f"`{case.algorithm}`" + "".join(f", `{setting}`" for setting in settings),
        "trl_loss": theirs.item(),
        "rlrun_loss": ours.item(),
        "loss_difference": abs(theirs.item() - ours.item()) / max(abs(theirs.item()), 1e-3),
        "gradient_difference": float((their_gradients - our_gradients).abs().max() / scale),
        "note": case.note,
    }


def gradients(model: torch.nn.Module, loss: torch.Tensor) -> torch.Tensor:
    """Returns the gradients of all parameters, one after another; those that the loss has set already if it
    has no graph.
    """
    if loss.requires_grad:
        model.zero_grad()
        loss.backward()
    found = [
        parameter.grad.flatten().clone() for parameter in model.parameters() if parameter.grad is not None
    ]
    model.zero_grad()
    return torch.cat(found).double()


def our_groups(bench: Bench, *, on_policy: bool) -> list[Group]:
    """Returns the samples as algorithms see them."""
    half = len(LENGTHS) // 2
    groups = [group(rewards, LENGTHS[half * n : half * n + half]) for n, rewards in enumerate(REWARDS)]
    samples = [sample for one in groups for sample in one.samples]
    old = bench.own if on_policy else bench.old
    for number, sample in enumerate(samples):
        length = LENGTHS[number]
        sample.log_probs = old[number, :length].numpy()
        sample.policy_log_probs = bench.own[number, :length].numpy()
        sample.reference_log_probs = bench.reference[number, :length].numpy()
    return groups


def our_loss(bench: Bench, case: Case) -> torch.Tensor:
    """Returns rlrun's loss, with gradient."""
    algorithm = build("algorithms", case.algorithm, dict(case.params))
    groups = our_groups(bench, on_policy=case.on_policy)
    if algorithm.needs.labels:
        return our_labelled_loss(bench, algorithm)
    order = list(range(len(LENGTHS)))
    executions = [str(number) for number in order]
    if algorithm.needs.pairs:
        order, executions = pair_order(algorithm, groups), [str(place // 2) for place in range(len(order))]
    if algorithm.needs.rollout:
        values = algorithm.advantages(groups)
    else:
        values = [np.zeros(length, np.float32) for length in LENGTHS]
    order_of = torch.tensor(order)
    log_probs = (bench.own if algorithm.needs.scores else bench.log_probs())[order_of]
    mask = bench.mask[order_of].bool()
    old = log_probs.detach() if case.on_policy else bench.old[order_of]
    lengths = torch.tensor([LENGTHS[number] for number in order])
    executions = executions[: len(order)]
    inputs = LossInputs(
        log_probs=log_probs[mask],
        entropy=torch.zeros(int(mask.sum())),
        old_log_probs=old[mask],
        rollout_log_probs=old[mask],
        reference_log_probs=bench.reference[order_of][mask],
        advantages=torch.from_numpy(np.concatenate([values[number] for number in order])),
        mask=torch.ones(int(mask.sum())),
        sample=torch.repeat_interleave(torch.arange(len(order)), lengths),
        num_samples=len(order),
        scores=bench_scores(bench)[order_of] if algorithm.needs.scores else None,
    )
    losses = algorithm.loss(inputs).loss
    if case.odds_alone:
        likelihood = inputs.sample_sum(inputs.log_probs) / lengths
        losses = losses + likelihood[inputs.sample // 2 * 2]
    return reduced(inputs, losses, executions, case.reduction)


def reduced(
    inputs: LossInputs, losses: torch.Tensor, executions: list[str], reduction: Reduction
) -> torch.Tensor:
    """Returns the loss of an optimizer step."""
    lengths = torch.bincount(inputs.sample).tolist()
    masks = [np.ones(length, np.float32) for length in lengths]
    scales = torch.from_numpy(token_scales(masks, executions, reduction, LONGEST)).float()
    return (losses * scales[inputs.sample]).sum()


def pair_order(algorithm: Any, groups: list[Group]) -> list[int]:
    """Returns the places of the samples: each preferred one before its rejected one."""
    half = len(LENGTHS) // 2
    if not algorithm.needs.rollout:
        return [place for number in range(half) for place in (number, number + half)]
    best_and_worst = [(int(np.argmax(rewards)), int(np.argmin(rewards))) for rewards in REWARDS]
    return [half * n + place for n, pair in enumerate(best_and_worst) for place in pair]


def our_labelled_loss(bench: Bench, algorithm: Any) -> torch.Tensor:
    """Returns the loss of half of the samples as good and bad responses; the other half are mismatched."""
    half = len(LENGTHS) // 2
    samples = [sample for one in our_groups(bench, on_policy=True) for sample in one.samples]
    rows = [
        Group(replace(own.prompt, row=replace(own.prompt.row, label=label)), [own, other])
        for own, other, label in zip(samples[:half], samples[half:], LABELS, strict=True)
    ]
    values = algorithm.advantages(rows)
    marks = algorithm.marks(rows, values)
    mask = bench.mask[:half].bool()
    log_probs = bench.log_probs()[:half][mask]
    inputs = LossInputs(
        log_probs=log_probs,
        entropy=torch.zeros(len(log_probs)),
        old_log_probs=log_probs.detach(),
        rollout_log_probs=log_probs.detach(),
        reference_log_probs=bench.reference[:half][mask],
        advantages=torch.from_numpy(np.concatenate(values[::2])),
        mask=torch.ones(len(log_probs)),
        sample=torch.repeat_interleave(torch.arange(half), torch.tensor(LENGTHS[:half])),
        num_samples=half,
        marks=torch.from_numpy(np.concatenate(marks[::2])),
    )
    return reduced(inputs, algorithm.loss(inputs).loss, list("0123"), "per_sample_mean")


LABELS = (True, False, True, True)


def bench_scores(bench: Bench) -> torch.Tensor:
    """Returns `[B]` the scores of a model with a head for one number, which is the bench's model then."""
    return bench.model(bench.tokens, attention_mask=bench.attention).logits[:, 0]


def arguments(kind: Any, bench: Bench, case: Case, **more: Any) -> Any:
    """Returns a trainer's arguments."""
    return kind(
        output_dir=str(bench.folder / "out"),
        use_cpu=True,
        bf16=False,
        report_to=[],
        per_device_train_batch_size=8,
        gradient_checkpointing=False,
        **more,
        **case.settings,
    )


def rows(bench: Bench, *names: str) -> Dataset:
    """Returns rows that a trainer reads when it is made, and of which none is trained on."""
    return Dataset.from_list([dict.fromkeys(names, "say 1") for _ in range(8)])


def step_loss(kind: Any, config: Any, sizes: Mapping[str, Any], extra: Mapping[str, Any]) -> Loss:
    """Returns TRL's loss of a trainer that generates."""

    def loss(bench: Bench, case: Case) -> torch.Tensor:
        args = arguments(config, bench, case, max_completion_length=LONGEST, **sizes)
        trainer = kind(
            model=bench.model,
            reward_funcs=lambda completions, **_: [0.0] * len(completions),
            args=args,
            train_dataset=rows(bench, "prompt"),
            processing_class=bench.tokenizer,
        )
        trainer.current_gradient_accumulation_steps = 1
        bench.model.train()
        algorithm = build("algorithms", case.algorithm, dict(case.params))
        groups = our_groups(bench, on_policy=case.on_policy)
        advantages = torch.tensor([float(values[0]) for values in algorithm.advantages(groups)])
        old = bench.own if case.on_policy else bench.old
        inputs = {
            "prompt_ids": bench.prompts,
            "prompt_mask": torch.ones_like(bench.prompts),
            "completion_ids": bench.responses,
            "completion_mask": bench.mask,
            "advantages": advantages,
            "old_per_token_logps": old,
            "old_logps": (old * bench.mask).sum(1),
            "ref_per_token_logps": bench.reference,
            "num_items_in_batch": bench.mask.sum(),
        }
        return trainer._compute_loss(bench.model, inputs | dict(extra))

    return loss


def dpo_loss(bench: Bench, case: Case) -> torch.Tensor:
    """Returns TRL's loss of pairs: the first half of the samples is preferred."""
    trainer = DPOTrainer(
        model=bench.model,
        args=arguments(DPOConfig, bench, case),
        train_dataset=rows(bench, "prompt", "chosen", "rejected"),
        processing_class=bench.tokenizer,
    )
    trainer.precompute_ref_logps = True
    reference = (bench.reference * bench.mask).sum(1)
    inputs = {
        "input_ids": bench.tokens,
        "attention_mask": bench.attention,
        "completion_mask": torch.cat([torch.zeros_like(bench.prompts), bench.mask], 1),
        "ref_chosen_logps": reference[: len(reference) // 2],
        "ref_rejected_logps": reference[len(reference) // 2 :],
    }
    return trainer._compute_loss(trainer.model, inputs, return_outputs=False)


def kto_loss(bench: Bench, case: Case) -> torch.Tensor:
    """Returns TRL's loss of labelled responses: the other half of the samples are mismatched."""
    trainer = KTOTrainer(
        model=bench.model,
        args=arguments(KTOConfig, bench, case),
        train_dataset=rows(bench, "prompt", "completion").add_column("label", [True, False] * 4),
        processing_class=bench.tokenizer,
    )
    trainer.precompute_ref_logps = True
    half = len(LENGTHS) // 2
    reference = (bench.reference * bench.mask).sum(1)
    completion = torch.cat([torch.zeros_like(bench.prompts), bench.mask], 1)
    inputs = {
        "input_ids": bench.tokens[:half],
        "attention_mask": bench.attention[:half],
        "completion_mask": completion[:half],
        "KL_input_ids": bench.tokens[half:],
        "KL_attention_mask": bench.attention[half:],
        "KL_completion_mask": completion[half:],
        "label": torch.tensor(LABELS),
        "ref_logps": reference[:half],
        "ref_KL_logps": reference[half:],
    }
    return trainer._compute_loss(trainer.model, inputs, return_outputs=False)


def preference_loss(kind: Any, config: Any) -> Loss:
    """Returns TRL's loss of pairs without a reference."""

    def loss(bench: Bench, case: Case) -> torch.Tensor:
        trainer = kind(
            model=bench.model,
            args=arguments(config, bench, case),
            train_dataset=rows(bench, "prompt", "chosen", "rejected"),
            processing_class=bench.tokenizer,
        )
        half = len(LENGTHS) // 2
        labels = torch.cat([torch.full_like(bench.prompts, -100), bench.responses], 1)
        labels = labels.masked_fill(bench.attention == 0, -100)
        inputs = {}
        for name, part in (("chosen", slice(0, half)), ("rejected", slice(half, None))):
            inputs[f"{name}_input_ids"] = bench.tokens[part]
            inputs[f"{name}_attention_mask"] = bench.attention[part]
            inputs[f"{name}_labels"] = labels[part]
        total = trainer.get_batch_loss_metrics(trainer.model, inputs)[0]
        return total - trainer.concatenated_forward(trainer.model, inputs)[4] if case.odds_alone else total

    return loss


def online_dpo_loss(bench: Bench, case: Case) -> torch.Tensor:
    """Returns TRL's loss of two responses to each of two prompts, whose gradients it leaves in the model."""
    reference = AutoModelForCausalLM.from_pretrained(bench.folder, dtype=torch.float32)
    trainer = OnlineDPOTrainer(
        model=bench.model,
        ref_model=reference,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=arguments(OnlineDPOConfig, bench, case, max_new_tokens=LONGEST),
        train_dataset=rows(bench, "prompt"),
        processing_class=bench.tokenizer,
    )
    trainer.create_optimizer()
    places = torch.tensor([place for pair in zip(*ends(), strict=True) for place in pair])
    rewards = torch.tensor([reward for row in REWARDS for reward in row])[places]
    fixed = bench.prompts[places], torch.ones_like(bench.prompts[places])
    answers = bench.responses[places], bench.mask[places]
    trainer._generate = lambda *_: (*fixed, *answers, None)
    trainer._calculate_rewards_from_functions = lambda **_: rewards
    forward = trainer._forward

    def scored(model: Any, *given: Any) -> torch.Tensor:
        return bench.reference[places] if model is reference else forward(model, *given)

    trainer._forward = scored
    loss = trainer.training_step(bench.model, {"prompt": ["", ""]})
    return loss.detach()


def ends() -> list[tuple[int, int]]:
    """Returns the places of each group's best and worst sample, the worse one first in the second group."""
    half = len(LENGTHS) // 2
    (best, worst), (other_best, other_worst) = (
        (half * n + int(np.argmax(rewards)), half * n + int(np.argmin(rewards)))
        for n, rewards in enumerate(REWARDS)
    )
    return [(best, worst), (other_worst, other_best)]


def reward_loss(bench: Bench, case: Case) -> torch.Tensor:
    """Returns TRL's loss of a reward model, which the bench then has as its model."""
    bench.model = AutoModelForSequenceClassification.from_pretrained(
        bench.folder, num_labels=1, dtype=torch.float32, pad_token_id=bench.tokenizer.pad_token_id
    )
    trainer = RewardTrainer(
        model=bench.model,
        args=arguments(RewardConfig, bench, case),
        train_dataset=rows(bench, "chosen", "rejected"),
        processing_class=bench.tokenizer,
    )
    return trainer.compute_loss(bench.model, {"input_ids": bench.tokens, "attention_mask": bench.attention})


GENERATED = {"num_generations": 4}
THEIRS: dict[str, Loss] = {
    "grpo": step_loss(GRPOTrainer, GRPOConfig, GENERATED, {}),
    "rloo": step_loss(RLOOTrainer, RLOOConfig, GENERATED, {}),
    "dpo": dpo_loss,
    "kto": kto_loss,
    "cpo": preference_loss(CPOTrainer, CPOConfig),
    "orpo": preference_loss(ORPOTrainer, ORPOConfig),
    "online_dpo": online_dpo_loss,
    "reward": reward_loss,
}
K3 = {"kl": {"in_loss": {"type": "k3", "coef": 0.1, "unbiased": True}}}
BIASED = {"kl": {"in_loss": {"type": "k3", "coef": 0.1}}}
CASES: dict[str, Case] = {
    "GRPO `grpo`": Case("grpo", {"loss_type": "grpo"}, "grpo"),
    "GRPO `bnpo`": Case(
        "grpo",
        {"loss_type": "bnpo"},
        "grpo",
        reduction="per_token",
        note="with one micro-batch; TRL averages the means of several",
    ),
    "GRPO `dr_grpo`": Case(
        "grpo", {"loss_type": "dr_grpo", "scale_rewards": "none"}, "dr_grpo", reduction="dr_grpo"
    ),
    "GRPO `dapo`": Case("grpo", {"loss_type": "dapo", "epsilon_high": 0.28}, "dapo", reduction="per_token"),
    "GRPO `cispo`": Case(
        "grpo",
        {"loss_type": "cispo", "epsilon_high": 1.2},
        "cispo",
        {"clip_high": 0.2},
        reduction="per_token",
        note="TRL's `epsilon_high` is the bound itself, 1 + `clip_high`",
    ),
    "GRPO `sapo`": Case("grpo", {"loss_type": "sapo"}, "sapo"),
    "GRPO `luspo`, ratios of samples": Case(
        "grpo",
        {
            "loss_type": "luspo",
            "importance_sampling_level": "sequence",
            "epsilon": 2e-3,
            "epsilon_high": 2.5e-3,
        },
        "luspo",
    ),
    "GRPO `vespo`": Case("grpo", {"loss_type": "vespo"}, "vespo", reduction="per_token"),
    "GSPO: `grpo`, ratios of samples": Case(
        "grpo",
        {"importance_sampling_level": "sequence", "loss_type": "grpo", "epsilon": 3e-4, "epsilon_high": 4e-4},
        "gspo",
    ),
    "GRPO `grpo`, `beta = 0.1`": Case("grpo", {"loss_type": "grpo", "beta": 0.1}, "grpo", K3),
    "GRPO `grpo`, `beta = 0.1`, no bias correction": Case(
        "grpo", {"loss_type": "grpo", "beta": 0.1, "use_bias_correction_kl": False}, "grpo", BIASED
    ),
    "GRPO `grpo`, `delta = 1.5`": Case(
        "grpo", {"loss_type": "grpo", "delta": 1.5}, "grpo", {"dual_clip": 1.5}
    ),
    "RLOO, samples of the policy": Case(
        "rloo",
        {"beta": 0.0},
        "rloo",
        reduction="dr_grpo",
        gradient_factor=LONGEST,
        on_policy=True,
        note="TRL adds up a sample's tokens, so its gradient is `max_response_tokens` times rlrun's; its "
        "loss counts a sample once",
    ),
    "RLOO, stale samples": Case(
        "rloo",
        {"beta": 0.0},
        "rloo",
        reduction="dr_grpo",
        gradient_factor=LONGEST,
        note="TRL clips the ratio of the whole sample, rlrun that of each token",
    ),
    "DPO `sigmoid`": Case("dpo", {"loss_type": ["sigmoid"]}, "dpo"),
    "DPO `ipo`": Case("dpo", {"loss_type": ["ipo"]}, "ipo"),
    "CPO `simpo`": Case(
        "cpo",
        {"loss_type": "simpo", "cpo_alpha": 0.0, "beta": 2.0, "simpo_gamma": 0.5},
        "simpo",
        note="with `cpo_alpha = 0`",
    ),
    "ORPO": Case(
        "orpo", {}, "orpo", note="TRL's first term also counts the prompt's tokens, and is a mean over tokens"
    ),
    "ORPO, the odds ratio alone": Case("orpo", {}, "orpo", odds_alone=True),
    "KTO": Case("kto", {}, "kto"),
    "Online DPO": Case("online_dpo", {"beta": 0.1}, "online_dpo", note="TRL also trains on equal rewards"),
    "Reward": Case("reward", {"center_rewards_coefficient": 0.01}, "bradley_terry", {"center": 0.01}),
}


if __name__ == "__main__":
    main()
