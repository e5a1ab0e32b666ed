"""torch.compile, forward and backward: Triton and its launcher, which a C compiler builds."""

import torch
from torch import nn
from steps import Steps

step = Steps()


@step("compile a function")
def _():
    function = torch.compile(lambda x: (x * 2).relu().sum())
    return function(torch.ones(1000, device="cuda")).item()


@step("compile a module, backward")
def _():
    model = torch.compile(nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 1)).cuda())
    loss = model(torch.randn(8, 32, device="cuda")).mean()
    loss.backward()
    return loss.item()


step.run()
