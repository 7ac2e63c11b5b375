"""The diagnostics as figures: tables of `vlmsafe.analysis` in, a matplotlib Figure out, nothing else touched.

A panel without data is not drawn; a table that would give no panel at all is refused, so that no empty figure is saved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from vlmsafe.analysis.anticipation import CONTROL
from vlmsafe.analysis.tables import Float64, floats
from vlmsafe.errors import InputError
from vlmsafe.report.render.style import (
    INK,
    QUIET,
    SMALL,
    colours,
    label,
    legend_below,
    markers,
    panels,
    short,
)

SIGNAL_NAMES = {
    "kappa": r"$\kappa$",
    "negative": r"$c_{\mathrm{vlm}}$",
    "positive": r"$r_{\mathrm{vlm}}$",
    "margin": "margin",
    CONTROL: "step index (control)",
}
AGAINST_NAMES = {
    "path": "path length",
    "distance": "distance",
    "net_progress": "net progress",
    "route_completion": "route completion",
    "env_return": "environment return",
}


def multiplier(epochs: pl.DataFrame) -> Figure:
    """lambda with and without the signal term, what the term added, and the sizes of both terms, over epochs.

    `epochs` are tables of `multiplier_replay.replay`, stacked with their `arm` and `run`. An arm has a colour, a run a
    line.
    """
    _require(epochs.drop_nulls("cost_gap"), "no epoch in which an episode finished")
    figure, axes = panels(3, 1, (6.6, 6.6), sharex=True)
    values, change, sizes = axes[:, 0]
    shade = colours(_names(epochs, "arm"))
    for (arm, _), own in epochs.group_by("arm", "run", maintain_order=True):
        x, colour = floats(own, "epoch"), shade[str(arm)]
        values.plot(x, floats(own, "rebuilt"), color=colour, linewidth=2.6, alpha=0.45)
        values.plot(x, floats(own, "without_term"), color=INK, linewidth=0.9, linestyle=(0, (4, 2)))
        change.plot(x, floats(own, "change"), color=colour, linewidth=1.2)
        sizes.plot(x, _size(own, "cost_gap"), color=colour, linewidth=1.2)
        sizes.plot(x, _size(own, "signal_term"), color=colour, linewidth=1.2, linestyle=(0, (1, 1.2)))
    change.axhline(0.0, color=QUIET, linewidth=0.8)
    change.ticklabel_format(axis="y", style="sci", scilimits=(-2, 3))
    change.yaxis.get_offset_text().set_fontsize(SMALL)
    sizes.set_yscale("log")
    label(values, title="Multiplier, with the signal term and without", y=r"$\lambda$")
    label(change, title="What the term added", y=r"change of $\lambda$")
    label(sizes, title="Both terms of the update", y="size", x="epoch")
    sizes.xaxis.set_major_locator(MaxNLocator(integer=True))
    sizes.set_xlim(0.5, max(floats(epochs, "epoch").max(), 2.0) + 0.5)
    entries: dict[str, Artist] = {
        **{f"with the term: {short(arm)}": _line(colour, width=2.6) for arm, colour in shade.items()},
        "without the term": _line(INK, style=(0, (4, 2)), width=0.9),
        r"cost gap $|J_C - d|$": _line(QUIET),
        r"signal term $|\eta_2 (\bar c_{\mathrm{vlm}} - \tau)|$": _line(QUIET, style=(0, (1, 1.2))),
    }
    legend_below(figure, entries.values(), entries, columns=2)
    return figure


def _size(table: pl.DataFrame, name: str) -> Float64:
    """Absolute values; a zero, which a logarithmic axis cannot show, leaves a gap."""
    values = np.abs(floats(table, name))
    return np.where(values > 0.0, values, np.nan)


def auc_by_horizon(table: pl.DataFrame) -> Figure:
    """Pooled AUCs of `lead_time` by horizon with their intervals: a row of panels per arm, raw and standardised.

    Chance is the line at one half, the step index the grey band. Arms without contacts have no AUC and no panel.
    """
    pooled = table.filter(pl.col("run").is_null()).drop_nulls("auc")
    _require(pooled, "no AUC: no arm has steps with and without a contact ahead")
    arms, forms = _names(pooled, "arm"), ("raw", "standardised")
    signals = [name for name in _names(pooled, "signal") if name != CONTROL]
    horizons = sorted(pooled["horizon"].unique())
    figure, axes = panels(len(arms), 2, (7.0, 0.9 + 2.3 * len(arms)), sharex=True, sharey=True)
    shade, shape = colours(signals), markers(signals)
    place = {horizon: i for i, horizon in enumerate(horizons)}
    for row, arm in enumerate(arms):
        for column, form in enumerate(forms):
            ax, own = axes[row, column], pooled.filter(arm=arm, form=form)
            ax.axhline(0.5, color=INK, linewidth=0.8, linestyle=(0, (4, 2)))
            control = own.filter(signal=CONTROL)
            at = np.array([place[horizon] for horizon in control["horizon"]], np.float64)
            ax.fill_between(at, floats(control, "low"), floats(control, "high"), color=QUIET, alpha=0.3, linewidth=0)
            ax.plot(at, floats(control, "auc"), color=QUIET, linewidth=1.2)
            for number, name in enumerate(signals):
                _intervals(ax, own.filter(signal=name), place, 0.13 * (number - (len(signals) - 1) / 2), shade[name],
                           shape[name])  # fmt: skip
            label(ax, title=f"{short(arm)}\n{'as it is' if form == 'raw' else 'standardised within episodes'}")
            ax.set_xticks(range(len(horizons)), [str(horizon) for horizon in horizons])
    for ax in axes[:, 0]:
        label(ax, y="AUC")
    for ax in axes[-1]:
        label(ax, x="contact within the next K steps")
    entries: dict[str, Artist] = {
        **{SIGNAL_NAMES.get(name, name): _line(shade[name], marker=shape[name]) for name in signals},
        SIGNAL_NAMES[CONTROL]: _line(QUIET),
        "chance": _line(INK, style=(0, (4, 2)), width=0.8),
    }
    legend_below(figure, entries.values(), entries, columns=6)
    return figure


def _intervals(ax: Axes, rows: pl.DataFrame, place: Mapping[int, int], shift: float, colour: str, marker: str) -> None:
    """Points with their intervals, moved sideways so that those of several signals stand beside each other."""
    auc, low, high = (floats(rows, name) for name in ("auc", "low", "high"))
    at = np.array([place[horizon] + shift for horizon in rows["horizon"]])
    # A percentile interval need not hold the estimate itself; an error bar must not point backwards.
    reach = [np.maximum(auc - low, 0.0), np.maximum(high - auc, 0.0)]
    ax.errorbar(at, auc, reach, color=colour, marker=marker, markersize=3.2, linewidth=0.9, elinewidth=0.9)


def lead_lag(profile: pl.DataFrame, signal: str = "negative") -> Figure:
    """Spearman's correlation of a signal with earlier (k < 0) and later (k > 0) cost, one line per arm."""
    known = profile.drop_nulls("spearman")
    _require(known, "no correlation: the score or the cost is constant")
    figure, axes = panels(1, 1, (5.2, 3.2))
    ax = axes[0, 0]
    shade, shape = colours(_names(profile, "arm")), markers(_names(profile, "arm"))
    ax.axhline(0.0, color=QUIET, linewidth=0.8)
    ax.axvline(0.0, color=QUIET, linewidth=0.8)
    entries: dict[str, Artist] = {}
    for (arm,), own in known.group_by("arm", maintain_order=True):
        name = str(arm)
        (entries[name],) = ax.plot(
            floats(own, "lag"), floats(own, "spearman"), color=shade[name], marker=shape[name], markersize=3,
            linewidth=1.2,
        )  # fmt: skip
    values = floats(known, "spearman")
    low, high = min(float(values.min()), -0.05), max(float(values.max()), 0.05)  # with zero: flat must look flat
    ax.set_ylim(low - 0.1 * (high - low), high + 0.1 * (high - low))
    shown = SIGNAL_NAMES.get(signal, signal)
    label(ax, title=f"{shown} at step t against cost at step t + k", x="lag k, steps", y="Spearman's correlation")
    legend_below(figure, entries.values(), entries, columns=3)
    return figure


def gate_distributions(cells: pl.DataFrame) -> Figure:
    """Margins of each run, and its kappa under each gate of `gate_cells`, as boxes from lowest to highest.

    The shaded ends are where a gate counts as nearly closed and nearly open.
    """
    _require(cells, "no cells")
    gates, rows = _names(cells, "gate"), cells.select("arm", "run").unique(maintain_order=True).rows()
    figure, axes = panels(1, len(gates) + 1, (2.2 + 1.35 * (len(gates) + 1), 1.3 + 0.28 * len(rows)), sharey=True)
    shade = colours(_names(cells, "arm"))
    tints = [shade[arm] for arm, _ in rows]
    _boxes(axes[0, 0], cells.filter(gate=gates[0]), "margin", tints)
    label(axes[0, 0], title="margin")
    axes[0, 0].axvline(0.0, color=QUIET, linewidth=0.8)
    for ax, gate in zip(axes[0, 1:], gates, strict=True):
        ax.axvspan(0.0, 0.1, color="#EDEDED", zorder=0)
        ax.axvspan(0.9, 1.0, color="#EDEDED", zorder=0)
        _boxes(ax, cells.filter(gate=gate), "kappa", tints)
        ax.set_xlim(-0.03, 1.03)
        ax.set_xticks([0.0, 0.5, 1.0])
        label(ax, title=rf"$\kappa$, {gate}")
    axes[0, 0].set_yticks(range(len(rows)), [short(arm if arm == run else f"{arm} {run}") for arm, run in rows])
    axes[0, 0].set_ylim(len(rows) - 0.5, -0.5)
    return figure


def _boxes(ax: Axes, cells: pl.DataFrame, name: str, tints: Sequence[str]) -> None:
    for place, (row, tint) in enumerate(zip(cells.iter_rows(named=True), tints, strict=True)):
        if row[f"{name}_median"] is None:
            continue  # a gate that could not be calibrated
        whisker = {"color": tint, "linewidth": 0.9}
        ax.bxp(
            [
                {
                    "whislo": row[f"{name}_low"], "q1": row[f"{name}_q25"], "med": row[f"{name}_median"],
                    "q3": row[f"{name}_q75"], "whishi": row[f"{name}_high"], "fliers": [],
                }
            ],
            positions=[place], widths=0.55, orientation="horizontal", showfliers=False, manage_ticks=False,
            patch_artist=True, whiskerprops=whisker, capprops=whisker, medianprops={"color": INK, "linewidth": 1.4},
            boxprops={"facecolor": tint, "alpha": 0.45, "edgecolor": tint},
        )  # fmt: skip


_CURVE_STYLES: dict[tuple[str, str | None, int | None], tuple[str, Any]] = {
    ("kappa", None, None): (r"$\kappa$, s = 100, c = 0", "-"),
    ("kappa", "same frames", None): (r"$\kappa$ calibrated on these frames", "-"),
    ("kappa", "other half", 1): (r"$\kappa$ calibrated on other episodes", (0, (4, 1.5))),
    ("kappa", "other half", 2): (r"$\kappa$ calibrated on other episodes", (0, (4, 1.5))),
    ("negated margin", None, None): ("negated margin", (0, (1, 1))),
}


def gate_curves(curves: pl.DataFrame, roc: pl.DataFrame) -> Figure:
    """ROC, and precision over recall, against contact in the same step, a row of panels per arm.

    `curves` and `roc` are those of `gate_roc.gate_curves` and `gate_roc.gate_roc`. Arms without contacts have none.
    """
    known = curves.drop_nulls(("recall", "false_positive_rate"))
    _require(known, "no curve: no arm has frames with and without contact")
    arms = _names(known, "arm")
    figure, axes = panels(len(arms), 2, (7.0, 1.0 + 2.7 * len(arms)))
    shade = colours([name for name, _ in _CURVE_STYLES.values()])
    entries: dict[str, Artist] = {}
    for (left, right), arm in zip(axes, arms, strict=True):
        left.plot([0, 1], [0, 1], color=QUIET, linewidth=0.8)
        own = known.filter(arm=arm)
        for key, (name, style) in _CURVE_STYLES.items():
            score, fitted, half = key
            one = own.filter(
                pl.col("score") == score, pl.col("calibrated_on").eq_missing(fitted), pl.col("half").eq_missing(half)
            )
            if not len(one):
                continue
            look = {"color": shade[name], "linestyle": style, "linewidth": 1.2}
            (entries[name],) = left.plot(floats(one, "false_positive_rate"), floats(one, "recall"), **look)
            right.plot(floats(one, "recall"), floats(one, "precision"), **look)
        whole = roc.filter(pl.col("arm") == arm, pl.col("half").is_null()).row(0, named=True)
        prevalence = whole["positives"] / (whole["positives"] + whole["negatives"])
        right.axhline(prevalence, color=QUIET, linewidth=0.8)
        label(left, title=f"{short(arm)}\nROC", x="false-positive rate", y="recall")
        label(right, title=f"{short(arm)}\nprecision, prevalence {prevalence:.2%}", x="recall", y="precision")
        left.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
        right.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    entries["chance, prevalence"] = _line(QUIET)
    legend_below(figure, entries.values(), entries, columns=3)
    return figure


def returns(table: pl.DataFrame) -> Figure:
    """What each run logged and what its environment paid, at the last epoch: the distance between them is the bonus."""
    runs = table.drop_nulls("run")
    _require(runs, "no runs")
    figure, axes = panels(1, 1, (6.4, 1.2 + 0.3 * len(runs)))
    ax, shade = axes[0, 0], colours(_names(runs, "arm"))
    for place, row in enumerate(runs.iter_rows(named=True)):
        colour, own = shade[row["arm"]], row["environment_return_final"]
        ax.plot([own, row["logged_return_final"]], [place, place], color=colour, linewidth=1.4, alpha=0.6)
        ax.plot(row["logged_return_final"], place, "o", markersize=7, markerfacecolor="white", color=colour)
        ax.plot(own, place, "o", markersize=4.5, color=colour)
        ax.plot(row["environment_return_last_10"], place, "|", markersize=9, color=INK)
    ax.set_yticks(range(len(runs)), [short(f"{arm} {run}") for arm, run in runs.select("arm", "run").iter_rows()])
    ax.set_ylim(len(runs) - 0.5, -0.5)
    label(ax, x="episode return")
    entries: dict[str, Artist] = {
        "logged, with the bonus": Line2D([], [], color=QUIET, marker="o", markersize=7, markerfacecolor="white", ls=""),
        "of the environment": Line2D([], [], color=QUIET, marker="o", markersize=4.5, ls=""),
        "of the environment, last 10 epochs": Line2D([], [], color=INK, marker="|", markersize=9, ls=""),
    }
    legend_below(figure, entries.values(), entries, columns=3)
    return figure


def cost_against(episodes: pl.DataFrame, correlations: pl.DataFrame) -> Figure:
    """Cost over each quantity of `cost_correlations`: a small point per episode, a large one per run, by arm."""
    shown = [name for name in _names(correlations, "against") if episodes[name].drop_nulls().len()]
    _require(episodes.select(shown), "no episodes with anything to hold cost against")
    figure, axes = panels(1, len(shown), (1.0 + 2.6 * len(shown), 3.3), sharey=True)
    shade, shape = colours(_names(episodes, "arm")), markers(_names(episodes, "arm"))
    for ax, name in zip(axes[0], shown, strict=True):
        for (arm,), own in episodes.group_by("arm", maintain_order=True):
            look = {"color": shade[str(arm)], "marker": shape[str(arm)]}
            means = own.group_by("run", maintain_order=True).agg(pl.col(name, "cost").mean())
            ax.scatter(floats(own, name), floats(own, "cost"), s=9, alpha=0.35, linewidth=0, **look)
            ax.scatter(floats(means, name), floats(means, "cost"), s=60, edgecolor=INK, linewidth=0.9, zorder=3, **look)
        label(ax, title=_correlation(correlations, name), x=AGAINST_NAMES.get(name, name.replace("_", " ")))
    label(axes[0, 0], y="episode cost")
    entries: dict[str, Artist] = {arm: _line(shade[arm], style="", marker=shape[arm]) for arm in shade}
    entries["one episode"] = Line2D([], [], ls="", marker="o", color=QUIET, alpha=0.6, markersize=3)
    entries["mean of a run"] = Line2D([], [], ls="", marker="o", color=QUIET, markeredgecolor=INK, markersize=7)
    legend_below(figure, entries.values(), entries, columns=4)
    return figure


def _correlation(correlations: pl.DataFrame, name: str) -> str:
    """Both correlations over episodes, or nothing where they are not defined."""
    row = correlations.filter(level="episodes", against=name).row(0, named=True)
    return "" if row["pearson"] is None else f"episodes: r = {row['pearson']:.2f}, $\\rho$ = {row['spearman']:.2f}"


def _line(colour: str, *, style: Any = "-", width: float = 1.2, marker: str = "") -> Line2D:
    return Line2D([], [], color=colour, linestyle=style, linewidth=width, marker=marker, markersize=4)


def _names(table: pl.DataFrame, column: str) -> list[str]:
    return table[column].unique(maintain_order=True).to_list()


def _require(table: pl.DataFrame, why: str) -> None:
    if not len(table):
        raise InputError(f"nothing to draw: {why}")
