"""Writes a row's prompt as a teacher reads it (`teacher.prompt`).

Apart from teacher_prompts.py, because `rlrun validate` checks rows without importing numpy.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from rlrun.plugins.data.rows import fill
from rlrun.plugins.row_checks import no_teacher, source_of
from rlrun.plugins.types import Needs, Row
from rlrun.specs.derived.served_adapters import has_one_teacher
from rlrun.specs.sections.auxiliary_models import FEEDBACK, LABEL, PROMPT, SOLUTION
from rlrun.specs.sections.job import Spec


def teacher_row(template: str, row: Row, told: Mapping[str, str]) -> Row:
    """Returns the row with the teacher's prompt: the template in place of the last message's text.

    `told`: the solution and the feedback of a sample. Raises ValueError for a row that has not what the
    template names, or whose prompt does not end with a text of the user.
    """
    if row.images:
        raise ValueError("the row has images, and the teacher's own prompts are text")
    label = {} if row.label is None else {LABEL: row.label}
    values: dict[str, Any] = {**row.metadata, **label, **told, PROMPT: question(row)}
    text = fill(template, values)
    if isinstance(row.prompt, str):
        return replace(row, prompt=text)
    return replace(row, prompt=[*row.prompt[:-1], {**row.prompt[-1], "content": text}])


def question(row: Row) -> str:
    """Returns the text that the template replaces. Raises ValueError if the prompt does not end with it."""
    if isinstance(row.prompt, str):
        return row.prompt
    last = row.prompt[-1]
    if last.get("role") != "user" or not isinstance(last.get("content"), str):
        raise ValueError("the last message of the prompt is not a text of the user")
    return str(last["content"])


def teacher_check(spec: Spec, needs: Needs) -> Callable[[Row], None]:
    """Returns a function that raises ValueError for a row without a teacher, and for one that the teacher's
    own prompt cannot be written for.
    """
    teacher = spec.teacher if needs.teacher else None
    if teacher is None:
        return lambda row: None

    def check(row: Row) -> None:
        if not has_one_teacher(spec) and source_of(row) not in teacher.sources:
            raise ValueError(f"row {row.id}: {no_teacher(row, teacher.sources)}")
        if teacher.prompt is None:
            return
        try:
            teacher_row(teacher.prompt, row, {SOLUTION: "", FEEDBACK: ""})
        except ValueError as error:
            raise ValueError(f"row {row.id}: teacher.prompt: {error}") from None

    return check
