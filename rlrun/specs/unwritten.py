"""Classes that an imported spec names and that remain to be written."""

import builtins
import re
from dataclasses import dataclass
from keyword import iskeyword

# fmt: off
_IMPORTED = frozenset((
    "AgentTask", "Any", "BaseModel", "Buffered", "ConfigDict", "Drop", "Group", "LossInputs",
    "LossOutputs", "Mapping", "Needs", "Path", "Row", "Sample", "Sequence", "Session", "Status",
    "Submission", "SubmittedState", "Trajectory", "Turn",
))
# fmt: on
"""Names that the file of the classes imports: a class of such a name would hide them from the next one."""


@dataclass(frozen=True, slots=True)
class Unwritten:
    """A plugin to be written in place of a function of another trainer.

    Example: `Unwritten("rewards", "RewardFunc", "slime's --custom-rm-path my.reward_func")`
    """

    kind: str
    """The kind of plugin, such as `rewards`."""
    name: str
    """The name of the class."""
    origin: str
    """What the class replaces."""
    base: str | None = None
    """The installed plugin of the same kind that has the class's other methods; None: there are no others."""
    methods: tuple[str, ...] = ()
    """The methods to be written; (): all that a new plugin of the kind has."""


def class_name(function: str) -> str:
    """Returns the name of a class for a function: `RewardFunc` for `my.reward_func`, `OwnNone` for
    `my.none`.
    """
    words = re.findall(r"[A-Za-z0-9]+", function.rpartition(".")[2])
    name = "".join(word[0].upper() + word[1:] for word in words)
    is_free = name[:1].isalpha() and not iskeyword(name) and name not in (*dir(builtins), *_IMPORTED)
    return name if is_free else f"Own{name}"
