"""Counts the rows of a dataset that make no prompt, as they are broken or too long, and warns of them."""

import logging

from rlrun.specs.sections.data import DataSpec

logger = logging.getLogger(__name__)

NAMED_ROWS = 5
"""The number of broken rows that a message names."""


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
                "%sdropped a prompt, longer than rollout.max_prompt_tokens = %d, and will drop others "
                "like it: %s",
                *(self._dataset_prefix(), self._max_prompt_tokens, self._cure()),
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
                "%sdropped %d of %d prompts, longer than rollout.max_prompt_tokens = %d: %s",
                *(self._dataset_prefix(), len(self._too_long), self._num_rows, self._max_prompt_tokens),
                self._cure(),
            )

    def warn_of_share(self, probed: int) -> None:
        """Warns about the share of all prompts that will be dropped, from the first `probed` rows."""
        if dropped := len(self._too_long):
            logger.warning(
                "%s%d of the first %d prompts are longer than rollout.max_prompt_tokens = %d and are "
                "dropped, so about %d of all %d will be: %s",
                *(self._dataset_prefix(), dropped, probed, self._max_prompt_tokens),
                *(round(dropped / probed * self._num_rows), self._num_rows, self._cure()),
            )

    def _dataset_prefix(self) -> str:
        """Returns a held-out dataset's name as a prefix of messages; empty for the training data."""
        name = getattr(self._spec, "name", None)
        return f"eval dataset {name}: " if name else ""

    def _cure(self) -> str:
        return (
            f"the longest has {self._longest} tokens or more; raise rollout.max_prompt_tokens to keep it "
            "(prompt and response must fit the model's positions)"
        )

    def _refuse_if_all(self) -> None:
        if len(self) == self._num_rows:
            broken = f" and {len(self._broken)} broken: {self._broken_rows()}" if self._broken else ""
            raise ValueError(
                f"no prompt can be used: {len(self._too_long)} are longer than rollout.max_prompt_tokens = "
                f"{self._max_prompt_tokens}{broken}"
            )

    def _broken_rows(self) -> str:
        named = [self._broken[index] for index in list(self._broken)[:NAMED_ROWS]]
        more = len(self._broken) - len(named)
        return "; ".join(named) + (f"; and {more} more" if more > 0 else "")
