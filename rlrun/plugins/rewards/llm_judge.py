"""Scores a response with the judgement of a language model on an OpenAI-compatible server."""

import itertools
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from rlrun.plugins.engines import Address, engine_addresses, without_control_tokens
from rlrun.plugins.rewards.extraction import Pattern, last_match
from rlrun.plugins.rewards.http_client import AskParams, HttpClient
from rlrun.plugins.types import Row, Sample
from rlrun.specs.engine_names import EngineMarker

TEMPLATE = """Judge the answer to a question.

Question:
{prompt}

Reference answer:
{label}

Answer to judge:
{response}

Think briefly, then end with one line "Score: N", N a whole number from 0 (useless) to 10 (perfect)."""
_PLACE = re.compile(r"\{(prompt|response|label)\}")


class LlmJudgeParams(AskParams):
    """Which model judges, how it is prompted, and how its answer becomes a number."""

    url: str | None = Field(default=None, pattern=r"https?://.+")
    """Address of the service; it ends in `/v1`."""
    engine: Annotated[str | None, EngineMarker()] = None
    """Name of the `[[engines]]` that serve the judge, instead of a url."""
    model: str | None = None
    """Name of the model on the server. None: the one that `engine` serves, else "default"; an SGLang server
    accepts any name."""
    template: str = TEMPLATE
    """Prompt of the judge; `{prompt}`, `{response}` and `{label}` are replaced, other braces stay."""
    system: str | None = None
    """System message. None: no system message."""
    score_pattern: Pattern = r"(?i)score\W*?(-?\d+(?:\.\d+)?)"
    """Regular expression; the first group of its last match in the answer is the score."""
    low: float = 0.0
    """Scores at or below this count as 0."""
    high: float = 10.0
    """Scores at or above this count as 1."""
    temperature: float = Field(default=0.0, ge=0)
    """Sampling temperature of the judge."""
    max_tokens: int = Field(default=512, ge=1)
    """Length limit of the judge's answer, in tokens."""
    images: bool = False
    """Show the judge, a model that sees, the images of the row and of later turns, after the text."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.low >= self.high:
            raise ValueError(f"low ({self.low:g}) is not below high ({self.high:g})")
        if "{response}" not in self.template:
            raise ValueError("template has no {response}, so the judge would not see the response: add it")
        if (self.url is None) == (self.engine is None):
            raise ValueError("a judge is either at a url, or one of [[engines]]: give one of the two")
        return self


class LlmJudge:
    """Scores from 0 to 1, by the score in the judge's answer; if an answer contains none, the judge is asked
    again.

    Any server with `/v1/chat/completions` can serve the judge, including an SGLang engine.
    """

    Params = LlmJudgeParams
    api_version = 1

    def __init__(self, params: LlmJudgeParams) -> None:
        self.params = params
        self._client = HttpClient(params)
        self._judges = itertools.cycle(_judges(params))

    @classmethod
    def check_row(cls, params: LlmJudgeParams, row: Row) -> None:
        """Raises ValueError if the template shows the label and the row has none."""
        if row.label is None and "{label}" in params.template:
            raise ValueError(
                "shows the judge the row's label, and the row has none; set label_key, or a template without "
                "{label}"
            )

    async def score(self, sample: Sample) -> float:
        """Returns the judge's score. Raises RuntimeError if the judge gives none."""
        params = self.params
        system = [{"role": "system", "content": params.system}] if params.system is not None else []
        judge = next(self._judges)
        body = {
            "model": params.model or judge.model,
            "messages": [*system, {"role": "user", "content": self._content(sample)}],
            "temperature": params.temperature,
            "max_tokens": params.max_tokens,
        }
        url = f"{judge.url}/chat/completions"
        number: float = await self._client.post(url, body, self._number, headers=judge.headers)
        return min(max((number - params.low) / (params.high - params.low), 0.0), 1.0)

    def _content(self, sample: Sample) -> str | list[dict[str, Any]]:
        text = fill_template(self.params.template, sample)
        images = (*sample.prompt.row.images, *(placed.image for placed in sample.images))
        if not self.params.images or not images:
            return text
        shown = [{"type": "image_url", "image_url": {"url": image.data_url()}} for image in images]
        return [{"type": "text", "text": text}, *shown]

    def _number(self, answer: Any) -> float:
        try:
            text = str(answer["choices"][0]["message"]["content"])
        except (KeyError, IndexError, TypeError) as error:
            raise ValueError(f"not a chat completion: {str(answer)[:200]}") from error
        score_text = last_match(text, self.params.score_pattern)
        if score_text is None:
            raise ValueError(f"no score in the judge's answer: {text[-200:]!r}")
        if not math.isfinite(score := float(score_text)):
            raise ValueError(f"the judge's score {score_text} is not a finite number")
        return score


def _judges(params: LlmJudgeParams) -> list[Address]:
    if params.engine is None:
        return [Address(str(params.url).rstrip("/"))]
    return [replace(address, url=f"{address.url}/v1") for address in engine_addresses(params.engine)]


def fill_template(template: str, sample: Sample) -> str:
    """Fills in the template. Values are not searched for further placeholders.

    Names of control tokens in them are broken by a space, so that a policy cannot end the judge's turn and
    write the score itself.
    """
    row = sample.prompt.row
    prompt = row.prompt if isinstance(row.prompt, str) else "\n\n".join(_turn(turn) for turn in row.prompt)
    values = {"prompt": prompt, "response": sample.text, "label": str(row.label)}
    return _PLACE.sub(lambda match: without_control_tokens(values[match[1]]), template)


def _turn(message: Mapping[str, Any]) -> str:
    content = message.get("content", "")
    if isinstance(content, list):
        content = "".join(part["text"] if part["type"] == "text" else "<image>" for part in content)
    return f"{message.get('role', '')}: {content}"
