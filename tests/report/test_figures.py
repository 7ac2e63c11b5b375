"""Figures show what their tables hold, say it legibly, and leave nothing behind."""

import subprocess
import sys

import numpy as np
import polars as pl
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text
from traces import two_arms

from vlmsafe.analysis.gate_roc import gate_cells, gate_curves, gate_roc
from vlmsafe.analysis.lead_time import lead_lag, lead_time
from vlmsafe.analysis.multiplier_replay import replay
from vlmsafe.analysis.returns import cost_correlations, return_table
from vlmsafe.analysis.tables import stacked
from vlmsafe.config.settings import MultiplierConfig
from vlmsafe.errors import InputError
from vlmsafe.report import figures
from vlmsafe.report.render.style import (
    PALETTE,
    colours,
    markers,
    save_figure,
    short,
)

FEW = {"resamples": 20}
LONG = "an-arm-with-a-name-that-somebody-typed-without-a-thought-for-figures"


def epoch_rows(count=12, seed=0):
    rng = np.random.default_rng(seed)
    return [
        {"epoch": i + 1, "episodes": 2, "budget": 25.0, "episode_cost": 25.0 + rng.normal(0, 10), "multiplier": 0.0,
         "negative_score": 0.6, "env_return": rng.normal(), "bonus": 2.0, "shaped_return": rng.normal()}
        for i in range(count)
    ]  # fmt: skip


def replays(arms=("plain", "shaped"), runs=2):
    return stacked(
        {
            arm: {
                f"seed-{run}": replay(epoch_rows(seed=run), MultiplierConfig(signal_weight=0.01)) for run in range(runs)
            }
            for arm in arms
        }
    )


def evaluations(arms=("plain", "shaped"), runs=3):
    rng = np.random.default_rng(0)

    def table():
        path = rng.gamma(3.0, 5.0, 12)
        return pl.DataFrame({"cost": 2 * path + rng.normal(size=12), "path": path, "env_return": rng.normal(size=12)})

    return stacked({arm: {f"seed-{run}": table() for run in range(runs)} for arm in arms})


def renamed(table, names):
    return table.with_columns(pl.col("arm").replace_strict(dict(zip(("plain", "shaped"), names, strict=True))))


def drawn(arms=("plain", "shaped")):
    """Every figure, from tables of two arms with several runs."""
    steps = renamed(two_arms(contact=0.2), arms)
    rows = {arm: {f"seed-{run}": epoch_rows(seed=run) for run in range(3)} for arm in arms}
    episodes = evaluations(arms)
    return {
        "multiplier": figures.multiplier(replays(arms)),
        "auc": figures.auc_by_horizon(lead_time(steps, **FEW)),
        "lead-lag": figures.lead_lag(lead_lag(steps)),
        "gate-distributions": figures.gate_distributions(gate_cells(steps)),
        "gate-curves": figures.gate_curves(gate_curves(steps), gate_roc(steps, **FEW)),
        "returns": figures.returns(return_table(rows)),
        "cost": figures.cost_against(episodes, cost_correlations(episodes)),
    }


@pytest.fixture(scope="module", params=[("plain", "shaped"), (LONG, LONG[::-1])], ids=["short", "long"])
def all_figures(request):
    return drawn(request.param)


def texts(figure):
    """What is written, with the place of each in pixels."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    found = []
    for ax in figure.axes:
        # A tick beyond the limits is not drawn, though matplotlib keeps its label.
        for axis, limits in ((ax.xaxis, ax.get_xlim()), (ax.yaxis, ax.get_ylim())):
            for tick in axis.get_major_ticks():
                if not min(limits) <= tick.get_loc() <= max(limits):
                    tick.label1.set_visible(False)
    for text in figure.findobj(Text):
        if text.get_visible() and text.get_text().strip():
            found.append((text.get_text(), text.get_window_extent(canvas.get_renderer())))
    return found


def test_no_text_leaves_the_figure_or_covers_another(all_figures):
    for name, figure in all_figures.items():
        written = texts(figure)
        assert len(written) > 5, name
        for i, (text, box) in enumerate(written):
            inside = box.x0 >= -1 and box.y0 >= -1 and box.x1 <= figure.bbox.x1 + 1 and box.y1 <= figure.bbox.y1 + 1
            assert inside, (name, text)
            for other, place in written[i + 1 :]:
                assert not box.padded(-1).overlaps(place.padded(-1)), (name, text, other)


def test_every_panel_has_data_and_a_name(all_figures):
    for name, figure in all_figures.items():
        for ax in figure.axes:
            assert ax.lines or ax.collections or ax.patches, name
        labels = [ax.get_xlabel() or ax.get_title(loc="left") for ax in figure.axes]
        assert any(labels), name


def lines(ax):
    return [line.get_ydata() for line in ax.lines]


def holds(found, wanted):
    return any(len(one) == len(wanted) and np.allclose(one, wanted, equal_nan=True) for one in map(np.asarray, found))


def test_multiplier_figure_shows_both_lambdas_the_change_and_both_terms_of_every_run():
    table = replays()
    values, change, sizes = figures.multiplier(table).axes
    for _, own in table.group_by("arm", "run"):
        assert holds(lines(values), own["rebuilt"])
        assert holds(lines(values), own["without_term"])
        assert holds(lines(change), own["change"])
        assert holds(lines(sizes), own["cost_gap"].abs())
        assert holds(lines(sizes), own["signal_term"].abs())


def test_auc_figure_shows_pooled_aucs_and_the_control_of_each_arm_and_form():
    table = lead_time(two_arms(contact=0.2), **FEW)
    figure = figures.auc_by_horizon(table)
    cells = [(arm, form) for arm in ("plain", "shaped") for form in ("raw", "standardised")]
    for ax, (arm, form) in zip(figure.axes, cells, strict=True):
        own = table.filter(pl.col("run").is_null(), arm=arm, form=form)
        for _, rows in own.group_by("signal"):
            assert holds(lines(ax), rows["auc"])
        assert holds(lines(ax), [0.5, 0.5])
        band = ax.collections[0].get_paths()[0].vertices[:, 1]
        control = own.filter(signal="step")
        assert (band.min(), band.max()) == pytest.approx((control["low"].min(), control["high"].max()))


def test_lead_lag_figure_shows_the_profiles_with_zero_on_the_axis():
    profile = lead_lag(two_arms(contact=0.2)).with_columns(pl.col("spearman").abs() + 0.5)
    (ax,) = figures.lead_lag(profile).axes
    for _, own in profile.group_by("arm"):
        assert holds(lines(ax), own["spearman"])
    low, high = ax.get_ylim()
    assert low < 0.0 < profile["spearman"].max() < high
    faint = profile.with_columns(pl.col("spearman") / 1000.0)
    low, high = figures.lead_lag(faint).axes[0].get_ylim()
    assert low <= -0.05 < 0.05 <= high, "next to nothing must not fill the panel"


def test_gate_boxes_stand_at_the_quantiles_of_each_run():
    cells = gate_cells(two_arms())
    axes = figures.gate_distributions(cells).axes
    assert len(axes) == 5
    for ax, gate, name in zip(axes, ["s = 10", "s = 10", "s = 50", "s = 100", "calibrated"], ["margin"] + ["kappa"] * 4,
                              strict=True):  # fmt: skip
        medians = {line.get_xdata()[0] for line in ax.lines if len(set(line.get_xdata())) == 1}
        assert set(cells.filter(gate=gate)[f"{name}_median"]) <= medians


def test_gate_curves_show_every_score_against_its_prevalence():
    steps = two_arms(contact=0.2)
    curves, roc = gate_curves(steps), gate_roc(steps, **FEW)
    axes = figures.gate_curves(curves, roc).axes
    prior = pl.col("calibrated_on").is_null() & pl.col("half").is_null()
    for arm, left, right in zip(("plain", "shaped"), axes[::2], axes[1::2], strict=True):
        for score in ("kappa", "negated margin"):
            own = curves.filter(prior, arm=arm, score=score)
            assert holds(lines(left), own["recall"])
            assert holds(lines(right), own["precision"].cast(pl.Float64).fill_null(np.nan))
        share = (steps.filter(arm=arm)["cost"] > 0).mean()
        assert holds(lines(right), [share, share])


def test_returns_figure_connects_what_was_logged_with_what_the_environment_paid():
    table = return_table({"a": {"seed-0": epoch_rows(), "seed-1": epoch_rows(seed=1)}})
    (ax,) = figures.returns(table).axes
    spans = [sorted(line.get_xdata()) for line in ax.lines if len(line.get_xdata()) == 2]
    for row in table.drop_nulls("run").iter_rows(named=True):
        assert sorted([row["environment_return_final"], row["logged_return_final"]]) in spans
    assert [label.get_text() for label in ax.get_yticklabels()] == ["a seed-0", "a seed-1"]


def test_cost_figure_has_a_point_per_episode_and_one_per_run():
    episodes = evaluations()
    figure = figures.cost_against(episodes, cost_correlations(episodes))
    path, own_return = figure.axes
    assert (path.get_xlabel(), own_return.get_xlabel()) == ("path length", "environment return")
    assert [len(points.get_offsets()) for points in path.collections] == [36, 3, 36, 3]
    assert path.get_title(loc="left") == r"episodes: r = 1.00, $\rho$ = 1.00"


def test_arms_without_contact_have_no_panel_and_nothing_at_all_is_refused():
    steps = two_arms(contact=0.2)
    quiet = steps.with_columns(cost=pl.when(arm="plain").then(0.0).otherwise("cost"))
    assert len(figures.auc_by_horizon(lead_time(quiet, **FEW)).axes) == 2
    assert len(figures.gate_curves(gate_curves(quiet), gate_roc(quiet, **FEW)).axes) == 2
    none = steps.with_columns(cost=pl.lit(0.0))
    with pytest.raises(InputError, match="nothing to draw: no AUC"):
        figures.auc_by_horizon(lead_time(none, **FEW))
    with pytest.raises(InputError, match="nothing to draw: no curve"):
        figures.gate_curves(gate_curves(none), gate_roc(none, **FEW))
    with pytest.raises(InputError, match="nothing to draw: no correlation"):
        figures.lead_lag(lead_lag(none))


def test_gate_that_could_not_be_calibrated_leaves_its_box_out():
    cells = gate_cells(two_arms().with_columns(margin=pl.when("scored").then(0.2)))
    *others, calibrated = figures.gate_distributions(cells).axes
    assert all(len(ax.patches) >= 4 for ax in others)
    assert len(calibrated.patches) == 2, "only the shaded ends"


def test_equal_figures_give_equal_files(tmp_path):
    profile = lead_lag(two_arms(contact=0.2))
    one, other = (save_figure(figures.lead_lag(profile), tmp_path / name, "x") for name in ("a", "b"))
    assert [path.name for path in one] == ["x.png", "x.pdf"]
    for a, b in zip(one, other, strict=True):
        assert a.read_bytes() == b.read_bytes()
    assert one[0].read_bytes().startswith(b"\x89PNG")
    assert one[1].read_bytes().startswith(b"%PDF")


def test_names_keep_apart_what_they_can_and_long_ones_keep_both_ends():
    assert len(set(colours([str(i) for i in range(len(PALETTE))]).values())) == len(PALETTE)
    assert list(colours(["b", "a", "b"])) == list(markers(["b", "a", "b"])) == ["b", "a"]
    assert short("plain") == "plain"
    assert len(short(LONG)) == 42
    assert short(LONG)[:8] == LONG[:8]
    assert short(LONG)[-8:] == LONG[-8:]


def test_drawing_needs_no_pyplot():
    code = "import sys, vlmsafe.report.figures, vlmsafe.report.render.style; print('matplotlib.pyplot' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "False"
