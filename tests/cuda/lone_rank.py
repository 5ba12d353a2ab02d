"""The pretence that a trainer rank needs beside the GPU: answers for the other ranks, and routing without
content.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily

from rlrun.models.adapters import adapter_tensors
from rlrun.models.hf_tensor import HfTensor
from rlrun.runner.trainer import process
from rlrun.runner.trainer.compat.experts import AllToAllTokenDispatcher
from rlrun.runner.trainer.compat.meshes import FakeStore
from rlrun.runner.trainer.dry_run.fakes import even_routing
from rlrun.runner.trainer.model import build_decoder
from rlrun.runner.trainer.model.decoder import PackedDecoder
from rlrun.runner.trainer.model.layers import Experts
from rlrun.runner.trainer.model.transformers_layers import transformers_decoder
from rlrun.runner.trainer.model.transformers_layers.transformers_decoder import TransformersDecoder
from rlrun.runner.trainer.optim import eight_bit
from rlrun.runner.trainer.parameters import gathering
from rlrun.specs.sections.trainer import ParallelSpec
from tests.cuda import exchanges
from tests.cuda.recording import RECORDING, Recorder


@contextmanager
def lone_rank(parallel: ParallelSpec, rank: int) -> Iterator[None]:
    """Within the context a rank of a job runs on fake tensors, without its peers, and is recorded."""
    with ExitStack() as stack:
        if parallel.world_size > 1:
            # Like NCCL's, a group of CUDA tensors alone.
            dist.init_process_group("cuda:fake", store=FakeStore(), rank=rank, world_size=parallel.world_size)
        exchanges.install()
        _replace_peers(parallel.pipeline)
        _lay_out_for_real()
        _compile_without_code()
        waits = _waits_of_routing()
        stack.enter_context(even_routing())
        _keep_waits(*waits)
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        stack.enter_context(Recorder(RECORDING))
        yield


def _replace_peers(pipeline: int) -> None:
    """Answers for the other ranks of a pipeline: the next one has the parameters of all other stages."""
    real_init = gathering.Gathering.__init__

    def init(
        self: Any, tensors: Sequence[HfTensor], names: Any, stages: Any, device: Any, **settings: Any
    ) -> None:
        def owners(names: Any, stages: Any) -> dict[str, int]:
            mine, me = set(names), 0 if stages is None else dist.get_rank(stages)
            return {
                tensor.parameter: me if tensor.parameter in mine else (me + 1) % pipeline
                for tensor in [*tensors, *adapter_tensors(settings.get("adapters", ()))]
            }

        gathering._owners = owners
        real_init(self, tensors, names, stages, device, **settings)

    gathering.Gathering.__init__ = init


def _compile_without_code() -> None:
    """Traces and differentiates compiled layers as on a GPU, and runs their operations one by one.

    Inductor would write Triton kernels, for which it asks the driver: "CUDA error: API call is not supported
    in the installed CUDA driver".
    """
    real_compile = torch.nn.Module.compile
    torch.nn.Module.compile = lambda module, **settings: real_compile(module, backend="aot_eager", **settings)
    # compiled as one graph, in which the recorder cannot be
    eight_bit._adam = lambda device: eight_bit.single_param_adam


def _waits_of_routing() -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Returns the two functions that read from the device how many tokens each expert has."""
    return AllToAllTokenDispatcher._sync_token_count_exchange, Experts.counts


def _keep_waits(exchange: Callable[..., Any], counts: Callable[..., Any]) -> None:
    """Also runs the functions that `even_routing` replaced, for their waits; their results mean nothing."""
    even_exchange, even_counts = _waits_of_routing()

    def exchanged(*args: Any) -> Any:
        exchange(*args)
        return even_exchange(*args)

    def counted(*args: Any) -> Any:
        counts(*args)
        return even_counts(*args)

    AllToAllTokenDispatcher._sync_token_count_exchange = exchanged
    Experts.counts = staticmethod(counted)


def _lay_out_for_real() -> None:
    """Runs what lays models out over ranks outside of the fake mode, which does not know DTensors and meshes.

    Parameters are on meta there, without content either; their memory is allocated in the fake mode.
    """
    for owner, name in (
        (process, "_mesh"),
        (PackedDecoder, "__init__"),
        (PackedDecoder, "parallelize"),
        (build_decoder, "freeze_base"),
        (build_decoder, "hold_as_bytes"),
        (build_decoder, "shard_data_parallel"),
        (TransformersDecoder, "__init__"),
        (transformers_decoder, "build_network"),
        (transformers_decoder, "replace_experts"),
        (transformers_decoder, "lay_out"),
        (transformers_decoder, "shard_data_parallel"),
    ):
        setattr(owner, name, _outside_fake_mode(getattr(owner, name)))
    transformers_decoder.fill_buffers = lambda network: None  # it reads what it has computed


def _outside_fake_mode(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def outside(*args: Any, **kwargs: Any) -> Any:
        with unset_fake_temporarily():
            return function(*args, **kwargs)

    return outside
