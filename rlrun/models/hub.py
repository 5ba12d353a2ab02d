"""Models of the Hugging Face hub, brought to this machine."""

from collections.abc import Sequence
from pathlib import Path

_SECONDS = 10.0
"""Within which the hub must answer for the first time."""


def download(name: str, patterns: Sequence[str], revision: str | None = None) -> Path:
    """The folder of the hub's files for the model `name` that fit the patterns; those that are here stay.

    ValueError, in a line, where the hub does not have them, or can not be reached and they are not here.
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


def first_line(error: Exception) -> str:
    """What an error says, without its explanations."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


def _unreachable(name: str, revision: str | None) -> str:
    """Why the hub cannot be asked; empty where it answers, whatever it says.

    One question without second tries: the library's own downloads try again for half a minute.
    """
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled

    try:
        get_hf_file_metadata(hf_hub_url(name, "config.json", revision=revision), timeout=_SECONDS)
    except OfflineModeIsEnabled:
        return "HF_HUB_OFFLINE is set, and its files are not in the cache"
    except (HfHubHTTPError, HFValidationError):
        return ""
    except Exception as error:  # the boundary to the hub's HTTP library, another one from version to version
        return (
            f"{constants.ENDPOINT} cannot be reached ({first_line(error)}), and its files are not in the "
            "cache; download them where there is a network, and give the folder"
        )
    return ""
