"""The page "Your environment, your scorer, your study": every block of it runs, in its order, in one folder."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "yours.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SMALLER = ((r"20_?000", "400"), (r"2_?000", "200"), (r"\[1, 2, 3, 4\]", "[1]"), (r"(episodes[ =:]+)20", r"\g<1>2"))


def blocks():
    """Each block: its language, the file that its first line names, and its text, with small budgets."""
    for language, text in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        for pattern, instead in SMALLER:
            text = re.sub(pattern, instead, text)
        named = re.match(r"# (\S+\.(?:py|yaml))\n", text)
        yield language, named[1] if named else None, text


@pytest.mark.slow
def test_every_block_of_the_page_runs(tmp_path):
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    made, printed = [], ""
    for language, name, text in blocks():
        if name is not None:
            (tmp_path / name).write_text(text, encoding="utf-8")
            made.append(name)
            continue
        words = ["bash", "-e", "-c", text] if language == "sh" else [sys.executable, "-c", text]
        answer = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert answer.returncode == 0, f"{text}\n{answer.stdout}\n{answer.stderr}"
        printed += answer.stdout
    assert made == ["kiln.py", "glow.py", "prompts.yaml", "kiln.yaml"]
    assert "'glow' against 'plain'" in printed
    assert "report.html" in printed
    page = (tmp_path / "runs" / "kiln" / "report.html").read_text(encoding="utf-8")
    assert not re.search(r"\bdriv(e|ing|er)", re.sub(r"<(script|style).*?</\1>", "", page, flags=re.DOTALL).lower())
