"""Which row comes next: epochs, each a permutation of all rows, or the choice of the data source itself.

A checkpoint's position may be before prompts that were read already. Epochs repeat the same rows from there.
A source that has learnt since then would choose others, so `Steering` remembers the choices, and repeats them
after a resume before it asks the source for new ones.
"""

from collections import deque
from collections.abc import Mapping
from threading import Lock
from typing import Any, NamedTuple, TypeGuard

import numpy as np
from numpy.typing import NDArray

from rlrun.plugins.protocols import DataSource, SteeredSource
from rlrun.plugins.types import Choice, Group


class _Chosen(NamedTuple):
    """A choice, and the index of the prompt that it was made for."""

    prompt: int
    row: int
    samples: int


def is_steered(source: DataSource) -> TypeGuard[SteeredSource]:
    """Returns whether a data source chooses its rows itself."""
    return hasattr(source, "choose")


class Epochs:
    """Each epoch contains all rows, in an order of its own if they are shuffled."""

    def __init__(self, rows: int, seed: int, *, shuffle: bool) -> None:
        self._rows = rows
        self._seed = seed
        self._shuffle = shuffle
        self._epoch, self._position = 0, 0
        self.order = self._permutation()
        """The rows of this epoch."""

    def next(self, prompt: int) -> tuple[int, None]:
        """Returns the next row, with the default number of samples."""
        if self._position == len(self.order):
            self._epoch, self._position = self._epoch + 1, 0
            self.order = self._permutation()
        self._position += 1
        return int(self.order[self._position - 1]), None

    def state(self) -> dict[str, Any]:
        """Returns the position, as JSON values."""
        return {"epoch": self._epoch, "position": self._position}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continues from a saved position. Raises ValueError if a data source chose the rows until then."""
        if "epoch" not in state:
            raise ValueError(
                "the checkpoint was made with a data source that chooses its rows, such as `curriculum`; "
                "resume with the data it was made with"
            )
        self._epoch, self._position = state["epoch"], state["position"]
        self.order = self._permutation()

    def _permutation(self) -> NDArray[np.int64]:
        if not self._shuffle:
            return np.arange(self._rows)
        return np.random.Generator(np.random.PCG64([self._seed, self._epoch])).permutation(self._rows)


class Steering:
    """Asks a data source for its choices, and passes the results to it. Rows are chosen in a thread, and
    results come from the event loop, so each call has a lock.
    """

    def __init__(self, source: SteeredSource, samples: int) -> None:
        """`samples`: the most samples that the source may choose for a prompt."""
        self._source = source
        self._samples = samples
        self._lock = Lock()
        self._chosen: deque[_Chosen] = deque()
        """Choices since the last saved position, in order; several for a prompt whose first rows were
        unusable."""
        self._repeated: deque[_Chosen] = deque()
        """Choices of a checkpoint that are still to be repeated."""

    def next(self, prompt: int) -> tuple[int, int]:
        """Returns the row of a prompt, and its number of samples."""
        with self._lock:
            if self._repeated:
                chosen = self._repeated.popleft()
            else:
                choice = self._source.choose(self._samples)
                chosen = _Chosen(prompt, *self._checked(choice))
            self._chosen.append(chosen)
            return chosen.row, chosen.samples

    def observe(self, group: Group) -> None:
        """Passes a scored group to the source."""
        with self._lock:
            self._source.observe(group)

    def metrics(self) -> dict[str, float]:
        """Returns the source's metrics of a step."""
        with self._lock:
            return dict(self._source.metrics())

    def state(self) -> dict[str, Any]:
        """Returns the source's state, and the choices that are still to be repeated, as JSON values."""
        with self._lock:
            return {"chosen": list(map(list, self._repeated)), "source": dict(self._source.state())}

    def saved(self, position: Mapping[str, Any]) -> dict[str, Any]:
        """Returns a position with the choices after it and the source's state, as JSON values. Earlier
        choices are forgotten: positions never go back.
        """
        with self._lock:
            while self._chosen and self._chosen[0].prompt < position["taken"]:
                self._chosen.popleft()
            chosen = [list(choice) for choice in (*self._chosen, *self._repeated)]
            return {**position, "chosen": chosen, "source": dict(self._source.state())}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continues from a saved state. Raises ValueError if the rows came in epochs until then."""
        if "chosen" not in state:
            raise ValueError(
                "the checkpoint was made with rows in epochs, and this data source chooses its rows; resume "
                "with the data it was made with"
            )
        with self._lock:
            self._chosen.clear()
            self._repeated = deque(_Chosen(*choice) for choice in state["chosen"])
            self._source.restore(state["source"])

    def _checked(self, choice: Choice) -> tuple[int, int]:
        if not (0 <= choice.row < len(self._source) and 1 <= choice.samples <= self._samples):
            raise ValueError(
                f"{type(self._source).__name__}.choose returned {choice}; it has {len(self._source)} rows, "
                f"and rollout.samples_per_prompt is {self._samples}"
            )
        return choice.row, choice.samples
