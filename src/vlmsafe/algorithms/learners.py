"""The learners by name."""

from __future__ import annotations

from vlmsafe.algorithms.cpo import CPO
from vlmsafe.algorithms.cup import CUP
from vlmsafe.algorithms.first_order import Learner
from vlmsafe.algorithms.focops import FOCOPS
from vlmsafe.algorithms.p3o import P3O
from vlmsafe.algorithms.ppo import PPO, PPOLagrangian
from vlmsafe.config import Algorithm

LEARNERS: dict[Algorithm, type[Learner]] = {
    "ppo": PPO,
    "ppo-lag": PPOLagrangian,
    "cppo-pid": PPOLagrangian,  # the same learner; its multiplier is a PID controller
    "focops": FOCOPS,
    "cup": CUP,
    "p3o": P3O,
    "cpo": CPO,
}
