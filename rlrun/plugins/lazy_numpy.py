"""numpy, imported when something of it is first used.

A spec is checked by the plugins it names, and these compute with numpy only once a job runs: importing it
would be a third of the time of `rlrun validate`. Type checkers see numpy itself:

    if TYPE_CHECKING:
        import numpy as np
    else:
        from rlrun.plugins import lazy_numpy as np
"""

from typing import Any


def __getattr__(name: str) -> Any:
    import numpy

    found = globals()[name] = getattr(numpy, name)  # the next one that asks finds it at once
    return found
