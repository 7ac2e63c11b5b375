"""The content of a small study's frozen protocol, and claims to put into it."""

import copy
from dataclasses import replace

from vlmsafe.comparison.changes import plain_claims
from vlmsafe.comparison.claims import Claim, ContrastCell, ContrastClaim

COST = Claim("oracle", "plain", about=("signal",))
RETURN = replace(COST, outcome="env_return")
CONTRAST = ContrastClaim("gate x bonus", (ContrastCell("oracle", "speeding"),), (ContrastCell("plain", "speeding"),))


def content(claims):
    cell = {
        "environment": "speeding", "arm": "oracle", "method": "vlm-ppo-lag", "seeds": [1, 2], "total_steps": 80,
        "settings": {"signal.scorer": "oracle"}, "evaluations": {"held-out": 3},
    }  # fmt: skip
    design = {"study": "small", "question": "Why?", "cells": [cell, {**cell, "arm": "plain"}]}
    looks = {"at": [1.0], "spending": "obrien-fleming"}
    return copy.deepcopy({**design, "looks": looks, "claims": plain_claims(claims)})
