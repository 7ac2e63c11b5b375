"""The paper's own design as run directories, from its printed tables, with the problems it reports about itself.

Costs, returns and task metrics are those of `vlmsafe.paper.published`; `published_figures` says what is made up.
Epochs are flat but for what a printed window demands. Training episodes are written on MetaDrive, where it matters
which scenarios were visited: the study did not record them, so they are drawn anew.
"""

from __future__ import annotations

from pathlib import Path

from vlmsafe.config.yaml import to_yaml

from .published_claims import CLAIMS
from .published_driving import write_bullet, write_metadrive
from .published_figures import METADRIVE
from .published_formula_one import write_formula_one

EXPECTED: dict[str, str] = {
    "unmatched-arms": "sec:results-main, app:f1-run-sets: PPOLag with other iterations, multiplier start and seeds; "
    "app:compute: query periods; app:cr-extras: RND and Qwen2-VL; tab:two-mult",
    "seed-sets-differ": "app:f1-run-sets: matched PPOLag on {789, 1024}; app:perm-tests: five seeds against three",
    "incomplete-run": "app:f1-run-sets, tab:full-results: CPO-Coupled 39, 50, 36 epochs, L1 2; CPO-Decoupled 25; "
    "PPOLag-Decoupled 39",
    "untrained-checkpoint": "app:f1-run-sets, tab:task-metrics: PPOLag-Decoupled seed 42",
    "missing-evaluation": "app:f1-run-sets: lost checkpoints, one PPO-CLG run; app:task-metrics: matched PPOLag",
    "evaluated-on-training-scenarios": "app:metadrive-bug, app:limitations item 1: 10000 + i is scenario i of the pool",
    "shared-simulator": "app:metadrive-bug, app:metadrive-nondet: the earlier evaluation, random traffic",
    "shaped-return": "sec:results-main, tab:f1-return-decomp, tab:perm-l2: logged return contains the bonus",
    "cost-tracks-distance": "sec:results-main, app:task-metrics: 0.978 with path, 0.991 with progress over six arms",
    "over-budget": "tab:md-perseed, tab:bullet-perseed: mean costs of 81 to 195 and of 35 and 36, budget 25",
    "passive-policy": "sec:results, app:md-fixed-eval: 28.6 % and 5.2 % of Hard's episodes; app:phaseB-robustness",
    "inert-signal-term": "sec:results-eta2, app:omnisafe: term below 5e-3, gap 15.2; app:rnd-details, app:qwen-details",
    "gate-saturated": "app:gate-diagnosis, app:md-difficulty: median kappa 0.86 to 0.98 on MetaDrive",
    "no-lead-time": "sec:results-eta2, app:horizon-roc: all 96 AUCs below 0.5",
    "too-few-seeds": "app:perm-tests, app:limitations item 4: three against three cannot reach p < 0.05",
    "window-dependent": "app:perm-tests, app:phaseB-robustness, app:cr-stats: final epoch against last 10",
    "inconsistent-arm": "app:results-bullet: six runs of an arm, three of 10^6 steps and three of 2 x 10^6",
    "evaluations-differ": "app:metadrive-nondet: traffic drawn apart from the scenario; app:f1-run-sets: an untrained "
    "policy beside trained ones",
    "constant-score": "app:horizon-roc: c_vlm varies by 1.0 % and never comes near its reference",
    "baseline-dependent": "sec:results-main: the matched PPOLag turns the result round",
    "replication-noise": "app:md-calib, tab:md-noise-floor, tab:conf-families: two trainings of one configuration",
    "protocol-dependent": "app:metadrive-bug: the earlier evaluation turns Medium round; app:bullet-curves",
}
"""What the paper reports about itself, by the finding that should say it, and where."""

UNREPORTED: dict[str, str] = {
    "frames-show-cost": "Bullet draws cost indicators into its frames by default; of FormulaOne's cameras only `track` "
    "shows them, and the paper does not say which it used",
    "many-tests": "dozens of tests at 0.05, none corrected",
}
"""In the design as well, though the paper does not speak of it."""


def write_published_design(folder: Path) -> Path:
    """The runs under `folder/<env>/<arm>/seed-<n>`, and `folder/claims.yaml`."""
    write_formula_one(folder)
    for env in METADRIVE:
        write_metadrive(folder, env)
    write_bullet(folder)
    (folder / "claims.yaml").write_text(to_yaml({"comparisons": CLAIMS}))
    return folder
