"""Replay, lead-time and gate diagnostics run on real runs of every environment, from training to figures."""

import dataclasses
import importlib.util
import json

import polars as pl
import pytest

from vlmsafe import train
from vlmsafe.cli import main
from vlmsafe.envs.registry import ENVS
from vlmsafe.evaluation.trace.record import trace

HORIZON = 120  # a longer episode shows nothing more here
EMBEDDED = ("metadrive-easy", "bullet-car-reach", "formula-one-l1")
"""One world of each simulator with a scorer that sees frames; the others read the simulator's own hazard."""
TABLES = {
    "multiplier": {"multiplier-runs", "multiplier-terms", "multiplier-epochs"},
    "lead-time": {"lead-time-aucs", "lead-time-runs", "lead-time-counts", "lead-lag", "score-variability"},
    "gate": {"gate", "gate-margins", "gate-cells", "gate-thresholds"},
}
DEFINED = {"multiplier": set(), "lead-time": {"lead-time"}, "gate": {"gate-roc"}}
"""Tables that need a contact, and something else."""


@pytest.mark.parametrize("env", ENVS)
def test_diagnostics_run_on_a_run_of_every_environment(env, tmp_path, monkeypatch, capsys):
    spec = ENVS[env]
    if spec.package is not None and importlib.util.find_spec(spec.package) is None:
        pytest.skip(f"{spec.package} is not installed")
    monkeypatch.setitem(ENVS, env, dataclasses.replace(spec, horizon=min(spec.horizon, HORIZON)))
    sees = env in EMBEDDED
    run = train(
        env=env, method="vlm-ppo-lag-conf", total_steps=4 * HORIZON, steps_per_epoch=2 * HORIZON, quiet=True,
        signal={
            "scorer": "embedded" if sees else "oracle",
            "every": 20 if sees else 4,
            "calibration": {"frames": 8, "episodes": 1},
        },
        learner={"update_iters": 1}, run_dir=str(tmp_path / "seed-0"),
    )  # fmt: skip
    steps = trace(run, episodes=3, processes=2, every=5 if sees else 1, write=True)

    def diagnosed(what):
        out = tmp_path / what
        main(["diagnose", what, str(run.path), "--resamples", "50", "--onsets", "0", "--out", str(out), "--json"])
        (answer,) = json.loads(capsys.readouterr().out)
        assert answer["env"] == env
        tables, figures = set(answer["tables"]), set(answer["figures"])
        assert TABLES[what] <= tables <= TABLES[what] | DEFINED[what]
        assert written(out, ".json") == written(out, ".tex") == {f"table-{name}" for name in tables}
        assert written(out, ".png") == written(out, ".pdf") == {f"figure-{name}" for name in figures}
        return answer["tables"], figures

    check_replay(run, *diagnosed("multiplier"))
    check_lead_time(steps, *diagnosed("lead-time"))
    check_gate(steps, *diagnosed("gate"))


def written(folder, ending):
    return {path.stem for path in folder.iterdir() if path.suffix == ending}


def check_replay(run, tables, figures):
    """It agrees with the record, epoch by epoch, and the term that it removes is the recorded one."""
    (row,) = tables["multiplier-runs"]
    assert row["agrees"] == "yes"
    assert row["error"] <= 1e-6
    assert row["epochs"] == 2
    rows = run.rows("epochs")
    replayed = tables["multiplier-epochs"]
    assert [row["rebuilt"] for row in replayed] == pytest.approx([row["multiplier"] for row in rows], abs=1e-6)
    terms = [row["signal_term"] for row in replayed]
    assert terms == pytest.approx([row["signal_term"] for row in rows], abs=1e-12)
    assert any(terms)
    assert figures == {"multiplier", "multiplier-replay"}


def check_lead_time(steps, tables, figures):
    """Every signal, form and horizon is there, over the steps without contact that were scored."""
    aucs = tables["lead-time-runs"]
    assert len(aucs) == 2 * 5 * 3 * 6, "pool and run, signals and the control, forms, horizons"
    seen = steps.filter("scored")
    free = len(seen.filter(cost=0.0))
    assert {row["positives"] + row["negatives"] for row in aucs} == {free}
    assert [row["steps"] for row in tables["score-variability"]] == [len(seen)] * 4
    # Where nothing was touched, or nothing but that happened, there is no AUC, and no table or figure of it.
    defined = any(row["auc"] is not None for row in aucs)
    assert ("lead-time" in tables) == defined
    assert ("lead-time-raw" in figures) == defined
    if defined:
        assert [row["signal"] for row in tables["lead-time"]][:4] == ["κ", "c_vlm", "r_vlm", "margin"]
        assert "lead-time" in figures


def check_gate(steps, tables, figures):
    """The cells are of all scored frames, and contact in the same step is what it is judged by."""
    seen = steps.filter("scored")
    assert [row["gate"] for row in tables["gate-cells"]][:3] == ["s = 10", "s = 50", "s = 100"]
    assert {row["frames"] for row in tables["gate-margins"]} == {len(seen)}
    contacts = seen.select((pl.col("cost") > 0.0).sum()).item()
    judged = 0 < contacts < len(seen)
    assert ("gate-roc" in tables) == judged
    assert figures == {"gate-cells"} | ({"gate-curves"} if judged else set())
    whole = [row for row in tables.get("gate-roc", ()) if "half" not in row["score"]]
    assert {(row["contacts"], row["frames"]) for row in whole} <= {(contacts, len(seen))}
