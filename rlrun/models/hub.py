"""Downloads models from the Hugging Face hub."""

from collections.abc import Sequence
from pathlib import Path

_TIMEOUT = 10.0
"""Seconds. The hub counts as unreachable when it has not answered the first request by then."""


def download(name: str, patterns: Sequence[str], revision: str | None = None) -> Path:
    """Downloads the files of a model that match the patterns, unless they are cached, and returns their
    folder.

    Raises ValueError, with a message of one line, where the hub does not have them, and where it cannot be
    reached and they are not in the cache.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

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
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        file = try_to_load_from_cache(name, "config.json", revision=revision)
    except HFValidationError:
        return None
    return Path(file).parent if isinstance(file, str) else None


def first_line(error: Exception) -> str:
    """Returns the first line of an error's message."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


def _unreachable(name: str, revision: str | None) -> str:
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
        return (
            f"{constants.ENDPOINT} cannot be reached ({first_line(error)}), and its files are not in the "
            "cache; download them on a machine with network access, and name their folder"
        )
    return ""
