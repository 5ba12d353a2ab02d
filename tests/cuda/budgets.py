"""How often a rank may block its host, by kind of layout: the budget of the traces.

Each row states what one part of the trainer costs. The rows that apply to a case are added up, and the sum is
compared with what was recorded, which must be equal: whoever lowers a count lowers it here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tests.cuda.cases import Case
from tests.runner.trainer.trainer_cases import MODELS


@dataclass(frozen=True)
class Blocking:
    """Numbers of events that block the host."""

    waits: int = 0
    """Reads of the device's content, and synchronisations."""
    uploads: int = 0
    """Copies from host to device that block."""
    downloads: int = 0
    """Copies from device to host that block."""

    def __add__(self, other: "Blocking") -> "Blocking":
        return Blocking(
            self.waits + other.waits, self.uploads + other.uploads, self.downloads + other.downloads
        )

    def __mul__(self, count: int) -> "Blocking":
        return Blocking(self.waits * count, self.uploads * count, self.downloads * count)


STEP, UPDATE, MICRO_BATCH, SPARSE_LAYER = "step", "update", "micro-batch", "sparse layer"
"""What a cost is for: a call of the driver (a step); one of its updates; a micro-batch; a layer with experts
in a micro-batch."""


@dataclass(frozen=True)
class Row:
    """One part of the trainer, and what it costs."""

    reason: str
    phases: tuple[str, ...]
    unit: str
    cost: Blocking
    applies: Callable[[Case], bool] = lambda case: True


def has_tied_stages(case: Case) -> bool:
    """Returns whether the embedding and the head are two parameters that are one in a checkpoint."""
    return case.degree("pipeline") > 1 and MODELS[case.model].get("tied", False)


def keeps_all_on_host(case: Case) -> bool:
    """Returns whether parameters, gradients and state are in host memory."""
    return case.trainer.get("offload") == "all"


def receives_tied_head(case: Case) -> bool:
    """Returns whether another stage sends this rank the embedding, which is its head."""
    return has_tied_stages(case) and case.has_loss


def recomputes_layers(case: Case) -> bool:
    """Returns whether the backward pass runs every layer again."""
    return case.trainer.get("activation_checkpointing") == "full"


def uses_deepep(case: Case) -> bool:
    """Returns whether experts' tokens travel through DeepEP's buffer."""
    return case.parallel.get("token_dispatcher") == "deepep"


def exchanges_splits(case: Case) -> bool:
    """Returns whether ranks tell each other how many tokens they exchange."""
    return case.degree("expert") > 1 and not uses_deepep(case)


LOG_PROBS, REFERENCE, TRAIN = "log-probs", "reference", "train"
TEACHER, VALUES, CRITIC = "teacher", "values", "critic"
FORWARD = LOG_PROBS, REFERENCE, TEACHER, VALUES
UPDATES = TRAIN, CRITIC
PASSES = *FORWARD, *UPDATES
ROWS = [
    Row("log-probs for the driver", FORWARD, STEP, Blocking(waits=1)),
    Row("loss, norm and metrics, before the update", UPDATES, UPDATE, Blocking(waits=1)),
    Row("times of the passes, at the end", (TRAIN,), STEP, Blocking(waits=1)),
    Row("gradients that are moved to host memory", UPDATES, UPDATE, Blocking(waits=1), keeps_all_on_host),
    Row(
        "a tied head's gradient in host memory",
        (TRAIN,),
        UPDATE,
        Blocking(downloads=1),
        lambda case: keeps_all_on_host(case) and has_tied_stages(case),
    ),
    Row("experts' splits", PASSES, SPARSE_LAYER, Blocking(downloads=1), exchanges_splits),
    Row(
        "DeepEP's counts, and torchtitan's order of what it received",
        PASSES,
        SPARSE_LAYER,
        Blocking(waits=4, uploads=1),
        uses_deepep,
    ),
    Row(
        "the same in recomputed layers",
        (TRAIN,),
        SPARSE_LAYER,
        Blocking(waits=4, uploads=1),
        lambda case: uses_deepep(case) and recomputes_layers(case),
    ),
    Row(
        "tokens of each expert, where experts compute one after the other",
        PASSES,
        SPARSE_LAYER,
        Blocking(waits=1),
        lambda case: case.trainer.get("dtype") == "float32",
    ),
    Row(
        "splits of recomputed layers",
        (TRAIN,),
        SPARSE_LAYER,
        Blocking(downloads=1),
        lambda case: exchanges_splits(case) and recomputes_layers(case),
    ),
    Row(
        "a copy of the state",
        ("save",),
        STEP,
        Blocking(waits=2),
        lambda case: not keeps_all_on_host(case),
    ),
    Row(
        "Adam's count of its updates",
        ("save",),
        STEP,
        Blocking(downloads=1),
        lambda case: not keeps_all_on_host(case) and case.trainer.get("optimizer") != "sgd",
    ),
    Row(
        "state on the device that is copied to a tied head",
        ("load",),
        STEP,
        Blocking(waits=1),
        lambda case: has_tied_stages(case) and not keeps_all_on_host(case),
    ),
    Row(
        "a tied head in host memory, received",
        ("load",),
        STEP,
        Blocking(downloads=1),
        lambda case: receives_tied_head(case) and keeps_all_on_host(case),
    ),
    Row(
        "a tied head's state in host memory, received",
        ("load",),
        STEP,
        Blocking(downloads=2),
        lambda case: receives_tied_head(case) and "offload" in case.trainer,
    ),
    Row("parking, and its end", ("park",), STEP, Blocking(waits=2)),
]


def budget(case: Case, phase: str, sizes: Mapping[str, int], micro_batches: int) -> Blocking:
    """Returns what a phase of a case may block the host, with this number of micro-batches in each update.

    `sizes` are those of `trainer_trace.sizes_of`.
    """
    updates = sizes["optimizer steps"]
    counts = {
        STEP: 1,
        UPDATE: updates,
        MICRO_BATCH: updates * micro_batches,
        SPARSE_LAYER: updates * micro_batches * sizes["sparse layers"],
    }
    costs = [row.cost * counts[row.unit] for row in ROWS if phase in row.phases and row.applies(case)]
    return sum(costs, Blocking())
