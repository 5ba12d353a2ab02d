"""Reads the table of what does not go together: as findings, and as the reasons against one feature."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

from pydantic import BaseModel

from rlrun.models.architecture import Architecture
from rlrun.specs.derived.conflicts.feature import Feature, Job
from rlrun.specs.derived.conflicts.row import Kind, Row, Topic, as_tuple
from rlrun.specs.derived.conflicts.table import TOPICS
from rlrun.specs.derived.engine_sections import engine_sections
from rlrun.specs.problems.codes import Code
from rlrun.specs.problems.findings import Finding, dotted
from rlrun.specs.problems.positions import KeyPath


def conflicts(job: Job, *, only_of_model: bool = False, ignored: bool = True) -> Iterator[Finding]:
    """Yields a finding for each pair of features that a job has and that do not go together.

    Where a row names several features of models, only the first that the model has is reported: the cure is
    the same. `only_of_model`: only by the rows that read the model. `ignored`: also settings without an
    effect.
    """
    for topic, groups in _by_feature(only_of_model, ignored):
        for table, scope in _scopes(topic, job):
            for feature, others in groups:
                if feature.holds(scope):
                    yield from _findings(feature, others, topic, scope, table)


_Others = tuple[tuple[Row, Feature], ...]
_Groups = tuple[tuple[Feature, _Others], ...]


@cache
def _by_feature(only_of_model: bool, ignored: bool) -> tuple[tuple[Topic, _Groups], ...]:
    """Returns the pairs of each topic by their first feature: few jobs have it, and it is looked for once."""
    topics = []
    for topic in TOPICS:
        groups: dict[Feature, list[tuple[Row, Feature]]] = {}
        for row in topic.rows:
            if (row.of_model or not only_of_model) and (ignored or row.kind is not Kind.NO_EFFECT):
                for feature, other in row.pairs():
                    groups.setdefault(feature, []).append((row, other))
        if groups:
            topics.append((topic, tuple((feature, tuple(others)) for feature, others in groups.items())))
    return tuple(topics)


def _findings(
    feature: Feature, others: _Others, topic: Topic, job: Job, table: KeyPath | None
) -> Iterator[Finding]:
    """Yields the findings about a feature that a job has."""
    reported: list[Row] = []
    for row, other in others:
        if not (other.of_model and row in reported) and other.holds(job):
            reported.append(row)
            yield _finding(row, (feature, other), topic, job, table)


def reason_against_model(feature: Feature, model: Architecture) -> str | None:
    """Returns why a model cannot have a feature, by the rows about models; None if it can."""
    for topic in TOPICS:
        for row in topic.rows:
            if feature in as_tuple(row.features) and any(
                other.of_model and other.of_model(model) for other in as_tuple(row.others)
            ):
                return row.reason
    return None


def reasons_against(feature: Feature, job: Job) -> Iterator[str]:
    """Yields the reasons why a job cannot have a feature, in the order of the table."""
    for topic in TOPICS:
        for row in topic.rows:
            if feature in as_tuple(row.features) and any(other.holds(job) for other in as_tuple(row.others)):
                yield row.reason


def cure_of(row: Row, feature: Feature, other: Feature, key: str) -> str:
    """Returns what to do about a pair: undo one of the two. `key`: where the other feature is in the spec."""
    if row.cure is not None:
        return row.cure
    is_set = feature.off and row.kind is not Kind.NO_EFFECT
    here = f"set {feature.key.rpartition('.')[2]} = {feature.off}" if is_set else "remove it"
    there = other.undo(key)
    return f"{here}, or {there}" if there else here


def _finding(
    row: Row, pair: tuple[Feature, Feature], topic: Topic, job: Job, table: KeyPath | None
) -> Finding:
    feature, other = pair
    value, is_ignored = job.value(feature.key), row.kind is Kind.NO_EFFECT
    link, name = ("without" if other.is_absence else "with"), other.name
    if table is not None and name.startswith(f"{topic.each}."):
        name = dotted((*table, name.partition(".")[2]))
    reason = row.reason.replace("{algorithm}", job.spec.algorithm.type)
    return Finding(
        _path(feature.key, topic, table),
        f"{row.kind} {link} {name}: {reason}",
        cure_of(row, feature, other, dotted(_path(other.key, topic, table))),
        suggestion=None if is_ignored else _text(feature.off),
        found=None if is_ignored or isinstance(value, BaseModel | dict | tuple) else value,
        at_value=not is_ignored,
        related=tuple(_path(key, topic, table) for key in (other.key, *other.related, *feature.related)),
        code=Code.NO_EFFECT if is_ignored else topic.code,
    )


def _scopes(topic: Topic, job: Job) -> Iterator[tuple[KeyPath | None, Job]]:
    """Yields the job; for rows about several tables of a spec, the job once with each of them in the place of
    `topic.each`.
    """
    if topic.each == "engine":
        for path, section in engine_sections(job.spec):
            yield path, replace(job, spec=job.spec.with_sections(engine=section))
    elif topic.each == "trainer":
        for name, optimizer in job.spec.optimizers:
            yield (name,), replace(job, spec=job.spec.with_sections(trainer=optimizer))
    else:
        yield None, job


def _text(value: str | None) -> str | None:
    """Returns a TOML value without its quotes if it is a string; None otherwise."""
    return value[1:-1] if value and value[0] == '"' else None


def _path(key: str, topic: Topic, table: KeyPath | None) -> KeyPath:
    first, *rest = key.split(".")
    return (*table, *rest) if table is not None and first == topic.each else (first, *rest)
