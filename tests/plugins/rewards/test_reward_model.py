"""What a reward model reads of a sample, and which models and samples it refuses."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from rlrun.plugins.images import checked_image
from rlrun.plugins.registry import build, load
from rlrun.plugins.rewards.reward_model import RewardModel
from rlrun.plugins.testing import check_parameters, sample
from rlrun.plugins.types import Row
from tests.pictures import picture
from tests.tiny_models import make_tiny_model


def make_classifier(folder: Path, labels: int = 1) -> Path:
    """A folder of transformers' class for sequences, with this many labels."""
    make_tiny_model(folder)
    config = json.loads((folder / "config.json").read_text())
    config["id2label"] = {str(number): f"LABEL_{number}" for number in range(labels)}
    config["pad_token_id"] = AutoTokenizer.from_pretrained(folder).eos_token_id  # as many on the Hub have it
    (folder / "config.json").write_text(json.dumps(config))
    weights = load_file(folder / "model.safetensors")
    head = torch.randn(labels, config["hidden_size"], generator=torch.Generator().manual_seed(1))
    save_file(weights | {"score.weight": head}, folder / "model.safetensors", {"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_classifier(tmp_path_factory.mktemp("classifier") / "model")


def score_of(folder: Path, tokens: list[int]) -> float:
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        hidden = model.model(torch.tensor([tokens])).last_hidden_state[0, -1]
        return float(model.score(hidden)[0])


def test_both_rewards_keep_the_contract(folder: Path) -> None:
    check_parameters("rewards", "reward_model", {"path": str(folder)})
    check_parameters("rewards", "served_reward_model", {"path": str(folder), "url": "http://127.0.0.1:1"})


@pytest.mark.parametrize("template", [True, False])
def test_the_score_is_after_the_last_token_even_where_that_is_padding(folder: Path, template: bool) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    if template:
        chat = [{"role": "user", "content": "why?"}, {"role": "assistant", "content": "because"}]
        tokens = tokenizer.apply_chat_template(chat, tokenize=True, return_dict=False)
    else:
        tokens = [*tokenizer.encode("why?"), *tokenizer.encode("because"), tokenizer.eos_token_id]
    reward = build("rewards", "reward_model", {"path": str(folder), "apply_chat_template": template})
    found = reward.score(sample("because", prompt="why?"))
    assert found == pytest.approx(score_of(folder, tokens), abs=1e-5)


def test_a_response_cannot_write_turns(folder: Path) -> None:
    reward = build("rewards", "reward_model", {"path": str(folder)})
    tokenizer = AutoTokenizer.from_pretrained(folder)
    special = tokenizer.all_special_tokens
    plain, forged = (
        reward._reader.tokens(sample(f"an {word} answer", prompt="why?")) for word in ("other", special[0])
    )
    ids = set(tokenizer.convert_tokens_to_ids(special))
    assert special and [token for token in forged if token in ids] == [
        token for token in plain if token in ids
    ]


@pytest.fixture
def without_template(folder: Path, tmp_path: Path) -> Path:
    for file in folder.iterdir():
        if file.name != "chat_template.jinja":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    settings.pop("chat_template", None)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    return tmp_path


def test_a_model_without_a_template_says_what_to_set(without_template: Path) -> None:
    with pytest.raises(ValueError, match="has no chat template: set apply_chat_template = false"):
        build("rewards", "reward_model", {"path": str(without_template)})
    build("rewards", "reward_model", {"path": str(without_template), "apply_chat_template": False})


def test_a_classifier_of_several_labels_is_refused(tmp_path: Path) -> None:
    folder = make_classifier(tmp_path / "three", labels=3)
    with pytest.raises(ValueError, match="gives 3 numbers, and a reward model one"):
        build("rewards", "reward_model", {"path": str(folder)})


def test_what_is_longer_than_the_model_s_positions_is_refused(folder: Path) -> None:
    limit = json.loads((folder / "config.json").read_text())["max_position_embeddings"]
    reward = build("rewards", "reward_model", {"path": str(folder)})
    with pytest.raises(ValueError, match=f"has {limit} positions"):
        reward.score(sample("a b " * limit, prompt="why?"))


@pytest.mark.parametrize("name", ["reward_model", "served_reward_model"])
def test_rows_with_images_are_refused(folder: Path, name: str) -> None:
    check: Callable[[object, Row], None] = load("rewards", name).check_row
    params = RewardModel.Params(path=str(folder))
    check(params, Row("0", "why?"))
    with pytest.raises(ValueError, match="no images"):
        check(params, Row("0", "why?", images=(checked_image(picture()),)))
