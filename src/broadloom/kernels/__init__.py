"""Numba options and on-disk cache, bit sets, threads, k-means: the ground that algorithms compute on."""
