"""Downloads models from the Hugging Face hub, and from object stores."""

from collections.abc import Callable, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread

from rlrun.models.error_text import first_line
from rlrun.models.object_store import is_address
from rlrun.models.staged_files import stage_folder, staged_folder

_TIMEOUT = 10.0
"""Seconds. The hub counts as unreachable when it has not answered the first request by then."""

Say = Callable[[str], None]
"""Shows a line to the user."""


def say_nothing(text: str) -> None:
    """Shows nothing."""


def download(
    name: str, patterns: Sequence[str], revision: str | None = None, *, say: Say = say_nothing
) -> Path:
    """Downloads the files of a model that match the patterns, unless they are cached, and returns their
    folder.

    `name` may also be the address of a folder in an object store, which is copied to a cache.

    `say` shows what is tried before it is tried: a download may take long, and so may an unreachable hub.
    Raises ValueError, with a message of one line, where the hub does not have them, and where it cannot be
    reached and they are not in the cache.
    """
    if is_address(name):
        return stage_folder(name.rstrip("/"), patterns, say)
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    say(f"looking for {name} at {constants.ENDPOINT}")
    unreachable = _unreachable(name, revision)
    try:
        return Path(
            snapshot_download(
                name, revision=revision, allow_patterns=list(patterns), local_files_only=bool(unreachable)
            )
        )
    except LocalEntryNotFoundError as error:
        raise ValueError(unreachable or first_line(error)) from error
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        raise ValueError(first_line(error)) from error


def cached_config(name: str, revision: str | None = None) -> Path | None:
    """Returns the cached folder with a model's config.json, without a request; None if it is not cached."""
    if is_address(name):
        folder = staged_folder(name.rstrip("/"))
        return folder if folder is not None and (folder / "config.json").is_file() else None
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        file = try_to_load_from_cache(name, "config.json", revision=revision)
    except HFValidationError:
        return None
    return Path(file).parent if isinstance(file, str) else None


def _unreachable(name: str, revision: str | None) -> str:
    """Returns why the hub cannot be reached; empty if it answers, even with an error.

    The question is asked in a thread that is not waited for longer than `_TIMEOUT`: the library's time-out
    limits neither the look-up of the host's name, nor the tries of each of its addresses.
    """
    from huggingface_hub import constants

    answers: SimpleQueue[str] = SimpleQueue()
    Thread(target=lambda: answers.put(_ask(name, revision)), name="hub", daemon=True).start()
    try:
        return answers.get(timeout=_TIMEOUT)
    except Empty:
        return _not_reached(constants.ENDPOINT, f"no answer within {_TIMEOUT:g} s")


def _ask(name: str, revision: str | None) -> str:
    """Returns why the hub cannot be reached; empty if it answers, even with an error.

    Sends a single request without retries: the library's own downloads retry for half a minute.
    """
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled

    try:
        get_hf_file_metadata(hf_hub_url(name, "config.json", revision=revision), timeout=_TIMEOUT)
    except OfflineModeIsEnabled:
        return "HF_HUB_OFFLINE is set, and its files are not in the cache"
    except (HfHubHTTPError, HFValidationError):
        return ""
    except Exception as error:  # a boundary: different versions of the library use different HTTP libraries
        return _not_reached(constants.ENDPOINT, first_line(error))
    return ""


def _not_reached(endpoint: str, reason: str) -> str:
    return (
        f"{endpoint} cannot be reached ({reason}), and its files are not in the cache; download them on a "
        "machine with network access, and name their folder"
    )
