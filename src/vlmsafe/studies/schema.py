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

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from importlib import resources
from pathlib import Path
from typing import Any

from vlmsafe.comparison.claims import ENTRIES, Claims, claims_of
from vlmsafe.comparison.contrasts import check_cells
from vlmsafe.comparison.looks import ONE_LOOK, Looks, looks_of
from vlmsafe.envs.registry import env_spec, world_name
from vlmsafe.errors import InputError, unknown_name
from vlmsafe.evaluation.protocols import protocol
from vlmsafe.report.request import check_entries
from vlmsafe.runs.layout import STUDY_FILE
from vlmsafe.signals.scorers.registry import parse_scorer
from vlmsafe.studies.arms import OVERRIDES, read_arms, read_named_overrides, read_overrides
from vlmsafe.studies.document import NAME, Place, StudyFile, read_document, shown
from vlmsafe.studies.patterns import chosen_arms, compared_arms
from vlmsafe.studies.study import EpisodeRequest, Overrides, Study

_FOLDER = resources.files("vlmsafe.studies") / "definitions"
_ENTRIES = (
    "name", "question", "paper", "environments", *OVERRIDES, "arms", "protocols", "traces", "comparisons",
    "correction", "contrasts", "looks", "tables", "figures", "independent", "scale", "scorer",
)  # fmt: skip
_TRACE_ONLY = ("scorers", "prompts", "every", "frames")
_TRACE = tuple(entry.name for entry in fields(EpisodeRequest))
_EVALUATION = tuple(name for name in _TRACE if name not in _TRACE_ONLY)


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


def parse_study(text: str, source: str, *, recorded: bool = False) -> Study:
    """The study in a YAML text; errors name `source`, the line and the entry.

    `recorded` is for the text in a study's folder: its runs may be of other versions of their environments.
    """
    document, file = read_document(text, source)
    file.mapping(document, (), _ENTRIES)
    for needed in ("name", "question", "environments", "arms"):
        if needed not in document:
            raise InputError(
                f"{source}: there is no '{needed}'; a study has at least name, question, environments, arms"
            )
    name, question = document["name"], document["question"]
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise file.wrong(("name",), f"the name is {shown(name)}; expected letters, digits, dots and dashes")
    if not isinstance(question, str) or not question.strip():
        raise file.wrong(("question",), "the question is not a text; expected one sentence")
    if not isinstance(document.get("independent", False), bool):
        raise file.wrong(("independent",), "'independent' must be true or false")
    environments = _environments(document["environments"], file)
    placed = read_arms(document["arms"], file, environments)
    arms = tuple(arm for arm, _ in placed.values())
    names = list(placed)
    document = _without_patterns(document, names, file)
    study = Study(
        name=name,
        question=" ".join(question.split()),
        environments=environments,
        arms=arms,
        base=read_overrides({key: document[key] for key in OVERRIDES if key in document}, (), file),
        paper=file.texts(document.get("paper", []), ("paper",)),
        protocols=_requests(document.get("protocols", []), "protocols", file, environments, names),
        traces=_requests(document.get("traces", []), "traces", file, environments, names),
        claims=_claims(document, file),
        looks=_looks(document, file),
        tables=_entries(document, "tables", names, file),
        figures=_entries(document, "figures", names, file),
        independent=document.get("independent", False),
        document={key: value for key, value in document.items() if key not in ("scale", "scorer")},
    )
    _check_cells(study, {name: place for name, (_, place) in placed.items()}, file, recorded)
    if study.claims.contrasts:
        planned = [(env, arm.name) for env in environments for arm in arms if arm.in_environment(env) is not None]
        try:
            check_cells(study.claims.contrasts, planned)
        except InputError as error:
            raise file.wrong(("contrasts",), str(error)) from None
    return study.varied(*_variation(document, file))


def _environments(value: Any, file: StudyFile) -> dict[str, Overrides]:
    found = read_named_overrides(value, ("environments",), file)
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


def _requests(
    value: Any, kind: str, file: StudyFile, environments: Mapping[str, Overrides], arms: Sequence[str]
) -> tuple[EpisodeRequest, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise file.wrong((kind,), f"'{kind}' is {shown(value)}; expected a list of protocols")
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
            for name in request.environments:
                if name not in environments:
                    raise unknown_name("environment of the study", name, environments)
            found.append(replace(request, arms=chosen_arms(request.arms, arms)))
        except InputError as error:
            raise file.wrong(place, str(error)) from None
    return tuple(found)


def _without_patterns(document: Mapping[str, Any], arms: Sequence[str], file: StudyFile) -> Mapping[str, Any]:
    """The document with a comparison for every pair of arms that its patterns name.

    So the comparisons that a study records, and the claims that the audit reads, name arms.
    """
    entries = document.get("comparisons")
    if not isinstance(entries, Sequence) or isinstance(entries, str):
        return document
    found: list[Any] = []
    for index, entry in enumerate(entries):
        try:
            found += compared_arms(entry, arms) if isinstance(entry, Mapping) else [entry]
        except InputError as error:
            raise file.wrong(("comparisons", index), str(error)) from None
    return {**document, "comparisons": found}


def _claims(document: Mapping[str, Any], file: StudyFile) -> Claims:
    stated = next((key for key in ("comparisons", "contrasts") if key in document), None)
    if stated is None:
        return Claims()
    claims = {"comparisons": [], **{key: document[key] for key in ENTRIES if key in document}}
    return claims_of(claims, f"{file.source}, line {file.lines[stated,]}")


def _looks(document: Mapping[str, Any], file: StudyFile) -> Looks:
    if "looks" not in document:
        return ONE_LOOK
    try:
        return looks_of(document["looks"])
    except InputError as error:
        raise file.wrong(("looks",), str(error)) from None


def _entries(document: Mapping[str, Any], key: str, arms: Sequence[str], file: StudyFile) -> tuple[Any, ...]:
    """Entries of the report, with the arms that their patterns name."""
    value = document.get(key, [])
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise file.wrong((key,), f"'{key}' is {shown(value)}; expected a list")
    found = []
    for index, entry in enumerate(value):
        try:
            entry = _with_arms(entry, arms)
            check_entries(*(([entry], []) if key == "tables" else ([], [entry])))
        except InputError as error:
            raise file.wrong((key, index), str(error)) from None
        found.append(entry)
    return tuple(found)


def _with_arms(entry: Any, arms: Sequence[str]) -> Any:
    """An entry of the report with the arms that it names; what is not a list of names is left to `check_entries`."""
    if not isinstance(entry, Mapping):
        return entry

    def chosen(names: Any) -> Any:
        names = [names] if isinstance(names, str) else names
        named = isinstance(names, Sequence) and all(isinstance(name, str) for name in names)
        return list(chosen_arms(names, arms)) if named else names

    changed = {"arms": chosen(entry["arms"])} if "arms" in entry else {}
    if isinstance(entry.get("windows"), Mapping):
        chosen(list(entry["windows"]))
    if isinstance(entry.get("pool"), Mapping):
        changed["pool"] = {name: chosen(members) for name, members in entry["pool"].items()}
    return {**entry, **changed}


def _check_cells(study: Study, places: Mapping[str, Place], file: StudyFile, recorded: bool) -> None:
    """Check that every run is possible. An error now names the arm; an error in the middle of a study costs days."""
    for arm in study.arms:
        for env, own in study.environments.items():
            overrides = arm.in_environment(env)
            if overrides is not None and not overrides.over(own.over(study.base)).seeds:
                raise file.wrong(places[arm.name], f"the arm '{arm.name}' has no seeds on {env}; give 'seeds'")
        try:
            runs = replace(study, arms=(arm,)).expand(Path("runs"), recorded=recorded)
        except InputError as error:
            raise file.wrong(places[arm.name], str(error)) from None
        if not runs:
            raise file.wrong(places[arm.name], f"the arm '{arm.name}' has no runs")
        for spec in runs:
            for kind, requests in (("protocols", spec.evaluations), ("traces", spec.traces)):
                names = [request.protocol for request in requests]
                twice = next((name for name in names if names.count(name) > 1), None)
                if twice is not None:
                    raise file.wrong(
                        (kind,),
                        f"'{twice}' is requested twice for {spec.arm} on {spec.env}, but a run has one file of it",
                    )


def _variation(document: Mapping[str, Any], file: StudyFile) -> tuple[float, str | None]:
    scale, scorer = document.get("scale", 1.0), document.get("scorer")
    if isinstance(scale, bool) or not isinstance(scale, int | float):
        raise file.wrong(("scale",), f"'scale' is {shown(scale)}; expected a number above 0 and at most 1")
    if scorer is not None and not isinstance(scorer, str):
        raise file.wrong(("scorer",), f"'scorer' is {shown(scorer)}; expected the name of a scorer")
    return float(scale), scorer
