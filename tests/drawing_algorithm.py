"""An algorithm whose loss draws from every global generator, as a plugin's may."""

import random
from dataclasses import replace

import numpy as np
import torch

from rlrun.plugins.algorithms.grpo import GRPO


class Drawing(GRPO):
    """GRPO with a loss that is multiplied by noise."""

    def loss(self, inputs):
        outputs = super().loss(inputs)
        noise = torch.randn_like(inputs.log_probs) + np.random.rand() + random.random()
        return replace(
            outputs, loss=outputs.loss * (1 + 0.1 * noise), metrics={**outputs.metrics, "noise": noise}
        )
