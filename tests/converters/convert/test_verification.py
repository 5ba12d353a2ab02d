"""A run's checkpoint is compared with its checksums before it is converted."""

import pytest
import torch

from rlrun.converters.convert.verification import check_source
from rlrun.converters.folders.checksums import CHECKSUMS, checksums_text
from rlrun.runner.trainer.checkpoints.distributed import weights_state, write_state


@pytest.fixture
def checkpoint(tmp_path):
    state = weights_state({"w": torch.arange(100.0)})
    digests = write_state(tmp_path / "trainer", state) | write_state(tmp_path / "trainer" / "critic", state)
    names = {path.removeprefix(f"{tmp_path}/"): digest for path, digest in digests.items()}
    (tmp_path / CHECKSUMS).write_text(checksums_text(names))
    return tmp_path


def cut(path):
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize("whole", [True, False])
def test_one_in_order_passes(checkpoint, whole):
    check_source(checkpoint / "trainer", whole=whole)
    (checkpoint / CHECKSUMS).unlink()
    check_source(checkpoint / "trainer", whole=whole)  # torchtitan's have none


def test_the_table_of_contents_is_always_compared_and_all_files_if_asked(checkpoint):
    cut(checkpoint / "trainer" / "critic" / "__0_0.distcp")  # is not converted
    check_source(checkpoint / "trainer", whole=True)
    cut(checkpoint / "trainer" / "__0_0.distcp")
    check_source(checkpoint / "trainer", whole=False)
    with pytest.raises(ValueError, match=r"trainer/__0_0\.distcp is damaged: its checksum"):
        check_source(checkpoint / "trainer", whole=True)
    cut(checkpoint / "trainer" / ".metadata")
    with pytest.raises(ValueError, match=r"trainer/\.metadata is damaged: its checksum"):
        check_source(checkpoint / "trainer", whole=False)
    cut(checkpoint / CHECKSUMS)
    with pytest.raises(ValueError, match=r"checksums\.txt is damaged"):
        check_source(checkpoint / "trainer", whole=False)
