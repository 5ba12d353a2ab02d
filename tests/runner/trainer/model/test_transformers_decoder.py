"""The fallback to transformers' own layers; test_parity.py compares it with transformers on every layout."""

import json

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, GraniteMoeConfig

from rlrun.models.families.by_transformers import TEXT_FAMILIES
from rlrun.models.transformers_models import read_transformers_model
from rlrun.runner.trainer.model.decoder_options import DecoderOptions
from rlrun.runner.trainer.model.transformers_layers.transformers_decoder import build_transformers_decoder
from rlrun.specs.sections.trainer import ParallelSpec
from tests.converters.conversions import convert, read_hf, same
from tests.runner.trainer.trainer_cases import Reference, make_rank, make_sequences, make_spec, plan
from tests.tiny_models import make_tiny_model, make_tiny_tokenizer

CPU = torch.device("cpu")


VISION = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
VISION |= {"image_size": 28, "patch_size": 14}


def make_tiny_multimodal(folder, family):
    """A random model with a vision tower, whose text model is a tiny one; its names are of `folder`'s."""
    text_family = {"gemma3": "gemma3_text", "mistral3": "mistral"}[family]
    text = make_tiny_model(folder.with_name("text"), text_family, scale=0.05, tied=True, pad_token_id=None)
    tower = VISION | ({"model_type": "pixtral", "head_dim": 8} if family == "mistral3" else {})
    config = AutoConfig.for_model(
        family,
        text_config=json.loads((text / "config.json").read_text()),
        vision_config=tower,
        tie_word_embeddings=True,
        mm_tokens_per_image=4,
    )
    AutoModelForImageTextToText.from_config(config, dtype=torch.float32).save_pretrained(folder)
    make_tiny_tokenizer(folder)
    return folder


def make_folder(folder, family):
    if family in TEXT_FAMILIES:
        return make_tiny_multimodal(folder, family)
    return make_tiny_model(folder, family, tied=True, pad_token_id=None)


@pytest.mark.parametrize("family", ["mistral", "mixtral", "gemma3", "mistral3"])
def test_trained_saved_converted_and_exported(tmp_path, family):
    """Names of the files return, with a tensor for each expert; the vision tower is as it was."""
    run = tmp_path / "run"
    folder = make_folder(tmp_path / "hf", family)
    trainer = make_rank(folder, spec := make_spec(folder))
    try:
        sequences = make_sequences(3)
        [step] = plan(sequences, spec)
        given = trainer.policy.log_probs(sequences, step.micro_batches)
        trainer.policy.train(sequences, [step])
        trainer.save(run / "checkpoints" / "step-1" / "trainer")
        trainer.export_hf(tmp_path / "export")
    finally:
        trainer.close()
    for i, sequence in enumerate(sequences):
        with torch.no_grad():
            alone, _ = Reference(folder, spec).log_probs(sequence)
        torch.testing.assert_close(torch.from_numpy(given[i]), alone, atol=1e-5, rtol=0)
    (run / "spec.lock.json").write_text(json.dumps({"model": {"folder": str(folder)}}))
    before, exported = read_hf(folder), read_hf(tmp_path / "export")
    assert exported.keys() == before.keys()
    unchanged = {name for name in before if torch.equal(before[name], exported[name])}
    beside = {name for name in before if not name.startswith(("model.", "language_model.", "lm_head."))}
    assert unchanged == beside
    assert bool(beside) == (family in TEXT_FAMILIES)
    assert same(exported, read_hf(convert(run, "hf", tmp_path / "converted")))


SHORT, LONG = [1.0, 1.1, 1.3, 1.6, 2.0, 2.5, 3.1, 3.8], [2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]
STRETCHED = {
    "dynamic": {"rope_type": "dynamic", "rope_theta": 100.0, "factor": 8.0},
    "longrope": {
        "rope_type": "longrope",
        "rope_theta": 100.0,
        "short_factor": SHORT,
        "long_factor": LONG,
        "factor": 4.0,
        "original_max_position_embeddings": 20,
    },
}
"""Kinds of RoPE whose frequencies follow a sequence's length."""


@pytest.mark.parametrize("kind", STRETCHED)
def test_a_document_has_the_frequencies_that_it_has_alone(tmp_path, kind):
    """The result does not depend on other documents of the pack, or on earlier passes."""
    settings = {"max_position_embeddings": 20, "rope_parameters": STRETCHED[kind], "sliding_window": None}
    folder = make_tiny_model(tmp_path / "hf", "mistral", pad_token_id=None, **settings)
    sequences = make_sequences(12)
    lengths = [len(one.tokens) for one in sequences]
    assert min(lengths) < 20 < max(lengths)
    trainer = make_rank(folder, spec := make_spec(folder))
    try:
        [step] = plan(sequences, spec)
        assert any(len(batch) > 1 for batch in step.micro_batches[0])
        found = [trainer.policy.log_probs(sequences, step.micro_batches) for _ in range(2)]
    finally:
        trainer.close()
    for i, sequence in enumerate(sequences):
        with torch.no_grad():
            alone, _ = Reference(folder, spec).log_probs(sequence)
        for own in found:
            torch.testing.assert_close(torch.from_numpy(own[i]), alone, atol=1e-4, rtol=1e-4)


def test_a_model_whose_checkpoint_is_rearranged_is_refused(tmp_path):
    config = GraniteMoeConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        num_local_experts=2,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    model = read_transformers_model(tmp_path)
    options = DecoderOptions(parallel=ParallelSpec(), dtype=torch.float32, device=CPU)
    differ = r"the checkpoint's tensors differ from transformers' parameters: .*experts"
    with pytest.raises(ValueError, match=differ):
        build_transformers_decoder(tmp_path, model, None, options)


def test_attention_that_documents_cannot_be_told_to_is_refused(tmp_path, monkeypatch):
    folder = make_tiny_model(tmp_path / "hf", "mistral", pad_token_id=None)
    trainer = make_rank(folder, spec := make_spec(folder))
    try:
        [decoder] = trainer.policy.model.decoders
        decoder._layers += 1  # as if one layer had attention of its own kind
        sequences = make_sequences(1)
        with pytest.raises(ValueError, match="called attention 2 times for 3 layers"):
            trainer.policy.log_probs(sequences, plan(sequences, spec)[0].micro_batches)
    finally:
        trainer.close()
