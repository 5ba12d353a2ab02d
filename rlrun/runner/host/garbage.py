"""Python's garbage collections in the driver, which has the objects of thousands of requests in flight."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

NEW_OBJECTS = 200_000
"""The driver looks for cycles among new objects after so many of them, which take some 50 MB."""


@contextmanager
def rare_collections() -> Iterator[None]:
    """Looks for cycles rarely in the block, and never among the objects that were made before it.

    By default Python does so after every 700 new objects, and now and then among all objects of the process,
    its imported modules included. With 10,000 requests in flight that took two thirds of the loop's time.
    """
    thresholds = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS, *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
