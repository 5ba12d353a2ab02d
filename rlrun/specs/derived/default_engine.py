"""Chooses the kind of engine for a section of the spec that does not set `type`.

On GPUs that is SGLang where it is installed, because rlrun's own engine is made for CPUs and small models.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlrun.specs.sections.engine import EngineSpec
from rlrun.specs.sections.weight_carriers import EngineType, takes

WEIGHT_KEYS = ("model", "weight_sync", "weight_bucket", "weight_check")
SERVER_KEYS = ("python", "environment", "sglang", "groups", "router", "router_url", "sglang_router")
SGLANG_KEYS = ("tensor", *WEIGHT_KEYS, *SERVER_KEYS)
"""Keys that SGLang reads and the native engine does not."""
_INSTALL = "pip install 'rlrun[run,sglang]', or set engine.python to an interpreter that has SGLang"
_DETERMINISTIC = "add `enable_deterministic_inference = true` under [engine.sglang]"


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """The kind of engine of a section, and the reason for it."""

    type: EngineType
    reason: str
    """A clause that follows the type: `SGLang is installed for /opt/bin/python`."""
    cure: str | None = None
    """How to get SGLang, where the native engine was chosen for GPUs instead."""
    depends_on_host: bool = False
    """Whether another host, with other packages installed, could have led to another choice."""


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What the choice depends on, beside the section itself."""

    gpus: bool
    """Whether the cluster has GPUs."""
    deterministic: bool
    """The spec's `deterministic`."""
    python: str
    """The interpreter that would start SGLang."""
    installed: bool | None
    """Whether that interpreter can import SGLang. None: the spec is planned for another host."""


def choose_engine(section: Mapping[str, Any], given: Circumstances) -> EngineChoice:
    """Returns the kind of engine for a table of engines that does not set `type`."""
    if not given.gpus:
        return EngineChoice("native", "the cluster has no GPUs")
    if keys := [key for key in SGLANG_KEYS if key in section and _is_servers(key, section[key])]:
        return EngineChoice("sglang", f"{keys[0]} is set, which only SGLang reads")
    if given.deterministic:
        return EngineChoice(
            "native", "SGLang does not sample reproducibly unless it is told to", _DETERMINISTIC
        )
    if given.installed is None:
        return EngineChoice("sglang", "SGLang is assumed to be installed where the job runs")
    if given.installed:
        return EngineChoice("sglang", f"SGLang is installed for {given.python}", depends_on_host=True)
    reason = f"SGLang is not installed for {given.python}"
    return EngineChoice("native", reason, _INSTALL, depends_on_host=True)


def _is_servers(key: str, value: object) -> bool:
    """Returns whether only SGLang reads a value, which is not the default."""
    default = EngineSpec.model_fields[key].get_default(call_default_factory=True)
    return value != default and not (key == "weight_sync" and takes("native", value))
