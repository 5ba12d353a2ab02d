"""`rlrun score`: scores samples from a file with a reward, without a job."""

import asyncio
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from rlrun.cli.arguments import AllowLocalPlugins
from rlrun.cli.error_report import print_error
from rlrun.models.json_files import parse_json
from rlrun.runner.contracts.exit_codes import ExitCode
from rlrun.specs.local_code import allow_if_trusted

if TYPE_CHECKING:
    from rlrun.plugins.types import Sample
    from rlrun.runner.records.saved_images import FindImage
    from rlrun.specs.sections.scoring import RewardSpec, ScoringSpec

    SectionT = TypeVar("SectionT", RewardSpec, ScoringSpec)

BLOCK = 2048
"""Number of lines that are read, scored and printed at a time."""
DEFAULT_KEY = "score"
"""The entry of a reward's result that is the reward, unless `--set key=…` names another."""
MAX_TOKENS = 1 << 24
"""The largest `tokens` of a line; the sample that is scored has arrays of this length."""

Line = tuple[Any, "Sample | str"]
"""An input line's id, and its sample or the reason why it cannot be scored."""


class OnError(StrEnum):
    """Determines the reward of a sample that cannot be scored, as `scoring.on_error` does."""

    DROP = "drop"
    ZERO = "zero"
    STOP = "stop"


def command(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE.jsonl", help="Lines with response, label, prompt, metadata, id."),
    ],
    reward: Annotated[str, typer.Option(help="Name of the reward; a line's metadata.rm_type overrides it.")],
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Set a key of [[rewards]]; repeatable."),
    ] = None,
    *,
    workers: Annotated[int, typer.Option(help="Number of reward processes.")] = 1,
    timeout: Annotated[float, typer.Option(help="Time limit per sample, in seconds.")] = 10.0,
    memory: Annotated[
        float | None, typer.Option(help="Address space per process, in GiB. Default: unlimited.")
    ] = None,
    on_error: Annotated[
        OnError,
        typer.Option(help="Give failed samples no reward (drop) or 0 (zero), or end (stop)."),
    ] = OnError.DROP,
    allow_local_plugins: AllowLocalPlugins = False,
) -> None:
    """Score samples from a file with a reward.

    Prints one JSON line {"id", "reward", "detail"} for each line of the file.
    """
    from rlrun.specs.sections.scoring import ScoringSpec

    if not file.is_file():
        raise ValueError(f"there is no file {file}")
    options = {"workers": workers, "timeout": timeout, "memory": memory, "on_error": on_error.value}
    scoring = _validate(ScoringSpec, options)
    sys.exit(asyncio.run(_score(file, _reward_spec(reward, settings or []), scoring)))


def _reward_spec(name: str, settings: list[str]) -> "RewardSpec":
    """Returns the [[rewards]] table of the options. Raises PluginError for a wrong name or parameter."""
    from rlrun.plugins.registry import build
    from rlrun.runner.scoring.slime_names import reward_of_slime
    from rlrun.specs.sections.scoring import RewardSpec

    if ".py:" in name:
        file, _, member = name.rpartition(":")
        name = f"{Path(file).absolute()}:{member}"
        allow_if_trusted(Path(file).absolute(), Path.cwd())
    known, params = reward_of_slime(name)
    table: dict[str, Any] = {"type_key": "rm_type", **params, "type": known}
    for setting in settings:
        table |= _setting(setting)
    spec = _validate(RewardSpec, table)
    build("rewards", spec.type, spec.params)
    return spec


def _validate(model: type["SectionT"], values: dict[str, Any]) -> "SectionT":
    """Returns a section with values from the command line. Raises ValueError with the spec's own messages."""
    from pydantic import ValidationError

    from rlrun.specs.problems.messages import describe_errors
    from rlrun.specs.reading.strict import as_json

    try:
        return model.model_validate_json(as_json(values), strict=True)
    except ValidationError as error:
        raise ValueError(describe_errors(error, model, values)) from None


def _setting(text: str) -> dict[str, Any]:
    """Parses `key=value` as TOML; a value that is not TOML is a string, so that quotes may be omitted."""
    import tomli

    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ValueError(f"--set {text}: write KEY=VALUE")
    try:
        return tomli.loads(f"{key} = {value}")
    except tomli.TOMLDecodeError:
        return {key.strip(): value}


async def _score(file: Path, spec: "RewardSpec", scoring: "ScoringSpec") -> int:
    """Prints a result for each line of the file, and returns the exit code."""
    from rlrun.runner.contracts.errors import JobError
    from rlrun.runner.records.saved_images import find_in_folder
    from rlrun.runner.scoring.scorer import Scorer

    scorer = Scorer([spec], scoring, usual_key=DEFAULT_KEY)
    try:
        await scorer.start()
        with file.open(encoding="utf-8", errors="replace") as lines:
            numbered = _lines(lines, find_in_folder(file.parent))
            while block := list(islice(numbered, BLOCK)):
                await scorer.score([sample for _, sample in block if not isinstance(sample, str)])
                for line_id, sample in block:
                    print(json.dumps(_result(line_id, sample), default=str))
    except JobError as error:
        print_error(str(error))
        return ExitCode.FAILED
    finally:
        await scorer.close()
    return 0


def _lines(lines: Iterable[str], find_image: "FindImage") -> Iterator[Line]:
    """Yields the samples of a file; consecutive lines with the same prompt are one group.

    `find_image` returns the images that lines name.
    """
    index, prompt = -1, None
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            values = parse_json(line)
            if not isinstance(values, dict):
                raise ValueError(f"expected a JSON object, found {type(values).__name__}")
        except ValueError as error:
            yield str(number), f"line {number}: {error}"
            continue
        if values.get("prompt") is None or values["prompt"] != prompt:
            index += 1
        prompt = values.get("prompt")
        if "response" not in values:
            keys = ", ".join(values) or "no keys"
            yield values.get("id", str(number)), f"line {number}: no response; the line has {keys}"
            continue
        try:
            yield values.get("id", str(number)), _sample(values, number, index, find_image)
        except ValueError as error:
            yield values.get("id", str(number)), f"line {number}: {error}"


def _sample(values: Mapping[str, Any], number: int, index: int, find_image: "FindImage") -> "Sample":
    from rlrun.plugins.testing import sample
    from rlrun.runner.records.saved_images import row_images

    length = values.get("tokens")
    if length is not None and (type(length) is not int or not 0 <= length <= MAX_TOKENS):
        raise ValueError(f"tokens must be a whole number from 0 to {MAX_TOKENS}")
    response = values.get("response")
    text = response if isinstance(response, str) else "" if response is None else json.dumps(response)
    metadata = values.get("metadata")
    scored = sample(
        text,
        label=values.get("label"),
        metadata=metadata if isinstance(metadata, Mapping) else {},
        prompt=values.get("prompt") or "",
        length=length,
        id=str(number),
    )
    images = row_images(values, find_image) if isinstance(values.get("images"), Mapping) else ()
    row = replace(scored.prompt.row, images=images)
    return replace(scored, prompt=replace(scored.prompt, row=row, index=index))


def _result(line_id: Any, sample: "Sample | str") -> dict[str, Any]:
    if isinstance(sample, str):
        return {"id": line_id, "reward": None, "detail": {"error": sample}}
    detail: dict[str, Any] = dict(sample.reward_details.get(next(iter(sample.rewards), ""), {}))
    if sample.failure is not None:
        detail["error"] = sample.failure
    return {"id": line_id, "reward": sample.reward if sample.is_scored else None, "detail": detail}
