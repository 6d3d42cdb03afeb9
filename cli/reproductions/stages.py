"""Profiles as figures draw pipelines: a layer a stage, in which F, I and W take equally long."""

from collections.abc import Sequence

from ...schemas.profile import Layer, LayerCost, Profile


def stages_profile(works: Sequence[float]) -> Profile:
    """A profile of one layer a stage: a third of its work each is F, I and W; state and activations are a byte each."""
    return Profile(
        tuple(
            Layer((LayerCost(work / 3, work / 3, work / 3),), parameter_bytes=1.0, activation_bytes=1.0)
            for work in works
        )
    )
