"""What the published comparisons say they compare, in the form of a study's `claims.yaml`."""

from __future__ import annotations

from typing import Any

_L2, _CALIBRATED = "formula-one-l2", "vlm-ppo-lag-conf-calibrated"
_TERM = "multiplier.signal_weight multiplier.signal_reference"


def _claim(first: str, second: str, env: str, about: str, outcome: str, source: str, **more: Any) -> dict[str, Any]:
    said = {"first": first, "second": second, "env": env, "about": about.split(), "outcome": outcome, "source": source}
    return {**said, **more}


def _tested(test: str, sides: str = "less") -> dict[str, Any]:
    return {"test": test, "sides": sides, "alpha": 0.05}


_LAST_10 = {"window": "last-10", **_tested("permutation")}
_FINAL = {"window": "final", **_tested("permutation")}
_MORE = {"window": "last-10", **_tested("permutation", "greater")}

CLAIMS: list[dict[str, Any]] = [
    # tab:generalisation
    *(
        _claim("vlm-ppo-lag-conf", "ppo-lag", f"metadrive-{level}", "signal", outcome, "paper", **_tested("bootstrap"))
        for level in ("easy", "medium", "hard")
        for outcome in ("catastrophe", "violation")
    ),
    _claim(
        "vlm-ppo-lag-conf", "ppo-lag", "bullet-car-reach", "signal", "catastrophe", "paper-200", **_tested("bootstrap")
    ),
    _claim(_CALIBRATED, "ppo-lag", _L2, "signal", "catastrophe", "paper-20", test="none"),
    # tab:main_results, panel B, and the tests under it
    *(
        _claim(_CALIBRATED, other, _L2, about, "cost", "paper-environment-only", **_tested("permutation"))
        for other, about in (
            ("ppo-lag-unmatched", "signal"),
            ("ppo-lag", "signal"),
            ("cpo", "signal learner"),
            ("cppo-pid", "signal learner"),
            ("vlm-ppo-lag", "gate"),
        )
    ),
    # tab:component-diagnostics: the gate, and the multiplier's term
    _claim("vlm-ppo-lag-conf", "vlm-ppo-lag", _L2, "gate", "cost", "training", **_FINAL),
    _claim(
        "vlm-ppo-lag", "ppo-lag-decoupled", _L2, _TERM, "cost", "training", **_FINAL
    ),
    _claim(
        "vlm-ppo-lag-eta003", "vlm-ppo-lag-eta0", _L2, _TERM, "cost", "training", **_FINAL
    ),
    # tab:perm-l2
    _claim(_CALIBRATED, "vlm-ppo-lag", _L2, "gate", "cost", "training", **_LAST_10),
    _claim(_CALIBRATED, "ppo-lag-decoupled", _L2, f"gate {_TERM}", "cost", "training", **_LAST_10),
    _claim(_CALIBRATED, "ppo-lag-rnd", _L2, "scorer", "cost", "training", **_LAST_10),
    _claim("vlm-ppo-lag", "ppo-lag-decoupled", _L2, _TERM, "cost", "training", **_LAST_10),
    _claim(_CALIBRATED, "ppo-lag-rnd", _L2, "scorer", "shaped_return", "training", **_MORE),
    _claim(_CALIBRATED, "cpo-coupled", _L2, "learner signal", "shaped_return", "training", **_MORE),
    _claim("qwen2-vl-conf", _CALIBRATED, _L2, "scorer", "shaped_return", "training", **_LAST_10),
    _claim("cpo-decoupled", "cpo-coupled", _L2, "signal.rule", "shaped_return", "training", **_MORE),
    # tab:f1-return-decomp
    _claim("cpo-coupled", "cpo-decoupled", _L2, "signal.rule", "env_return", "training", window="last-5", test="none"),
    # app:phaseB-robustness: the order turns with the window
    _claim(_CALIBRATED, "ppo-lag", _L2, "signal", "cost", "training", window="last-10", test="none"),
    # tab:gate-calib-prereg
    _claim(
        _CALIBRATED, "vlm-ppo-lag-conf", _L2, "gate", "cost", "training", window="final", **_tested("sign-flip")
    ),
    _claim(
        _CALIBRATED, "vlm-ppo-lag-conf", _L2, "gate", "cost", "training", window="last-10", **_tested("paired-t")
    ),
    # tab:cr-stats
    _claim(
        "qwen2-vl-conf", "vlm-ppo-lag-conf", _L2, "scorer", "cost", "training", window="final",
        **_tested("welch", "two-sided"),
    ),
    _claim("vlm-ppo-lag-conf", "ppo-lag-rnd", _L2, "scorer", "cost", "training", **_FINAL),
    # tab:task-metrics
    _claim(_CALIBRATED, "ppo-lag-unmatched", _L2, "signal", "cost", "paper-task-metrics", test="none"),
    _claim("vlm-ppo-lag", "ppo-lag-decoupled", _L2, _TERM, "cost", "paper-task-metrics",
           test="none"),
]  # fmt: skip
"""Each names what the paper says the comparison is about, which is not always all that differs."""
