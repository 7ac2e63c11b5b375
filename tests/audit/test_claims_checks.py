"""What was changed in a study's plan after results were there, and how much that matters."""

import pytest

from vlmsafe.audit.checks.claims import claims_changed
from vlmsafe.audit.kinds import Severity
from vlmsafe.comparison.claims import Claims
from vlmsafe.comparison.preregistration import FrozenProtocol, Moment, ProtocolVersion


def version(finished, **changes):
    cell = {
        "environment": "braking", "arm": "plain", "method": "ppo-lag", "seeds": [1, 2], "total_steps": 100,
        "settings": {}, "evaluations": {}, **changes,
    }  # fmt: skip
    looks = {"at": [1.0], "spending": "obrien-fleming"}
    content = {"question": "?", "cells": [cell], "looks": looks, "claims": {"correction": "none"}}
    return ProtocolVersion("2026-01-01T00:00:00Z", Moment(finished, finished, 2), content)


@pytest.mark.parametrize(
    ("finished", "change", "severity"),
    [
        (2, {"seeds": [1, 9]}, Severity.WARNING),
        (2, {"seeds": [1]}, Severity.WARNING),
        (2, {"total_steps": 200}, Severity.NOTE),
        (0, {"seeds": [1, 9]}, None),
    ],
)
def test_seeds_that_change_after_results_weigh_more_than_the_rest_of_the_plan(finished, change, severity):
    protocol = FrozenProtocol((version(0), version(finished, **change)))
    found = [one.severity for one in claims_changed(protocol, Claims(), [])]
    assert found == ([] if severity is None else [severity])
