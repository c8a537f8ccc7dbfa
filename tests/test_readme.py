"""What the README promises: two commands to begin with, an example that runs, commands that exist, and no dead link."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from workbench.cli import build_parser
from workbench.matching import MATCHERS
from workbench.matching.fields import which_matcher

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)


def commands(block: str) -> list[str]:
    return [line for line in block.splitlines() if line.strip() and not line.lstrip().startswith("#")]


def test_the_first_block_is_exactly_two_commands():
    start, check = commands(BLOCKS[0][1])
    assert start.endswith("workbench serve")
    assert check.endswith("pytest")
    for line in (start, check):
        assert line.startswith("pip install -e "), "each line sets up everything on a fresh machine"


def test_the_python_example_is_short_and_runs(tmp_path):
    (example,) = [body for language, body in BLOCKS if language == "python"]
    assert len([line for line in example.splitlines() if line.strip()]) <= 12
    done = subprocess.run([sys.executable, "-c", example], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    naive, aligned = (float(re.search(rf"^{name}\D*(\d+\.\d+)", done.stdout, re.MULTILINE)[1]) for name in ("naive", "aligned"))
    assert 0 <= aligned < naive / 3, done.stdout


def shell_lines() -> list[str]:
    return [line for language, body in BLOCKS[1:] if language in {"sh", "bash", "console"} for line in commands(body)]


@pytest.mark.parametrize("line", shell_lines())
def test_every_command_shown_is_understood(line):
    words = shlex.split(line, comments=True)
    assert words[0] == "workbench", "the README shows workbench commands, and pytest can read no others"
    build_parser().parse_args(words[1:])


def test_a_command_that_does_not_exist_would_be_noticed(capsys):
    with pytest.raises(SystemExit):
        build_parser().parse_args(shlex.split("compare A B --no-such-option"))


def test_links_and_pictures_point_to_files():
    targets = re.findall(r"\]\(([^)#\s]+)\)", README)
    assert targets
    missing = [target for target in targets if "://" not in target and not (ROOT / target).exists()]
    assert not missing


def table_lines(text: str) -> list[str]:
    """The lines of the table "which matcher?" in a README."""
    return [line for line in text.splitlines() if line.startswith("| `")]


def test_the_table_of_matchers_is_what_the_registry_says():
    expected = []
    for line in which_matcher():
        kind, _, number = line.reference.partition(":")
        paper = f"[{kind} {number}](https://arxiv.org/abs/{number})" if kind == "arXiv" else line.reference
        expected.append(" ".join(f"| `{line.name}` | {line.summary} | {line.data} | {paper} |".split()))
    assert table_lines(README) == expected, "paste these lines into the README:\n" + "\n".join(expected)


def test_a_line_that_is_missing_or_stale_would_be_noticed():
    known = {line.name for line in which_matcher()}
    assert known == set(MATCHERS)
    lines = table_lines(README)
    assert table_lines(README.replace(lines[0] + "\n", "")) == lines[1:]
    assert table_lines(README.replace("| none |", "| labelled examples |")) != lines
