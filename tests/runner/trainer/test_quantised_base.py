"""A frozen base in 4 and 8 bits against peft on a model whose matrices were rounded in the same way.

Log-probs, gradients and the adapters after one step agree to 1e-5 in float32; engines get the rounded
matrices with the adapters merged. One layout is part of `make test`, all of them of `make parity`.
"""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from rlrun.converters.tensors.base_blocks import decode, encode
from rlrun.models.adapters import LoraShape, quantised_matrices
from rlrun.models.config_json import read_architecture
from tests.runner.trainer.test_lora_parity import PeftReference, assert_agreement_with_peft
from tests.runner.trainer.test_parity import UNCLIPPED
from tests.runner.trainer.trainer_cases import make_masked_sequences, make_spec, plan, run_ranks
from tests.tiny_models import make_tiny_model

WORKER = Path(__file__).with_name("lora_worker.py")
LORA = {"rank": 4, "alpha": 6, "targets": ["q_proj", "o_proj", "down_proj"]}
MODEL = {"num_hidden_layers": 4, "head_dim": 32, "intermediate_size": 128, "pad_token_id": None, "scale": 0.1}
LAYOUTS = {
    "nf4-alone": ("nf4", {}),
    "int8-alone": ("int8", {}),
    "nf4-fsdp": ("nf4", {"fsdp": 2}),
    "nf4-tensor": ("nf4", {"tensor": 2}),
    "nf4-context": ("nf4", {"context": 2}),
    "nf4-pipeline": ("nf4", {"pipeline": 2}),
    "int8-fsdp-tensor": ("int8", {"fsdp": 2, "tensor": 2}),
}
FAST = {"nf4-alone"}
ALL = [pytest.param(name, marks=() if name in FAST else pytest.mark.slow, id=name) for name in LAYOUTS]


def ranks_of(name):
    ranks = 1
    for degree in LAYOUTS[name][1].values():
        ranks *= degree
    return ranks


class Runs:
    """The results of every rank of each layout; layouts on as many ranks share a process group."""

    def __init__(self, root, chosen):
        self._root, self._chosen = root, chosen
        self.folder = make_tiny_model(root / "model", **MODEL)
        self._references, self._results = {}, {}

    def reference(self, kind):
        """The adapter's folder, the rounded weights, and what peft computes with both."""
        if kind not in self._references:
            rounded = make_tiny_model(self._root / f"rounded-{kind}", **MODEL)
            weights = load_file(self.folder / "model.safetensors")
            for matrix in quantised_matrices(read_architecture(rounded)):
                weights[matrix.name] = decode(encode(weights[matrix.name], kind), kind)
            save_file(weights, rounded / "model.safetensors", {"format": "pt"})
            spec, sequences = make_spec(rounded, **UNCLIPPED), make_masked_sequences()
            model = PeftReference(rounded, spec, LORA, rounded / "adapter")
            (step,) = plan(sequences, spec)
            with torch.no_grad():
                log_probs = [model.log_probs(sequence)[0] for sequence in sequences]
            gradients = model.gradients(sequences, step.scale, entropy_coef=0.1)
            model.step()
            truth = {"gradients": gradients, "stepped": model.factors(lambda parameter: parameter)}
            self._references[kind] = rounded / "adapter", weights, truth | {"log_probs": log_probs}
        return self._references[kind]

    def of(self, name):
        if name not in self._results:
            ranks = ranks_of(name)
            names = [each for each in LAYOUTS if each in self._chosen and ranks_of(each) == ranks]
            out = self._root / f"ranks-{ranks}"
            out.mkdir()
            run_ranks(WORKER, ranks, [self._case(each) for each in names], out)
            for each in names:
                files = [out / f"{each}-{rank}.pt" for rank in range(ranks)]
                self._results[each] = [torch.load(file, weights_only=False) for file in files]
        return self._results[name]

    def _case(self, name):
        kind, parallel = LAYOUTS[name]
        alone = self._root / "checkpoints" / "nf4-alone"
        return {
            "name": name,
            "folder": str(self.folder),
            "adapter": str(self.reference(kind)[0]),
            "lora": LORA | {"base": kind},
            "parallel": parallel,
            "trainer": UNCLIPPED,
            "checkpoint": str(self._root / "checkpoints" / name),
            "resume": str(alone) if kind == "nf4" and alone.exists() else None,
        }


@pytest.fixture(scope="module")
def runs(tmp_path_factory, request):
    items = [item for item in request.session.items if item.path == request.path]
    chosen = {item.callspec.params["layout"] for item in items if hasattr(item, "callspec")}
    return Runs(tmp_path_factory.mktemp("runs"), chosen)


@pytest.mark.parametrize("layout", ALL)
def test_agrees_with_peft_on_the_rounded_model(layout, runs):
    ranks, (_, _, truth) = runs.of(layout), runs.reference(LAYOUTS[layout][0])
    assert_agreement_with_peft(layout, ranks, truth)


@pytest.mark.parametrize("layout", ALL)
def test_engines_get_the_rounded_matrices_with_adapters(layout, runs):
    (first, *_), (adapter, rounded, _) = runs.of(layout), runs.reference(LAYOUTS[layout][0])
    scale = LoraShape(LORA["rank"], LORA["alpha"]).scale
    for factors, sent in (
        (load_file(adapter / "adapter_model.safetensors"), "before"),
        (first["adapters"], "after"),
    ):
        merged = dict(rounded)
        for name, down in factors.items():
            if ".lora_A." in name:
                weight = name.removeprefix("base_model.model.").replace(".lora_A.", ".")
                up = factors[name.replace(".lora_A.", ".lora_B.")]
                merged[weight] = torch.addmm(rounded[weight], up, down, alpha=scale)
        assert first[sent].keys() == merged.keys()
        assert all(torch.equal(first[sent][name], merged[name]) for name in merged)


@pytest.mark.parametrize("layout", ALL)
def test_a_checkpoint_contains_adapters_only_and_resumes_on_another_layout(layout, runs):
    for rank in runs.of(layout):
        kept = [name for name in rank["saved"] if name.startswith("parameters.")]
        assert kept and all(".lora_" in name for name in kept)
    if (resumed := runs.of(layout)[0].get("resumed")) is not None:
        expected = runs.of("nf4-alone")[0]["adapters"]
        assert resumed.keys() == expected.keys()
        assert all(torch.equal(resumed[name], expected[name]) for name in expected)
