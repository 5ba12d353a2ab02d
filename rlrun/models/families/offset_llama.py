"""Llama with one odd norm: its norms multiply by 1 + weight."""

from dataclasses import replace

from rlrun.models.architecture import Architecture
from rlrun.models.decoder_config import decoder
from rlrun.models.family import DENSE, Config, Family, Support


def _read(config: Config) -> Architecture:
    return replace(decoder(config), offset_norms=True)


FAMILIES = (
    Family(
        model_type="offset_llama",
        support=Support("A Llama whose norms add 1", DENSE, native_engine=True),
        defaults={"max_position_embeddings": 2048},
        read=_read,
    ),
)
