"""The environments that the data sources of this process use.

A row names its environment by a key, and only a spec declares what runs under it: a file of rows can name
neither a plugin nor an interpreter, and no parameter of an environment is saved with a sample.
"""

import hashlib

from rlrun.specs.reading.strict import as_json
from rlrun.specs.sections.data import EnvironmentSpec

METADATA_KEY = "environment"
"""The key of a row's metadata that names its environment."""
_declared: dict[str, EnvironmentSpec] = {}


def declare(spec: EnvironmentSpec) -> str:
    """Returns the key of an environment, which is the same for the same table."""
    digest = hashlib.sha256(as_json(spec.model_dump()).encode()).hexdigest()[:8]
    key = f"{spec.type.rpartition('/')[2]} {digest}"
    _declared[key] = spec
    return key


def declared(key: object) -> EnvironmentSpec:
    """Returns the environment of a row. Raises ValueError if no data source declares it."""
    if key not in _declared:
        raise ValueError(
            'the row has no environment: set data.type = "environment", and name it in [data.environment]'
        )
    return _declared[key]
