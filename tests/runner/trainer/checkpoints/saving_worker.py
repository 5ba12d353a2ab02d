"""One rank of the test of saving: `RANK WORLD_SIZE PORT [MODEL, FOLDER] OUT`."""

import json
import sys
from pathlib import Path

from tests.runner.trainer.checkpoints.test_background_save import saved_both_ways
from tests.runner.trainer.trainer_cases import make_rank, make_spec


def main(rank, world_size, port, model, folder):
    spec = make_spec(model, {"fsdp": 2})
    trainer = make_rank(model, spec, rank=rank, world_size=world_size, port=port)
    saved_both_ways(trainer, spec, Path(folder))
    trainer.close()


if __name__ == "__main__":
    main(*[int(one) for one in sys.argv[1:4]], *json.loads(sys.argv[4]))
