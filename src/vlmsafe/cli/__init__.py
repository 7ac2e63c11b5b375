"""The command line: one function per verb, each thin over the Python interface, in the module of its name."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

import vlmsafe
from vlmsafe import kernels
from vlmsafe.cli.terminal import err, out
from vlmsafe.errors import EXIT_AT_ONCE, VlmsafeError, unknown_name
from vlmsafe.io.output import outlive_reader

VERBS: dict[str, tuple[str, str]] = {
    "train": ("train:train_verb", "train an agent, or continue a run with --resume"),
    "clone": ("clone:clone_verb", "make a run that imitates an environment's scripted driver"),
    "evaluate": ("evaluate:evaluate_verb", "evaluate a run's policy under a named protocol"),
    "audit": ("audit:audit_verb", "say what a comparison of runs can and cannot show"),
    "verify": ("verify:verify_verb", "compute parts of a run again, and compare them with what it recorded"),
    "trace": ("trace:trace_verb", "record evaluation episodes step by step, with the scores of one or more scorers"),
    "diagnose": ("diagnose:diagnose_verb", "show what a signal did, and what a result may hide"),
    "scope": ("scope:scope_verb", "look at a trace's episodes frame by frame, in one HTML file"),
    "prompts": ("prompts:prompts_verb", "the prompt sets; prompts bench compares some on recorded frames"),
    "report": ("report:report_verb", "write a report on runs: one HTML file, and a folder with its tables and figures"),
    "export": ("export:export_verb", "write runs, evaluations and findings as CSV, or for MLflow or W&B"),
    "study": ("study.verbs:study_verb", "studies of many runs: list, show, plan, freeze, run, status, report, verify"),
    "serve": ("serve:serve_verb", "hold models in one process that scores the frames of several runs"),
    "runs": ("listings:runs_verb", "list runs: finished, running, stopped early"),
    "envs": ("listings:envs_verb", "list the environments"),
    "check-env": ("check_env:check_env_verb", "drive an environment of yours, and say what training would meet"),
    "methods": ("listings:methods_verb", "list the methods, or compare two: methods diff A B"),
    "drivers": ("drivers:drivers_verb", "list the trained drivers that come with the package, or show a card"),
    "embedded": ("embedded:embedded_verb", "embedded scorers: distil one of your own, or build the shipped one anew"),
    "published": ("published:published_verb", "the paper's tables: list, show NAME, compare RUN..."),
    "doctor": ("listings:doctor_verb", "say what is installed and what is missing"),
}
"""Where each verb's function is, found when it is called, and what it does."""
_WITH_A_RUN = ("train", "evaluate", "trace", "verify")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one verb; errors a user can do something about become one line and an exit code."""
    argv = list(sys.argv[1:] if arguments is None else arguments)
    if arguments is None:
        outlive_reader()
    # An installed command does not look for modules where it is called, and that is where gym:<module>:<id> lives.
    sys.path.append(os.getcwd())
    try:
        if not argv or argv[0] in ("-h", "--help", "help"):
            _print_help()
            return
        if argv[0] in ("-V", "--version"):
            out.print(f"vlmsafe {vlmsafe.__version__}", markup=False)
            return
        verb, rest = argv[0], argv[1:]
        if verb not in VERBS:
            raise unknown_name("command", verb, VERBS)
        if arguments is None:
            kernels.check()
            if wanted := kernels_for(verb, rest):
                kernels.choose(wanted)  # before a verb loads libraries
        module, function = VERBS[verb][0].split(":")
        getattr(importlib.import_module(f"vlmsafe.cli.{module}"), function)(rest)
    except VlmsafeError as error:
        if shown := error.shown_traceback():
            err.print(shown.rstrip(), markup=False, soft_wrap=True)
        err.print("[bold red]error:[/] ", end="")
        err.print(str(error), markup=False, soft_wrap=True)
        raise SystemExit(error.exit_code) from None
    except KeyboardInterrupt:
        err.print("interrupted")
        raise SystemExit(EXIT_AT_ONCE) from None


def kernels_for(verb: str, words: Sequence[str]) -> kernels.Kernels | None:
    """The kernels that a verb must have: what computes with one run takes that run's. None: what the process has."""
    if verb == "embedded":
        return "native"  # training this scorer uses every core, and claims no exact repeats
    asked = kernels.wanted_by(words) if verb in _WITH_A_RUN else None
    return asked or ("baseline" if verb in ("train", "clone") else None)


def _print_help() -> None:
    out.print("usage: vlmsafe COMMAND [OPTIONS]\n")
    out.print("Train constrained-RL agents with vision-language signals, and audit whether they became safer.\n")
    for verb, (_, summary) in VERBS.items():
        out.print(f"  {verb:<10} {summary}")
    out.print("\nvlmsafe COMMAND --help lists a command's options; vlmsafe --version prints the version.")
