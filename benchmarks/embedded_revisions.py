"""Compare weights of the embedded scorer on the held-out recordings of a build (see docs/explanation/benchmarks.md).

git show REVISION:src/vlmsafe/signals/scorers/embedded/weights.safetensors > earlier.safetensors
python benchmarks/embedded_revisions.py .embedded earlier.safetensors .embedded/weights.safetensors
"""

import sys
from pathlib import Path

import numpy as np

from vlmsafe.distillation.data import read, world
from vlmsafe.distillation.scores import HAZARDOUS, SETS, margins, rank_auc, selection_figures
from vlmsafe.signals.prompts import load_prompts
from vlmsafe.signals.scorers.embedded import revision_of
from vlmsafe.signals.scorers.embedded.network import load

WORLDS = ("bullet-car-reach", "formula-one-l2:fast+sighted", "formula-one-l2:sighted", "metadrive-easy")


def main(directory: Path, weights: list[Path]) -> None:
    files: dict[str, list[Path]] = {}
    for path in sorted((directory / "held-out").glob("*.npz")):
        with np.load(path) as held:
            env = str(held["env"])
        if env in WORLDS:
            files.setdefault(world(env), []).append(path)
    print("| world | stacks | revision | lead | safe | hazardous | danger | contact |\n" + "|---" * 8 + "|")
    for name, paths in files.items():
        examples = read(paths)
        for path in weights:
            model = load(path)
            told = selection_figures(model, examples)["worlds"][name]
            danger = -margins(model, examples, load_prompts(SETS[name]))
            figures = [
                *(told[key] for key in ("lead", "safe", "hazardous")),
                rank_auc(danger, examples.fact("danger") >= HAZARDOUS),
                rank_auc(danger, examples.contact),
            ]
            shown = " | ".join(f"{figure:.3f}" for figure in figures)
            print(f"| {name} | {len(examples):,} | `{revision_of(path)}` | {shown} |", flush=True)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("expected the directory of a build and files with weights; see the first lines of this file")
    main(Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]])
