import pytest

from rlrun.runner.kernels.operators import set_order
from rlrun.runner.trainer.ops import library


@pytest.fixture(params=["in order", "blocks", "plain"])
def path(request, monkeypatch):
    """The way that operators are computed: by the compiled ones, with products and attention in the engine's
    order or not, or by plain torch.
    """
    if request.param == "plain":
        monkeypatch.setattr(library, "load", lambda: False)
    elif not library.load():
        pytest.skip("no C++ compiler")
    set_order(value=request.param == "in order")
    yield request.param
    set_order(value=None)
