"""Hypothesis without a deadline: the first example compiles the kernels."""

from hypothesis import settings

settings.register_profile("kernels", deadline=None)
settings.load_profile("kernels")
