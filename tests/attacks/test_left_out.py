"""What is left to ASSAY_SOAK=1: never a whole attack, nor a provider for all attacks of a number. The full form has all."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from pathlib import Path

from attacks import (
    test_attacks_channel,
    test_attacks_environment,
    test_attacks_host,
    test_attacks_inputs,
    test_attacks_process,
    test_attacks_secrets,
    test_attacks_submissions,
)
from attacks.conftest import ARENAS
from attacks.harness import Arena

FAMILIES = (
    test_attacks_channel.ATTACKS,
    test_attacks_environment.ATTACKS,
    test_attacks_host.ATTACKS,
    test_attacks_inputs.ATTACKS,
    test_attacks_process.ATTACKS,
    test_attacks_secrets.ATTACKS,
    test_attacks_submissions.FOUGHT,
)
ATTACKS = [attack for family in FAMILIES for attack in family]


def arenas(*, full: bool) -> list[Arena]:
    return [
        Arena(provider, mode, Path(), str, lambda attack, outcome: None, {}, not full and (provider, mode) != ARENAS[0])
        for provider, mode in ARENAS
    ]


def test_every_attack_is_fought_somewhere_and_in_the_full_form_everywhere() -> None:
    usual, full = arenas(full=False), arenas(full=True)
    assert [attack.id for attack in ATTACKS if all(arena.leaves_out(attack) for arena in usual)] == []
    assert [attack.id for attack in ATTACKS if any(arena.leaves_out(attack) for arena in full)] == []


def test_every_provider_meets_attacks_of_every_number() -> None:
    met = defaultdict(set)
    for attack in ATTACKS:
        met[attack.number] |= {arena.provider for arena in arenas(full=False) if not arena.leaves_out(attack)}
    providers = {provider for provider, _ in ARENAS}
    assert {number: providers - by for number, by in met.items() if by != providers} == {}


def test_a_reason_is_given_with_what_is_left_out() -> None:
    attack = ATTACKS[0]
    spare = next(arena for arena in arenas(full=False) if arena.spare and arena.mode == "shared")
    assert spare.leaves_out(replace(attack, same="because")) == "as in separate mode: because"
    assert spare.leaves_out(replace(attack, alike="because")) == "as with the first provider: because"
    assert spare.leaves_out(replace(attack, base="pytest", both=True)).startswith("costly")
    assert spare.leaves_out(attack) == ""
