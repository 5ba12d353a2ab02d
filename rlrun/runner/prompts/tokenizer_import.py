"""Imports transformers for its tokenizers alone.

Where torch is installed, transformers imports torch's compiler and its distributed tensors before it reads a
tokenizer: 5 of 8 CPU seconds. It spends another one on the list of all files of all installed packages. A
driver uses neither. So the command that runs one says that its process needs tokenizers alone, and
transformers is then imported as if torch were not installed.
"""

import importlib.metadata
import importlib.util
import os
import sys
import threading
from collections.abc import Mapping
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

from rlrun.plugins.registry import has_loaded_others
from rlrun.runner.prompts.image_processor import PROCESSOR_FILE

_QUIET = "TRANSFORMERS_NO_ADVISORY_WARNINGS"
"""Keeps transformers from telling the user to install torch."""
_only_tokenizers = False


def need_only_tokenizers() -> None:
    """Says that nothing in this process uses models of transformers: the process ends with its job.

    Does nothing where the process has loaded plugins of others, which may use them.
    """
    global _only_tokenizers  # noqa: PLW0603  (transformers decides for the whole process, too)
    _only_tokenizers = not has_loaded_others()


def import_auto_tokenizer(folder: Path, *, own_code: bool) -> Any:
    """Returns transformers' AutoTokenizer for the model in `folder`; its first import takes seconds.

    Images are prepared with torch, and a model's own code (`own_code`) may use all of transformers.
    """
    light = _only_tokenizers and not own_code and not (folder / PROCESSOR_FILE).exists()
    if light and "transformers" not in sys.modules:
        _import_without_torch()
    from transformers import AutoTokenizer

    return AutoTokenizer


def _import_without_torch() -> None:
    """Imports the root of transformers, which asks once for the whole process whether torch is installed,
    and which packages have the modules that it asks for.

    Only this thread is told that it is not, and that no package has a name other than its module's; where
    one has, transformers finds its version in the module itself.
    """
    find_spec, quiet, asking = importlib.util.find_spec, os.environ.get(_QUIET), threading.get_ident()
    packages = importlib.metadata.packages_distributions

    def find_all_but_torch(name: str, package: str | None = None) -> ModuleSpec | None:
        if name == "torch" and threading.get_ident() == asking:
            return None
        return find_spec(name, package)

    def no_other_names() -> Mapping[str, list[str]]:
        return {} if threading.get_ident() == asking else packages()

    importlib.util.find_spec = find_all_but_torch
    importlib.metadata.packages_distributions = no_other_names
    os.environ[_QUIET] = "1"
    try:
        import transformers  # noqa: F401
    finally:
        importlib.util.find_spec = find_spec
        importlib.metadata.packages_distributions = packages
        if quiet is None:
            del os.environ[_QUIET]
