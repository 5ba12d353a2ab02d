"""A native engine's side of a carrier.

request ──body──▶ Reader ──▶ NewWeights ──▶ the engine (`Engine.load`)
                               open     finds the weights; what does not fit is refused
                               tensors  are computed with where they are, until `close`: nothing is copied
                               write    or fills the engine's own tensors
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from rlrun.runner.weights.carriers.costs import Payload

if TYPE_CHECKING:
    import torch

    from rlrun.runner.weights.tensor_slots import Shapes


@dataclass(frozen=True, slots=True)
class ReadingEngine:
    """What readers know of their engine."""

    shapes: "Shapes"
    """Those of all weights of its text model."""
    device: "torch.device"
    job: str | None
    """Name of the job that started the engine; None: it takes no weights from memory of other processes."""
    folders: tuple[str, ...]
    """Files are read only below these."""


class NewWeights(ABC):
    """One version of the weights. `open` and what follows may be called in another thread than `read`."""

    payload: Payload = "model"
    """What is read. Only a whole model can be opened while the engine still computes with the old one."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.tensors: Mapping[str, torch.Tensor] = {}
        """The weights where they are, unchanging from `open` to `close`; empty: they can only be written."""

    @abstractmethod
    def open(self, held: int | None) -> None:
        """Finds the weights. Raises ValueError, and changes nothing, if they do not fit the engine.

        `held`: the version of the weights that the engine keeps to change their elements; None: it keeps
        none.
        """

    def write(self, into: "Mapping[str, torch.Tensor]") -> None:
        """Fills the engine's tensors, converting dtypes; with `payload = "elements"`, changes them."""
        for name, tensor in into.items():
            tensor.copy_(self.tensors[name], non_blocking=True)
        if tensor.is_cuda:
            import torch

            torch.cuda.synchronize(tensor.device)  # what was read may change once it is closed

    def present(self, names: Iterable[str]) -> "Mapping[str, torch.Tensor]":
        """Returns those of the named tensors that arrived, which are none of the text model."""
        return {name: self.tensors[name] for name in names if name in self.tensors}

    def close(self) -> None:
        """Lets go of the weights; may be called twice."""
        self.tensors = {}


class Reader(ABC):
    """Reads the weights that requests to one engine name."""

    load_format: ClassVar[str]
    """The `load_format` of these requests."""

    def __init__(self, engine: ReadingEngine) -> None:
        self.engine = engine

    @abstractmethod
    def read(self, body: Mapping[str, Any]) -> NewWeights:
        """Returns the weights of a request, not yet opened. Raises ValueError if its body is invalid or names
        what this engine may not read.
        """

    def close(self) -> None:  # noqa: B027
        """Lets go of everything that is kept from one update to the next."""


def parse_version(raw: Any) -> int:
    """Returns a `weight_version`, which the protocol sends as a string, as a number; raises ValueError."""
    try:
        version = int(raw)
        if isinstance(raw, bool) or (isinstance(raw, float) and raw != version):
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"weight_version {raw!r} is not a whole number") from None
    if not 0 <= version < 2**53:
        raise ValueError(f"weight_version {raw!r} is not between 0 and 2**53")
    return version
