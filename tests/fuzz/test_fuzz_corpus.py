"""Targets of fuzzing on their corpus, and on random changes of it."""

import random

import pytest
from fuzz_targets import CORPUS, LONGEST, TARGETS

ROUNDS = 300


def inputs_of(name):
    return [path.read_bytes() for path in sorted((CORPUS / name).iterdir())]


@pytest.mark.parametrize("name", TARGETS)
def test_each_input_of_the_corpus(name):
    inputs = inputs_of(name)
    assert inputs
    for data in inputs:
        TARGETS[name](data)


@pytest.mark.parametrize("name", TARGETS)
def test_inputs_of_the_corpus_with_changes(name):
    rng = random.Random(name)
    inputs = inputs_of(name)
    for _ in range(ROUNDS):
        data = bytearray(rng.choice(inputs))
        for _ in range(rng.randint(1, 5)):
            at = rng.randrange(len(data) + 1)
            data[at : at + rng.randint(0, 3)] = rng.randbytes(rng.randint(0, 3))
        TARGETS[name](bytes(data[:LONGEST]))
