import numpy as np
import torch
from torch import nn

from rlrun.runner.trainer.parameters.parameters import add_on_host
from rlrun.runner.trainer.transfers import host_copy, stack_scalars, to_device, to_host, wait

CPU = torch.device("cpu")


def test_nothing_is_copied_to_a_cpu():
    array = np.arange(3)
    tensor = to_device(array, CPU)
    array[0] = 7
    assert tensor.tolist() == [7, 1, 2]
    assert to_host(tensor) is tensor
    wait(CPU)


def test_a_copy_in_host_memory_is_a_copy_also_on_a_cpu():
    tensor = torch.arange(3)
    copy = host_copy(tensor)
    tensor.zero_()
    assert copy.tolist() == [0, 1, 2]


def test_scalars_of_any_kind_are_read_at_once():
    values = [3, 0.5, torch.tensor(0.25), torch.tensor(2**53 - 1), torch.tensor(1.0, requires_grad=True)]
    stacked = stack_scalars(values, CPU)
    assert stacked.dtype == torch.float64
    assert stacked.tolist() == [3, 0.5, 0.25, 2**53 - 1, 1]
    assert stack_scalars([], CPU).tolist() == []


def test_gradients_of_a_master_in_host_memory_add_up_in_float32():
    master = nn.Parameter(torch.zeros(3))
    gradients = [torch.tensor([1.0, 1e-4, 3.0]).bfloat16(), torch.tensor([1e-3, 1e-4, -3.0]).bfloat16()]
    for gradient in gradients:
        add_on_host(master, gradient)
    assert master.grad.dtype == torch.float32
    assert torch.equal(master.grad, gradients[0].float() + gradients[1].float())
