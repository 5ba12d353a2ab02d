"""A language model's opinion of a response, asked for through an OpenAI-compatible server."""

import itertools
import math
import re
from collections.abc import Mapping
from typing import Any, Self

from pydantic import Field, model_validator

from rlrun.plugins.engines import Address, engine_addresses
from rlrun.plugins.rewards.extraction import Pattern, last_match
from rlrun.plugins.rewards.http_client import AskParams, HttpClient
from rlrun.plugins.types import Row, Sample

TEMPLATE = """Judge the answer to a question.

Question:
{prompt}

Reference answer:
{label}

Answer to judge:
{response}

Think briefly, then end with one line "Score: N", N a whole number from 0 (useless) to 10 (perfect)."""
_PLACE = re.compile(r"\{(prompt|response|label)\}")
_CONTROL = re.compile(r"[<\[](?=[|｜]|/?(?:s|bos|eos|INST|(?:start|end)_of_turn)[>\]])")
"""Where a control token begins, as families of models write them: `<|im_end|>`, `</s>`, `[INST]`."""


class LlmJudgeParams(AskParams):
    """Which model, what it is asked, and how its answer becomes a number."""

    url: str | None = Field(default=None, pattern=r"https?://.+")
    """Address of the service, which ends in `/v1`."""
    engine: str | None = None
    """Name of the `[[engines]]` that are the judge, instead of a url."""
    model: str = "default"
    """Name of the model on the server; an SGLang server takes any."""
    template: str = TEMPLATE
    """What the model is asked; `{prompt}`, `{response}` and `{label}` are replaced, other braces stay."""
    system: str | None = None
    """System message. None: none."""
    score_pattern: Pattern = r"(?i)score\W*?(-?\d+(?:\.\d+)?)"
    """Regular expression; the first group of its last match in the answer is the score."""
    low: float = 0.0
    """The score that counts as 0; lower ones too."""
    high: float = 10.0
    """The score that counts as 1; higher ones too."""
    temperature: float = Field(default=0.0, ge=0)
    """Of the judge."""
    max_tokens: int = Field(default=512, ge=1)
    """Of its answer."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.low >= self.high:
            raise ValueError(f"low ({self.low:g}) is not below high ({self.high:g})")
        if "{response}" not in self.template:
            raise ValueError("template has no {response}, so that the judge would not see it")
        if (self.url is None) == (self.engine is None):
            raise ValueError("a judge is either at a url, or one of [[engines]]: give one of the two")
        return self


class LlmJudge:
    """From 0 to 1, by the score in a model's answer; an answer without one is asked for again.

    Any server with `/v1/chat/completions` will do, an SGLang engine's too.
    """

    Params = LlmJudgeParams
    api_version = 1

    def __init__(self, params: LlmJudgeParams) -> None:
        self.params = params
        self._client = HttpClient(params)
        self._judges = itertools.cycle(_judges(params))

    @classmethod
    def check_row(cls, params: LlmJudgeParams, row: Row) -> None:
        """Raises ValueError for a row without the label that the judge is to be shown."""
        if row.label is None and "{label}" in params.template:
            raise ValueError(
                "shows the judge the row's label, and the row has none; set label_key, or a template without "
                "{label}"
            )

    async def score(self, sample: Sample) -> float:
        """The judge's score. RuntimeError when it gives none."""
        params = self.params
        system = [{"role": "system", "content": params.system}] if params.system is not None else []
        body = {
            "model": params.model,
            "messages": [*system, {"role": "user", "content": asked(params.template, sample)}],
            "temperature": params.temperature,
            "max_tokens": params.max_tokens,
        }
        judge = next(self._judges)
        url = f"{judge.url}/chat/completions"
        number: float = await self._client.post(url, body, self._number, headers=judge.headers)
        return min(max((number - params.low) / (params.high - params.low), 0.0), 1.0)

    def _number(self, answer: Any) -> float:
        try:
            text = str(answer["choices"][0]["message"]["content"])
        except (KeyError, IndexError, TypeError) as error:
            raise ValueError(f"not a chat completion: {str(answer)[:200]}") from error
        found = last_match(text, self.params.score_pattern)
        if found is None:
            raise ValueError(f"no score in the judge's answer: {text[-200:]!r}")
        if not math.isfinite(score := float(found)):
            raise ValueError(f"the judge's score {found} is not a finite number")
        return score


def _judges(params: LlmJudgeParams) -> list[Address]:
    if params.engine is None:
        return [Address(str(params.url).rstrip("/"))]
    return [Address(f"{one.url}/v1", one.key) for one in engine_addresses(params.engine)]


def asked(template: str, sample: Sample) -> str:
    """The template with its places filled in, none of them twice.

    The judge's tokenizer is not known here, and its server would take a control token's name in an answer for
    the token: a policy could end the judge's turn and give the score itself. A blank breaks these names.
    """
    row = sample.prompt.row
    prompt = row.prompt if isinstance(row.prompt, str) else "\n\n".join(_turn(turn) for turn in row.prompt)
    values = {"prompt": prompt, "response": sample.text, "label": str(row.label)}
    return _PLACE.sub(lambda found: _CONTROL.sub(r"\g<0> ", values[found[1]]), template)


def _turn(message: Mapping[str, Any]) -> str:
    return f"{message.get('role', '')}: {message.get('content', '')}"
