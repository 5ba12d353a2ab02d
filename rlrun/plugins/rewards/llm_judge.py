"""Scores a response with the judgement of a language model on an OpenAI-compatible server.

sample ─▶ template, with the rubric ─▶ votes ─▶ judge, or its cached answers ─▶ a score for each vote ─▶ mean
"""

import asyncio
import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from rlrun.plugins.engines import Address, engine_addresses, without_control_tokens
from rlrun.plugins.rewards.extraction import Pattern, last_match
from rlrun.plugins.rewards.http_client import AskParams, HttpClient
from rlrun.plugins.rewards.verdict_cache import VerdictCache
from rlrun.plugins.types import Row, Sample
from rlrun.specs.engine_names import EngineMarker
from rlrun.specs.sections.section import Section

TEMPLATE = """Judge the answer to a question.

Question:
{prompt}

Reference answer:
{label}

Answer to judge:
{response}

Think briefly, then end with one line "Score: N", N a whole number from 0 (useless) to 10 (perfect)."""
RUBRIC_TEMPLATE = """Judge the answer to a question by a list of criteria, each by itself.

Question:
{prompt}

Answer to judge:
{response}

Criteria:
{rubric}

Think briefly about each criterion, then end with one line for each: "Criterion N: yes" if the answer meets
it, else "Criterion N: no"."""
_PLACE = re.compile(r"\{(prompt|response|label|rubric)\}")
_MET = re.compile(r"(?i)\bcriterion\W{0,4}(\d+)\W{0,8}(yes|no)\b(?!\s*(?:/|\||or\b)\s*(?:yes|no)\b)")
"""A verdict; "yes/no" and "yes or no" are none."""


class Criterion(Section):
    """One point of a rubric."""

    text: str = Field(min_length=1)
    """What the answer has to do, such as "Names the year."."""
    weight: float = Field(default=1.0, ge=-1e6, le=1e6)
    """What meeting it adds to the score; negative for a mistake that the answer must not make."""


class LlmJudgeParams(AskParams):
    """Which model judges, how it is prompted, and how its answer becomes a number."""

    url: str | None = Field(default=None, pattern=r"https?://.+")
    """Address of the service; it ends in `/v1`."""
    engine: Annotated[str | None, EngineMarker()] = None
    """Name of the `[[engines]]` that serve the judge, instead of a url."""
    model: str | None = None
    """Name of the model on the server. None: the one that `engine` serves, else "default"; an SGLang server
    accepts any name."""
    template: str | None = None
    """Prompt of the judge; `{prompt}`, `{response}`, `{label}` and `{rubric}` are replaced, and other braces
    stay. None: one that asks for a score from 0 to 10 or, with a rubric, for each criterion."""
    rubric: tuple[Criterion, ...] = ()
    """Criteria, `[[rewards.rubric]]`, each of which the judge finds met or not. The score is the sum of the
    weights of those that are met, divided by the sum of the positive weights, from 0 to 1. A row may have its
    own in its metadata under `rubric`, as a list of texts, or of tables with `text` and `weight`. (): the
    judge gives a score, unless the row has a rubric."""
    votes: int = Field(default=1, ge=1, le=64)
    """How many judgements are made of each response; the score is their mean. More than one needs a
    temperature."""
    cache: str | None = Field(default=None, min_length=1)
    """File in which the judge's answers are kept, relative to the folder where `rlrun` is started. The same
    question to the same model, with the same rubric and sampling, is then asked once, also by later launches
    and other runs. None: no answer is kept."""
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
        if self.template is not None and "{response}" not in self.template:
            raise ValueError("template has no {response}, so the judge would not see the response: add it")
        if (self.url is None) == (self.engine is None):
            raise ValueError("a judge is either at a url, or one of [[engines]]: give one of the two")
        if self.votes > 1 and self.temperature == 0:
            raise ValueError("votes at temperature 0 are all the same: set temperature, such as 1.0")
        if self.rubric and not any(criterion.weight > 0 for criterion in self.rubric):
            raise ValueError("rubric has no criterion with a positive weight: add one")
        if self.rubric and self.template is not None and "{rubric}" not in self.template:
            raise ValueError("template has no {rubric}, so the judge would not see the criteria: add it")
        return self


class LlmJudge:
    """Scores from 0 to 1, by the score in the judge's answer or by the criteria that it finds met. If an
    answer lacks them, the judge is asked again.

    Any server with `/v1/chat/completions` can serve the judge, including an SGLang engine.
    """

    Params = LlmJudgeParams
    api_version = 1

    def __init__(self, params: LlmJudgeParams) -> None:
        self.params = params
        self._client = HttpClient(params)
        self._cache = None if params.cache is None else VerdictCache(params.cache)
        self._judges = itertools.cycle(_judges(params))

    @classmethod
    def check_row(cls, params: LlmJudgeParams, row: Row) -> None:
        """Raises ValueError if the template shows a label that the row lacks, or if its rubric is wrong."""
        rubric = rubric_of(params, row)
        if row.label is None and "{label}" in _template(params, rubric):
            raise ValueError(
                "shows the judge the row's label, and the row has none; set label_key, or a template without "
                "{label}"
            )

    async def score(self, sample: Sample) -> float:
        """Returns the mean of the judge's votes. Raises RuntimeError if the judge gives no score."""
        rubric = rubric_of(self.params, sample.prompt.row)
        votes = [self._vote(sample, rubric, number) for number in range(self.params.votes)]
        scores = await asyncio.gather(*votes)
        return sum(scores) / len(scores)

    async def _vote(self, sample: Sample, rubric: Sequence[Criterion], number: int) -> float:
        """Returns the score of one judgement, which may be that of an answer in the cache."""
        params = self.params
        system = [{"role": "system", "content": params.system}] if params.system is not None else []
        judge = next(self._judges)
        body = {
            "model": params.model or judge.model,
            "messages": [*system, {"role": "user", "content": self._content(sample, rubric)}],
            "temperature": params.temperature,
            "max_tokens": params.max_tokens,
        }
        read = partial(self._read, rubric=rubric)
        # the address of engines of the job changes with each launch, so it counts only without a name
        asked = body | {"vote": number} | ({} if params.model or params.engine else {"url": judge.url})
        if self._cache is not None and (kept := self._cache.find(asked)) is not None:
            with suppress(ValueError):  # it was read by another score_pattern
                return read(kept)
        answer, score = await self._client.post(
            f"{judge.url}/chat/completions", body, partial(_read_answer, read=read), headers=judge.headers
        )
        if self._cache is not None:
            self._cache.keep(asked, answer)
        return float(score)

    def _content(self, sample: Sample, rubric: Sequence[Criterion]) -> str | list[dict[str, Any]]:
        text = fill_template(_template(self.params, rubric), sample, rubric)
        images = (*sample.prompt.row.images, *(placed.image for placed in sample.images))
        if not self.params.images or not images:
            return text
        shown = [{"type": "image_url", "image_url": {"url": image.data_url()}} for image in images]
        return [{"type": "text", "text": text}, *shown]

    def _read(self, text: str, rubric: Sequence[Criterion]) -> float:
        """Returns the score in a judge's answer, from 0 to 1. Raises ValueError if it has none."""
        if rubric:
            return _weighed(text, rubric)
        score_text = last_match(text, self.params.score_pattern)
        if score_text is None:
            raise ValueError(f"no score in the judge's answer: {text[-200:]!r}")
        if not math.isfinite(score := float(score_text)):
            raise ValueError(f"the judge's score {score_text} is not a finite number")
        low, high = self.params.low, self.params.high
        return min(max((score - low) / (high - low), 0.0), 1.0)


def rubric_of(params: LlmJudgeParams, row: Row) -> Sequence[Criterion]:
    """Returns the criteria of a row: its own, or those of the spec.

    Raises ValueError for wrong ones, and for a template that does not show them.
    """
    own = row.metadata.get("rubric")
    if own is None:
        return params.rubric
    try:
        if not isinstance(own, list | tuple):
            raise TypeError(f"found {type(own).__name__}")
        tables = [{"text": entry} if isinstance(entry, str) else entry for entry in own]
        rubric = [Criterion.model_validate(table) for table in tables]
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"metadata.rubric is not a list of texts, or of tables with text and weight: {error}"
        ) from None
    if not any(criterion.weight > 0 for criterion in rubric):
        raise ValueError("metadata.rubric has no criterion with a positive weight")
    if params.template is not None and "{rubric}" not in params.template:
        raise ValueError(
            "template has no {rubric}, so the judge would not see the criteria of metadata.rubric: add it"
        )
    return rubric


def _template(params: LlmJudgeParams, rubric: Sequence[Criterion]) -> str:
    if params.template is not None:
        return params.template
    return RUBRIC_TEMPLATE if rubric else TEMPLATE


def _weighed(text: str, rubric: Sequence[Criterion]) -> float:
    """Returns the share of the positive weights that the criteria which are met add up to.

    Raises ValueError if the answer leaves out a criterion. Of several verdicts on one, the last counts.
    """
    verdicts = {int(number): word.lower() == "yes" for number, word in _MET.findall(text)}
    if missing := [number for number in range(1, 1 + len(rubric)) if number not in verdicts]:
        raise ValueError(
            f"no verdict on criterion {', '.join(map(str, missing))} in the judge's answer: {text[-200:]!r}"
        )
    met = sum(each.weight for number, each in enumerate(rubric, 1) if verdicts[number])
    return min(max(met / sum(each.weight for each in rubric if each.weight > 0), 0.0), 1.0)


def _read_answer(answer: Any, read: Callable[[str], float]) -> tuple[str, float]:
    """Returns a judge's text and its score. Raises ValueError if there is none."""
    try:
        text = str(answer["choices"][0]["message"]["content"])
    except (KeyError, IndexError, TypeError) as error:
        raise ValueError(f"not a chat completion: {answer}") from error
    return text, read(text)


def _judges(params: LlmJudgeParams) -> list[Address]:
    if params.engine is None:
        return [Address(str(params.url).rstrip("/"))]
    return [replace(address, url=f"{address.url}/v1") for address in engine_addresses(params.engine)]


def fill_template(template: str, sample: Sample, rubric: Sequence[Criterion] = ()) -> str:
    """Fills in the template. Values are not searched for further placeholders.

    Names of control tokens in them are broken by a space, so that a policy cannot end the judge's turn and
    write the score itself.
    """
    row = sample.prompt.row
    prompt = row.prompt if isinstance(row.prompt, str) else "\n\n".join(_turn(turn) for turn in row.prompt)
    criteria = "\n".join(f"{number}. {criterion.text}" for number, criterion in enumerate(rubric, 1))
    values = {"prompt": prompt, "response": sample.text, "label": str(row.label), "rubric": criteria}
    return _PLACE.sub(lambda match: without_control_tokens(values[match[1]]), template)


def _turn(message: Mapping[str, Any]) -> str:
    content = message.get("content", "")
    if isinstance(content, list):
        content = "".join(part["text"] if part["type"] == "text" else "<image>" for part in content)
    return f"{message.get('role', '')}: {content}"
