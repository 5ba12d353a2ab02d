"""Chooses rows by difficulty: draws more prompts from the bins whose groups have something to teach.

    rows ──▶ bins by a value of their metadata ──▶ Thompson sampling picks a bin ──▶ its next row
                  ▲                                                                      │
                  └── rewards of the group: do they differ? how many samples solve it? ◀─┘

A group whose rewards are all equal teaches a group-relative algorithm nothing. The share of groups whose
rewards differ is estimated for each bin from recent groups, as a beta distribution. Each prompt is taken from
the bin with the largest draw (https://arxiv.org/abs/1707.02038), so that bins that are seldom drawn are still
tried now and then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isnan
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from rlrun.plugins.filters.nonzero_std import MIN_STD
from rlrun.plugins.registry import build, checked_params, load
from rlrun.plugins.thresholds import reaches
from rlrun.plugins.types import Choice, Group, Row, last_samples
from rlrun.specs.sections.section import Section

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    from rlrun.plugins import lazy_numpy as np


_NOTHING = 1e-9
"""A budget below this is a rounding error."""


class InnerSource(BaseModel):
    """The data source with the rows: its `type`, and its own keys."""

    model_config = ConfigDict(extra="allow", frozen=True)

    type: str
    """Name of the data source."""


class CurriculumParams(Section):
    """The rows, what their difficulty is, and how fast the choice follows the policy."""

    source: InnerSource
    """The data source with the rows, as a table: `[data.source]`."""
    key: str
    """Where a row's metadata have its difficulty, with dots between the keys of nested tables: `level`, or
    `entry.metadata.num_terms`. `source` is the number of a `mixture`'s source."""
    bins: int = Field(default=8, ge=2)
    """Largest number of bins. Each value is a bin, unless there are more values: numbers are then divided
    into bins of about as many rows, and texts are an error."""
    memory: float = Field(default=64, gt=0)
    """Number of groups after which a result counts half as much, so that the choice follows the policy."""
    per_token: bool = False
    """Compare bins by the groups that differ per generated token, not per group. It prefers bins with short
    responses."""
    mean_samples: float | None = Field(default=None, ge=2)
    """The budget: mean number of samples per prompt. Prompts of bins where another sample makes the rewards
    differ with a higher probability get more of them: at least 2, and at most `rollout.samples_per_prompt`.
    None: every prompt gets `rollout.samples_per_prompt`."""
    solved: float = 1.0
    """A sample with at least this reward solves its prompt; the share of these samples decides how
    `mean_samples` is divided."""
    seed: int = Field(default=0, ge=0)
    """Seed of the choice, and of the order of the rows in each bin."""


@dataclass(slots=True)
class Bin:
    """What is known of the rows of one bin, and which of them comes next."""

    position: int = 0
    """Number of rows drawn so far."""
    differing: float = 0.0
    """Groups whose rewards differed; older ones count less, as in all sums here."""
    equal: float = 0.0
    solved: float = 0.0
    """Samples that solved their prompt."""
    unsolved: float = 0.0
    tokens: float = 0.0
    """Response tokens of these samples."""
    drawn: int = 0
    """Rows drawn since the last metrics."""

    @property
    def signal(self) -> float:
        """Returns the expected share of groups whose rewards differ."""
        hits, misses = self.beta
        return hits / (hits + misses)

    @property
    def beta(self) -> tuple[float, float]:
        """Returns the parameters of the beta distribution of this share. A bin of which nothing is known, or
        whose results have faded, is expected to teach, so that it is tried.
        """
        return 1 + self.differing, 0.25 + self.equal

    @property
    def solve_rate(self) -> float:
        """Returns the expected share of samples that solve their prompt; 0.5 before the first group."""
        return (1 + self.solved) / (2 + self.solved + self.unsolved)

    def fade(self, factor: float) -> None:
        """Makes earlier results count less."""
        self.differing *= factor
        self.equal *= factor
        self.solved *= factor
        self.unsolved *= factor
        self.tokens *= factor


class Curriculum:
    """Contains the rows of its source, and chooses the bin of each prompt by what recent groups taught.

    It reads all rows once when it is created, for their bins. Each bin's rows follow each other in epochs,
    in a new order each time. A broken row, or one without the key, is in no bin, and is not used. A relative
    path in the source is relative to the folder in which the job is started.
    """

    Params = CurriculumParams
    api_version = 1
    example: ClassVar[dict[str, Any]] = {
        "source": {"type": "reasoning_gym", "task": "chain_sum", "size": 40},
        "key": "entry.metadata.num_terms",
    }

    def __init__(self, params: CurriculumParams) -> None:
        """Raises ValueError if no row has the key, or if there are too many values for the bins."""
        self.params = params
        self._source = build("data", params.source.type, dict(params.source.model_extra or {}))
        self._rows, self._bin_of = self._read_bins()
        self._bins = {name: Bin() for name in self._rows}
        self._orders: dict[str, tuple[int, NDArray[np.int64]]] = {}
        """The order of the current epoch of each bin, which follows from the bin's position."""
        self._num_draws = 0
        self._fade = 0.5 ** (1 / params.memory)

    @classmethod
    def preview(cls, params: CurriculumParams, count: int) -> Iterator[Row | ValueError]:
        """Yields the first rows of the source; those without the key as a ValueError."""
        inner, source = dict(params.source.model_extra or {}), params.source
        kind, checked = load("data", source.type), checked_params("data", source.type, inner)
        for row in kind.preview(checked, count) if hasattr(kind, "preview") else ():
            yield row if isinstance(row, ValueError) else _with_key(row, params.key)

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> Row:
        """Returns row `index` of the source. Raises ValueError for a broken row, or one without the key."""
        row: Row = self._source[index]
        difficulty_of(row, self.params.key)
        return row

    def choose(self, samples: int) -> Choice:
        """Returns the next row of the bin with the largest draw, and how many samples are worthwhile."""
        generator = np.random.Generator(np.random.PCG64([self.params.seed, 1, self._num_draws]))
        self._num_draws += 1  # each draw has its own seed: its number is its state
        name = self._draw_bin(generator)
        chosen = self._bins[name]
        epoch, place = divmod(chosen.position, len(self._rows[name]))
        chosen.position += 1
        chosen.drawn += 1
        if self.params.mean_samples is not None:
            mean = self._mean_samples(self.params.mean_samples, samples)[name]
            samples = int(mean + generator.random())  # more or fewer by one, so that the mean is kept
        return Choice(int(self._order(name, epoch)[place]), samples)

    def observe(self, group: Group) -> None:
        """Counts the result of a group: whether its rewards differ, and how many samples solve it."""
        name = self._bin_of.get(group.prompt.row.id)
        if name is None:
            return
        for other in self._bins.values():
            other.fade(self._fade)
        seen, executions = self._bins[name], last_samples(group.samples)
        rewards = [sample.reward for sample in executions]
        differs = len(rewards) > 1 and float(np.std(rewards)) > MIN_STD
        seen.differing += differs
        seen.equal += not differs
        solved = sum(reaches(reward, self.params.solved) for reward in rewards)
        seen.solved += solved
        seen.unsolved += len(rewards) - solved
        seen.tokens += sum(len(sample.tokens) for sample in group.samples)

    def metrics(self) -> dict[str, float]:
        """Returns, for each bin, the prompts drawn since the last call and the estimates of the choice."""
        metrics: dict[str, float] = {}
        for name, seen in self._bins.items():
            metrics[f"curriculum/{name}/prompts"] = seen.drawn
            metrics[f"curriculum/{name}/signal"] = seen.signal
            metrics[f"curriculum/{name}/solve_rate"] = seen.solve_rate
            seen.drawn = 0
        return metrics

    def state(self) -> dict[str, Any]:
        """Returns what was learnt of each bin and the places in their orders, as JSON values."""
        return {"draws": self._num_draws, "bins": {name: asdict(seen) for name, seen in self._bins.items()}}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continues from a saved state. Raises ValueError if it has other bins."""
        if state["bins"].keys() != self._bins.keys():
            raise ValueError(
                f"the checkpoint's curriculum has the bins {', '.join(state['bins'])}, this one has "
                f"{', '.join(self._bins)}; resume with the rows, `key` and `bins` it was made with"
            )
        self._num_draws = state["draws"]
        self._bins = {name: Bin(**state["bins"][name]) for name in self._bins}

    def _mean_samples(self, budget: float, most: int) -> dict[str, float]:
        """Returns the mean number of samples per prompt of each bin, by how often the bins were drawn."""
        groups = {name: seen.differing + seen.equal for name, seen in self._bins.items()}
        if not any(groups.values()):
            groups = dict.fromkeys(groups, 1.0)
        rates = [seen.solve_rate for seen in self._bins.values()]
        return dict(zip(groups, divided_budget(rates, list(groups.values()), budget, most), strict=True))

    def _draw_bin(self, generator: np.random.Generator) -> str:
        """Returns the bin with the largest draw."""
        draws = {
            name: float(generator.beta(*seen.beta)) / self._cost(seen) for name, seen in self._bins.items()
        }
        return max(draws, key=draws.__getitem__)

    def _order(self, name: str, epoch: int) -> NDArray[np.int64]:
        """Returns the rows of a bin in the order of an epoch."""
        cached_epoch, order = self._orders.get(name, (-1, None))
        if order is None or cached_epoch != epoch:
            rows = np.array(self._rows[name], dtype=np.int64)
            seed = [self.params.seed, epoch, int(rows[0])]
            order = np.random.Generator(np.random.PCG64(seed)).permutation(rows)
            self._orders[name] = epoch, order
        return order

    def _cost(self, seen: Bin) -> float:
        """Returns the expected tokens of a sample in a bin; as of all samples, before its first group."""
        if not self.params.per_token:
            return 1.0
        known = [seen] if seen.tokens else list(self._bins.values())
        samples = sum(one.solved + one.unsolved for one in known)
        return max(sum(one.tokens for one in known), 1.0) / max(samples, 1.0)

    def _read_bins(self) -> tuple[dict[str, list[int]], dict[str, str]]:
        """Returns the rows of each bin, and the bin of each row id."""
        ids, values, error = {}, {}, None
        for index in range(len(self._source)):
            try:
                row = self._source[index]
                values[index] = difficulty_of(row, self.params.key)
                ids[index] = row.id
            except ValueError as fault:  # the framework counts and names broken rows
                error = error or fault
        if not values:
            raise ValueError(f"no row has a difficulty; the first error: {error or 'the source has no rows'}")
        names = bin_names(list(values.values()), self.params.bins)
        rows: dict[str, list[int]] = {}
        for index, name in zip(values, names, strict=True):
            rows.setdefault(name, []).append(index)
        ordered = {name: rows[name] for name in sorted(rows, key=lambda name: (len(name), name))}
        return ordered, {ids[index]: name for name, own in rows.items() for index in own}


def difficulty_of(row: Row, key: str) -> str | float:
    """Returns the value at a key of a row's metadata. Raises ValueError, naming the row, if there is none."""
    value: Any = row.metadata
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    if isinstance(value, str | int | float) and not (isinstance(value, float) and isnan(value)):
        return value
    has = ", ".join(map(str, row.metadata)) or "nothing"
    raise ValueError(
        f"row {row.id}: its metadata have no text or number at {key!r}, the curriculum's key; they have {has}"
    )


def bin_names(values: Sequence[str | float], bins: int) -> list[str]:
    """Returns the name of each value's bin: the value, or the range of numbers that it is in.

    Raises ValueError if there are more than `bins` values, and not all are numbers.
    """
    distinct = sorted(set(values), key=str)
    if len(distinct) <= bins:
        return [f"{value:g}" if isinstance(value, float) else str(value) for value in values]
    if any(isinstance(value, str) for value in distinct):
        raise ValueError(
            f"the curriculum's key has {len(distinct)} values, such as {distinct[0]!r}, for {bins} bins; "
            "raise `bins`, or choose a key with numbers"
        )
    numbers: NDArray[np.float64] = np.array(values, dtype=np.float64)
    edges = np.unique(np.quantile(numbers, np.linspace(0, 1, bins + 1)))
    places = np.clip(np.searchsorted(edges, numbers, side="right") - 1, 0, len(edges) - 2)
    return [f"{edges[place]:.3g}-{edges[place + 1]:.3g}" for place in places]


def divided_budget(
    solve_rates: Sequence[float], weights: Sequence[float], budget: float, most: int
) -> list[float]:
    """Returns the mean number of samples per prompt of each bin, of 2 to `most`; their mean, weighted by how
    often bins are drawn, is `budget`.

    One sample more than n makes the rewards of a prompt differ if it is the first that solves it, or the
    first that does not: with probability `(1 - p)^n · p + p^n · (1 - p)`, which falls with n. Samples are
    added where this gain is largest, so that no sample would gain more in another bin.
    """
    samples, remaining = [2.0] * len(solve_rates), (min(budget, most) - 2) * sum(weights)
    while remaining > _NOTHING and (open_bins := [n for n, count in enumerate(samples) if count < most]):
        chosen = max(open_bins, key=lambda one: added_signal(solve_rates[one], samples[one]))
        share = min(1.0, remaining / weights[chosen]) if weights[chosen] else 1.0
        samples[chosen] += share
        remaining -= share * weights[chosen]
    return samples


def added_signal(solve_rate: float, samples: float) -> float:
    """Returns the probability that one sample more than `samples` is the first whose reward differs."""
    first_right: float = (1 - solve_rate) ** samples * solve_rate
    first_wrong: float = solve_rate**samples * (1 - solve_rate)
    return first_right + first_wrong


def _with_key(row: Row, key: str) -> Row | ValueError:
    try:
        difficulty_of(row, key)
    except ValueError as error:
        return error
    return row
