"""Checks a few rows of a job's data before a launch, as its rewards and its algorithm need them."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from rlrun.plugins.data.rows import LABEL_NAMES, RESPONSE_NAMES, RowKeys, likely
from rlrun.plugins.registry import PluginError, checked_params, load
from rlrun.plugins.row_checks import is_good, row_check
from rlrun.plugins.staged_data import is_here
from rlrun.plugins.types import Needs, Row
from rlrun.plugins.validation import needs_of
from rlrun.runner.prompts.teacher_rows import teacher_check
from rlrun.specs.problems.findings import Finding
from rlrun.specs.problems.positions import KeyPath
from rlrun.specs.problems.spelling import nearest
from rlrun.specs.sections.data import DataSpec
from rlrun.specs.sections.job import Spec
from rlrun.specs.sections.scoring import RewardSpec

ROWS = 64
"""How many rows of each source are checked."""
TOLERATED_SHARE = 0.1
"""Up to this share of so few rows may be broken by chance, even if `data.max_bad_share` is lower."""
_NAMING_KEYS = ("path", "task", "taskset")
"""Keys that name what a data source reads."""

RowCheck = Callable[[Row], None]


def data_findings(spec: Spec) -> Iterator[Finding]:
    """Reads a few rows of each data source; yields problems of sources, and of too many rows of one."""
    needs = needs_of(spec)
    try:
        check = _prompt_check(spec.rewards) if needs.rollout else _demonstration_check(needs)
        check = _both(check, teacher_check(spec, needs))
        own = [dataset.given("rewards") for dataset in spec.eval.datasets]
        evaluated = [_prompt_check(spec.rewards if rewards is None else rewards) for rewards in own]
    except PluginError as error:
        yield Finding(("rewards",), str(error))
        return
    if spec.debug.mode != "eval":
        yield from _source(("data",), spec.data, check, needs)
        if needs.rollout:
            yield from _too_long(spec)
    for number, (dataset, own_check) in enumerate(zip(spec.eval.datasets, evaluated, strict=True)):
        yield from _source(("eval", "datasets", number), dataset, own_check, needs)


def _both(first: RowCheck, second: RowCheck) -> RowCheck:
    def check(row: Row) -> None:
        first(row)
        second(row)

    return check


def few_rows(spec: Spec) -> Iterator[Finding]:
    """Warns of a source with fewer rows than a step takes: the prompts of a step repeat themselves."""
    wanted = spec.rollout.batch_size
    has_steps = needs_of(spec).rollout and spec.debug.mode != "eval"
    rows = list(_preview(spec.data, wanted)) if has_steps else []
    if 0 < len(rows) < wanted:
        message = f"a step takes {wanted} prompts, and the data has {len(rows)}: each step repeats some"
        yield Finding(("data", _naming_key(spec.data)), message, at_value=False)


def _preview(source: DataSpec, count: int) -> Iterator[Row]:
    """Yields about `count` rows of a source that can be looked at, without the broken ones."""
    kind = load("data", source.type)
    if hasattr(kind, "preview"):
        with suppress(ImportError, ValueError):  # `data_findings` reports these
            rows = kind.preview(checked_params("data", source.type, source.params), count)
            yield from (row for row in rows if not isinstance(row, ValueError))


def _too_long(spec: Spec) -> Iterator[Finding]:
    """Yields a finding if every prompt that is looked at is longer than prompts may be.

    Only the text is counted, without the tokens that a chat template adds.
    """
    limit, file = spec.rollout.given("max_prompt_tokens"), Path(spec.model.path) / "tokenizer.json"
    if limit is None or find_spec("tokenizers") is None or not file.is_file():
        return
    texts = [row.text() for row in _preview(spec.data, ROWS)]
    if not texts:
        return
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception:  # it raises nothing more specific; a launch says what is wrong with the file
        return
    shortest = min(len(tokenizer.encode(text, add_special_tokens=False)) for text in texts)
    if shortest > limit:
        message = f"drops every prompt: the shortest of the {len(texts)} looked at has {shortest} tokens"
        yield Finding(("rollout", "max_prompt_tokens"), message, "raise it", found=limit)


def _source(path: KeyPath, source: DataSpec, check: RowCheck, needs: Needs) -> Iterator[Finding]:
    kind = load("data", source.type)
    if not hasattr(kind, "preview") or not is_here(source.type, source.params):
        return
    at = (*path, _naming_key(source))
    try:
        params = checked_params("data", source.type, source.params)
        outcomes = [_outcome(row, check) for row in kind.preview(params, ROWS)]
    except (ImportError, ValueError) as error:
        yield Finding(at, str(error))
        return
    yield from _absent_label(path, kind, params)
    broken = [error for error in outcomes if error is not None]
    if len(broken) > max(source.max_bad_share, TOLERATED_SHARE) * len(outcomes):
        message = f"{len(broken)} of the {len(outcomes)} rows looked at cannot be used: {broken[0]}"
        yield Finding(at, message, _missing_key(kind, params, needs, str(broken[0])))


def _naming_key(source: DataSpec) -> str:
    return next((key for key in _NAMING_KEYS if key in source.params), "type")


def _absent_label(path: KeyPath, kind: type, params: object) -> Iterator[Finding]:
    """Yields a finding if the spec names a column for labels that no row has.

    Rows may lack labels, so that nothing else reports a misspelt name: every label would be None.
    """
    if not isinstance(params, RowKeys) or not hasattr(kind, "columns"):
        return
    columns, name = kind.columns(params), params.label_key
    is_there = any(f"{name}.".startswith(f"{column}.") for column in columns)  # the column, or a table in it
    if "label_key" in params.model_fields_set and not is_there:
        meant = nearest(name, columns)
        cure = f'did you mean "{meant}"?' if meant else f"they have {', '.join(columns)}"
        yield Finding((*path, "label_key"), f"no row that was looked at has {name!r}", cure, meant, name)


def _outcome(row: Row | ValueError, check: RowCheck) -> ValueError | None:
    """Returns what is wrong with a row; None if it can be used."""
    if isinstance(row, ValueError):
        return row
    try:
        check(row)
    except ValueError as error:
        return error
    return None


def _prompt_check(rewards: Sequence[RewardSpec]) -> RowCheck:
    """Returns a check that a row does not end with an answer, and that the rewards can score it."""
    check_for_rewards = row_check(rewards)

    def check(row: Row) -> None:
        if not isinstance(row.prompt, str) and row.prompt[-1].get("role") == "assistant":
            raise ValueError(
                f"row {row.id}: its messages end with an answer, so that the policy would answer itself: "
                'set data.last_answer = "label" (or "drop"), or train on the answers with '
                'algorithm.type = "sft"'
            )
        check_for_rewards(row)

    return check


def _demonstration_check(needs: Needs) -> RowCheck:
    """Returns a check that a row has the response, or the pair of responses, to train on, and its label."""

    def check(row: Row) -> None:
        chat = not isinstance(row.prompt, str) and row.prompt[-1].get("role") == "assistant"
        if needs.labels:
            is_good(row)
        if row.response is None and (needs.pairs or needs.labels or not chat):
            raise ValueError(f"row {row.id} has no demonstration; set response_key")
        if needs.pairs and row.rejected is None:
            raise ValueError(f"row {row.id} has no rejected answer; set rejected_key")

    return check


def _missing_key(kind: type, params: object, needs: Needs, problem: str) -> str | None:
    """Returns the key to set, if the names of the columns suggest one for the missing value."""
    if not isinstance(params, RowKeys) or not hasattr(kind, "columns"):
        return None
    key, names = ("label_key", LABEL_NAMES) if needs.rollout else ("response_key", RESPONSE_NAMES)
    columns = kind.columns(params)
    if key not in problem:
        return None
    if getattr(params, key) in columns:
        return f"{key} is {getattr(params, key)!r} already: fill that in, or leave the rows without it out"
    if column := likely(columns, names):
        return f'the rows have {", ".join(columns)}: {key} = "{column}"'
    return None
