"""Policies with vision towers have transformers' log-probs and gradients, on one rank and on several."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file

from rlrun.models.config_json import read_architecture
from rlrun.runner.batches.packing import all_micro_batches
from tests.runner.trainer.trainer_cases import (
    TEMPERATURE,
    make_rank,
    make_spec,
    plan,
    run_ranks,
    split_experts,
)
from tests.runner.trainer.vision_worker import gradients, run_case
from tests.tiny_vlms import VLMS, make_tiny_vlm, make_vision_sequences, vision_reference

WORKER = Path(__file__).with_name("vision_worker.py")
OPTIONS = {"max_tokens_per_rank": 150, "max_grad_norm": 1e9, "lr": 1e-2}
FULL = {"activation_checkpointing": "full"}


@dataclass(frozen=True)
class Case:
    family: str
    tower: str = "trained"
    parallel: dict[str, Any] = field(default_factory=dict)
    more: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        layout = "-".join(f"{name}-{degree}" for name, degree in self.parallel.items())
        return "-".join(filter(None, [self.family, self.tower, layout, *self.more.values()]))

    @property
    def settings(self) -> dict[str, Any]:
        return OPTIONS | self.more | {"vision_tower": self.tower}


CASES = [
    Case("qwen2_5_vl"),
    Case("qwen2_5_vl", "frozen"),
    Case("qwen3_vl", more=FULL),
    Case("qwen3_5"),
    Case("qwen3_5_moe"),
    Case("qwen2_5_vl", parallel={"fsdp": 2}),
    Case("qwen2_5_vl", "frozen", parallel={"replicate": 2}),
    Case("qwen3_vl", parallel={"replicate": 2}, more=FULL),
    Case("qwen3_vl", "frozen", parallel={"fsdp": 2}),
    Case("qwen3_5", parallel={"fsdp": 2}),
    Case("qwen3_5", parallel={"tensor": 2, "sequence_parallel": False}),
    Case("qwen3_5_moe", parallel={"fsdp": 2, "expert": 2}),
    Case("qwen3_5_moe", parallel={"tensor": 2, "expert": 2}, more=FULL),
    Case("qwen3_5_moe", "frozen", parallel={"tensor": 2}),
    Case("qwen3_5_moe", "frozen", parallel={"replicate": 2}),
]
BY_NAME = {case.name: case for case in CASES}
ALONE = [case.name for case in CASES if not case.parallel]
TOGETHER = [case.name for case in CASES if case.parallel]


def patch_of(folder: Path) -> int:
    vision = read_architecture(folder).vision
    assert vision is not None
    return vision.patch_size


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("vlms")
    return {
        family: make_tiny_vlm(root / family, family, scale=0.05 if "qwen3_5" in family else 0.1)
        for family in VLMS
    }


@pytest.fixture(scope="module")
def reference(folders):
    """`reference(family)`: log-probs of the sequences, and gradients of the trainer's loss by HF names."""
    known = {}

    def of(family):
        if family not in known:
            folder = folders[family]
            sequences = make_vision_sequences(patch_of(folder))
            spec = make_spec(folder, **OPTIONS)
            model = transformers.AutoModelForImageTextToText.from_pretrained(
                folder, dtype=torch.float32, attn_implementation="eager"
            )
            scale, log_probs = plan(sequences, spec)[0].scale, []
            for i, sequence in enumerate(sequences):
                logits = vision_reference(model, sequence)[sequence.prompt_length - 1 : -1] / TEMPERATURE
                everything = logits.log_softmax(-1)
                targets = torch.from_numpy(sequence.tokens[sequence.prompt_length :]).long()
                chosen = everything.gather(1, targets[:, None])[:, 0]
                entropy = -(everything.exp() * everything).sum(1)
                ratio = (chosen - chosen.detach()).exp()
                loss = -(ratio * torch.from_numpy(sequence.advantages)) - 0.1 * entropy
                (scale[i] * (loss * torch.from_numpy(sequence.loss_mask)).sum()).backward()
                log_probs.append(chosen.detach())
            named = {name: p.grad for name, p in model.named_parameters()}
            if family == "qwen2_5_vl":  # transformers renames its modules
                named = {
                    name.replace("model.language_model.", "model.").replace("model.visual.", "visual."): grad
                    for name, grad in named.items()
                }
            known[family] = log_probs, split_experts(named)
        return known[family]

    return of


def compare(case, ranks, truth):
    log_probs, grads = truth
    together = {}
    for rank in ranks:
        together |= rank["log_probs"]
    assert together.keys() == set(range(len(log_probs)))
    difference = max(
        float((torch.from_numpy(together[i]) - own).abs().max()) for i, own in enumerate(log_probs)
    )
    ours = ranks[0]["gradients"]
    assert ours.keys() == grads.keys()
    tower = {name for name in grads if "visual." in name}
    assert len(tower) > 30
    trained = set(grads) if case.tower == "trained" else set(grads) - tower
    assert all(ours[name].isnan().all() for name in set(grads) - trained)
    # rounding grows with a tensor's gradient, which is 5.1 in the embedding
    gradient = max(
        float((ours[name] - grads[name]).abs().max() / grads[name].abs().max().clamp(min=1.0))
        for name in trained
    )
    print(case.name, f"log-prob {difference:.1e}, gradient {gradient:.1e}")
    assert max(difference, gradient) < 1e-5
    assert max(float(grads[name].abs().max()) for name in tower) > 1e-3
    norm = torch.stack([grads[name].norm() for name in trained]).norm()
    assert ranks[0]["norm"] == pytest.approx(float(norm), rel=1e-5)


@pytest.mark.parametrize("name", ALONE)
def test_one_rank_agrees_with_transformers(name, folders, reference):
    case = BY_NAME[name]
    folder = folders[case.family]
    spec = make_spec(folder, **case.settings)
    trainer = make_rank(folder, spec)
    try:
        sequences = make_vision_sequences(patch_of(folder))
        steps = plan(sequences, spec)
        result = {"log_probs": trainer.policy.log_probs(sequences, all_micro_batches(steps))}
        (metrics,) = trainer.policy.train(sequences, steps)
        result |= {"gradients": gradients(trainer), "norm": metrics["train/grad_norm"]}
        compare(case, [result], reference(case.family))
    finally:
        trainer.close()


@pytest.fixture(scope="module")
def runs(folders, tmp_path_factory):
    """The results of all cases of two ranks, which share one process group, and those of one rank."""
    out = tmp_path_factory.mktemp("runs")
    arguments = {
        case.name: {
            "name": case.name,
            "folder": str(folders[case.family]),
            "parallel": case.parallel,
            "trainer": case.settings,
            "patch": patch_of(folders[case.family]),
        }
        for case in CASES
    }
    run_ranks(WORKER, 2, [arguments[name] for name in TOGETHER], out)
    results = {
        name: [torch.load(out / f"{name}-{rank}.pt", weights_only=False) for rank in range(2)]
        for name in TOGETHER
    }
    for name in ALONE:
        trainer = run_case(arguments[name], 0, 1, None, out)
        trainer.close()
        results[name] = [torch.load(out / f"{name}-0.pt", weights_only=False)]
    return results


@pytest.mark.slow
@pytest.mark.parametrize("name", TOGETHER)
def test_two_ranks_agree_with_transformers_and_with_one(name, runs, reference):
    case, (first, second) = BY_NAME[name], runs[name]
    compare(case, [first, second], reference(case.family))
    [alone] = next(
        runs[other]
        for other in ALONE
        if BY_NAME[other].family == case.family and BY_NAME[other].tower in (case.tower, "trained")
    )
    if BY_NAME[name].tower == "trained":
        assert first["next"] == pytest.approx(alone["next"], rel=1e-4)
    assert first["resumed"].keys() == first["after"].keys()
    assert all(torch.equal(first["resumed"][key], first["after"][key]) for key in first["after"])
    sends_tower = any("visual." in key for key in first["after"])
    assert sends_tower == (case.tower == "trained")


def test_an_exported_model_has_the_tower_it_was_trained_with(folders, tmp_path):
    folder = folders["qwen2_5_vl"]
    stored = load_file(folder / "model.safetensors")
    for tower in ("trained", "frozen", "none"):
        spec = make_spec(folder, **OPTIONS, vision_tower=tower)
        trainer = make_rank(folder, spec)
        sequences = make_vision_sequences(patch_of(folder))
        chosen = sequences[2:3] if tower == "none" else sequences[:1]
        trainer.policy.train(chosen, plan(chosen, spec))
        trainer.export_hf(tmp_path / tower)
        trainer.close()
        written = load_file(tmp_path / tower / "model.safetensors")
        assert written.keys() == stored.keys()
        for name, tensor in stored.items():
            changed = not torch.equal(written[name], tensor)
            if name.startswith("visual."):
                assert changed == (tower == "trained"), name
        assert not torch.equal(written["model.norm.weight"], stored["model.norm.weight"])


def test_images_without_a_tower_are_refused_with_the_key(folders):
    folder = folders["qwen2_5_vl"]
    spec = make_spec(folder, **OPTIONS, vision_tower="none")
    trainer = make_rank(folder, spec)
    sequences = make_vision_sequences(patch_of(folder))[:1]
    with pytest.raises(ValueError, match=r"set trainer\.vision_tower to frozen or trained"):
        trainer.policy.log_probs(sequences, all_micro_batches(plan(sequences, spec)))
    trainer.close()
