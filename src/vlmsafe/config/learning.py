"""Settings of the learner and of the multiplier; the sentence under a field is its help text."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from vlmsafe.config.bounds import Finite, NonNegative, NonNegativeInt, Positive, PositiveInt, Share

Algorithm = Literal["ppo", "ppo-lag", "cppo-pid", "focops", "cup", "p3o", "cpo", "sac", "clone"]
OFF_POLICY: frozenset[str] = frozenset({"sac"})
"""Algorithms that learn from all steps of a run, and so keep them."""
OFF_POLICY_STD = (0.01, 1.6)
"""Standard deviations that their new policy can have: `learners.squashed` bounds the logarithm."""


@dataclass(frozen=True)
class SacConfig:
    """What only soft actor-critic has."""

    round_steps: PositiveInt = 100
    """Steps between two turns of the learner within an epoch. With a thousand or more, the policy follows errors of the
    critics for so long that a car learns to stand still."""
    first_steps: NonNegativeInt = 2000
    """Steps with the initial policy before the first update."""
    return_steps: PositiveInt = 3
    """Rewards that are summed before the critics' value continues the sum."""
    updates_per_step: Positive = 1.0
    """Updates of the critics for every step of an epoch."""
    policy_delay: PositiveInt = 2
    """Updates of the critics for every update of the policy."""
    target_rate: Share = 0.005
    """How far the target networks move towards the critics at an update."""
    layer_norm: bool = True
    """Whether the critics normalise the inputs of their hidden units, which keeps values from running away."""
    reward_scale: Positive = 0.1
    """Factor on rewards and, with the multiplier, on costs."""
    initial_temperature: Positive = 0.1
    """Weight of the entropy before the first update."""
    temperature_lr: Positive = 3e-4
    """Adam's learning rate for the logarithm of this weight."""
    target_entropy: Finite = -1.0
    """Entropy per action that the weight aims at."""
    final_entropy: Finite | None = None
    """What this falls to in a straight line; by default it stays as it is."""
    entropy_share: Share = 1.0
    """Share of the run over which it falls."""


@dataclass(frozen=True)
class LearnerConfig:
    """How the policy and its critics are trained."""

    algorithm: Algorithm = "ppo-lag"
    """Which learner updates the policy; the method decides."""
    variant: Literal["engine", "published"] = "engine"
    """Which form to follow where the paper's engine departs from the published algorithm."""
    hidden: tuple[PositiveInt, ...] = (64, 64)
    """Units of each hidden layer of the policy and of each critic."""
    initial_std: Positive | tuple[Positive, ...] = 1.0
    """Standard deviation of a new policy's actions, which lie between -1 and 1; one for all or one per action."""
    initial_mean: Finite | tuple[Finite, ...] = 0.0
    """What is added to the mean of a new policy's actions; one for all or one per action."""
    output_gain: Positive = 1.0
    """Factor on a new policy's last layer; a small one makes the first means nearly the same in every state."""
    final_std: Positive | tuple[Positive, ...] | None = None
    """Standard deviation in the last epoch, to which it falls in a straight line; by default it is learned instead."""
    std_floor: NonNegative = 0.0
    """Standard deviation below which no action's falls."""
    update_iters: PositiveInt = 40
    """Passes over an epoch's samples, at most."""
    batch_size: PositiveInt = 64
    """Samples per minibatch; the last, smaller one of a pass is used too."""
    target_kl: Positive = 0.02
    """Divergence from the policy that collected the samples beyond which no further pass is made."""
    kl_early_stop: bool = True
    """Whether passes stop once the target divergence is exceeded."""
    actor_lr: Positive = 3e-4
    """Adam's learning rate for the policy."""
    critic_lr: Positive = 3e-4
    """Adam's learning rate for the critics."""
    lr_decay: bool = True
    """Whether the policy's learning rate falls over the run; without it the rate is constant."""
    lr_schedule: Literal["linear", "cosine"] = "linear"
    """How it falls: in a straight line, or slowly at first and at the end."""
    lr_floor: Share = 0.0
    """What it falls to, as a share of its initial value."""
    critic_lr_decay: bool = False
    """Whether the critics' learning rate falls in the same way."""
    critic_warmup_epochs: NonNegativeInt = 0
    """Epochs at the beginning in which only the critics are fitted and the policy stays as it is."""
    value_clip: Positive | None = None
    """How far an update may move a critic's value from what it was, as PPO's ratio; unlimited by default."""
    scale_rewards: bool = False
    """Whether the learner sees rewards divided by the running deviation of their discounted sum."""
    clip_ratio: Positive = 0.2
    """PPO's clip range for the probability ratio."""
    entropy_coef: NonNegative = 0.0
    """Weight of the entropy bonus, the mean over actions, in the policy loss."""
    max_grad_norm: Positive = 40.0
    """Gradient norm to which each network's gradient is clipped."""
    critic_penalty: NonNegative = 0.001
    """Weight of the sum of squared critic parameters in the critic loss."""
    gamma: Share = 0.99
    """Discount of rewards and of costs."""
    gae_lambda: Share = 0.95
    """Trade-off of generalised advantage estimation for rewards."""
    cost_gae_lambda: Share = 0.95
    """Trade-off of generalised advantage estimation for costs."""
    standardise_cost_advantage: bool = False
    """Whether cost advantages are divided by their deviation; they are centred in any case."""
    focops_eta: Positive = 0.02
    """FOCOPS: divergence beyond which a sample counts as out of the trust region."""
    focops_temperature: Positive = 1.5
    """FOCOPS: weight of the divergence against the advantage."""
    p3o_penalty: Positive = 20.0
    """P3O: weight of the exact penalty on the cost surrogate, kappa."""
    cg_iters: PositiveInt = 15
    """CPO: iterations of conjugate gradients."""
    cg_damping: NonNegative = 0.1
    """CPO: multiple of the identity added to the Fisher matrix."""
    line_search_steps: PositiveInt = 20
    """CPO: how often a step is shortened before it is given up."""
    line_search_decay: Share = 0.8
    """CPO: factor by which a step is shortened."""
    braking_weight: Positive = 1.0
    """Clones: how many times a state counts in which the scripted driver brakes."""
    sac: SacConfig = field(default_factory=SacConfig)


@dataclass(frozen=True)
class MultiplierConfig:
    """How the Lagrange multiplier follows the episode cost."""

    kind: Literal["none", "adam", "gradient", "pid"] = "adam"
    """Rule that moves the multiplier; the method decides."""
    initial: NonNegative = 0.001
    """Multiplier before the first epoch, lambda_0; for pid, the start of its integral."""
    learning_rate: Positive = 0.035
    """Adam's learning rate for the multiplier, eta_1."""
    upper_bound: float | None = None
    """Largest value the multiplier may take; unbounded by default."""
    warmup_epochs: NonNegativeInt = 0
    """Epochs at the beginning in which the multiplier keeps its initial value."""
    signal_weight: NonNegative = 0.0
    """Weight of the signal term that is added to the cost gap, eta_2."""
    signal_reference: Share = 0.5
    """Level of the mean negative score at which the signal term vanishes, tau."""
    pid_kp: NonNegative = 0.1
    """pid: gain of the smoothed gap."""
    pid_ki: NonNegative = 0.01
    """pid: gain of the summed gap."""
    pid_kd: NonNegative = 0.01
    """pid: gain of the rise of the smoothed cost."""
    pid_delay: PositiveInt = 10
    """pid: epochs over which the rise is taken."""
    pid_smoothing: Share = 0.95
    """pid: weight of the past in the smoothed gap and cost."""
