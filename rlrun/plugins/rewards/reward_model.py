"""Rewards of a reward model: one of `bradley_terry`, or any that transformers or SGLang runs."""

import itertools
import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from rlrun.plugins.engines import Address, engine_addresses
from rlrun.plugins.rewards.http_client import AskParams, HttpClient
from rlrun.plugins.types import Row, Sample
from rlrun.specs.engine_names import EngineMarker
from rlrun.specs.sections.section import Section


class RewardModelParams(Section):
    """Which model scores, and how it reads a sample."""

    path: str
    """Folder or Hugging Face id of a model that transformers' `AutoModelForSequenceClassification` loads and
    that gives one number."""
    apply_chat_template: bool = True
    """The model reads the prompt's messages and the response as its chat template renders them. False: the
    prompt's text and the response follow each other."""


class ServedRewardModelParams(AskParams):
    """Which server scores, and how its model reads a sample."""

    path: str
    """Folder or Hugging Face id of the model, of which only the tokenizer is loaded here."""
    url: str | None = Field(default=None, pattern=r"https?://.+")
    """Address of an SGLang server that serves the model."""
    engine: Annotated[str | None, EngineMarker()] = None
    """Name of the `[[engines]]` that serve the model, instead of a url."""
    apply_chat_template: bool = True
    """As of `reward_model`."""

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if (self.url is None) == (self.engine is None):
            raise ValueError("a reward model is either at a url, or one of [[engines]]: give one of the two")
        return self


class RewardModel:
    """The score that a reward model gives, computed in the reward's process, in float32 on one core.

    The score is what the model's head gives after the last token. The whole response is one turn of the
    assistant, also where it contains results of tools.
    """

    Params = RewardModelParams
    api_version = 1

    def __init__(self, params: RewardModelParams) -> None:
        import torch
        from transformers import AutoModelForSequenceClassification

        self.params = params
        self._torch = torch
        self._reader = _Reader(params.path, apply_chat_template=params.apply_chat_template)
        model = AutoModelForSequenceClassification.from_pretrained(params.path, dtype=torch.float32)
        if model.num_labels != 1:
            raise ValueError(
                f"{params.path} gives {model.num_labels} numbers, and a reward model one: its config.json "
                "has a single entry in id2label"
            )
        # transformers takes the last token that is not padding, and some models end turns with that token
        model.config.get_text_config().pad_token_id = None
        self._model = model.eval()

    @classmethod
    def check_row(cls, params: RewardModelParams, row: Row) -> None:
        """Raises ValueError for a row with images, which no reward model is shown."""
        _check_without_images(row)

    def score(self, sample: Sample) -> float:
        """Returns the model's score. Raises ValueError if the sample is longer than the model's positions."""
        tokens = self._torch.tensor([self._reader.tokens(sample)])
        with self._torch.no_grad():
            return float(self._model(tokens).logits.item())


class ServedRewardModel:
    """The score of a reward model on an SGLang server, which answers requests to `/classify`.

    A failed request is repeated after growing pauses, until `attempts` or `scoring.timeout` is reached.
    """

    Params = ServedRewardModelParams
    api_version = 1

    def __init__(self, params: ServedRewardModelParams) -> None:
        self.params = params
        self._client = HttpClient(params)
        self._reader = _Reader(params.path, apply_chat_template=params.apply_chat_template)
        if params.engine is None:
            addresses = [Address(str(params.url).rstrip("/"))]
        else:
            addresses = engine_addresses(params.engine)
        self._servers = itertools.cycle(addresses)

    @classmethod
    def check_row(cls, params: ServedRewardModelParams, row: Row) -> None:
        """Raises ValueError for a row with images, which no reward model is shown."""
        _check_without_images(row)

    async def score(self, sample: Sample) -> float:
        """Returns the model's score. Raises InfrastructureError when the server returns none."""
        server = next(self._servers)
        body = {"input_ids": self._reader.tokens(sample)}
        score: float = await self._client.post(
            f"{server.url}/classify", body, _only_number, headers=server.headers
        )
        return score


class _Reader:
    """Makes the tokens that a reward model reads of a sample."""

    def __init__(self, path: str, *, apply_chat_template: bool) -> None:
        from transformers import AutoConfig, AutoTokenizer

        self._path, self._apply_chat_template = path, apply_chat_template
        self._tokenizer: Any = AutoTokenizer.from_pretrained(path)
        config = AutoConfig.from_pretrained(path).get_text_config()
        self._limit = getattr(config, "max_position_embeddings", None) or math.inf
        names = {str(token) for token in self._tokenizer.added_tokens_decoder.values() if token.special}
        self._control = re.compile("|".join(map(re.escape, sorted(names, key=len, reverse=True))) or r"(?!)")
        if apply_chat_template and self._tokenizer.chat_template is None:
            raise ValueError(
                f"the tokenizer of {path} has no chat template: set apply_chat_template = false, or add its "
                f"chat_template.jinja"
            )

    def tokens(self, sample: Sample) -> list[int]:
        """Returns the prompt and the response. ValueError if the model has too few positions for them."""
        prompt, response = sample.prompt.row.prompt, self._harmless(sample.text)
        if self._apply_chat_template:
            turns = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
            messages = [*map(dict, turns), {"role": "assistant", "content": response}]
            tokens = self._tokenizer.apply_chat_template(messages, tokenize=True, return_dict=False)
        else:
            text = prompt if isinstance(prompt, str) else "\n\n".join(str(turn["content"]) for turn in prompt)
            tokens = [
                *self._tokenizer.encode(text),
                *self._tokenizer.encode(response, add_special_tokens=False),
                self._tokenizer.eos_token_id,
            ]
        if len(tokens) > self._limit:
            raise ValueError(
                f"a prompt and its response are {len(tokens)} tokens, and {self._path} has {self._limit} "
                "positions: lower rollout.max_response_tokens"
            )
        return list(tokens)

    def _harmless(self, text: str) -> str:
        """Inserts a space into the names of control tokens, with which a policy could write turns of others.
        What the insertion joins can be no name again: it has the space.
        """
        return self._control.sub(lambda match: f"{match[0][0]} {match[0][1:]}", text)


def _only_number(answer: Any) -> float:
    """Returns the number in an answer of `/classify`. Raises ValueError for anything else."""
    only = answer[0] if isinstance(answer, list) and len(answer) == 1 else answer
    numbers = only.get("embedding") if isinstance(only, Mapping) else None
    if not isinstance(numbers, list) or len(numbers) != 1 or not isinstance(numbers[0], int | float):
        raise ValueError(f"not one score of a reward model: {answer}")
    return float(numbers[0])


def _check_without_images(row: Row) -> None:
    if row.images:
        raise ValueError("shows a reward model no images, and the row has some")
