"""The run's endless sequence of prompts: each epoch is a seeded permutation of the usable rows, unless the
data source chooses them itself.

    DataSource[i] -> Row -> encode -> Prompt      (i from the order of rows: row_order.py)

A dataset of up to 10,000 rows is read and tokenised when the stream is created, so that its errors show at
once. Of a larger one only the first rows of the epoch are, and a warning estimates how many of all rows are
too long; other rows are read when they are needed. The prompts and their order are the same either way.
"""

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlrun.plugins.images import PlacedImage
from rlrun.plugins.protocols import DataSource
from rlrun.plugins.types import Prompt, Row
from rlrun.runner.prompts.row_order import Epochs, Steering, is_steered
from rlrun.specs.sections.data import DataSpec

EAGER_ROWS = 10_000
"""The size of the largest dataset that is tokenised when it is loaded."""
PROBED_ROWS = 256
"""The number of rows of a larger dataset that are read when it is loaded, to estimate how many are too long.
Of a smaller one, as many rows with images are read: decoding images takes long, and memory.
"""
logger = logging.getLogger(__name__)
NAMED_ROWS = 5
"""The number of broken rows that a message names."""


class EncodedPrompt(NamedTuple):
    """The prompt of a row, before it has a position in the run."""

    tokens: NDArray[np.int32]
    """`[P]` with one placeholder for each token of an image."""
    images: tuple[PlacedImage, ...] = ()
    """The images, in the order of their placeholders."""
    as_messages: bool = False
    """The prompt is sent as its messages, and has no tokens."""


class PromptStream:
    """Returns prompts in order, epoch after epoch; its position is a few numbers."""

    def __init__(
        self,
        source: DataSource,
        encode: Callable[[Row], EncodedPrompt],
        spec: DataSpec,
        max_prompt_tokens: int,
        seed: int,
        *,
        samples: int = 1,
    ) -> None:
        """`encode` tokenises a row; like the source it raises ValueError for a broken row. `samples`: the
        most samples of a prompt, for a source that chooses its rows.

        Raises ValueError if more than `max_bad_share` of the rows are broken, or no row is usable.
        """
        self._source = source
        self._encode = encode
        self._max_prompt_tokens = max_prompt_tokens
        self._seed = seed
        self._taken = 0
        self._epochs = Epochs(len(source), seed, shuffle=spec.shuffle)
        self.steering = Steering(source, samples) if is_steered(source) else None
        """Chooses the rows; None: they come in epochs."""
        self._ready: dict[int, tuple[Row, EncodedPrompt]] = {}
        self._unused = UnusedRows(spec, max_prompt_tokens, len(source))
        self._probed = False
        """Whether the first rows of a large dataset were read; the others are read when they are needed."""
        if not len(source):
            raise ValueError("the dataset has no rows")
        if len(source) > EAGER_ROWS or not self._load_all():
            self._probe()

    def __len__(self) -> int:
        """Returns the number of rows that are not known to be unusable; rows not read yet count."""
        return len(self._source) - len(self._unused)

    def take(self, count: int) -> list[Prompt]:
        """Returns the next `count` prompts.

        Raises ValueError if too many rows are broken, or no row is usable.
        """
        prompts: list[Prompt] = []
        while len(prompts) < count:
            choice = self._epochs if self.steering is None else self.steering
            index, samples = choice.next(self._taken)
            usable = self._read(index)
            if usable is not None:
                row, encoded = usable
                prompts.append(Prompt(row, self._taken, encoded.tokens, encoded.images, samples))
                self._taken += 1
        return prompts

    def epoch(self) -> list[Prompt]:
        """Returns every usable row once, in this epoch's order; for a whole held-out dataset."""
        readable = (self._read(int(index)) for index in self._epochs.order)
        usable = (row for row in readable if row is not None)
        prompts = [
            Prompt(row, index, encoded.tokens, encoded.images) for index, (row, encoded) in enumerate(usable)
        ]
        if not self._ready:
            self._unused.warn()
        return prompts

    def state(self) -> dict[str, Any]:
        """Returns the position in the sequence, as JSON values."""
        place = (self._epochs if self.steering is None else self.steering).state()
        return {
            **place,
            "taken": self._taken,
            "rows": len(self._source),
            "seed": self._seed,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continues from a saved position. Raises ValueError if it belongs to another dataset or seed."""
        for name, current in (("rows", len(self._source)), ("seed", self._seed)):
            if state[name] != current:
                raise ValueError(
                    f"the checkpoint was made with a dataset of {name} = {state[name]}, this one has "
                    f"{current}; resume with the data and seed it was made with"
                )
        self._taken = state["taken"]
        if self.steering is None:
            self._epochs.restore(state)
        else:
            self.steering.restore(state)

    def _load_all(self) -> bool:
        """Reads and keeps all rows. Returns False, and keeps none, if too many of them have images."""
        num_with_images = 0
        for index in range(len(self._source)):
            if (row := self._read(index)) is not None:
                self._ready[index] = row
                num_with_images += bool(row[0].images)
            if num_with_images > PROBED_ROWS:
                self._ready.clear()
                return False
        self._unused.warn()
        return True

    def _probe(self) -> None:
        """Reads the first rows of the epoch, and warns about the share of prompts that will be dropped."""
        probed = self._epochs.order[:PROBED_ROWS]
        for index in probed:
            self._read(int(index))
        self._probed = True
        self._unused.warn_of_share(len(probed))

    def _read(self, index: int) -> tuple[Row, EncodedPrompt] | None:
        """Returns row `index` with its tokens, or None if it cannot be used."""
        if index in self._ready:
            return self._ready[index]
        if index in self._unused:
            return None
        try:
            row = self._source[index]
            encoded = self._encode(row)
            if not len(encoded.tokens) and not encoded.as_messages:
                raise ValueError(f"row {row.id}: the prompt has no tokens")
        except ValueError as error:
            self._unused.add_broken(index, error)
            return None
        if len(encoded.tokens) <= self._max_prompt_tokens:
            return row, encoded
        self._unused.add_too_long(index, len(encoded.tokens), warn=self._probed)
        return None


class UnusedRows:
    """Counts and names the rows that are not used."""

    def __init__(self, spec: DataSpec, max_prompt_tokens: int, num_rows: int) -> None:
        """`max_prompt_tokens`: the longest prompt that is used. `num_rows`: of the whole dataset."""
        self._spec = spec
        self._max_prompt_tokens = max_prompt_tokens
        self._num_rows = num_rows
        self._broken: dict[int, str] = {}
        self._too_long: set[int] = set()
        self._longest = 0
        """Tokens of the longest dropped prompt, as far as it was tokenised."""

    def __len__(self) -> int:
        return len(self._broken) + len(self._too_long)

    def __contains__(self, index: int) -> bool:
        return index in self._broken or index in self._too_long

    def add_broken(self, index: int, error: ValueError) -> None:
        """Counts a broken row. Raises ValueError if more than `max_bad_share` of the rows are broken."""
        self._broken[index] = str(error)
        if len(self._broken) > self._spec.max_bad_share * self._num_rows:
            raise ValueError(
                f"more than data.max_bad_share = {self._spec.max_bad_share:g} of {self._num_rows} rows "
                f"are broken: {self._broken_rows()}; fix them or raise data.max_bad_share"
            )
        self._refuse_if_all()

    def add_too_long(self, index: int, length: int, *, warn: bool) -> None:
        """Counts a row whose prompt is too long; `warn`: warns of the first one."""
        self._too_long.add(index)
        self._longest = max(self._longest, length)
        if warn and len(self._too_long) == 1:
            logger.warning(
                "%sdropped a prompt, longer than %s = %d, and will drop others like it: %s",
                *(self._dataset_prefix(), self._key(), self._max_prompt_tokens, self._cure()),
            )
        self._refuse_if_all()

    def warn(self) -> None:
        """Warns how many rows are not used, once all have been read."""
        if self._broken:
            logger.warning(
                "skipped %d of %d rows: %s", len(self._broken), self._num_rows, self._broken_rows()
            )
        if self._too_long:
            logger.warning(
                "%sdropped %d of %d prompts, longer than %s = %d: %s",
                *(self._dataset_prefix(), len(self._too_long), self._num_rows, self._key()),
                *(self._max_prompt_tokens, self._cure()),
            )

    def warn_of_share(self, probed: int) -> None:
        """Warns about the share of all prompts that will be dropped, from the first `probed` rows."""
        if dropped := len(self._too_long):
            logger.warning(
                "%s%d of the first %d prompts are longer than %s = %d and are "
                "dropped, so about %d of all %d will be: %s",
                *(self._dataset_prefix(), dropped, probed, self._key(), self._max_prompt_tokens),
                *(round(dropped / probed * self._num_rows), self._num_rows, self._cure()),
            )

    def _dataset_prefix(self) -> str:
        """Returns a held-out dataset's name as a prefix of messages; empty for the training data."""
        name = getattr(self._spec, "name", None)
        return f"eval dataset {name}: " if name else ""

    def _key(self) -> str:
        """Returns the key of the longest prompt."""
        return f"{'eval' if hasattr(self._spec, 'name') else 'rollout'}.max_prompt_tokens"

    def _cure(self) -> str:
        return (
            f"the longest has {self._longest} tokens or more; raise {self._key()} to keep it "
            "(prompt and response must fit the model's positions)"
        )

    def _refuse_if_all(self) -> None:
        if len(self) == self._num_rows:
            broken = f" and {len(self._broken)} broken: {self._broken_rows()}" if self._broken else ""
            raise ValueError(
                f"no prompt can be used: {len(self._too_long)} are longer than {self._key()} = "
                f"{self._max_prompt_tokens}{broken}"
            )

    def _broken_rows(self) -> str:
        named = [self._broken[index] for index in list(self._broken)[:NAMED_ROWS]]
        more = len(self._broken) - len(named)
        return "; ".join(named) + (f"; and {more} more" if more > 0 else "")
