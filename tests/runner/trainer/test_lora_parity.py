"""Adapters against peft on transformers in float32, on every layout.

Log-probs, every gradient and the adapters after one step agree to 1e-5; engines get the merged matrices; the
reference is the model with the adapters that it started with; only adapters are trained and saved. A few
layouts are part of `make test`, all of them of `make parity`.
"""

from pathlib import Path

import peft
import pytest
import torch
from safetensors.torch import load_file

from rlrun.models.adapters import EXPERT_TARGETS, LoraShape, adapters
from rlrun.models.config_json import read_architecture
from tests.runner.trainer.layouts import CASES, Case
from tests.runner.trainer.test_parity import UNCLIPPED
from tests.runner.trainer.trainer_cases import (
    MODELS,
    Reference,
    make_masked_sequences,
    make_spec,
    plan,
    run_ranks,
)
from tests.tiny_models import FOREIGN, make_tiny_model

WORKER = Path(__file__).with_name("lora_worker.py")
LORA = {"rank": 4, "alpha": 6, "rslora": True}
ATTENTION = {"targets": ["q_proj", "v_proj"], "rank": 2, "alpha": 4}
EXPERTS = {"targets": ["q_proj", *EXPERT_TARGETS], "rank": 4, "alpha": 6}
SETTINGS = {"all": LORA, "attention": ATTENTION, "experts": EXPERTS}
FAST = {"qwen3-alone-1", "qwen3-fsdp-2"}


def slow(name):
    return pytest.param(name, marks=pytest.mark.slow, id=name)


def is_supported(case):
    """Whether adapters can be trained in a layout; `rlrun validate` and `plan` refuse the others."""
    return MODELS[case.model]["family"] not in FOREIGN


LAYOUTS = {case.name: (case, LORA) for case in CASES if is_supported(case)} | {
    "two-targets-alone": (Case("qwen2"), ATTENTION),
    "two-targets-tensor": (Case("qwen2", {"tensor": 2}), ATTENTION),
    **{
        case.name.replace("qwen3-moe", "experts"): (case, EXPERTS)
        for case in CASES
        if case.model == "qwen3-moe" and is_supported(case)
    },
}
HALF = {
    case.name: (case, LORA)
    for case in (Case("qwen3", layout, {"dtype": "bfloat16"}) for layout in ({}, {"fsdp": 2}, {"tensor": 2}))
}
COMPILE = {"compile": True}
COMPILED = {
    f"{Case('qwen3', layout).name}-compiled": (Case("qwen3", layout, COMPILE), LORA)
    for layout in ({}, {"fsdp": 2}, {"tensor": 2})
} | {"experts-alone-1-compiled": (Case("qwen3-moe", {}, COMPILE), EXPERTS)}
ALL = [name if name in FAST else slow(name) for name in LAYOUTS]


EVERY = LAYOUTS | HALF | COMPILED


class PeftReference(Reference):
    """The same step by peft on plain transformers."""

    def __init__(self, folder, spec, settings, destination):
        super().__init__(folder, spec)
        shape = LoraShape(**settings | {"targets": tuple(settings.get("targets", ()))})
        targets = {adapter.target for adapter in adapters(read_architecture(folder), shape)}
        stacked = [f"mlp.{target}" for target in EXPERT_TARGETS if target in targets]
        config = peft.LoraConfig(
            r=shape.rank,
            lora_alpha=shape.alpha,
            use_rslora=shape.rslora,
            target_modules=sorted(targets - set(EXPERT_TARGETS)),
            target_parameters=stacked or None,
            task_type="CAUSAL_LM",
        )
        self.model = peft.get_peft_model(self.model, config)
        for number, (name, factor) in enumerate(self.model.named_parameters()):
            if "lora_" in name:
                generator = torch.Generator().manual_seed(number)
                factor.data = torch.randn(factor.shape, generator=generator) * 0.1
        self.model.save_pretrained(destination)

    def gradients(self, sequences, scale, entropy_coef):
        for parameter in self.model.parameters():
            parameter.grad = None
        for i, sequence in enumerate(sequences):
            chosen, entropy = self.log_probs(sequence)
            advantages, mask = torch.from_numpy(sequence.advantages), torch.from_numpy(sequence.loss_mask)
            ratio = (chosen - chosen.detach()).exp()
            loss = -(ratio * advantages) - entropy_coef * entropy
            (scale[i] * (loss * mask).sum()).backward()
        return self.factors(lambda parameter: parameter.grad)

    def factors(self, value):
        """`value` of each factor, by its name on disk."""
        return {
            name.replace(".default", ""): value(parameter).detach().clone()
            for name, parameter in self.model.named_parameters()
            if parameter.requires_grad
        }


class Runs:
    """What every rank of each layout gave; those on as many ranks share a process group."""

    def __init__(self, root, wanted):
        self.root = root
        self._wanted = wanted
        self._models, self._found = {}, {}

    def model(self, name):
        """The model's folder, the adapter's, and what peft gives for them."""
        case, settings = EVERY[name]
        key = f"{case.model}-{next(name for name, each in SETTINGS.items() if each is settings)}"
        if key not in self._models:
            folder = self.root / key
            make_tiny_model(folder, **({"pad_token_id": None, "scale": 0.1} | MODELS[case.model]))
            self._models[key] = folder, folder / "adapter", self._expected(folder, settings)
        return self._models[key]

    def of(self, name):
        if name not in self._found:
            ranks = EVERY[name][0].ranks
            self._run([each for each in EVERY if EVERY[each][0].ranks == ranks and each in self._wanted])
        return self._found[name]

    def _expected(self, folder, settings):
        spec = make_spec(folder, **UNCLIPPED)
        model = PeftReference(folder, spec, settings, folder / "adapter")
        sequences = make_masked_sequences()
        (step,) = plan(sequences, spec)
        with torch.no_grad():
            log_probs = [model.log_probs(sequence)[0] for sequence in sequences]
        gradients = model.gradients(sequences, step.scale, entropy_coef=0.1)
        _, norm = model.step()
        stepped = model.factors(lambda parameter: parameter)
        return {"log_probs": log_probs, "gradients": gradients, "stepped": stepped, "norm": norm}

    def _run(self, names):
        ranks = EVERY[names[0]][0].ranks
        out = self.root / f"ranks-{ranks}"
        out.mkdir()
        arguments = []
        for name in names:
            case, settings = EVERY[name]
            folder, adapter, _ = self.model(name)
            alone = self.root / "checkpoints" / alone_of(name)
            arguments.append(
                {
                    "name": name,
                    "folder": str(folder),
                    "adapter": str(adapter),
                    "lora": settings,
                    "parallel": case.parallel,
                    "trainer": UNCLIPPED | case.trainer,
                    "checkpoint": str(self.root / "checkpoints" / name),
                    "resume": str(alone)
                    if ranks > 1 and alone.exists() and settings is not ATTENTION
                    else None,
                }
            )
        run_ranks(WORKER, ranks, arguments, out)
        for name in names:
            self._found[name] = [
                torch.load(out / f"{name}-{rank}.pt", weights_only=False) for rank in range(ranks)
            ]


@pytest.fixture(scope="module")
def runs(tmp_path_factory, request):
    chosen = [item for item in request.session.items if item.path == request.path]
    wanted = {item.callspec.params["layout"] for item in chosen if hasattr(item, "callspec")}
    wanted |= {alone_of(name) for name in wanted & HALF.keys()}
    return Runs(tmp_path_factory.mktemp("runs"), wanted)


@pytest.mark.parametrize("layout", [*ALL, *map(slow, COMPILED)])
def test_agrees_with_peft(layout, runs):
    ranks, (_, _, truth) = runs.of(layout), runs.model(layout)
    assert_agreement_with_peft(layout, ranks, truth)
    assert ranks[0]["metrics"]["train/grad_norm"] == pytest.approx(truth["norm"], rel=1e-5)


@pytest.mark.parametrize("layout", ALL)
def test_only_adapters_are_trained_and_saved(layout, runs):
    ranks = runs.of(layout)
    assert any(rank["with_gradient"] for rank in ranks)  # a stage of Gated DeltaNet may have no adapters
    for rank in ranks:
        assert all(".lora_" in name for name in rank["with_gradient"])
        kept = [
            name
            for name in rank["saved"]
            if name.partition(".")[0] in ("parameters", "exp_avg", "exp_avg_sq")
        ]
        assert len(kept) == 3 * len(rank["with_gradient"])
        assert all(".lora_" in name for name in kept)


@pytest.mark.parametrize("layout", ALL)
def test_engines_get_merged_matrices(layout, runs):
    (first, *_), (folder, adapter, _) = runs.of(layout), runs.model(layout)
    stored, settings = load_file(folder / "model.safetensors"), LAYOUTS[layout][1]
    scale = LoraShape(settings["rank"], settings["alpha"], rslora=settings.get("rslora", False)).scale
    for factors, sent in (
        (load_file(adapter / "adapter_model.safetensors"), "before"),
        (first["adapters"], "after"),
    ):
        merged = dict(stored)
        for name, down in factors.items():
            if ".lora_A." in name and ".experts." in name:
                up = factors[name.replace(".lora_A.", ".lora_B.")]
                merged |= merged_experts(stored, name, down, up, scale)
            elif ".lora_A." in name:
                weight = name.removeprefix("base_model.model.").replace(".lora_A.", ".")
                up = factors[name.replace(".lora_A.", ".lora_B.")]
                merged[weight] = torch.addmm(stored[weight], up, down, alpha=scale)
        assert first[sent].keys() == merged.keys()
        assert all(torch.equal(first[sent][name], merged[name]) for name in merged)


@pytest.mark.parametrize("layout", ALL)
def test_the_reference_keeps_the_first_adapters(layout, runs):
    for rank in runs.of(layout):
        for i, log_probs in rank["log_probs"].items():
            assert (rank["changed"][i] != log_probs).any()
            assert (rank["reference"][i] == log_probs).all()


@pytest.mark.parametrize("layout", ALL)
def test_a_teacher_with_the_first_adapters_gives_the_first_log_probs(layout, runs):
    for rank in runs.of(layout):
        for i, log_probs in rank["log_probs"].items():
            assert (rank["teacher"][i] == log_probs).all()
            assert (rank["after_teacher"][i] == rank["changed"][i]).all()


@pytest.mark.parametrize(
    "layout", [name if name in FAST else slow(name) for name in LAYOUTS if LAYOUTS[name][1] is not ATTENTION]
)
def test_a_checkpoint_resumes_on_another_layout(layout, runs):
    alone = alone_of(layout)
    if (there := runs.of(layout)[0].get("resumed")) is not None:
        here = runs.of(alone)[0]["adapters"]
        assert there.keys() == here.keys()
        assert all(torch.equal(there[name], here[name]) for name in here)


def alone_of(layout):
    """The layout of the same model and adapters on one rank."""
    case, settings = EVERY[layout]
    name = f"{'experts' if settings is EXPERTS else case.model}-alone-1"
    return f"{name}-bfloat16" if layout in HALF else name


def merged_experts(stored, name, down, up, scale):
    """The experts' matrices with an adapter of peft, which has the factors of all experts in one matrix."""
    module = name.removeprefix("base_model.model.").partition(".experts.")[0] + ".experts"
    count = sum(each.startswith(f"{module}.") for each in stored) // 3
    parts = ["gate_proj", "up_proj"] if ".base_layer." in name else ["down_proj"]
    merged = {}
    for expert, first in enumerate(down.chunk(count)):
        for second, part in zip(up[:, expert::count].chunk(len(parts)), parts, strict=True):
            weight = f"{module}.{expert}.{part}.weight"
            merged[weight] = torch.addmm(stored[weight], second.contiguous(), first, alpha=scale)
    return merged


@pytest.mark.parametrize("layout", [slow("qwen3-fsdp-2-bfloat16"), slow("qwen3-tensor-2-bfloat16")])
def test_the_frozen_model_is_held_in_bfloat16_on_every_layout(layout, runs):
    alone, (first, *others) = runs.of("qwen3-alone-1-bfloat16")[0], runs.of(layout)
    for rank in (first, *others):
        dtypes = {name: dtype for name, dtype in rank["dtypes"].items() if ".lora_" not in name}
        assert set(dtypes.values()) == {torch.bfloat16}
        assert {rank["dtypes"][name] for name in rank["dtypes"].keys() - dtypes.keys()} == {torch.float32}
    assert all(torch.equal(first["before"][name], alone["before"][name]) for name in alone["before"])
    ours, theirs = (
        torch.cat([gradient.flatten() for gradient in result["gradients"].values()])
        for result in (first, alone)
    )
    assert (ours - theirs).norm() < 0.1 * theirs.norm()  # products in bfloat16 add up in another order


def assert_agreement_with_peft(layout, ranks, truth):
    """Compares what ranks computed, together, with peft's log-probs, gradients and adapters after a step."""
    together = {}
    for rank in ranks:
        together |= rank["log_probs"]
    differences = {
        "log-probs": max(
            float((torch.from_numpy(together[i]) - log_probs).abs().max())
            for i, log_probs in enumerate(truth["log_probs"])
        ),
        "gradients": largest_difference(ranks[0]["gradients"], truth["gradients"]),
        "stepped": largest_difference(ranks[0]["adapters"], truth["stepped"]),
    }
    print(layout, {name: f"{difference:.1e}" for name, difference in differences.items()})
    assert max(differences.values()) < 1e-5
    assert min(float(gradient.abs().max()) for gradient in truth["gradients"].values()) > 1e-5


def largest_difference(ours, theirs):
    assert ours.keys() == theirs.keys()
    return max(float((ours[name] - theirs[name]).abs().max()) for name in theirs)
