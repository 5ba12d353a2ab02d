import torch

from rlrun.runner.trainer.model.layers import RouterLinear


def test_a_narrow_router_computes_in_the_precision_of_its_input():
    """torchtitan calls routers under an autocast, here to a precision that a CPU casts to."""
    torch.manual_seed(0)
    router = RouterLinear.Config(in_features=8, out_features=4, bias=False, wide=False).build().half()
    torch.nn.init.normal_(router.weight)
    hidden = torch.randn(5, 8).half()
    expected = router(hidden)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(router(hidden), expected)


def test_a_wide_router_computes_in_float32():
    torch.manual_seed(0)
    router = RouterLinear.Config(in_features=8, out_features=4, bias=False).build().bfloat16()
    torch.nn.init.normal_(router.weight)
    hidden = torch.randn(5, 8).bfloat16()
    logits = router(hidden)
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, hidden.float() @ router.weight.float().T)
    assert not torch.equal(logits, logits.bfloat16().float()), "they are not rounded"
