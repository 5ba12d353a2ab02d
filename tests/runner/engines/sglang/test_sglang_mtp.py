"""SGLang's own MTP models load what the trainer exports, and predict what its MTP layer does."""

import dataclasses
import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.mtp_models import make_mtp_model
from tests.runner.engines.sglang.test_sglang_families import MIMO_CODE, PUBLISHED_KEYS
from tests.runner.trainer.trainer_cases import make_rank, make_sequences, make_spec, plan
from tests.sglang_cpu.servers import ENVIRONMENT, HERE, python
from tests.waiting import PATIENCE

CLASSES = {
    "mimo": "sglang.srt.models.mimo_mtp:MiMoMTP",
    "glm4_moe": "sglang.srt.models.glm4_moe_nextn:Glm4MoeForCausalLMNextN",
}
VOCAB = 512


@pytest.mark.slow
@pytest.mark.parametrize("family", CLASSES)
def test_predictions_are_those_of_sglang(family: str, tmp_path: Path) -> None:
    model = make_mtp_model(tmp_path / "model", family, scale=0.1, vocab=VOCAB)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | PUBLISHED_KEYS.get(family, {})))
    trainer = make_rank(model, spec := make_spec(model, mtp_loss=0.3))
    sequences = make_sequences(vocab=VOCAB)
    trainer.policy.train(sequences, plan(sequences, spec))
    trainer.export_hf(tmp_path / "exported")
    if family == "mimo":
        (tmp_path / "exported" / "configuration_mimo.py").write_text(MIMO_CODE)
    longest = max(sequences, key=lambda sequence: len(sequence.loss_mask))
    tokens = [int(token) for token in longest.tokens]
    theirs = sglang_log_probs(family, tmp_path, tokens)
    about = torch.tensor(tokens[longest.prompt_length :])
    ours = dataclasses.replace(longest, loss_mask=np.ones(len(about), np.float32))
    (metrics,) = trainer.policy.train([ours], plan([ours], spec))
    assert longest.prompt_length > 1
    theirs = theirs[longest.prompt_length - 2 :]
    assert metrics["train/mtp_loss"] == pytest.approx(
        -float(theirs.gather(1, about[:, None]).mean()), abs=1e-5
    )
    hits = (theirs.argmax(1) == about).float().mean()
    assert metrics["train/mtp_accuracy"] == pytest.approx(float(hits), abs=1e-6)
    trainer.close()


def sglang_log_probs(family: str, folder: Path, tokens: list[int]) -> torch.Tensor:
    """Returns `[T - 2, vocab]` of the exported model, computed by SGLang's class."""
    case, out = folder / "case.json", folder / "out.safetensors"
    case.write_text(json.dumps({"class": CLASSES[family], "tokens": tokens, "vocab": VOCAB}))
    command = [python(), str(HERE / "mtp_log_probs.py"), str(folder / "exported"), str(case), str(out)]
    environment = os.environ | ENVIRONMENT
    ended = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    return load_file(out)["log_probs"]
