"""The carriers of new weights, as a spec sees them; rlrun.runner.weights.carriers has what each of them does.

One entry says all that the spec's side knows of a carrier: the values and the text of `engine.weight_sync`,
where it reaches, and the rows of the table of what does not go together (rlrun.specs.derived.conflicts).
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

EngineType = Literal["native", "sglang", "external"]
_TITLES: dict[EngineType, str] = {"native": "native", "sglang": "SGLang", "external": "external"}


@dataclass(frozen=True, slots=True)
class Limit:
    """Engines or a layout of the job for which a carrier cannot be chosen."""

    beside: Literal["sglang", "external", "several nodes", "shared GPUs"]
    reason: str
    """A clause that can be read alone."""
    cure: str


@dataclass(frozen=True, slots=True)
class NotCarried:
    """Why a carrier does not take adapters, or changed elements, without the rest of the model."""

    by: str
    """How messages name the carrier, or the engines that get weights by it."""
    reason: str
    """A clause that can be read alone."""
    instead: str | None = None
    """The TOML value of `engine.weight_sync` with which they are taken, "" for none; None: there is no such
    value."""
    engines: tuple[EngineType, ...] = ("native", "sglang", "external")
    """The engines that do not get them."""
    across_nodes: bool = False
    """Only jobs on several nodes do without them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightCarrier:
    """One way in which weights travel to the engines."""

    name: str
    """The value of `engine.weight_sync`."""
    engines: tuple[EngineType, ...] = ()
    """The engines for which it can be chosen; none: it is only a default."""
    about: str = ""
    """How the bytes travel, for the documentation of `engine.weight_sync`."""
    on_trainers_host: bool = False
    """It only reaches engines on the host of trainer rank 0, unless its buckets are on shared GPUs."""
    limits: tuple[Limit, ...] = ()
    no_elements: NotCarried | None = None
    no_adapters: NotCarried | None = None


NATIVE = WeightCarrier(
    name="native",
    on_trainers_host=True,
    no_elements=NotCarried(
        "native engines on the trainer's host", "they use the weights in its memory, so none are sent"
    ),
)
TENSOR = WeightCarrier(
    name="tensor",
    engines=("sglang",),
    about="through shared memory of the trainer's host, or of GPUs that both use",
    on_trainers_host=True,
    limits=(
        Limit(
            "several nodes",
            "weights in shared memory only reach servers on the trainer's host",
            'use "broadcast" or "disk"',
        ),
        Limit(
            "external", "external engines may not share memory with the trainer", 'use "broadcast" or "disk"'
        ),
    ),
    no_adapters=NotCarried(
        "weights in memory on several nodes",
        'adapters in memory do not reach other nodes: engine.weight_sync = "disk" sends them alone',
        '"disk"',
        engines=("sglang",),
        across_nodes=True,
    ),
)
BROADCAST = WeightCarrier(
    name="broadcast",
    engines=("sglang", "external"),
    about="through a process group of a trainer rank, one for each pipeline stage, and all servers (NCCL on "
    "GPUs, else gloo)",
    limits=(
        Limit(
            "shared GPUs",
            "NCCL cannot connect two processes on one GPU, and the trainer and the servers share GPUs",
            'use "tensor" or "disk"',
        ),
    ),
    no_elements=NotCarried("weights by broadcast", "SGLang broadcasts whole tensors only", '"disk"'),
    no_adapters=NotCarried(
        "weights by broadcast",
        'servers do not receive adapters by broadcast: engine.weight_sync = "disk" sends them alone',
        '"disk"',
        engines=("sglang",),
    ),
)
DISK = WeightCarrier(
    name="disk",
    engines=("sglang", "external"),
    about="through safetensors in a folder that all hosts can read",
    no_adapters=NotCarried(
        "native engines on several nodes",
        "native engines on several nodes read whole models from files",
        engines=("native",),
    ),
)
CARRIERS = (NATIVE, TENSOR, BROADCAST, DISK)
CHOSEN = {carrier.name: carrier for carrier in CARRIERS if carrier.engines}
"""The carriers that a spec can choose, by name."""

if TYPE_CHECKING:
    ChosenCarrier = str
else:
    ChosenCarrier = Literal[tuple(CHOSEN)]


def takes(engine: EngineType | None, name: object) -> bool:
    """Returns whether engines of a type get weights by the carrier of this name if a spec says so."""
    return isinstance(name, str) and name in CHOSEN and engine in CHOSEN[name].engines


def described() -> str:
    """Returns what each carrier is, and which engines take it, for the documentation."""
    return " ".join(
        f"`{carrier.name}` ({', '.join(_TITLES[engine] for engine in carrier.engines)}): {carrier.about}."
        for carrier in CHOSEN.values()
    )
