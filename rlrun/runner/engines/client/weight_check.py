"""Compares the checksums that an SGLang server reports with those of the tensors that were sent; pure."""

from collections.abc import Mapping
from typing import Any

from rlrun.runner.contracts.errors import BadAnswer, EngineError
from rlrun.runner.contracts.weight_updates import Checksums
from rlrun.runner.engines.client.answer_fields import quoted


def check_checksums(url: str, sent: Checksums, answer: Any) -> None:
    """Raises EngineError, naming the first tensor that differs or is missing.

    `answer`: the value of `ranks` in the server's answer to `/weights_checker`. Raises BadAnswer if it
    does not contain checksums.
    """
    by_rank = _checksums_by_rank(answer)
    for rank, expected in enumerate(sent.ranks):
        reported = by_rank.get(rank, {})
        wrong = [name for name, checksum in expected.items() if reported.get(name) != checksum]
        if wrong:
            what = "holds other bytes than were sent for" if wrong[0] in reported else "does not hold"
            more = f", and {len(wrong) - 1} more of {len(expected)} tensors compared" if wrong[1:] else ""
            raise EngineError(f"engine {url} {what} {wrong[0]} (rank {rank}){more}")


def _checksums_by_rank(answer: Any) -> Mapping[int, Mapping[str, Any]]:
    """Returns the checksums of each tensor-parallel rank, by name of the tensor."""
    try:
        return {info["parallelism_info"][0]["tp_rank"]: dict(info["checksums"]) for info in answer or []}
    except (KeyError, IndexError, TypeError, ValueError):
        raise BadAnswer(f"{quoted(answer)} instead of checksums by rank") from None
