"""The built-in way for environments of the user's: a plan and wordings from files instead of the shipped ones.

An environment needs `facts()`, which returns measures by the names in `facts.MEASURES`. What is known of its frames
follows from them, as for the shipped environments. A file of wordings says how these facts are put there. It is laid
over the shipped wordings, so it has only what differs, such as the subject of all sentences:

    parts: {subject: "{the|our} boat"}
    predicates:
      hit_soon: ["is about to {hit|strike|ram} a rock"]
    held_out:
      hit_soon: ["the boat will strike a rock any moment"]
    prompts:
      gym:harbour:Harbour-v0: boat.yaml
    prompt_facts:
      the boat is about to hit a rock: hit_soon

`held_out` sentences are kept out of captions, for measuring. `prompts` are the sets that the model is measured with,
and `prompt_facts` say which fact a prompt describes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from vlmsafe.config.yaml import from_dict, read_yaml
from vlmsafe.distillation import grammar
from vlmsafe.distillation.build import STAGES, Stage, build
from vlmsafe.distillation.facts import FACTS
from vlmsafe.distillation.plan import AgentPlan, BuildPlan
from vlmsafe.envs.registry import env_spec
from vlmsafe.errors import InputError, unknown_name
from vlmsafe.io.files import write_atomically
from vlmsafe.signals.prompts import PromptSet, load_prompts

_BY_FACT = ("predicates", "sentences", "held_out")
_SECTIONS = ("parts", *_BY_FACT, "joined", "prompts", "prompt_facts")
_INTRODUCTION = """# Model card: an embedded scorer for {envs}

A small dual encoder that scores rendered frames against English prompts, as CLIP does. It was trained on frames of
{envs} with captions written from the measures that `facts()` gives. **It is no evidence about
CLIP or any other pretrained model, and it knows nothing of scenes elsewhere.**

"""


def build_own(
    directory: Path,
    plan: Path | None = None,
    wordings: Path | None = None,
    *,
    scale: float = 1.0,
    stages: Sequence[Stage] = STAGES,
    device: str = "auto",
    processes: int = 2,
    note: Callable[[str], None] = print,
) -> None:
    """`build` with a plan and wordings of the user's; without a file, the shipped ones are taken."""
    chosen = BuildPlan() if plan is None else read_plan(plan)
    with nullcontext() if wordings is None else grammar.using(read_wordings(wordings)):
        if plan is not None:
            for env, _ in (*chosen.training_files, *chosen.held_out_files):
                env_prompts(env)  # refused before hours of recording
        build(directory, chosen.scaled(scale), stages=stages, device=device, processes=processes, note=note)
    if plan is not None and "card" in stages:
        path = directory / "card.md"
        _, _, rest = path.read_text().partition("## Model")
        envs = " and ".join(f"`{env}`" for env, _ in chosen.training_files)
        write_atomically(path, f"{_INTRODUCTION.format(envs=envs)}## Model{rest}".encode())


def read_plan(path: Path) -> BuildPlan:
    """A plan from a YAML file. It has the fields of `BuildPlan`; files per environment may be a mapping."""
    data: dict[str, Any] = {
        name: list(value.items()) if isinstance(value, Mapping) else value for name, value in read_yaml(path).items()
    }
    shipped = BuildPlan()
    # Nothing about the shipped environments is left; amounts stay as they are.
    emptied: dict[str, Any] = {
        one.name: () for one in fields(BuildPlan) if _about_environments(getattr(shipped, one.name))
    }
    found = from_dict(data, replace(shipped, **emptied), str(path))
    for name in ("training_files", "held_out_files"):
        if not getattr(found, name):
            raise InputError(
                f"{path}: '{name}' is missing; expected how many files of 25 episodes to record per environment, such "
                f"as {name}: {{braking: 4}}"
            )
        for env, count in getattr(found, name):
            env_spec(env)
            if count < 1:
                raise InputError(f"{path}: {name} has {count} files of '{env}'; expected at least 1")
    return found


def _about_environments(value: Any) -> bool:
    first = value[0] if isinstance(value, tuple) and value else None
    return isinstance(first, AgentPlan) or (isinstance(first, tuple) and isinstance(first[0], str))


def read_wordings(path: Path) -> dict[str, Any]:
    """Wordings from a YAML file, checked."""
    found = read_yaml(path)
    for section, part in found.items():
        if section not in _SECTIONS:
            raise InputError(f"{path}: {unknown_name('section', str(section), _SECTIONS)}")
        if not isinstance(part, Mapping):
            raise InputError(f"{path}: '{section}' is {type(part).__name__}; expected entries by name")
        for name, said in part.items():
            if section in _BY_FACT:
                if name not in FACTS:
                    raise InputError(f"{path}: {unknown_name('fact', str(name), FACTS)}")
                if not isinstance(said, list) or not all(isinstance(text, str) for text in said) or not said:
                    raise InputError(f"{path}: '{section}: {name}' must be a list of sentences")
            elif section != "joined" and not isinstance(said, str):
                raise InputError(f"{path}: '{section}: {name}' must be a text")
    for fact in found.get("sentences", {}):
        if fact not in found.get("predicates", {}):
            raise InputError(f"{path}: '{fact}' has sentences and no predicates; expected both, or predicates alone")
    with grammar.using(found):
        for fact in found.get("predicates", {}):
            _check_parts(path, fact)
    texts = {text for file in found.get("prompts", {}).values() for text in load_prompts(file).texts}
    for text in found.get("prompt_facts", {}):
        if text not in texts:
            raise InputError(f"{path}: {unknown_name('prompt', text, sorted(texts))}")
    for stated in found.get("prompt_facts", {}).values():
        for fact in re.split(" and | or ", stated):
            if fact not in FACTS:
                raise InputError(f"{path}: {unknown_name('fact', fact, FACTS)}")
    return found


def _check_parts(path: Path, fact: str) -> None:
    try:
        grammar.templates(fact)
    except KeyError as error:
        raise InputError(f"{path}: <{error.args[0]}> of '{fact}' is no part; add it under parts") from None


def env_prompts(env: str) -> PromptSet:
    """The prompts that a model is measured with: those that the wordings name, else the environment's own."""
    named = grammar.own("prompts").get(env) or env_spec(env).prompts
    if named is None:
        raise InputError(
            f"'{env}' has no prompts to measure the model with; name a file under 'prompts' in a file for --wordings"
        )
    return load_prompts(str(named))
