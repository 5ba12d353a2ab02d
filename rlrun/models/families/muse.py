"""Muse Glimmer, which is only converted."""

from rlrun.models.family import Family

FAMILIES = (Family(model_type="muse_glimmer", torchtitan_package="muse_glimmer"),)
