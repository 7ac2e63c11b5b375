"""A small finished run, and the ways in which it can be changed."""

import dataclasses
import hashlib
import json

import vlmsafe
from vlmsafe.runs.checkpoint import load_checkpoint, path_of, save_checkpoint

EPOCHS = 6
SMALL = {
    "env": "speeding", "total_steps": 200 * EPOCHS, "steps_per_epoch": 200, "learner": {"update_iters": 2}, "seed": 3,
    "quiet": True,
}  # fmt: skip


def make_run(path, **settings):
    return vlmsafe.train(**{**SMALL, **settings}, run_dir=path)


def edit_rows(run, name, change):
    """Apply a function to the list of rows of a row file, and write what it leaves."""
    path = run.path / f"{name}.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    change(rows)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def change_checkpoint(run, epoch, arrays=None, values=None):
    """Replace some of what a checkpoint holds. Its checksum fits the new content."""
    old = load_checkpoint(path_of(run.checkpoints, epoch))
    new = dataclasses.replace(old, arrays=old.arrays | (arrays or {}), values=old.values | (values or {}))
    save_checkpoint(run.checkpoints, new, keep=100)


def without_digests(run):
    """The run as version 0.1.0 would have written it."""
    edit_rows(run, "epochs", lambda rows: [row.pop("digest") for row in rows])


def tree_digest(folder):
    """A digest of the names, contents and times of all files in a folder."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        digest.update(f"{path.relative_to(folder)} {path.stat().st_mtime_ns}".encode())
        digest.update(path.read_bytes() if path.is_file() else b"")
    return digest.hexdigest()
