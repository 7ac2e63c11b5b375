"""What counts as a change of a frozen study, in words."""

import copy
from dataclasses import replace

from frozen_study import CONTRAST, COST, RETURN, content

from vlmsafe.comparison.changes import changes, claim_defaults
from vlmsafe.comparison.claims import Claims


def changed(old, new):
    return changes(content(old), content(new), claim_defaults(new))


def test_changes_of_claims_are_said_in_words():
    assert changed(Claims((COST, RETURN)), Claims((RETURN, COST))) == []
    assert changed(Claims((COST,)), Claims((replace(COST, alpha=0.01, sides="less"),))) == [
        "claim 'oracle' against 'plain', cost: sides from two-sided to less, alpha from 0.05 to 0.01"
    ]
    assert changed(Claims((COST,)), Claims((COST, RETURN), "holm")) == [
        "correction from none to holm",
        "claim added: 'oracle' against 'plain', env_return",
    ]
    assert changed(Claims((COST, RETURN)), Claims((COST,))) == ["claim dropped: 'oracle' against 'plain', env_return"]


def test_changes_of_the_design_are_said_in_words():
    old = content(Claims())
    new = copy.deepcopy(old)
    for cell in new["cells"]:
        cell["seeds"] = [1, 2, 3]
    new["cells"][0] |= {"total_steps": 120, "settings": {"learner.gamma": 0.9}, "evaluations": {}}
    new["cells"].append({**new["cells"][0], "arm": "other"})
    new |= {"question": "Whether?", "looks": {"at": [0.5, 1.0], "spending": "pocock"}}
    assert changes(old, new, {}) == [
        "another question",
        "'other' on speeding added",
        "seeds 3 added",
        "steps from 80 to 120 for 'oracle' on speeding",
        "signal.scorer from oracle to its default for 'oracle' on speeding",
        "learner.gamma from its default to 0.9 for 'oracle' on speeding",
        "evaluation 'held-out' from 3 to none for 'oracle' on speeding",
        "looks from one to [0.5, 1.0] (pocock)",
    ]
    assert "'other' on speeding removed" in changes(new, old, {})


def test_the_order_of_seeds_matters_only_to_interim_looks():
    old = content(Claims())
    new = copy.deepcopy(old)
    new["cells"][0]["seeds"] = [2, 1]
    assert changes(old, new, {}) == []
    for one in (old, new):
        one["looks"]["at"] = [0.5, 1.0]
    assert changes(old, new, {}) == ["seeds in another order for 'oracle' on speeding"]


def test_a_changed_contrast_is_known_by_its_name():
    assert changed(Claims(contrasts=(CONTRAST,)), Claims(contrasts=(replace(CONTRAST, sides="less"),))) == [
        "claim 'gate x bonus', cost: sides from two-sided to less"
    ]
