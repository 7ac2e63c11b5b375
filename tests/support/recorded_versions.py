"""What a run recorded about its code when it began, changed afterwards."""

from pathlib import Path
from typing import Any

import yaml


def edit_recorded(path: Path, **changes: Any) -> None:
    """Change `recorded` in the config.yaml of a run; None removes an entry."""
    config = path / "config.yaml"
    document = yaml.safe_load(config.read_text())
    recorded = {**document["recorded"], **changes}
    document["recorded"] = {name: value for name, value in recorded.items() if value is not None}
    config.write_text(yaml.safe_dump(document, sort_keys=False))
