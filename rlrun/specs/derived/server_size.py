"""Over how many GPUs one engine lies; pure, for the rules, the layout and the plan."""

from rlrun.specs.derived.sglang_arguments import flag_name
from rlrun.specs.sections.engine import EngineSpec

STAGES = ("pp-size", "pipeline-parallel-size")
"""What an SGLang server calls the number of its pipeline stages."""
COPIES = ("dp-size", "data-parallel-size")
"""And the number of copies of the model in it."""


def gpus_of(section: EngineSpec) -> int:
    """GPUs of one engine: `tensor` × `pp_size` of an SGLang server, one of any other.

    Expert and attention-data parallelism divide the same GPUs once more.
    """
    return section.tensor * stages_of(section) if section.type == "sglang" else 1


def stages_of(section: EngineSpec) -> int:
    """Pipeline stages of a server."""
    return _number(section, STAGES)


def copies_of(section: EngineSpec) -> int:
    """Copies of the model in one server. With `enable_dp_attention` the number means something else."""
    ours = {flag_name(name) for name, value in section.sglang.items() if value is True}
    return 1 if "enable-dp-attention" in ours else _number(section, COPIES)


def argument_key(section: EngineSpec, names: tuple[str, ...]) -> str | None:
    """The key of `[engine.sglang]` that gives one of these arguments."""
    return next((key for key in section.sglang if flag_name(key) in names), None)


def _number(section: EngineSpec, names: tuple[str, ...]) -> int:
    """1 where it is not given, or is no number: the server says what is wrong with that."""
    key = argument_key(section, names)
    value = section.sglang[key] if key else 1
    return value if type(value) is int and value > 0 else 1
