"""Compare what two versions of the package made: runs, audits and reports.

    python tools/compare_results.py BEFORE AFTER [--tolerance 0]

BEFORE and AFTER are folders with the same layout, such as two copies of `runs/`, with audits (the output of
`vlmsafe audit --json`) as JSON files among them. Compared are

- runs: config.yaml, prompts.yaml, epochs.jsonl, episodes.jsonl, the state and, bit for bit, the arrays of checkpoints,
  and the tables of evaluations and traces;
- audits: findings, severities, what they are about, their numbers, what was not checked, and the results of the arms;
- reports: the numbers of every table and chart that was exported as CSV.

In audits and reports sentences, titles and the order of columns may differ; phrases that do are counted. New tables of
a report, new columns and new keys are listed. Anything else is a difference, and the first of each file is named.
Exit code 0: no difference; 1: differences; 2: nothing to compare.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
import yaml
from safetensors import SafetensorError, safe_open

LEFT_OUT = {
    "times": r"time|timing|started|hours.*|rollout_hours.*|seconds.*|steps_per_second.*|overhead_pct.*",
    "versions and machines": r"recorded|packages|python|revision|git_revision|system|processor|cores|device|sha256",
    "paths": r"run_dir",
    "fingerprints": r"fingerprint|digest",
    "sizes of files": r"row_files",
}
_SKIPPED = re.compile("|".join(LEFT_OUT.values()))
_FILES_LEFT_OUT = "timing.jsonl, events.jsonl, logs, pictures, diagnoses, and reports other than as CSV"
_NUMBER = re.compile(r"[-\u2212]?\d+(?:[.,]\d+)*(?:e[-+]?\d+)?")
_FINDING = re.compile(r"(error|warning|note): [a-z-]+")
_TITLES = ("panel", "name", "mark")  # columns of a chart that may have other words


class Different(Exception):
    """The first difference of a file."""


@dataclass
class Comparison:
    """What was found in all files so far."""

    tolerance: float
    compared: Counter[str] = field(default_factory=Counter)
    phrases: bool = False
    """Whether phrases may differ, as in audits and reports."""
    words: int = 0
    """Phrases that differ in words only."""
    gained: set[str] = field(default_factory=set)
    """Columns and keys that only AFTER has."""
    differences: list[str] = field(default_factory=list)

    def value(self, before: Any, after: Any, where: str) -> None:
        """Two values, or mappings or lists of values."""
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            self.mapping(before, after, where)
        elif isinstance(before, list | tuple) and isinstance(after, list | tuple):
            if len(before) != len(after):
                raise Different(f"{where}: {len(before)} values before, {len(after)} after")
            for place, pair in enumerate(zip(before, after, strict=True)):
                self.value(*pair, f"{where}[{place}]")
        elif not self._equal(before, after) and not self._same_meaning(before, after):
            raise Different(f"{where}: {before!r} before, {after!r} after")

    def _equal(self, before: Any, after: Any) -> bool:
        if not isinstance(before, int | float) or not isinstance(after, int | float):
            return bool(before == after)
        near = abs(before - after) <= self.tolerance * max(abs(before), abs(after))
        both_nan = math.isnan(before) and math.isnan(after)
        return isinstance(before, bool) is isinstance(after, bool) and (before == after or near or both_nan)

    def _same_meaning(self, before: Any, after: Any) -> bool:
        """Of phrases the numbers must be equal, of absolute paths the last part, of findings everything."""
        if not (self.phrases and isinstance(before, str) and isinstance(after, str)):
            return False
        if before.startswith("/"):
            return Path(before).name == Path(after).name
        same = " " in before and _NUMBER.findall(before) == _NUMBER.findall(after) and not _FINDING.fullmatch(before)
        self.words += same
        return same

    def mapping(self, before: Mapping[str, Any], after: Mapping[str, Any], where: str) -> None:
        self.keys(before, after, where)
        for key in before:
            if not _SKIPPED.fullmatch(key):
                self.value(before[key], after[key], f"{where}, {key}" if where else key)

    def keys(self, before: Any, after: Any, where: str) -> None:
        """Nothing is lost; what is new is noted."""
        for key in before:
            if key not in after and not _SKIPPED.fullmatch(key):
                raise Different(f"{where or 'top level'}: {key} is missing after")
        self.gained |= {key for key in after if key not in before and not _SKIPPED.fullmatch(key)}

    # -- the kinds of files

    def settings(self, before: Path, after: Path) -> None:
        """YAML or JSON, which is YAML too."""
        self.value(yaml.safe_load(before.read_text()), yaml.safe_load(after.read_text()), "")

    def rows(self, before: Path, after: Path) -> None:
        one, other = ([json.loads(line) for line in path.read_text().splitlines()] for path in (before, after))
        for place, pair in enumerate(zip(one, other, strict=False), 1):
            self.value(*pair, f"row {place}")
        if len(one) != len(other):
            raise Different(f"{len(one)} rows before, {len(other)} after")

    def checkpoint(self, before: Path, after: Path) -> None:
        with safe_open(before, "numpy") as one, safe_open(after, "numpy") as other:
            if sorted(one.keys()) != sorted(other.keys()):
                raise Different(f"arrays {sorted(one.keys())} before, {sorted(other.keys())} after")
            for name in sorted(one.keys()):
                a, b = one.get_tensor(name), other.get_tensor(name)
                if (a.dtype, a.shape) != (b.dtype, b.shape):
                    raise Different(f"array {name}: {a.dtype} {a.shape} before, {b.dtype} {b.shape} after")
                if a.tobytes() != b.tobytes():
                    places = (a != b).ravel().nonzero()[0]
                    raise Different(f"array {name}: {len(places)} of {a.size} values differ, first at {places[:1]}")
            states = [json.loads((file.metadata() or {}).get("state", "{}")) for file in (one, other)]
            self.mapping(states[0], states[1], "state")

    def table(self, before: Path, after: Path) -> None:
        one, other = (pl.read_parquet(path, glob=False) for path in (before, after))
        self.keys(one.columns, other.columns, "columns")
        if len(one) != len(other):
            raise Different(f"{len(one)} rows before, {len(other)} after")
        for name in one.columns:
            if not _SKIPPED.fullmatch(name) and not one[name].equals(other[name], null_equal=True):
                for row, pair in enumerate(zip(one[name].to_list(), other[name].to_list(), strict=True), 1):
                    self.value(*pair, f"row {row}, column {name}")

    def csv(self, before: Path, after: Path) -> None:
        """A table row by row. The points of a chart may come in another order."""
        one, other = ([*csv.DictReader(path.open(newline=""))] for path in (before, after))
        if one and other:
            self.keys(list(one[0]), list(other[0]), "columns")
        if len(one) != len(other):
            raise Different(f"{len(one)} rows before, {len(other)} after")
        columns = [name for name in (one[0] if one else ()) if not _SKIPPED.fullmatch(name)]
        if before.name.startswith("figure-"):
            columns = [name for name in columns if name not in _TITLES]
            points = [sorted([row[name] for name in columns] for row in rows) for rows in (one, other)]
            if points[0] == points[1]:
                return
        for place, (a, b) in enumerate(zip(one, other, strict=True), 1):
            for name in columns:
                self.value(_cell(a[name]), _cell(b[name]), f"row {place}, column {name}")

    def audit(self, before: Path, after: Path) -> None:
        one, other = (json.loads(path.read_text()) for path in (before, after))
        for key in ("runs", "arms", "comparisons", "worst"):
            self.value(one[key], other[key], key)
        findings = [_by_subject(document["findings"]) for document in (one, other)]
        for (code, *subject), own in findings[0].items():
            where = f"finding {code} ({' '.join(filter(None, subject)) or 'all'})"
            others = findings[1].get((code, *subject), [])
            if len(own) != len(others):
                raise Different(f"{where}: {len(own)} times before, {len(others)} after")
            for a, b in zip(own, others, strict=True):
                if a["severity"] != b["severity"]:
                    raise Different(f"{where}: severity {a['severity']} before, {b['severity']} after")
                self.mapping(a["data"], b["data"], where)
        if new := [key for key in findings[1] if key not in findings[0]]:
            raise Different(f"finding {new[0]} only after")
        unchecked = [
            {(code, *subject) for entry in document["unchecked"] for code in entry["codes"] for subject in _of(entry)}
            for document in (one, other)
        ]
        if changed := sorted(unchecked[0] ^ unchecked[1]):
            raise Different(f"not checked: {changed[0]} only {'before' if changed[0] in unchecked[0] else 'after'}")


def _cell(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


Subject = tuple[str, str, str]


def _subject(entry: Mapping[str, Any]) -> Subject:
    """Environment, arms or runs, and protocol, from the fields of a finding."""
    names = {"run": ", ".join(entry["runs"]), "environment": ""}.get(entry["scope"], " against ".join(entry["arms"]))
    return (entry["environment"], names, entry["protocol"]) if entry["environment"] else ("", "", "")


def _sentence(where: str) -> Subject:
    """The same from the sentence that stood for the fields in versions without them."""
    place, _, protocol = where.partition(", '")
    env, colon, names = place.partition(": ")
    return (env, names, protocol.rstrip("'")) if colon or protocol else ("", "", "")


def _of(entry: Mapping[str, Any]) -> list[Subject]:
    """What a finding, or an entry about what was not checked, is about."""
    if "subjects" in entry:
        return [_subject(one) for one in entry["subjects"]]
    return [_subject(entry)] if "scope" in entry else [_sentence(where) for where in entry["where"].split("; ")]


def _by_subject(findings: Sequence[dict[str, Any]]) -> dict[tuple[str, ...], list[dict[str, Any]]]:
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for one in findings:
        groups.setdefault((one["code"], *_of(one)[0]), []).append(one)
    return groups


def _kind(path: Path) -> str | None:
    """What is compared in a file; None for one that is left out."""
    folder = path.parent.name
    if path.name in ("config.yaml", "prompts.yaml"):
        return "settings"
    if path.name in ("epochs.jsonl", "episodes.jsonl"):
        return "rows"
    if path.suffix == ".safetensors" and folder == "checkpoints":
        return "checkpoint"
    if folder in ("evaluations", "traces"):
        return {".parquet": "table", ".json": "settings"}.get(path.suffix)
    if path.suffix == ".csv" and path.name.startswith(("table-", "figure-")):
        return "csv"
    return "audit" if re.fullmatch(r"audit.*\.json", path.name) else None


def _files(root: Path) -> Iterator[tuple[str, Path]]:
    """The files that are compared. A table of a report is found in whichever folder below `report` it lies."""
    for path in sorted(root.rglob("*")):
        if path.is_file() and _kind(path):
            relative = path.relative_to(root)
            name = relative.as_posix()
            if path.suffix == ".csv" and "report" in relative.parts:
                name = Path(*relative.parts[: relative.parts.index("report") + 1], path.name).as_posix()
            yield name, path


def compare(before: Path, after: Path, tolerance: float) -> Comparison:
    result = Comparison(tolerance)
    files, others = dict(_files(before)), dict(_files(after))
    for name, path in files.items():
        kind = str(_kind(path))
        result.compared[kind] += 1
        result.phrases = kind in ("audit", "csv")
        try:
            if name not in others:
                raise Different("is missing after")
            getattr(result, kind)(path, others[name])
        except Different as difference:
            result.differences.append(f"{name}: {difference}")
        except (OSError, ValueError, KeyError, SafetensorError, yaml.YAMLError, pl.exceptions.PolarsError) as error:
            result.differences.append(f"{name}: cannot be compared, {type(error).__name__}: {error}")
    for name in others.keys() - files.keys():
        if _kind(others[name]) == "csv":
            result.gained.add(name)
        else:
            result.differences.append(f"{name}: only after")
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Compare the runs, audits and reports of two versions of the package.")
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--tolerance", type=float, default=0.0, help="relative, of numbers; arrays must be equal")
    options = parser.parse_args(arguments)
    for folder in (options.before, options.after):
        if not folder.is_dir():
            print(f"{folder} is not a folder; expected one with runs, audits or reports", file=sys.stderr)
            return 2
    result = compare(options.before, options.after, options.tolerance)
    if not result.compared:
        print(f"{options.before} holds nothing to compare: no run, audit or exported report", file=sys.stderr)
        return 2
    print("compared: " + ", ".join(f"{count} {kind}" for kind, count in sorted(result.compared.items())))
    print(f"left out: {', '.join(LEFT_OUT)}; {_FILES_LEFT_OUT}\nphrases that differ in words only: {result.words}")
    if result.gained:
        print(f"only after, and not compared: {', '.join(sorted(result.gained))}")
    for line in result.differences:
        print(f"DIFFERENT {line}")
    print(f"{len(result.differences)} files differ" if result.differences else "no difference")
    return 1 if result.differences else 0


if __name__ == "__main__":
    raise SystemExit(main())
