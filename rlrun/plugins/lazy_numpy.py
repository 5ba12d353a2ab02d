"""Stands in for numpy, and imports it when one of its attributes is first used.

Checking a spec imports the plugins that it names, but these compute with numpy only once a job runs.
Importing numpy would take a third of the time of `rlrun validate`. Type checkers see numpy itself:

    if TYPE_CHECKING:
        import numpy as np
    else:
        from rlrun.plugins import lazy_numpy as np
"""

from typing import Any


def __getattr__(name: str) -> Any:
    import numpy

    attribute = globals()[name] = getattr(numpy, name)  # so that later uses find it without this function
    return attribute
