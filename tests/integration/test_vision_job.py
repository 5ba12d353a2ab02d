"""A job whose prompts have images: native engines, a trained vision tower, a kill, a resume, an export."""

import json
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.integration.jobs import Jobs
from tests.pictures import picture, write_processor
from tests.tiny_vlms import IMAGE, VLMS, make_tiny_vlm


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "scale", "layout"),
    [("qwen2_5_vl", 0.1, {"fsdp": 2}), ("qwen3_5_moe", 0.05, {"tensor": 2, "expert": 2})],
    ids=["dense", "experts"],
)
def test_a_killed_job_with_images_resumes_bit_for_bit(
    jobs: Jobs, tmp_path: Path, family: str, scale: float, layout: dict[str, int]
) -> None:
    model = make_tiny_vlm(tmp_path / "model", family, scale=scale)
    write_processor(model, IMAGE, patch=VLMS[family][2]["patch_size"])
    rows = []
    for i in range(32):
        names = [f"{i}-{k}.png" for k in range(i % 3)]  # none, one or two
        for k, name in enumerate(names):
            (jobs.folder / name).write_bytes(picture(56 + 28 * k, 28 * (1 + i % 2), seed=10 * i + k))
        rows.append(
            json.dumps({"prompt": f"{'<image>' * len(names)} say {i}", "images": names, "label": "x"})
        )
    (jobs.folder / "pictures.jsonl").write_text("\n".join(rows) + "\n")
    settings: dict[str, object] = {
        "model__path": str(model),
        "data__path": "pictures.jsonl",
        "data__images_key": "images",
        "data__apply_chat_template": True,
        "trainer__vision_tower": "trained",
        **{f"trainer__parallel__{name}": degree for name, degree in layout.items()},
        "trainer__steps": 5,
        "checkpoint__interval": 2,
        "checkpoint__export_hf": True,
    }
    whole = jobs.run(f"{family}-whole", **settings)
    assert whole.code == 0, whole.output
    for line in whole.metrics:
        assert line["train/train_rollout_logprob_abs_diff_max"] < 1e-4, line["step"]
    killed = jobs.start(f"{family}-killed", **settings)
    killed.until_step(3)
    killed.signal(signal.SIGKILL)
    killed.process.wait()
    resumed = jobs.run(f"{family}-killed", "--resume", **settings)
    assert resumed.code == 0, resumed.output
    assert resumed.curve == whole.curve
    before = load_file(model / "model.safetensors")
    exported = load_file(whole.folder.path / "model" / "model.safetensors")
    assert exported.keys() == before.keys()
    tower = [name for name in before if "visual." in name]
    assert all(not torch.equal(exported[name], before[name]) for name in tower)
    again = load_file(resumed.folder.path / "model" / "model.safetensors")
    assert all(torch.equal(again[name], exported[name]) for name in exported)
