"""Compares a dump with what rlrun computes, term by term, and looks for the setting that explains the first
difference.

    dump ─▶ case of its settings ─▶ term by term: equal, or a difference
                 ▲                                      │
                 └── the neighbour that makes it equal ◀┘

After an explained difference the comparison continues with the setting that explains it, so that a second
difference is found, too.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from rlrun.plugins.registry import PluginError
from rlrun.runner.conform.dump import Array, Dump
from rlrun.runner.conform.neighbours import NEIGHBOURS, Neighbour, Variant
from rlrun.runner.conform.terms import CLAIMS, TERMS, Case, Computed, NotComputed, first_case

TOLERANCE = 1e-5
"""The largest difference that counts as equal, in units of the term's largest value."""
_PAIRS = 1 << 16
"""Pairs of settings are tried on batches of at most so many tokens."""
_SCALED = ("advantages", "token_losses", "gradients")
"""Terms that may differ by a factor."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Settings with which rlrun computes what the dump has."""

    names: tuple[str, ...]
    """Rows of docs/conform.md: one, or two that are needed together."""
    settings: tuple[str, ...]
    """What the other trainer does."""
    case: Case


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a term differs."""

    sample: int | None
    """Row of the largest difference; None for the loss."""
    token: int | None
    """Column of the largest difference."""
    ours: float
    theirs: float
    largest: float
    """The largest absolute difference."""
    samples: int
    """Number of samples that differ."""
    tokens: int
    """Number of tokens that differ."""
    factor: float | None
    """What all of rlrun's values have to be multiplied by; None if there is no such number."""


@dataclass(slots=True)
class Finding:
    """The comparison of one term."""

    term: str
    status: Literal["equal", "differs", "not compared"]
    largest: float = 0.0
    """The largest absolute difference."""
    why_not: str = ""
    difference: Difference | None = None
    explanations: list[Explanation] = field(default_factory=list)
    """The best one first; its settings hold for all later terms."""


@dataclass(frozen=True, slots=True)
class Report:
    """What the comparison of a dump found."""

    findings: Sequence[Finding]
    untested: Sequence[str]
    """Neighbours that the batch cannot tell from its settings: all compared terms are the same with them."""

    @property
    def differences(self) -> list[Finding]:
        """The terms that differ, in order."""
        return [finding for finding in self.findings if finding.status == "differs"]

    def as_json(self) -> dict[str, Any]:
        """Returns the report as JSON values."""
        return {
            "terms": [_finding_json(finding) for finding in self.findings],
            "first_difference": self.differences[0].term if self.differences else None,
            "not_tested": list(self.untested),
        }


def _finding_json(finding: Finding) -> dict[str, Any]:
    difference = finding.difference
    return {
        "term": finding.term,
        "status": finding.status,
        "largest_difference": _json_number(finding.largest),
        "not_compared": finding.why_not,
        "difference": None
        if difference is None
        else {name: _json_number(getattr(difference, name)) for name in Difference.__slots__},
        "explanations": [
            {"names": list(each.names), "settings": list(each.settings)} for each in finding.explanations
        ],
    }


def _json_number(value: float | None) -> float | None:
    """Returns a number as JSON has it, which has no infinity."""
    return value if value is None or math.isfinite(value) else None


def conform(dump: Dump, tolerance: float = TOLERANCE) -> Report:
    """Compares every term that the dump has. Raises DumpError for settings that rlrun cannot compute."""
    with np.errstate(invalid="ignore", over="ignore"):  # a value that is not finite differs
        return _Comparison(dump, tolerance).report()


class _Comparison:
    def __init__(self, dump: Dump, tolerance: float) -> None:
        self._dump, self._tolerance = dump, tolerance
        self._case = first_case(dump)
        self._settled: list[str] = []
        """The terms that are equal, or explained."""

    def report(self) -> Report:
        findings: list[Finding] = []
        stopped_at = ""
        for term in TERMS:
            if stopped_at:
                findings.append(Finding(term, "not compared", why_not=f"it follows from {stopped_at}"))
                continue
            finding = self._compare(term)
            findings.append(finding)
            if finding.status == "equal" or finding.explanations:
                self._settled.append(term)
            elif finding.status == "differs" and not self._replace(term):
                stopped_at = term
        return Report(findings, [] if stopped_at else list(self._untested()))

    def _compare(self, term: str) -> Finding:
        theirs = self._theirs(term)
        if theirs is None:
            return Finding(term, "not compared", why_not="the dump does not have it")
        try:
            computed = Computed(self._case)
            ours = computed.term(term)
        except NotComputed as reason:
            return Finding(term, "not compared", why_not=str(reason))
        differs = self._differs(term, computed, ours, theirs)
        largest = float(np.abs(ours - self._cut(theirs, ours))[self._where(term, ours)].max(initial=0))
        if not differs.any():
            return Finding(term, "equal", largest)
        explanations = self._explain(term)
        difference = self._difference(term, ours, theirs, differs)
        if explanations:
            self._case = explanations[0].case
        return Finding(term, "differs", largest, difference=difference, explanations=explanations)

    def _theirs(self, term: str) -> Array | None:
        values: Array | None = (
            getattr(self._dump.batch, term) if term in CLAIMS else self._dump.results.get(term)
        )
        return values

    def _cut(self, theirs: Array, ours: Array) -> Array:
        """Returns the first samples of a term of which rlrun computes only those."""
        return theirs[: len(ours)] if ours.ndim else theirs

    def _where(self, term: str, ours: Array) -> Array:
        """Returns where values count: on trained tokens, but everywhere for masks and gradients."""
        if term in ("mask", "gradients", "loss"):
            return np.ones(ours.shape, bool)
        return self._dump.batch.mask[: len(ours)] > 0

    def _differs(self, term: str, computed: Computed, ours: Array, theirs: Array) -> Array:
        """Returns where values differ by more than the tolerance, in units of the largest value."""
        theirs, where = self._cut(theirs, ours), self._where(term, ours)
        unit = computed.loss_mass if term == "loss" else float(np.abs(theirs[where]).max(initial=0))
        difference = np.abs(ours.astype(np.float64) - theirs)
        # written so that NaN differs
        return where & ~(difference <= self._tolerance * max(unit, 1e-30))

    def _agrees(self, case: Case, term: str) -> bool:
        theirs = self._theirs(term)
        if theirs is None:
            return True
        try:
            computed = Computed(case)
            ours = computed.term(term)
        except (NotComputed, PluginError):
            return False
        return not self._differs(term, computed, ours, theirs).any()

    def _difference(self, term: str, ours: Array, theirs: Array, differs: Array) -> Difference:
        theirs = self._cut(theirs, ours)
        if term == "loss":
            values = (float(ours), float(theirs))
            return Difference(None, None, *values, abs(values[0] - values[1]), 0, 0, None)
        error = np.where(differs, np.abs(ours - theirs), -1)
        error[np.isnan(error)] = np.inf
        row, token = (int(index) for index in np.unravel_index(error.argmax(), error.shape))
        return Difference(
            sample=row,
            token=token,
            ours=float(ours[row, token]),
            theirs=float(theirs[row, token]),
            largest=float(error.max()),
            samples=int(differs.any(1).sum()),
            tokens=int(differs.sum()),
            factor=self._factor(term, ours, theirs),
        )

    def _factor(self, term: str, ours: Array, theirs: Array) -> float | None:
        """Returns the number that all of rlrun's values have to be multiplied by, if there is one."""
        where = self._where(term, ours) & (ours != 0)
        if term not in _SCALED or not where.any():
            return None
        largest = np.where(where, np.abs(ours), 0).argmax()
        factor = float(theirs.flat[largest] / ours.flat[largest])
        unit = float(np.abs(theirs).max())
        same = np.abs(factor * ours - theirs)[self._where(term, ours)] <= self._tolerance * unit
        return factor if same.all() and not math.isclose(factor, 0) else None

    def _explain(self, term: str) -> list[Explanation]:
        """Returns the settings that make the term equal, those that also make the most later terms equal
        first. Two settings together are tried where no single one does.
        """
        singles = list(self._variants(self._case, term, NEIGHBOURS))
        found = [
            Explanation((neighbour.name,), (variant.setting,), variant.case)
            for neighbour, variant in singles
            if self._agrees(variant.case, term)
        ]
        if not found and self._dump.batch.tokens.size <= _PAIRS:
            found = [
                Explanation((one.name, two.name), (first.setting, second.setting), second.case)
                for one, first in singles
                for two, second in self._variants(first.case, term, NEIGHBOURS[NEIGHBOURS.index(one) + 1 :])
                if self._agrees(second.case, term)
            ]
        return sorted(found, key=lambda each: -self._equal_after(each.case, term))

    def _variants(
        self, case: Case, term: str, neighbours: Sequence[Neighbour]
    ) -> Iterator[tuple[Neighbour, Variant]]:
        """Yields the cases that can change this term and no term that is settled."""
        for neighbour in neighbours:
            if neighbour.acts_on in self._open_terms(term):
                for variant in neighbour.variants(case):
                    yield neighbour, variant

    def _open_terms(self, term: str) -> Sequence[str]:
        """Returns the terms that this one is computed from, itself included, and that are not settled."""
        if term in CLAIMS:
            return (term,)
        first = "loss" if "token_losses" in self._settled else "advantages"
        terms = TERMS[TERMS.index(first) : TERMS.index(term) + 1]
        return [name for name in terms if name not in self._settled]

    def _equal_after(self, case: Case, term: str) -> int:
        """Returns how many of the later terms are equal, up to the first that is not."""
        later = TERMS[TERMS.index(term) + 1 :]
        return next((number for number, name in enumerate(later) if not self._agrees(case, name)), len(later))

    def _replace(self, term: str) -> bool:
        """Continues with the dump's own values of a term without explanation, where rlrun can take them."""
        if term == "advantages":
            self._case = replace(self._case, advantages=self._dump.results["advantages"])
        return term in CLAIMS or term == "advantages"

    def _untested(self) -> Iterator[str]:
        """Yields the neighbours with which all terms of the batch would be the same."""
        compared = [term for term in self._settled if term not in CLAIMS]
        for neighbour in NEIGHBOURS:
            if neighbour.acts_on in CLAIMS:
                continue
            later = [term for term in compared if TERMS.index(term) >= TERMS.index(neighbour.acts_on)]
            variants = list(neighbour.variants(self._case))
            if variants and all(self._agrees(each.case, term) for each in variants for term in later):
                yield neighbour.name
