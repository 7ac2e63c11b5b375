"""The learners by name."""

from __future__ import annotations

from vlmsafe.config.learning import Algorithm
from vlmsafe.learners.cpo import CPO
from vlmsafe.learners.cup import CUP
from vlmsafe.learners.focops import FOCOPS
from vlmsafe.learners.learner import Learner
from vlmsafe.learners.p3o import P3O
from vlmsafe.learners.ppo import PPO, PPOLagrangian
from vlmsafe.learners.sac import SAC

LEARNERS: dict[Algorithm, type[Learner] | type[SAC]] = {
    "ppo": PPO,
    "ppo-lag": PPOLagrangian,
    "cppo-pid": PPOLagrangian,  # the same learner; its multiplier is a PID controller
    "focops": FOCOPS,
    "cup": CUP,
    "p3o": P3O,
    "cpo": CPO,
    "sac": SAC,
}
