"""Lets SGLang import where there is no GPU: put this folder on PYTHONPATH of the server's interpreter.

Without a GPU there is no triton, and torchvision from PyPI cannot load its CUDA operators. SGLang imports
both, and on the CPU path calls neither: triton becomes modules of names that decorate and subclass but
compute nothing, and torchvision finds the two operators whose absence keeps it from importing.
"""

import sys
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any


class Anything:
    """A class that takes any arguments, also as a base."""

    def __init_subclass__(cls, **_: Any) -> None:
        super().__init_subclass__()

    def __init__(self, *_: Any, **__: Any) -> None:
        pass


class Hollow(ModuleType):
    """A module, and any function in it: what is asked of it is there; as a decorator it changes nothing."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__: list[str] = []
        self.__spec__ = ModuleSpec(name, Loader(), is_package=True)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        full = f"{self.__name__}.{name}"
        is_class = name[0].isupper()
        value = type(name, (Anything,), {}) if is_class else sys.modules.get(full) or Hollow(full)
        setattr(self, name, value)
        return value

    def __call__(self, *args: Any, **options: Any) -> Any:
        decorates = len(args) == 1 and not options and callable(args[0])
        return args[0] if decorates else lambda function: function

    def __or__(self, other: Any) -> "Hollow":
        return self  # annotations: tl.tensor | None

    __ror__ = __or__


class Loader:
    """Makes hollow modules, with the few things that are used at import."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = Hollow(spec.name)
        if spec.name == "triton":
            module.__version__ = "3.0.0"
            module.cdiv = lambda a, b: -(-a // b)
            module.next_power_of_2 = lambda n: 1 << max(n - 1, 0).bit_length()
        if spec.name == "triton.language":
            module.constexpr = type("constexpr", (), {"__init__": lambda self, value=None: None})
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Does nothing: the module makes each name when it is asked for."""


class Finder:
    """Answers for triton where it is not installed, and prepares torchvision."""

    _library: Any = None

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name == "torchvision" and self._library is None:
            self._declare_torchvision()
        if name.partition(".")[0] == "triton" and PathFinder.find_spec("triton") is None:
            return ModuleSpec(name, Loader(), is_package=True)
        return None

    def _declare_torchvision(self) -> None:
        import torch

        self._library = torch.library.Library("torchvision", "FRAGMENT")
        for operator in ("nms", "qnms"):
            self._library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


sys.meta_path.insert(0, Finder())
