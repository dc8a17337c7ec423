"""The documents tell the truth: what they show exists, runs, and is what the code says now."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from docs import cli as cli_page
from docs import diagram, spec_status
from relight.workers.cli.door import VERBS
from relight.workers.settings import SETTINGS
from tests.conftest import ROOT, Cli, StartWorker, environment

README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
]
QUICKSTART = ROOT / "examples" / "quickstart.py"


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 200


def test_the_example_in_the_readme_is_the_file() -> None:
    (shown,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert shown == QUICKSTART.read_text(encoding="utf-8")


def test_the_commands_of_make_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = {
        name
        for page in PAGES
        for name in re.findall(r"(?:^    |`)make ([a-z]+)", page.read_text(encoding="utf-8"))
    }
    assert {"demo", "test"} <= named & targets
    assert named <= targets


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_verb_that_a_page_shows_exists(page: Path) -> None:
    """In code, `relight` is followed by options and then by a verb."""
    assert _shown_verbs(page.read_text(encoding="utf-8")) <= set(VERBS)


def test_every_verb_is_shown_somewhere() -> None:
    shown = set().union(*(_shown_verbs(page.read_text(encoding="utf-8")) for page in PAGES))
    assert set(VERBS) - shown == set()


def test_every_setting_is_explained() -> None:
    operations = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    assert [one.name for one in SETTINGS if f"`{one.name}` | `{one.variable}`" not in operations] == []


def test_the_diagram_of_moves_is_fresh() -> None:
    page = diagram.PAGE.read_text(encoding="utf-8")
    assert diagram.with_moves(page) == page, "write it anew with: python -m docs.diagram"


def test_the_reference_of_the_command_line_is_fresh() -> None:
    page = cli_page.PAGE.read_text(encoding="utf-8")
    assert cli_page.reference() == page, "write it anew with: python -m docs.cli"


def test_the_table_of_what_is_shown_is_fresh() -> None:
    page = spec_status.PAGE.read_text(encoding="utf-8")
    assert spec_status.page() == page, "write it anew with: python -m docs.spec_status"


def test_the_table_knows_every_row_and_every_mark_names_one() -> None:
    marks = spec_status.marked(sorted((ROOT / "tests").rglob("test_*.py")))
    assert len(spec_status.ROWS) == len(set(spec_status.ROWS)) == 108
    assert set(marks) <= set(range(1, 109))


def test_marks_are_read_from_functions_classes_and_modules(tmp_path: Path) -> None:
    file = tmp_path / "test_marks.py"
    file.write_text(
        "import pytest\npytestmark = [pytest.mark.spec(1), pytest.mark.slow]\n"
        "@pytest.mark.spec(2, 3)\ndef test_a(): ...\n"
        "@pytest.mark.spec(4)\nclass TestMore:\n    async def test_b(self): ...\n    def other(self): ...\n",
        encoding="utf-8",
    )
    found = {row: [name for _, name in tests] for row, tests in spec_status.marked([file]).items()}
    assert found == {1: ["test_a", "test_b"], 2: ["test_a"], 3: ["test_a"], 4: ["test_b"]}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_inside_the_repository_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8"))
    broken = [link for link in links if "://" not in link and not _leads_somewhere(page, link)]
    assert broken == []


def test_the_example_runs_end_to_end(tmp_path: Path, home: Path, start_worker: StartWorker) -> None:
    """As the README says: a worker for the file, then the file itself."""
    file = shutil.copy(QUICKSTART, tmp_path)
    start_worker(home, file, "all")
    done = subprocess.run(
        [sys.executable, file],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
        env=environment(),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    task_id, words = done.stdout.split()
    assert (tmp_path / "words.txt").read_text() == f"Words\n{words:>7} {file}"
    assert int(words) == len(QUICKSTART.read_text(encoding="utf-8").split())
    assert task_id.count("-") == 4


def test_the_shell_commands_of_the_readme_run(home: Path, cli: Cli, start_worker: StartWorker) -> None:
    """The task that the README enqueues from the shell, and the verbs it then shows."""
    (line,) = re.findall(r"^    relight (-A \S+ enqueue .*)$", README, re.MULTILINE)
    words = shlex.split(line)
    words[1], words[-1] = str(ROOT / words[1]), json.dumps({"roots": [str(ROOT / "examples")]})
    start_worker(home, words[1], "all")
    task_id = json.loads(cli("--json", *words).stdout)["id"]
    assert cli("wait", task_id, "--timeout", "30").returncode == 0
    assert [cli(verb, task_id).returncode for verb in ("show", "events", "trace", "result")] == [0, 0, 0, 0]
    assert cli("confirmations").returncode == 0


def _shown_verbs(text: str) -> set[str]:
    option = r"(?:\s+(?:-A|--app|--home)\s+\S+|\s+--json)"
    return set(re.findall(rf"(?<!from )\brelight{option}*[ ]+([a-z]+)\b", text))


def _leads_somewhere(page: Path, link: str) -> bool:
    path, _, anchor = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    return target.exists() and (not anchor or anchor in _anchors(target))


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
