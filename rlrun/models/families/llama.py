"""Llama 2 and 3: the decoder that all other families are described as variants of."""

from dataclasses import replace

from rlrun.models.architecture import Architecture
from rlrun.models.decoder_config import decoder
from rlrun.models.family import DENSE, Config, Family, ServerFacts, Support


def _read(config: Config) -> Architecture:
    return replace(decoder(config), mlp_bias=bool(config.get("mlp_bias")))


FAMILIES = (
    Family(
        model_type="llama",
        support=Support("Llama 2, 3", DENSE, native_engine=True),
        defaults={"max_position_embeddings": 2048},
        read=_read,
        server=ServerFacts(adapters=True, layout=True, eagle_tokens=8),
        pairs_side_by_side=True,
    ),
)
