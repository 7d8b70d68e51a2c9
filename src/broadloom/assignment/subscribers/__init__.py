"""Subscriber assignment (paper 4): a leaf broker per subscriber, a content filter per broker."""
