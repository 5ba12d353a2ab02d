"""Compares what an SGLang server says that it holds with what was sent; pure."""

from collections.abc import Mapping
from typing import Any

from rlrun.runner.contracts.carriers import Checksums
from rlrun.runner.contracts.errors import BadAnswer, EngineError
from rlrun.runner.engines.client.answer_fields import quoted


def compare(url: str, sent: Checksums, answer: Any) -> None:
    """`answer` is `ranks` of `/weights_checker`. EngineError names the first tensor that is another one, or
    not there; BadAnswer where these are no checksums.
    """
    held = _held(answer)
    for rank, expected in enumerate(sent.ranks):
        found = held.get(rank, {})
        wrong = [name for name, checksum in expected.items() if found.get(name) != checksum]
        if wrong:
            what = "holds other bytes than were sent for" if wrong[0] in found else "does not hold"
            more = f", and {len(wrong) - 1} more of {len(expected)} tensors compared" if wrong[1:] else ""
            raise EngineError(f"engine {url} {what} {wrong[0]} (rank {rank}){more}")


def _held(answer: Any) -> Mapping[int, Mapping[str, Any]]:
    """Checksums by name of the tensor, of each tensor-parallel rank."""
    try:
        held = {info["parallelism_info"][0]["tp_rank"]: dict(info["checksums"]) for info in answer or []}
    except (KeyError, IndexError, TypeError, ValueError):
        raise BadAnswer(f"{quoted(answer)} in the place of checksums by rank") from None
    return held
