"""Defects of a design: arms, seeds, copies, code."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import polars as pl
from recorded_versions import edit_recorded

from vlmsafe.runs.run import Run

from .clean_design import EPOCHS
from .editing import (
    HELD_OUT,
    checkpointed_at,
    copy_run,
    edit_claims,
    edit_table,
    retrain,
    run_paths,
    set_up_with,
    write_settings,
)
from .planting import BASELINE, FIRST, ONE, ROWS, SECOND, UNGATED, Plant, add, each_run, planted, set_up
from .run_directory import RECORDED, write_rows

# Arms that differ in more than the comparison names.
for _name, _settings in {
    "fewer-passes": {"learner.update_iters": 10},
    "other-first-multiplier": {"multiplier.initial": 0.0},
    "more-workers": {"num_envs": 4},
    "other-discount": {"learner.gamma": 0.995},
    "observations-as-they-are": {"normalise_observations": False},
    "other-multiplier-rate": {"multiplier.learning_rate": 0.07},
    "shorter-cost-window": {"cost_window": 50},
    "wider-networks": {"learner.hidden": [256, 256]},
}.items():
    add(f"unmatched-{_name}", "unmatched-arms", each_run(BASELINE, set_up(_settings)))
add(
    "unmatched-budget", "unmatched-arms", each_run(BASELINE, set_up({"budget": 40.0})),
    also=["evaluations-differ"],
)  # fmt: skip
add("unmatched-prompts", "unmatched-arms", each_run(UNGATED, set_up({"signal.prompts": "metadrive-v2"})), "gate")
add("unmatched-scorer", "unmatched-arms", each_run(UNGATED, set_up({"signal.scorer": "clip"})), "gate")
add("unmatched-query-period", "unmatched-arms", each_run(UNGATED, set_up({"signal.every": 4})), "gate")
add("unmatched-bonus", "unmatched-arms", each_run(FIRST, set_up({"signal.reward_weight": 0.2})), "gate")


@planted("unmatched-length", "unmatched-arms", also=["evaluations-differ", "window-dependent"])
def _shorter(folder: Path) -> None:
    for path in run_paths(folder, BASELINE):
        write_settings(path, {"total_steps": 15 * 20_000})
        retrain(path, epochs=15)
        edit_table(path, lambda table: table.with_columns(checkpoint_epoch=pl.lit(15, pl.Int64)))


@planted("unmatched-steps-per-epoch", "unmatched-arms")
def _smaller_epochs(folder: Path) -> None:
    """Half as many steps between updates, and half as many in all."""
    for path in run_paths(folder, BASELINE):
        set_up_with(path, {"steps_per_epoch": 10_000, "total_steps": EPOCHS * 10_000})


# Runs of one arm that are not repetitions of each other.
add("one-run-fewer-passes", "inconsistent-arm", each_run(BASELINE, set_up({"learner.update_iters": 10}), SECOND))
add("two-runs-other-rate", "inconsistent-arm", each_run(FIRST, set_up({"learner.actor_lr": 0.001}), slice(0, 2)))
add("one-run-other-term", "inconsistent-arm", each_run(FIRST, set_up({"multiplier.signal_weight": 60.0}), ONE))
add("one-run-other-prompts", "inconsistent-arm", each_run(FIRST, set_up({"signal.prompts": "metadrive-v3"}), ONE))


# Seeds.
add("a-seed-short", "seed-sets-differ", each_run(BASELINE, shutil.rmtree, ONE))
add("a-seed-short-in-pairs", "seed-sets-differ", each_run(UNGATED, shutil.rmtree, slice(-1, None)), "gate")


@planted("other-seed", "seed-sets-differ")
def _other_seed(folder: Path) -> None:
    path = run_paths(folder, BASELINE)[0]
    write_settings(path, {"seed": 999})
    moved = path.rename(path.with_name("seed-999"))
    checkpointed_at(moved, EPOCHS)


@planted("disjoint-seeds", "seed-sets-differ")
def _disjoint_seeds(folder: Path) -> None:
    for number, path in enumerate(run_paths(folder, BASELINE)):
        write_settings(path, {"seed": 500 + number})
        checkpointed_at(path.rename(path.with_name(f"seed-{500 + number}")), EPOCHS)


def _keep_seeds(count: int, change: dict[str, Any]) -> Plant:
    def plant(folder: Path) -> None:
        for arm in {path.parent.name for path in run_paths(folder)}:
            for path in run_paths(folder, arm)[count:]:
                shutil.rmtree(path)
        edit_claims(folder, lambda claims: [claim | change if claim["test"] != "none" else claim for claim in claims])

    return plant


add("three-against-three", "too-few-seeds", _keep_seeds(3, {"test": "permutation", "sides": "two-sided"}))
add("three-pairs", "too-few-seeds", _keep_seeds(3, {"test": "sign-flip"}), "gate")
add("four-pairs", "too-few-seeds", _keep_seeds(4, {"test": "sign-flip"}), "gate")
add("strict-level", "too-few-seeds", _keep_seeds(4, {"test": "permutation", "alpha": 0.01}))
add("two-against-two", "too-few-seeds", _keep_seeds(2, {"test": "bootstrap", "sides": "two-sided"}))
add("one-against-one", "too-few-seeds", _keep_seeds(1, {"test": "welch", "sides": "two-sided"}))


# The same thing twice.
def _copied(*names: str) -> Plant:
    """Files of one run in place of those of the next."""

    def plant(folder: Path) -> None:
        source, other = run_paths(folder, BASELINE)[:2]
        for name in names:
            shutil.copy(source / name, other / name)
        checkpointed_at(other, EPOCHS)

    return plant


add("copied-run", "duplicate-runs", _copied(*ROWS, f"evaluations/{HELD_OUT}.parquet"))
add("copied-training", "duplicate-runs", _copied(*ROWS))
add("copied-evaluation", "duplicate-runs", _copied(f"evaluations/{HELD_OUT}.parquet"))


@planted("copied-folder", "duplicate-runs")
def _copied_folder(folder: Path) -> None:
    source, other = run_paths(folder, FIRST)[:2]
    seed = Run.open(other).config.seed
    shutil.rmtree(other)
    copy_run(source, other, seed)


@planted("one-seed-in-two-folders", "duplicate-runs", also=["seed-sets-differ"])
def _one_seed_twice(folder: Path) -> None:
    source = run_paths(folder, FIRST)[0]
    copy_run(source, source.with_name("seed-77"), Run.open(source).config.seed)


def _copied_arm(*names: str) -> Plant:
    def plant(folder: Path) -> None:
        for source, other in zip(run_paths(folder, FIRST), run_paths(folder, UNGATED), strict=True):
            for name in names:
                shutil.copy(source / name, other / name)
            checkpointed_at(other, EPOCHS)

    return plant


_SAME = ["duplicate-runs", "gate-saturated"]  # the ungated arm then records the other's gate
add("arms-the-same", "identical-arms", _copied_arm(*ROWS, f"evaluations/{HELD_OUT}.parquet"), "gate", _SAME)
add("evaluations-the-same", "identical-arms", _copied_arm(f"evaluations/{HELD_OUT}.parquet"), "gate", _SAME)

# Code.
add("other-revision", "code-differs", each_run(BASELINE, lambda path: edit_recorded(path, git_revision="0" * 40)))
add(
    "other-package", "code-differs",
    each_run(FIRST, lambda path: edit_recorded(path, packages={**RECORDED["packages"], "torch": "2.3.0"})),
)  # fmt: skip
# Worlds. Version 0 is no environment's present one.
add("other-world", "worlds-differ", each_run(FIRST, lambda path: edit_recorded(path, env_version=0)))
add("world-of-before", "worlds-differ", each_run(None, lambda path: edit_recorded(path, env_version=0)))
add(
    "evaluated-in-another-world", "worlds-differ",
    each_run(FIRST, lambda path: edit_table(path, lambda table: table.with_columns(env_version=pl.lit(0, pl.Int64)))),
)  # fmt: skip


@planted("arm-of-two-worlds", "worlds-differ")
def _arm_of_two_worlds(folder: Path) -> None:
    edit_recorded(run_paths(folder, FIRST)[0], env_version=0)


add(
    "uncommitted-changes", "code-differs",
    each_run(FIRST, lambda path: edit_recorded(path, git_revision=f"{RECORDED['git_revision']}-dirty")),
)  # fmt: skip


@planted("resumed-with-other-packages", "code-differs")
def _resumed(folder: Path) -> None:
    """An arm that was stopped half-way and went on with another version."""
    packages = {**RECORDED["packages"], "vlmsafe": "0.2.0"}
    for path in run_paths(folder, FIRST):
        run = Run.open(path)
        resumed = {"time": RECORDED["started"], "event": "resumed", "epoch": 10, "packages": packages}
        write_rows(run, "events", [run.events()[0], resumed, *run.events()[1:]])
