"""Images in the native engine: transformers' numbers, caches that keep images apart, and weight updates."""

import base64
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import requests
import torch
import transformers

from rlrun.models.config_json import read_architecture
from rlrun.models.vision import VisionTower
from rlrun.plugins.images import image_of_url
from rlrun.runner.contracts.carriers import ImagePatches, TrainSequence
from rlrun.runner.engines.native.engine.loading import load
from rlrun.runner.engines.native.engine.requests import SampleInProgress, group_samples
from rlrun.runner.engines.native.engine.setup import EngineSetup
from rlrun.runner.engines.native.http.server import NativeServer
from rlrun.runner.engines.native.model import image_tower
from rlrun.runner.engines.native.model.image_tower import place_images
from rlrun.runner.prompts.tokenizer import Tokenizer
from tests.pictures import picture, write_processor
from tests.runner.engines.engine_cases import new_sample, run
from tests.tiny_vlms import (
    IMAGE,
    START,
    STOP,
    VLMS,
    make_image,
    make_tiny_vlm,
    make_vision_sequence,
    make_vision_sequences,
    vision_reference,
)
from tests.waiting import PATIENCE


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("vlms")
    made = {
        family: make_tiny_vlm(root / family, family, scale=0.05 if "qwen3_5" in family else 0.15)
        for family in VLMS
    }
    write_processor(made["qwen2_5_vl"], IMAGE)
    return made


def tower_of(folder: Path) -> VisionTower:
    vision = read_architecture(folder).vision
    assert vision is not None
    return vision


def sample_of(sequence: TrainSequence, tower: VisionTower, **params: Any) -> SampleInProgress:
    """A sample whose prompt is all of the sequence's tokens."""
    sample = new_sample(sequence.tokens.tolist(), **({"ignore_eos": True} | params))
    sample.images = place_images(sequence.images, sequence.image_starts, tower)
    return sample


def peer_of(folder: Path) -> Any:
    return transformers.AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32)


def check(finished: SampleInProgress, sequence: TrainSequence, peer: Any) -> None:
    """Holds a finished sample's log-probs, and its tokens if they are greedy, to transformers.

    transformers takes a generated placeholder for one of the prompt's, so comparison ends before the first.
    """
    stray = np.flatnonzero(finished.tokens == IMAGE)
    own = finished.tokens[: stray[0] if len(stray) else None]
    with torch.no_grad():
        whole = dataclasses.replace(sequence, tokens=np.concatenate([sequence.tokens, own]))
        logits = vision_reference(peer, whole)[len(sequence.tokens) - 1 : -1]
    temperature = finished.params.temperature or 1.0
    chosen = (logits / temperature).log_softmax(-1).gather(1, torch.from_numpy(own).long()[:, None])
    np.testing.assert_allclose(finished.log_probs[: len(own)], chosen[:, 0].numpy(), atol=5e-5, rtol=1e-5)
    if finished.params.temperature == 0:
        assert own.tolist() == logits.argmax(-1).tolist()


def test_samples_equal_transformers(operations: str, folders: dict[str, Path]) -> None:
    compare(folders["qwen3_vl"])


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_5", "qwen3_5_moe"])
def test_samples_of_other_families_equal_transformers(family: str, folders: dict[str, Path]) -> None:
    compare(folders[family])


def compare(folder: Path) -> None:
    """Several images in a prompt, images after text that was generated, and none."""
    tower = tower_of(folder)
    scheduler = load(EngineSetup(str(folder), dtype="float32", max_running=5, max_length=200)).scheduler
    sequences = make_vision_sequences(tower.patch_size)[1:4]
    samples = [
        sample_of(sequence, tower, seed=k, temperature=(0.0, 0.9)[k], max_new_tokens=(11, 4)[k])
        for sequence in sequences
        for k in range(2)
    ]
    run(scheduler, samples)
    assert sum(sample.cached_tokens > 0 for sample in samples) == len(sequences)
    peer = peer_of(folder)
    for finished, sequence in zip(samples, [each for each in sequences for _ in range(2)], strict=True):
        check(finished, sequence, peer)


def test_prompts_with_other_images_share_nothing(folders: dict[str, Path]) -> None:
    folder = folders["qwen2_5_vl"]
    tower = tower_of(folder)
    scheduler = load(EngineSetup(str(folder), dtype="float32", max_running=4, max_length=200)).scheduler
    sequences = [
        make_vision_sequence(1, [4, make_image(seed, (1, 4, 4), tower.patch_size), 3], [1]) for seed in (5, 6)
    ]
    assert np.array_equal(sequences[0].tokens, sequences[1].tokens)
    samples = [sample_of(sequence, tower, temperature=0.0) for sequence in sequences]
    assert len(group_samples(samples)) == 2
    run(scheduler, samples)
    assert not any(sample.cached_tokens for sample in samples)
    peer = peer_of(folder)
    for finished, sequence in zip(samples, sequences, strict=True):
        check(finished, sequence, peer)
    assert not np.array_equal(samples[0].log_probs, samples[1].log_probs)


def test_a_retracted_sample_continues_after_its_image(folders: dict[str, Path]) -> None:
    folder = folders["qwen3_vl"]
    tower = tower_of(folder)
    scheduler = load(EngineSetup(str(folder), dtype="float32", max_running=4, max_length=200)).scheduler
    sequence = make_vision_sequences(tower.patch_size)[1]
    sample = sample_of(sequence, tower, temperature=0.8, max_new_tokens=24)
    scheduler.add(group_samples([sample]))
    for _ in range(9):
        scheduler.step()
    scheduler.retract_all()
    while scheduler.busy:
        scheduler.step()
    check(sample, sequence, peer_of(folder))
    again = sample_of(sequence, tower, temperature=0.8, max_new_tokens=24)
    assert run(scheduler, [again])[0].tokens.tolist() == sample.tokens.tolist()


def test_embeddings_are_kept_by_image_within_a_limit_and_dropped_by_updates(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folders["qwen3_vl"]
    tower = tower_of(folder)
    images = image_tower.ImageTower(tower, folder, torch.float32, torch.device("cpu"))
    calls: list[int] = []
    compute = image_tower.all_embeddings

    def counted(*arguments: Any) -> Any:
        calls.append(1)
        return compute(*arguments)

    monkeypatch.setattr(image_tower, "all_embeddings", counted)
    pictures = [make_image(seed, (1, 4, 4), tower.patch_size) for seed in range(3)]

    def show(*shown: ImagePatches) -> torch.Tensor:
        prompt = place_images(shown, [1 + 10 * i for i in range(len(shown))], tower)
        embeddings: torch.Tensor = images.show([prompt], [40], 48).embeddings
        return embeddings

    first = show(pictures[0], pictures[1])
    assert first.shape == (3, 8, 64) and len(calls) == 2
    assert torch.equal(show(pictures[1], pictures[0]), torch.cat((first[:, 4:], first[:, :4]), 1))
    assert len(calls) == 2
    monkeypatch.setattr(image_tower, "CACHE_BYTES", 2 * first.nbytes // 2)
    show(pictures[2])
    show(pictures[0])
    assert len(calls) == 3
    show(pictures[1])
    assert len(calls) == 4
    text = {"model.norm.weight": torch.ones(64)}
    images.update(text)  # without the tower: everything stays
    show(pictures[1])
    assert len(calls) == 4
    scaled = {f"{tower.prefix}{name}": 1.1 * torch.ones(shape) for name, shape in tower.tensors()}
    images.update(scaled)
    changed = show(pictures[1])
    assert len(calls) == 5 and not torch.equal(changed, first[:, 4:])
    images.release()
    assert torch.equal(show(pictures[1]), first[:, 4:])


@pytest.fixture(scope="module")
def url(folders: dict[str, Path]) -> Any:
    setup = EngineSetup(str(folders["qwen2_5_vl"]), dtype="float32", max_running=8, max_length=200, threads=1)
    server = NativeServer(setup)
    yield server.start()
    server.stop()


def ask(url: str, **body: Any) -> Any:
    params = {"sampling_params": {"max_new_tokens": 4, "temperature": 0}, "return_logprob": True}
    return requests.post(f"{url}/generate", json=params | body, timeout=PATIENCE)


def encoded(**options: Any) -> str:
    return "data:image/png;base64," + base64.b64encode(picture(**options)).decode()


def test_requests_have_one_placeholder_for_each_image(url: str) -> None:
    one, two = encoded(width=56, height=84), encoded(width=28, height=56, seed=1)
    prompt = [9, START, IMAGE, STOP, 5, START, IMAGE, STOP]
    answer = ask(url, input_ids=prompt, image_data=[one, two]).json()
    assert answer["meta_info"]["prompt_tokens"] == len(prompt) - 2 + 6 + 2
    swapped = ask(url, input_ids=prompt, image_data=[two, one.partition(",")[2]]).json()
    assert swapped["meta_info"]["prompt_tokens"] == answer["meta_info"]["prompt_tokens"]
    assert swapped["meta_info"]["output_token_logprobs"] != answer["meta_info"]["output_token_logprobs"]
    both = ask(url, input_ids=[prompt, [7, 8]], image_data=[[one, two], None]).json()
    assert both[0]["output_ids"] == answer["output_ids"]
    assert both[1]["meta_info"]["prompt_tokens"] == 2


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            {"input_ids": [1, START, IMAGE, STOP, IMAGE], "image_data": "ONE"},
            "2 placeholders of images, for 1",
        ),
        ({"input_ids": [1, 2], "image_data": ["ONE"]}, "0 placeholders"),
        ({"input_ids": [1, IMAGE], "image_data": ["/etc/passwd"]}, "not base64"),
        ({"input_ids": [1, IMAGE], "image_data": ["http://localhost/x.png"]}, "must begin with data:image"),
        ({"input_ids": [1, IMAGE], "image_data": ["data:image/png;base64,AAAA"]}, "not an image"),
        ({"input_ids": [1, IMAGE], "image_data": [7]}, "data URLs or base64"),
        ({"input_ids": [[1, IMAGE], [1]], "image_data": ["ONE"]}, "a list of 2 values"),
    ],
    ids=["few", "many", "path", "url", "damaged", "number", "prompts"],
)
def test_bad_images_are_refused(url: str, body: dict[str, Any], message: str) -> None:
    image = encoded()
    data = (
        image
        if body["image_data"] == "ONE"
        else [image if each == "ONE" else each for each in body["image_data"]]
    )
    answer = ask(url, input_ids=body["input_ids"], image_data=data)
    assert answer.status_code == 400 and message in answer.text


def test_scores_see_the_images(url: str, folders: dict[str, Path]) -> None:
    prompt = [9, START, IMAGE, STOP, 5, 6]
    answers = [
        ask(
            url,
            input_ids=prompt,
            image_data=[encoded(seed=seed)],
            sampling_params={"max_new_tokens": 0},
            logprob_start_len=0,
        ).json()["meta_info"]["input_token_logprobs"]
        for seed in (0, 1)
    ]
    assert len(answers[0]) == 7 and answers[0][2][0] == answers[1][2][0]
    assert answers[0][-1][0] != answers[1][-1][0]


def chat(url: str, *content: Any, **more: Any) -> Any:
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": list(content)}],
        "max_tokens": 4,
        "temperature": 0,
    }
    return requests.post(f"{url}/v1/chat/completions", json=body | more, timeout=PATIENCE)


def shown(image: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": image}}


def test_a_chat_shows_the_images_that_generate_shows(url: str, folders: dict[str, Path]) -> None:
    tokenizer = Tokenizer(folders["qwen2_5_vl"])
    one, two = encoded(width=56, height=84), encoded(width=28, height=56, seed=1)
    before, after = ({"type": "text", "text": text} for text in ("which", "is larger?"))
    answer = chat(url, before, shown(one), shown(two), after).json()
    message = {"role": "user", "content": [before, {"type": "image"}, {"type": "image"}, after]}
    placed = tokenizer.place([image_of_url(one), image_of_url(two)])
    whole = tokenizer.render([message], images=placed)
    assert [image.num_tokens for image in placed] == [6, 2]
    assert answer["usage"]["prompt_tokens"] == len(whole)
    collapsed = [token for k, token in enumerate(whole.tolist()) if token != IMAGE or whole[k - 1] != IMAGE]
    direct = ask(url, input_ids=collapsed, image_data=[one, two]).json()
    assert direct["meta_info"]["prompt_tokens"] == len(whole)
    assert answer["choices"][0]["message"]["content"] == tokenizer.decode(np.array(direct["output_ids"]))


def test_images_of_earlier_turns_stay_in_a_chat(url: str) -> None:
    turns = [
        {"role": "user", "content": [shown(encoded(width=56, height=84))]},
        {"role": "assistant", "content": "a"},
        {"role": "user", "content": "b"},
    ]
    tokens = [chat(url, messages=turns[:n]).json()["usage"]["prompt_tokens"] for n in (1, 3)]
    assert tokens[1] > tokens[0] > 6


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (shown("https://example.org/x.png"), "must begin with data:image"),
        (shown("/etc/passwd"), "must begin with data:image"),
        (shown("data:image/png;base64,AAAA"), "not an image"),
        (shown("data:image/png;base64,===="), "not base64"),
        ({"type": "image_url", "image_url": {}}, "needs {"),
        ({"type": "image", "image": "/etc/passwd"}, "1 placeholders of images, for 0"),
    ],
    ids=["url", "path", "damaged", "no base64", "no url", "another form"],
)
def test_bad_images_of_chats_are_refused(url: str, part: dict[str, Any], message: str) -> None:
    answer = chat(url, part, {"type": "text", "text": "what is it?"})
    assert answer.status_code == 400 and message in answer.json()["error"]["message"]


def test_models_without_a_tower_refuse_images(tiny_folder: Path) -> None:
    setup = EngineSetup(str(tiny_folder), dtype="float32", max_running=2, max_length=64, threads=1)
    server = NativeServer(setup)
    url = server.start()
    try:
        for answer in (chat(url, shown(encoded())), ask(url, input_ids=[1], image_data=[encoded()])):
            assert answer.status_code == 400 and "this model reads none: remove them" in answer.text
    finally:
        server.stop()
