"""The manifest of a step in an object store, which is written last: a step without one does not exist.

    steps/000000000000050.json           the manifest
    data/step-50/ATTEMPT/…               the checkpoint, and the run's records at that step
    samples/ATTEMPT/…                    samples, which later manifests name, too
    owner.json                           the launch that may write

A file is stored in parts, whose checksums the manifest has.
"""

from pathlib import PurePosixPath
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from rlrun.runner.storage.bucket import Bucket
from rlrun.specs.step_names import STEP_LIMIT

STEPS = "steps/"
DATA = "data/"
SAMPLES = "samples/"
OWNER = "owner.json"
_DIGITS = len(str(STEP_LIMIT - 1))
_RECORDS = ("spec.toml", "spec.lock.json", "state.json", "metrics.jsonl", "timeline.jsonl")
_TOP_LEVEL = ("checkpoints", "rollouts", *_RECORDS)


def _path_in_run(path: str) -> str:
    """Raises ValueError for a path that a restored run must not write."""
    parts = PurePosixPath(path).parts
    is_plain = path == "/".join(parts) and ".." not in parts and "\0" not in path
    if not is_plain or path.partition("/")[0] not in _TOP_LEVEL:
        raise ValueError(f"{path!r} is not a file of a run")
    return path


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Part(_Record):
    """A piece of a file."""

    key: str
    size: int = Field(ge=0)
    xxh128: str
    """Checksum of the piece in hexadecimal."""


class StoredFile(_Record):
    """A file of the run, in one or several parts."""

    path: Annotated[str, AfterValidator(_path_in_run)]
    """Relative to the run's folder."""
    parts: tuple[Part, ...] = Field(min_length=1)


class StepManifest(_Record):
    """Everything that a run needs to continue from a step."""

    version: Literal[1] = 1
    step: int = Field(ge=0, lt=STEP_LIMIT)
    attempt: str
    """The launch that wrote the step."""
    files: tuple[StoredFile, ...]

    @property
    def keys(self) -> set[str]:
        """The objects that the manifest names."""
        return {part.key for file in self.files for part in file.parts}

    @property
    def samples(self) -> dict[str, StoredFile]:
        """The files that later manifests may name, too, by their paths in the run."""
        return {file.path: file for file in self.files if file.parts[0].key.startswith(SAMPLES)}

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(part.size for file in self.files for part in file.parts)


def manifest_key(step: int) -> str:
    """Returns the name of a step's manifest; names sort as steps do."""
    return f"{STEPS}{step:0{_DIGITS}}.json"


async def stored_steps(bucket: Bucket) -> list[int]:
    """Returns the complete steps in a bucket, oldest first."""
    names = [key.removeprefix(STEPS).removesuffix(".json") for key in await bucket.list(STEPS)]
    return [int(name) for name in names if len(name) == _DIGITS and name.isdecimal()]


async def read_manifest(bucket: Bucket, step: int) -> StepManifest:
    """Returns the manifest of a step.

    Raises ValueError if the object is not one, and StorageError if it cannot be read.
    """
    key = manifest_key(step)
    data = await bucket.get(key)
    try:
        manifest = StepManifest.model_validate_json(data)
    except ValueError as error:
        raise ValueError(f"{bucket.url}/{key} is not a manifest of rlrun: {error}") from None
    if manifest.step != step:
        raise ValueError(f"{bucket.url}/{key} is the manifest of step {manifest.step}")
    return manifest
