"""The MTP layer against plain torch: loss, accuracy and gradients, and a policy that does not depend on it.

The reference does what SGLang 0.5.23 does when it speculates with the layer: models/mimo_mtp.py (hidden state
first, embedding of the first position masked), models/deepseek_nextn.py, models/glm4_moe_nextn.py and
models/glm4_moe_lite_nextn.py (embedding first), around transformers' decoder layer of the family;
speculative/eagle_worker_v2.py shifts the tokens by one.
"""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.nn.functional import linear, rms_norm
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3DecoderLayer
from transformers.models.glm4_moe.modeling_glm4_moe import Glm4MoeDecoderLayer
from transformers.models.glm4_moe_lite.modeling_glm4_moe_lite import Glm4MoeLiteDecoderLayer
from transformers.models.qwen2.modeling_qwen2 import Qwen2DecoderLayer

from tests.mtp_models import make_mtp_model
from tests.runner.trainer.trainer_cases import (
    Reference,
    make_masked_sequences,
    make_spec,
    plan,
    run_ranks,
)

WORKER = Path(__file__).with_name("parity_worker.py")
WEIGHT = 0.3
SETTINGS = {"max_grad_norm": 1e9, "lr": 2e-3, "logits_chunk": 16}
CASES = {
    "mimo": ("mimo", {}, {}),
    "glm": ("glm4_moe", {}, {}),
    "glm-flash": ("glm4_moe_lite", {}, {}),
    "deepseek": ("deepseek_v3", {}, {}),
    "mimo-fsdp": ("mimo", {"fsdp": 2}, {}),
    "mimo-recomputed": ("mimo", {"fsdp": 2}, {"activation_checkpointing": "full"}),
    "mimo-offloaded": ("mimo", {"fsdp": 2}, {"offload": "all"}),
    "glm-fsdp": ("glm4_moe", {"fsdp": 2}, {}),
    "glm-replicas": ("glm4_moe", {"replicate": 2}, {"activation_checkpointing": "selective"}),
    "glm-experts": ("glm4_moe", {"fsdp": 2, "expert": 2}, {}),
    "deepseek-experts": ("deepseek_v3", {"fsdp": 2, "expert": 2}, {}),
}
"""Family, layout and other settings."""
SLOW = ("mimo-recomputed", "mimo-offloaded", "glm-fsdp", "glm-replicas", "deepseek-experts")
"""Settings and layouts whose parts other cases have, or the parity tests of the policy."""
ALL = [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in CASES]
LAYERS = {
    "mimo": Qwen2DecoderLayer,
    "glm4_moe": Glm4MoeDecoderLayer,
    "glm4_moe_lite": Glm4MoeLiteDecoderLayer,
    "deepseek_v3": DeepseekV3DecoderLayer,
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    options = {"num_hidden_layers": 3, "scale": 0.1, "pad_token_id": None}
    return {family: make_mtp_model(root / family, family, **options) for family in LAYERS}


@pytest.fixture(scope="module")
def runs(folders, tmp_path_factory, request):
    """What rank 0 gave, by case that is tested, with the weight of the loss and with 0."""
    root, results = tmp_path_factory.mktemp("runs"), {}
    chosen = [item for item in request.session.items if item.path == request.path]
    names = {item.callspec.params["case"] for item in chosen if hasattr(item, "callspec")}
    names |= {name.partition("-")[0] for name in names}  # whose checkpoints are resumed
    for ranks in (1, 2):
        out = root / str(ranks)
        out.mkdir()
        arguments = [
            {
                "name": f"{name}-{weight}",
                "folder": str(folders[family]),
                "parallel": parallel,
                "trainer": SETTINGS | trainer | {"mtp_loss": weight},
                "checkpoint": str(out / f"{name}-{weight}.checkpoint"),
                "resume": str(root / f"1/{name.partition('-')[0]}-{weight}.checkpoint") if parallel else None,
            }
            for name, (family, parallel, trainer) in CASES.items()
            if name in names and (2 if parallel else 1) == ranks
            for weight in (WEIGHT, 0.0)
        ]
        run_ranks(WORKER, ranks, arguments, out)
        results |= {path.stem: torch.load(path, weights_only=False) for path in out.glob("*-0.pt")}
    return {name: tuple(results[f"{name}-{weight}-0"] for weight in (WEIGHT, 0.0)) for name in names}


class PlainMtp:
    """The layer in plain torch, around a decoder layer of transformers, for a sequence at a time."""

    def __init__(self, folder, family):
        self.policy = Reference(folder, make_spec(folder)).model
        self.is_mimo, config = family == "mimo", self.policy.config
        self.prefix = "model.mtp_layers.0." if self.is_mimo else f"model.layers.{config.num_hidden_layers}."
        stored = load_file(folder / "model.safetensors")
        self.weights = {
            name.removeprefix(self.prefix): tensor.requires_grad_()
            for name, tensor in stored.items()
            if name.startswith(self.prefix)
        }
        self.layer = LAYERS[family](config, layer_idx=config.num_hidden_layers - 1)

    def log_probs(self, tokens):
        """Returns `[T - 2, vocab]`: entry i is about token i + 2."""
        names = ("hidden_layernorm", "token_layernorm", "input_proj", "final_layernorm")
        if not self.is_mimo:
            names = ("hnorm", "enorm", "eh_proj", "shared_head.norm")
        hnorm, enorm, projection, norm = (self.weights[f"{name}.weight"] for name in names)
        model, epsilon, size = self.policy.model, self.policy.config.rms_norm_eps, (tokens.shape[0] - 1,)
        with torch.no_grad():
            hidden = model(input_ids=tokens[None]).last_hidden_state[:, :-1]
            following = model.embed_tokens(tokens[None, 1:])
            if self.is_mimo:
                following[:, 0] = 0
        pair = [
            rms_norm(hidden, hnorm.shape, hnorm, epsilon),
            rms_norm(following, enorm.shape, enorm, epsilon),
        ]
        states = linear(torch.cat(pair if self.is_mimo else pair[::-1], dim=-1), projection)
        places = torch.arange(*size)[None]
        causal = torch.full(size * 2, -torch.inf).triu(1)[None, None]
        states = torch.func.functional_call(
            self.layer,
            self._layer_weights(),
            (states,),
            {
                "attention_mask": causal,
                "position_ids": places,
                "position_embeddings": model.rotary_emb(states, places),
            },
        )
        states = rms_norm(states, norm.shape, norm, epsilon)
        return linear(states[0, :-1], self.policy.lm_head.weight.detach()).log_softmax(-1)

    def _layer_weights(self):
        """The decoder layer's parameters, with the experts in two stacks, as transformers has them."""
        names = set(dict(self.layer.named_parameters())) | set(dict(self.layer.named_buffers()))
        known = {name: self.weights[name] for name in names if name in self.weights}
        if not self.is_mimo:
            experts = range(self.policy.config.n_routed_experts)
            parts = {
                part: [self.weights[f"mlp.experts.{i}.{part}_proj.weight"] for i in experts]
                for part in ("gate", "up", "down")
            }
            gate_up = [torch.cat(pair) for pair in zip(parts["gate"], parts["up"], strict=True)]
            known["mlp.experts.gate_up_proj"] = torch.stack(gate_up)
            known["mlp.experts.down_proj"] = torch.stack(parts["down"])
        assert known.keys() == names
        return known


@pytest.fixture(scope="module")
def expected(folders):
    """Loss, accuracy and gradients of each family in plain torch."""
    found, sequences = {}, make_masked_sequences()
    for family, folder in folders.items():
        (step,) = plan(sequences, make_spec(folder, **SETTINGS))
        plain, loss, hits = PlainMtp(folder, family), 0.0, 0.0
        for i, sequence in enumerate(sequences):
            tokens = torch.from_numpy(sequence.tokens).long()
            first = max(sequence.prompt_length, 2)  # no hidden state is two tokens before the second
            if len(tokens) <= first:
                continue
            log_probs = plain.log_probs(tokens)[first - 2 :]
            weights = step.scale[i] * torch.from_numpy(sequence.loss_mask)[first - sequence.prompt_length :]
            loss -= (weights * log_probs.gather(1, tokens[first:, None])[:, 0]).sum()
            hits += float((weights * (log_probs.argmax(1) == tokens[first:])).sum())
        (WEIGHT * loss).backward()
        gradients = {
            plain.prefix + name: torch.zeros_like(weight) if weight.grad is None else weight.grad
            for name, weight in plain.weights.items()
        }
        found[family] = {"loss": float(loss.detach()), "accuracy": hits, "gradients": gradients}
    return found


def test_some_sequence_has_a_prompt_of_one_token():
    """Its first response token is the second of the sequence, which the layer cannot predict."""
    assert any(sequence.prompt_length == 1 for sequence in make_masked_sequences())


@pytest.mark.parametrize("case", ALL)
def test_loss_and_gradients_are_those_of_plain_torch(case, runs, expected):
    ours, truth = runs[case][0], expected[CASES[case][0]]
    assert ours["metrics"]["train/mtp_loss"] == pytest.approx(truth["loss"], rel=1e-5)
    assert ours["metrics"]["train/mtp_accuracy"] == pytest.approx(truth["accuracy"], abs=1e-6)
    norm = torch.stack([gradient.norm() for gradient in truth["gradients"].values()]).norm()
    assert ours["metrics"]["train/mtp_grad_norm"] == pytest.approx(float(norm), rel=1e-4)
    trained = {name for name in truth["gradients"] if not name.endswith("correction_bias")}
    for name in trained:
        difference = (ours["gradients"][name] - truth["gradients"][name]).abs().max()
        assert difference < 1e-5, name
        assert ours["gradients"][name].any() or ".experts." in name, name


@pytest.mark.parametrize("case", ALL)
def test_the_policy_does_not_depend_on_the_layer(case, runs):
    """Bit for bit: gradients, metrics, and the weights and log-probs after the step."""
    trained, without = runs[case]
    assert len(without["gradients"]) < len(trained["gradients"])
    for name, gradient in without["gradients"].items():
        assert torch.equal(trained["gradients"][name], gradient), name
    assert trained["after"].keys() == without["after"].keys() == without["gradients"].keys()
    assert all(torch.equal(trained["after"][name], weight) for name, weight in without["after"].items())
    for name, value in without["metrics"].items():
        assert trained["metrics"][name] == value or name.startswith("perf/"), name
    assert all((trained["changed"][i] == own).all() for i, own in without["changed"].items())
    assert all((trained["swapped"][i] == own).all() for i, own in trained["log_probs"].items())


def test_the_accuracy_counts_the_tokens_that_are_most_probable(expected):
    assert any(truth["accuracy"] > 0 for truth in expected.values())
