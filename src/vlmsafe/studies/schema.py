"""Study files: those in the package, loaded by name, and users' own. Errors name the file, the line and the entry.

    name: small                       # letters, digits, dots and dashes; also the name of the study's folder
    question: Does the bonus lower the cost?
    environments: [speeding]          # or a mapping: environment -> {seeds, total_steps, settings}
    seeds: [1, 2, 3]
    total_steps: 40000
    settings: {steps_per_epoch: 2000} # of all runs, under dotted names
    arms:
      ppo-lag: {method: ppo-lag}
      oracle: {method: vlm-ppo-lag, settings: {signal.scorer: oracle}}
    protocols: [held-out]

The documentation of studies describes every entry. If an entry is given in several places, the innermost wins: study,
environment, arm, arm in an environment.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from vlmsafe.comparison.claims import ENTRIES, Claims, claims_of
from vlmsafe.comparison.contrasts import check_cells
from vlmsafe.config.methods import method
from vlmsafe.config.names import short_names
from vlmsafe.config.settings import TrainConfig
from vlmsafe.config.yaml import flatten, to_dict
from vlmsafe.envs.registry import env_spec, world_name
from vlmsafe.errors import InputError, unknown_name, yaml_errors
from vlmsafe.evaluation.protocols import protocol
from vlmsafe.report.request import check_entries
from vlmsafe.runs.layout import STUDY_FILE
from vlmsafe.signals.scorers.registry import parse_scorer
from vlmsafe.studies.study import EpisodeRequest, Overrides, Study, StudyArm

_FOLDER = resources.files("vlmsafe.studies") / "definitions"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_OVERRIDES = ("seeds", "total_steps", "settings")
_ENTRIES = (
    "name", "question", "paper", "environments", *_OVERRIDES, "arms", "protocols", "traces", "comparisons",
    "correction", "contrasts", "tables", "figures", "independent", "scale", "scorer",
)  # fmt: skip
_TRACE_ONLY = ("scorers", "prompts", "every", "frames")
_TRACE = tuple(entry.name for entry in fields(EpisodeRequest))
_EVALUATION = tuple(name for name in _TRACE if name not in _TRACE_ONLY)
_NOT_SETTINGS = {
    "env": "an entry of 'environments'", "method": "'method' of the arm", "seed": "'seeds'",
    "total_steps": "'total_steps' next to 'settings'", "run_dir": "nothing: a study decides where its runs go",
}  # fmt: skip


def shipped_studies() -> list[str]:
    """Names of the studies in the package, in alphabetical order."""
    return sorted(entry.name.removesuffix(".yaml") for entry in _FOLDER.iterdir() if entry.name.endswith(".yaml"))


def load_study(name: str | Path) -> Study:
    """A study by its name in the package, from a YAML file, or from the folder of a study that was started.

    Mistakes in the file are errors with their line.

    >>> import vlmsafe
    >>> study = vlmsafe.load_study("signal-controls")
    >>> [arm.name for arm in study.arms]
    ['ppo-lag', 'embedded', 'oracle', 'constant']
    """
    text = str(name)
    path = Path(name)
    recorded = path.is_dir() and (path / STUDY_FILE).is_file()
    if recorded:
        path = path / STUDY_FILE
    elif not ("/" in text or text.endswith((".yaml", ".yml"))):
        if text not in (known := shipped_studies()):
            raise unknown_name("study", text, [*known, "a path to a YAML file"])
        return parse_study((_FOLDER / f"{text}.yaml").read_text(encoding="utf-8"), f"{text}.yaml")
    try:
        return parse_study(path.read_text(encoding="utf-8"), str(path), recorded=recorded)
    except OSError as error:
        raise InputError(f"cannot read the study {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InputError(f"{path} is not a text file in UTF-8") from None


Place = tuple[str | int, ...]


@dataclass(frozen=True)
class _File:
    """A YAML document with the line of each entry."""

    source: str
    lines: Mapping[Place, int]

    def wrong(self, place: Place, message: str) -> InputError:
        """The error for an entry; an entry without a line gets the line of the entry that contains it."""
        while place not in self.lines:
            place = place[:-1]
        return InputError(f"{self.source}, line {self.lines[place]}: {message}")

    def mapping(self, value: Any, place: Place, known: Sequence[str] = ()) -> Mapping[str, Any]:
        """An entry that must be a mapping; if `known` is given, with no other keys."""
        what = f"'{place[-1]}'" if place else "a study"
        if not isinstance(value, Mapping):
            inside = f" with {', '.join(known)}" if known else ""
            raise self.wrong(place, f"{what} is {_shown(value)}; expected a mapping{inside}")
        for key in value:
            if not isinstance(key, str):
                raise self.wrong((*place, key), f"{what} has the key {key!r}; expected a name")
            if known and key not in known:
                raise self.wrong((*place, key), str(unknown_name("entry", key, known)))
        return value

    def texts(self, value: Any, place: Place) -> tuple[str, ...]:
        if isinstance(value, str) or not isinstance(value, Sequence) or not all(isinstance(v, str) for v in value):
            raise self.wrong(place, f"'{place[-1]}' is {_shown(value)}; expected a list of names")
        return tuple(value)

    def seeds(self, value: Any, place: Place) -> tuple[int, ...]:
        whole = isinstance(value, Sequence) and all(type(v) is int and v >= 0 for v in value)
        if not whole or not value:
            raise self.wrong(place, f"'{place[-1]}' is {_shown(value)}; expected a list of whole numbers, 0 or greater")
        if len(set(value)) < len(value):
            raise self.wrong(place, f"'{place[-1]}' names a seed twice, which gives the same run: {_shown(value)}")
        return tuple(value)

    def count(self, value: Any, place: Place) -> int:
        if type(value) is not int or value < 1:
            hint = " (write 1000000, not 1e6)" if isinstance(value, str | float) else ""
            raise self.wrong(place, f"'{place[-1]}' is {_shown(value)}; expected a whole number above 0{hint}")
        return value


def parse_study(text: str, source: str, *, recorded: bool = False) -> Study:
    """The study in a YAML text; errors name `source`, the line and the entry.

    `recorded` is for the text in a study's folder: its runs may be of other versions of their environments.
    """
    document, file = _read(text, source)
    file.mapping(document, (), _ENTRIES)
    for needed in ("name", "question", "environments", "arms"):
        if needed not in document:
            raise InputError(
                f"{source}: there is no '{needed}'; a study has at least name, question, environments, arms"
            )
    name, question = document["name"], document["question"]
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise file.wrong(("name",), f"the name is {_shown(name)}; expected letters, digits, dots and dashes")
    if not isinstance(question, str) or not question.strip():
        raise file.wrong(("question",), "the question is not a text; expected one sentence")
    if not isinstance(document.get("independent", False), bool):
        raise file.wrong(("independent",), "'independent' must be true or false")
    environments = _environments(document["environments"], file)
    arms = _arms(document["arms"], file, environments)
    study = Study(
        name=name,
        question=" ".join(question.split()),
        environments=environments,
        arms=arms,
        base=_overrides({key: document[key] for key in _OVERRIDES if key in document}, (), file),
        paper=file.texts(document.get("paper", []), ("paper",)),
        protocols=_requests(document.get("protocols", []), "protocols", file, environments, arms),
        traces=_requests(document.get("traces", []), "traces", file, environments, arms),
        claims=_claims(document, file, arms),
        tables=_entries(document, "tables", file),
        figures=_entries(document, "figures", file),
        independent=document.get("independent", False),
        document={key: value for key, value in document.items() if key not in ("scale", "scorer")},
    )
    _check_cells(study, file, recorded)
    if study.claims.contrasts:
        planned = [(env, arm.name) for env in environments for arm in arms if arm.in_environment(env) is not None]
        try:
            check_cells(study.claims.contrasts, planned)
        except InputError as error:
            raise file.wrong(("contrasts",), str(error)) from None
    return study.varied(*_variation(document, file))


def _read(text: str, source: str) -> tuple[Any, _File]:
    with yaml_errors(source):
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        document = yaml.safe_load(text)
    if root is None:
        raise InputError(f"{source} is empty; expected a study with name, question, environments and arms")
    lines: dict[Place, int] = {}
    _note_lines(root, (), lines, source)
    return document, _File(source, lines)


def _note_lines(node: yaml.Node, place: Place, lines: dict[Place, int], source: str) -> None:
    """Note the line of every entry. An entry that appears twice is an error: YAML would silently take the second."""
    lines.setdefault(place, node.start_mark.line + 1)
    if isinstance(node, yaml.SequenceNode):
        for index, entry in enumerate(node.value):
            _note_lines(entry, (*place, index), lines, source)
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            inner = (*place, key.value)
            if inner in lines:
                raise InputError(f"{source}, line {key.start_mark.line + 1}: '{key.value}' appears a second time")
            lines[inner] = key.start_mark.line + 1
            _note_lines(value, inner, lines, source)


def _overrides(data: Mapping[str, Any], place: Place, file: _File) -> Overrides:
    """Seeds, steps and settings; `data` has no other entries."""
    seeds = file.seeds(data["seeds"], (*place, "seeds")) if "seeds" in data else None
    steps = file.count(data["total_steps"], (*place, "total_steps")) if "total_steps" in data else None
    at = (*place, "settings")
    given = file.mapping(data.get("settings", {}), at)
    known = list(flatten(to_dict(TrainConfig())))
    settings: dict[str, Any] = {}
    for short, value in flatten(given).items():
        inside: Place = (*at, short) if short in given else (*at, *short.split("."))
        key = short_names().get(short.replace("-", "_"), short)
        if key in settings:
            raise file.wrong(inside, f"'{short}' is '{key}', which appears a second time")
        settings[key] = value
        if key in _NOT_SETTINGS:
            raise file.wrong(inside, f"'{key}' is not a setting of a study; it is given by {_NOT_SETTINGS[key]}")
        if key not in known:
            raise file.wrong(inside, str(unknown_name("setting", key, known)))
    return Overrides(seeds, steps, settings)


def _environments(value: Any, file: _File) -> dict[str, Overrides]:
    found = _named_overrides(value, ("environments",), file)
    if not found:
        raise file.wrong(("environments",), "there are no environments; expected at least one, see vlmsafe envs")
    if len(set(map(world_name, found))) < len(found):
        raise file.wrong(("environments",), "an environment is listed twice, in two interpreters; make two studies")
    for index, env in enumerate(found):
        try:
            env_spec(env)
        except InputError as error:
            listed = isinstance(value, Sequence)
            raise file.wrong(("environments", index if listed else env), str(error)) from None
    return found


def _named_overrides(value: Any, place: Place, file: _File) -> dict[str, Overrides]:
    """Environments as a list of names, or as a mapping from names to overrides."""
    if not isinstance(value, Mapping):
        names = file.texts(value, place)
        if len(set(names)) < len(names):
            raise file.wrong(place, "an environment is listed twice")
        return dict.fromkeys(names, Overrides())
    file.mapping(value, place)
    return {
        env: _overrides(file.mapping(entry or {}, (*place, env), _OVERRIDES), (*place, env), file)
        for env, entry in value.items()
    }


def _arms(value: Any, file: _File, environments: Mapping[str, Overrides]) -> tuple[StudyArm, ...]:
    found = []
    for name, entry in file.mapping(value, ("arms",)).items():
        place: Place = ("arms", name)
        if not _NAME.fullmatch(name):
            raise file.wrong(place, f"the arm's name is '{name}'; expected letters, digits, dots and dashes")
        entry = file.mapping(entry, place, ("method", *_OVERRIDES, "environments"))
        if not isinstance(entry.get("method"), str):
            raise file.wrong(place, f"the arm '{name}' has no 'method'; expected a name from vlmsafe methods")
        try:
            method(entry["method"])
        except InputError as error:
            raise file.wrong((*place, "method"), str(error)) from None
        own = None
        if "environments" in entry:
            own = _named_overrides(entry["environments"], (*place, "environments"), file)
            for env in own:
                if env not in environments:
                    raise file.wrong(
                        (*place, "environments", env), str(unknown_name("environment of the study", env, environments))
                    )
        overrides = _overrides({key: entry[key] for key in _OVERRIDES if key in entry}, place, file)
        found.append(StudyArm(name, entry["method"], overrides, own))
    if not found:
        raise file.wrong(("arms",), "there are no arms; expected at least one")
    return tuple(found)


def _requests(
    value: Any, kind: str, file: _File, environments: Mapping[str, Overrides], arms: Sequence[StudyArm]
) -> tuple[EpisodeRequest, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise file.wrong((kind,), f"'{kind}' is {_shown(value)}; expected a list of protocols")
    found = []
    for index, entry in enumerate(value):
        place: Place = (kind, index)
        known = _TRACE if kind == "traces" else _EVALUATION
        entry = {"protocol": entry} if isinstance(entry, str) else file.mapping(entry, place, known)
        if not isinstance(entry.get("protocol"), str):
            raise file.wrong(place, "there is no 'protocol'; expected a name, or a mapping with one")
        options: dict[str, Any] = {}
        for name in ("environments", "arms", "scorers"):
            if name in entry:
                options[name] = file.texts(entry[name], (*place, name))
        for name in ("episodes", "every"):
            if name in entry:
                options[name] = file.count(entry[name], (*place, name))
        if "seeds" in entry:
            options["seeds"] = file.seeds(entry["seeds"], (*place, "seeds"))
        if not isinstance(entry.get("frames", False), bool):
            raise file.wrong((*place, "frames"), "'frames' must be true or false")
        if "prompts" in entry:
            if not isinstance(entry["prompts"], str):
                raise file.wrong((*place, "prompts"), "'prompts' is not a text; expected a name or a file")
            options["prompts"] = entry["prompts"]
        request = EpisodeRequest(entry["protocol"], frames=entry.get("frames", False), **options)
        try:
            protocol(request.protocol)
            for scorer in request.scorers:
                parse_scorer(scorer)
            for kind_of, names, all_names in (
                ("environment of the study", request.environments, environments),
                ("arm of the study", request.arms, [arm.name for arm in arms]),
            ):
                for name in names:
                    if name not in all_names:
                        raise unknown_name(kind_of, name, all_names)
        except InputError as error:
            raise file.wrong(place, str(error)) from None
        found.append(request)
    return tuple(found)


def _claims(document: Mapping[str, Any], file: _File, arms: Sequence[StudyArm]) -> Claims:
    stated = next((key for key in ("comparisons", "contrasts") if key in document), None)
    if stated is None:
        return Claims()
    names = [arm.name for arm in arms]
    entries = document.get("comparisons", [])
    if isinstance(entries, Sequence):
        for index, entry in enumerate(entries):
            for side in ("first", "second"):
                if isinstance(entry, Mapping) and entry.get(side, names[0]) not in names:
                    raise file.wrong(
                        ("comparisons", index, side), str(unknown_name("arm of the study", str(entry[side]), names))
                    )
    claims = {"comparisons": [], **{key: document[key] for key in ENTRIES if key in document}}
    return claims_of(claims, f"{file.source}, line {file.lines[stated,]}")


def _entries(document: Mapping[str, Any], key: str, file: _File) -> tuple[Any, ...]:
    """Entries of the report, unchanged."""
    value = document.get(key, [])
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise file.wrong((key,), f"'{key}' is {_shown(value)}; expected a list")
    for index, entry in enumerate(value):
        try:
            check_entries(*(([entry], []) if key == "tables" else ([], [entry])))
        except InputError as error:
            raise file.wrong((key, index), str(error)) from None
    return tuple(value)


def _check_cells(study: Study, file: _File, recorded: bool) -> None:
    """Check that every run is possible. An error now names the arm; an error in the middle of a study costs days."""
    for arm in study.arms:
        for env, own in study.environments.items():
            overrides = arm.in_environment(env)
            if overrides is not None and not overrides.over(own.over(study.base)).seeds:
                raise file.wrong(("arms", arm.name), f"the arm '{arm.name}' has no seeds on {env}; give 'seeds'")
        try:
            runs = replace(study, arms=(arm,)).expand(Path("runs"), recorded=recorded)
        except InputError as error:
            raise file.wrong(("arms", arm.name), str(error)) from None
        if not runs:
            raise file.wrong(("arms", arm.name), f"the arm '{arm.name}' has no runs")
        for spec in runs:
            for kind, requests in (("protocols", spec.evaluations), ("traces", spec.traces)):
                names = [request.protocol for request in requests]
                twice = next((name for name in names if names.count(name) > 1), None)
                if twice is not None:
                    raise file.wrong(
                        (kind,),
                        f"'{twice}' is requested twice for {spec.arm} on {spec.env}, but a run has one file of it",
                    )


def _variation(document: Mapping[str, Any], file: _File) -> tuple[float, str | None]:
    scale, scorer = document.get("scale", 1.0), document.get("scorer")
    if isinstance(scale, bool) or not isinstance(scale, int | float):
        raise file.wrong(("scale",), f"'scale' is {_shown(scale)}; expected a number above 0 and at most 1")
    if scorer is not None and not isinstance(scorer, str):
        raise file.wrong(("scorer",), f"'scorer' is {_shown(scorer)}; expected the name of a scorer")
    return float(scale), scorer


def _shown(value: Any) -> str:
    text = "empty" if value is None else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
