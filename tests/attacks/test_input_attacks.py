"""Attacks by names and files, and by a local user: each attempt is refused or harmless."""

import re
from pathlib import Path

import pytest
from input_attacks import ATTACKS, MEMORY_MB, attacked
from live_attacks import ATTACKS as LIVE_ATTACKS

PAGE = Path(__file__).parents[2] / "docs" / "threat-model.md"
PROMISED_NOTHING = "somebody with the key of the fleet"


@pytest.mark.parametrize("attack", ATTACKS, ids=[attack.name for attack in ATTACKS])
def test_each_attempt_is_refused_or_harmless(attack, tmp_path):
    found = attacked(attack, tmp_path / "attack", is_short=True)
    assert found["wrong"] == 0
    assert found["tried"] > 3
    assert found["memory MB"] < MEMORY_MB


def test_each_attacker_of_the_threat_model_attacks():
    text = PAGE.read_text().partition("## Who attacks")[2].partition("\n## ")[0]
    named = {name.lower() for name in re.findall(r"^### (.*)$", text, re.MULTILINE)}
    attackers = {attack.attacker for attack in (*ATTACKS, *LIVE_ATTACKS)}
    assert named - {PROMISED_NOTHING} == attackers
