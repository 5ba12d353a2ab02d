"""A trainer of this process that rounds as SGLang's servers, with stand-ins for their kernels."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from rlrun.runner.trainer.model import attention
from rlrun.runner.trainer.roles import rank
from rlrun.specs.sections.job import Spec
from tests.runner.trainer.trainer_cases import make_spec
from tests.sglang_cpu.stand_ins import ordered_sums


def target_spec(
    folder: Path, parallel: dict[str, int] | None = None, *, exact: bool = True, **trainer: Any
) -> Spec:
    """A job on GPUs with `true_on_policy`, as far as the trainer reads it."""
    spec = make_spec(folder, parallel, dtype="bfloat16", share_prefixes=False, **trainer)
    cluster = spec.cluster.model_copy(update={"gpus_per_node": int(exact)})
    return spec.model_copy(update={"true_on_policy": exact, "cluster": cluster})


@contextmanager
def server_kernels() -> Iterator[None]:
    """Gives trainers in the block the stand-ins that servers have for kernels of GPUs."""
    libraries: list[torch.library.Library] = []

    def use_server_kernels() -> None:
        if not libraries:
            libraries.append(ordered_sums.replace_operators())

    with (
        mock.patch.object(rank, "use_server_kernels", use_server_kernels),
        mock.patch.object(attention, "document_attention", _attention_of_documents),
    ):
        try:
            yield
        finally:
            for library in libraries:
                library._destroy()


def _attention_of_documents(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    lengths: Sequence[int],
    scale: float,
    *rest: None,
) -> torch.Tensor:
    """Attention `[T, N, H]` by document."""
    assert rest == (None, None, None), "no windows, sinks or trees"
    compute: Callable[..., torch.Tensor] = ordered_sums.attention
    documents = zip(*(x.split(list(lengths)) for x in (query, key, value)), strict=True)
    outputs = [
        compute(*(x.transpose(0, 1)[None] for x in document), enable_gqa=True, scale=scale, is_causal=True)
        for document in documents
    ]
    return torch.cat([output[0].transpose(0, 1) for output in outputs])
