"""The arms of a study file, and what the file sets for them: seeds, steps and settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from vlmsafe.config.methods import method
from vlmsafe.errors import InputError, unknown_name
from vlmsafe.studies.document import NAME, Place, StudyFile, read_settings
from vlmsafe.studies.matrix import combinations
from vlmsafe.studies.study import Overrides, StudyArm

OVERRIDES = ("seeds", "total_steps", "settings")
_ARM = ("method", *OVERRIDES, "environments", "matrix", "name")


def read_overrides(data: Mapping[str, Any], place: Place, file: StudyFile) -> Overrides:
    """Seeds, steps and settings; `data` has no other entries."""
    seeds = file.seeds(data["seeds"], (*place, "seeds")) if "seeds" in data else None
    steps = file.count(data["total_steps"], (*place, "total_steps")) if "total_steps" in data else None
    at = (*place, "settings")
    return Overrides(seeds, steps, read_settings(file.mapping(data.get("settings", {}), at), at, file))


def read_named_overrides(value: Any, place: Place, file: StudyFile) -> dict[str, Overrides]:
    """Environments as a list of names, or as a mapping from names to overrides."""
    if not isinstance(value, Mapping):
        names = file.texts(value, place)
        if len(set(names)) < len(names):
            raise file.wrong(place, "an environment is listed twice")
        return dict.fromkeys(names, Overrides())
    file.mapping(value, place)
    return {
        env: read_overrides(file.mapping(entry or {}, (*place, env), OVERRIDES), (*place, env), file)
        for env, entry in value.items()
    }


def read_arms(value: Any, file: StudyFile, environments: Mapping[str, Overrides]) -> dict[str, tuple[StudyArm, Place]]:
    """The arms by name, each with the place of its entry. An entry with a matrix is expanded."""
    found: dict[str, tuple[StudyArm, Place]] = {}
    for name, entry in file.mapping(value, ("arms",)).items():
        place: Place = ("arms", name)
        for arm in _expanded(_arm(name, entry, place, file, environments), entry, place, file):
            if arm.name in found:
                other = found[arm.name][1]
                raise file.wrong(place, f"'{name}' makes an arm '{arm.name}', which '{other[-1]}' makes too")
            found[arm.name] = arm, place
    if not found:
        raise file.wrong(("arms",), "there are no arms; expected at least one")
    return found


def _arm(name: str, entry: Any, place: Place, file: StudyFile, environments: Mapping[str, Overrides]) -> StudyArm:
    """The arm of an entry, without its matrix."""
    if not NAME.fullmatch(name):
        raise file.wrong(place, f"the arm's name is '{name}'; expected letters, digits, dots and dashes")
    entry = file.mapping(entry, place, _ARM)
    if not isinstance(entry.get("method"), str):
        raise file.wrong(place, f"the arm '{name}' has no 'method'; expected a name from vlmsafe methods")
    try:
        method(entry["method"])
    except InputError as error:
        raise file.wrong((*place, "method"), str(error)) from None
    own = None
    if "environments" in entry:
        own = read_named_overrides(entry["environments"], (*place, "environments"), file)
        for env in own:
            if env not in environments:
                raise file.wrong(
                    (*place, "environments", env), str(unknown_name("environment of the study", env, environments))
                )
    overrides = read_overrides({key: entry[key] for key in OVERRIDES if key in entry}, place, file)
    return StudyArm(name, entry["method"], overrides, own)


def _expanded(arm: StudyArm, entry: Mapping[str, Any], place: Place, file: StudyFile) -> list[StudyArm]:
    """The arm itself, or the arms of its matrix."""
    if "matrix" not in entry:
        if "name" in entry:
            raise file.wrong((*place, "name"), f"'{arm.name}' has a 'name' and no 'matrix'; the arm's key is its name")
        return [arm]
    places = (arm.overrides, *(arm.environments or {}).values())
    taken = [key for own in places for key in own.settings]
    made = combinations(arm.name, entry["matrix"], entry.get("name"), taken, place, file)
    return [
        replace(arm, name=name, overrides=replace(arm.overrides, settings={**arm.overrides.settings, **settings}))
        for name, settings in made.items()
    ]
