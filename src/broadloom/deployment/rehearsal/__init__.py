"""Rehearsals: a plan or a change on real brokers on this machine."""
