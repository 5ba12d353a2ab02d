"""rlrun: reinforcement-learning post-training of language models from one TOML file.

    import rlrun

    job = rlrun.load("spec.toml", {"trainer.steps": 20})
    run = job.launch()
    for metrics in run.stream():
        print(metrics["step"], metrics.get("rollout/reward/mean"))
    run.samples().nsmallest(5, "reward")

These names are stable: they change only when `rlrun.plugins.protocols.API_VERSION` does.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlrun.api.jobs import load as load
    from rlrun.api.runs import runs as runs
    from rlrun.plugins.functions import data as data
    from rlrun.plugins.functions import environment as environment
    from rlrun.plugins.functions import filter as filter
    from rlrun.plugins.functions import reward as reward

_MODULES = {
    "load": "rlrun.api.jobs",
    "runs": "rlrun.api.runs",
    "reward": "rlrun.plugins.functions",
    "filter": "rlrun.plugins.functions",
    "data": "rlrun.plugins.functions",
    "environment": "rlrun.plugins.functions",
}


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used, because `rlrun --help` needs none of them."""
    if name not in _MODULES:
        raise AttributeError(f"module 'rlrun' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted(_MODULES)
