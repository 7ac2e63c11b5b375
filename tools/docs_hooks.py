"""Hooks of mkdocs: pages and tables that come from the code, and formulas as MathML.

Generated pages are never written to `docs/`. In a page, `<!-- generated: NAME -->` is replaced by the table NAME.
"""

from __future__ import annotations

import ast
import dataclasses
import html
import io
import posixpath
import re
import sys
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import Any
from unittest import mock

from latex2mathml.converter import convert
from markdown import Markdown
from markdown.extensions import Extension
from markdown.preprocessors import Preprocessor

ROOT = Path(__file__).resolve().parent.parent
SCORERS = ROOT / "src" / "vlmsafe" / "signals" / "scorers"
DRIVERS = ROOT / "src" / "vlmsafe" / "drivers"
MARKER = re.compile(r"<!-- generated: ([a-z-]+) -->")
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)
SUBCOMMANDS = {
    "study": ("list", "show", "plan", "run", "status", "report", "verify"),
    "prompts": ("", "show", "bench"),
    "methods": ("", "diff"),
    "published": ("", "show", "compare"),
    "embedded": ("distil", "build"),
}


class Doctests(Preprocessor):
    """Examples in docstrings as code: Markdown would take `>>>` for a quotation."""

    def run(self, lines: list[str]) -> list[str]:
        found: list[str] = []
        inside = False
        for line in lines:
            if not inside and line.lstrip().startswith(">>>"):
                found.append("```pycon")
                inside = True
            elif inside and not line.strip():
                found.append("```")
                inside = False
            found.append(line.split("  # doctest:")[0] if inside else line)
        return [*found, "```"] if inside else found


class DoctestExtension(Extension):
    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802 - the name that Markdown calls
        md.preprocessors.register(Doctests(md), "doctests", 60)  # before fenced code is read


def on_config(config: Any) -> Any:
    config.markdown_extensions.append(DoctestExtension())
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are made from the code."""
    from mkdocs.structure.files import File

    pages: dict[str, Callable[[], str]] = {
        "reference/cli.md": cli_page,
        "reference/findings.md": findings_page,
        "reference/settings.md": settings_page,
        "reference/embedded-scorer.md": embedded_page,
        "reference/drivers.md": drivers_page,
        "changelog.md": (ROOT / "CHANGELOG.md").read_text,
    }
    for name, make in pages.items():
        files.append(File.generated(config, name, content=make()))
    for name in sorted(path.parent.name for path in DRIVERS.glob("*/card.yaml")):
        picture = DRIVERS / name / "episodes.png"
        files.append(File.generated(config, f"images/driver-{name}.png", abs_src_path=str(picture)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Put generated tables where a page asks for them."""
    return MARKER.sub(lambda found: TABLES[found[1]](), markdown)


def on_page_content(content: str, page: Any, config: Any, files: Any) -> str:
    """Formulas as MathML: every current browser draws it without a script or a font."""

    def formula(found: re.Match[str]) -> str:
        return convert(html.unescape(found[3]).strip(), display="inline" if found[1] == "span" else "block")

    return FORMULA.sub(formula, content)


def on_post_page(output: str, page: Any, config: Any) -> str:
    return _own_search(output, posixpath.dirname(page.file.dest_uri))


def on_post_template(output: str, template_name: str, config: Any) -> str:
    return _own_search(output, "")


def _own_search(output: str, folder: str) -> str:
    """The theme would fetch a script for searching pages that are opened from disk; the site has its own."""
    path = posixpath.relpath("assets/offline-search.js", folder or ".")
    return output.replace("https://unpkg.com/iframe-worker/shim", path)


def embedded_page() -> str:
    """The card of the embedded scorer, with a warning about worlds that have changed since it was made."""
    from vlmsafe.envs.registry import ENVS
    from vlmsafe.signals.scorers.embedded import trained_in

    title, rest = (SCORERS / "embedded" / "card.md").read_text().split("\n", 1)
    changed = [
        f"    - `{name}`: version {then} in the card, now version {ENVS[name].version}"
        + (f"; version {then} is now `{ENVS[name].formerly[then]}`" if then in ENVS[name].formerly else "")
        for name, then in trained_in(SCORERS / "embedded" / "weights.safetensors").items()
        if ENVS[name].version != then
    ]
    if not changed:
        return f"{title}\n{rest}"
    said = (
        "These worlds have changed since the scorer was trained and measured. The figures are of the world of before."
    )
    return "\n".join([title, "", "!!! warning", f"    {said}", "", *changed, rest])


def drivers_page() -> str:
    """Every shipped driver: how well it drives, and its card."""
    from vlmsafe.cli.drivers import success
    from vlmsafe.runs.drivers import drivers

    rows, cards = [], []
    for name, driver in drivers().items():
        card = driver.card
        figures, steps, hours = card["held_out"]["figures"], card["steps"], card["hours"]
        cost = "{mean:.2f} [{low:.2f}, {high:.2f}]".format(**figures["cost"])
        took = "-" if hours is None else f"{hours:g}"
        rows.append(
            f"| [`{name}`](#{name}) | `{card['env']['name']}` | `{card['method']}` | {steps:,} | {took} | "
            f"{success(figures)} | {cost} |"
        )
        text = (driver.path / "card.yaml").read_text(encoding="utf-8")
        alt = f"Frames of three held-out episodes of {name}, one episode a row"
        cards.append(f"## {name}\n\n{card['summary']}\n\n![{alt}](../images/driver-{name}.png)\n\n```yaml\n{text}```")
    return "\n\n".join(
        [
            "# The shipped drivers",
            "[Use a trained driver](../guides/drivers.md) says what they are for. This page is generated from their "
            "cards, which `tools/make_drivers.py` writes. Success and cost are means of deterministic episodes on "
            "held-out scenarios; brackets are 95 % intervals.",
            "\n".join(
                [
                    "| driver | world | method | steps | hours | success | cost |",
                    "|---|---|---|--:|--:|--:|--:|",
                    *rows,
                ]
            ),
            *cards,
        ]
    )


def cli_page() -> str:
    """Every command with its options, as `--help` prints them."""
    from vlmsafe.cli import VERBS

    parts = [
        "# Command line",
        "This page is generated from the commands' own help. Run `vlmsafe COMMAND --help` to see the same.",
    ]
    for verb, (_, summary) in VERBS.items():
        parts.append(f"## vlmsafe {verb}\n\n{summary[0].upper()}{summary[1:]}.")
        for sub in SUBCOMMANDS.get(verb, ("",)):
            words = [verb, *([sub] if sub else []), "--help"]
            title = f"### vlmsafe {verb} {sub}\n\n" if sub else ""
            parts.append(f"{title}```text\n{help_text(words)}\n```")
    return "\n\n".join(parts) + "\n"


def help_text(words: list[str]) -> str:
    """What a command prints when it is asked for help, without colours."""
    from vlmsafe.cli import main, terminal

    with io.StringIO() as printed:
        # Options are wrapped at the width of the terminal; the page has its own.
        with (
            mock.patch.dict("os.environ", {"COLUMNS": "82", "NO_COLOR": "1", "TERM": "dumb"}),
            redirect_stdout(printed),
        ):
            terminal.out.file = sys.stdout
            with suppress(SystemExit):
                main(words)
            terminal.out.file = None
        text = printed.getvalue()
    return re.sub(r"\x1b\[[0-9;]*m", "", text).strip()


def settings_page() -> str:
    """Every setting of a run: name, default, meaning."""
    import tyro._docstrings as docstrings

    from vlmsafe.config.settings import TrainConfig

    rows: list[str] = []

    def add(kind: Any, prefix: str) -> None:
        for field in dataclasses.fields(kind):
            default = field.default
            if default is dataclasses.MISSING:
                default = field.default_factory() if field.default_factory is not dataclasses.MISSING else None
            if dataclasses.is_dataclass(default):
                add(type(default), f"{prefix}{field.name}.")
                continue
            meaning = html.escape(
                " ".join((docstrings.get_field_docstring(kind, field.name, ()) or "").split()), quote=False
            )
            shown = "" if default is None else f"`{default}`"
            rows.append(f"| `{prefix}{field.name}` | {shown} | {meaning.replace('|', chr(92) + '|')} |")

    add(TrainConfig, "")
    return "\n".join(
        [
            "# Settings",
            "",
            "Every setting is an option of `vlmsafe train` (`--learner.gamma 0.95`), a key of a YAML file (`--config`) "
            "and a keyword of `vlmsafe.train`. The defaults below are those of the method `ppo-lag`; a method may set "
            "others, and `vlmsafe methods diff A B` lists the differences.",
            "",
            "| setting | default | meaning |",
            "|---|---|---|",
            *rows,
            "",
        ]
    )


def findings_page() -> str:
    """Every finding of the audit."""
    from vlmsafe.audit.kinds import KINDS

    rows = [f"| `{kind.code}` | {kind.severity} | {kind.meaning} | {kind.remedy} |" for kind in KINDS.values()]
    return "\n".join(
        [
            "# Audit findings",
            "",
            "`vlmsafe audit RUNS` reports the findings below. [What the audit checks](../explanation/audit.md) "
            "explains the reasons behind them.",
            "",
            "| finding | severity | what it means | what to do |",
            "|---|---|---|---|",
            *rows,
            "",
        ]
    )


def paper_table() -> str:
    """Each table and figure of the paper, with the study and the command that make it."""
    from vlmsafe.paper.published import labels
    from vlmsafe.studies.schema import load_study, shipped_studies

    makers = {name: load_study(name).paper for name in shipped_studies()}
    rows = []
    for label, entry in labels().items():
        names = [name for name, made in makers.items() if label in made]
        commands = [entry.command] if entry.command else [f"vlmsafe study report {name}" for name in names]
        code = (", ".join(f"`{word}`" for word in words) for words in (names, commands))
        rows.append(f"| `{label}` | {entry.about} | {' | '.join(code)} |")
    return "\n".join(["| label | what it is | study | command |", "|---|---|---|---|", *rows])


def rooms() -> str:
    """Every room with its modules, in the order of imports, from their docstrings."""
    source = ROOT / "src" / "vlmsafe"
    order = re.search(r"ROOMS = \((.*?)\)", (ROOT / "tests" / "test_rooms.py").read_text(encoding="utf-8"), re.DOTALL)
    assert order is not None
    parts = []
    for name in re.findall(r'"(\w+)"', order[1]):
        folder = source / name
        if not folder.is_dir():
            parts.append(f"### `{name}.py`\n\n{_summary(folder.with_suffix('.py'))}")
            continue
        paths = sorted(path for path in folder.rglob("*.py") if path.name != "__init__.py")
        rows = [f"| `{path.relative_to(folder)}` | {_summary(path)} |" for path in paths]
        head = f"### `{name}/`\n\n{_summary(folder / '__init__.py')}"
        parts.append("\n".join([head, "", "| module | what it holds |", "|---|---|", *rows]))
    return "\n\n".join(parts)


def _summary(path: Path) -> str:
    """The first sentence of a module's docstring."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return html.escape(" ".join(text.split("\n\n")[0].split()), quote=False).replace("|", "\\|")


TABLES: dict[str, Callable[[], str]] = {"paper-labels": paper_table, "rooms": rooms}
