"""Build the wheel, install it in a clean environment, and run one task through it: `python tests/wheel_trial.py`.

Not a test for pytest: it needs a package index, and it must see nothing of this checkout.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
NO_SOURCE = (".*", "build", "*.egg-info", "__pycache__")
AGENT = """
from relight import Run, agent, step

@step(effect="read")
def count(words: str) -> int:
    return len(words.split())

@agent(risk="low")
def counter(run: Run, prompt: str) -> int:
    return count(prompt)
"""


def main() -> None:
    """Do it in a temporary folder; raise where anything is not as it should be."""
    with tempfile.TemporaryDirectory(prefix="relight-wheel-") as folder:
        result = run_a_task(installed(Path(folder)), Path(folder))
    if result != 3:
        raise SystemExit(f"the installed wheel gave {result!r}, not 3")
    print("the wheel runs a task in a clean environment")


def installed(folder: Path) -> Path:
    """The folder of the programs of a clean environment that has the wheel."""
    source = shutil.copytree(
        ROOT, folder / "source", symlinks=True, ignore=shutil.ignore_patterns(*NO_SOURCE)
    )
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    subprocess.run(
        [*pip, "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", folder, source], check=True
    )
    (wheel,) = folder.glob("relight-*.whl")
    venv.create(folder / "venv", with_pip=True)
    programs = folder / "venv" / "bin"
    install = [programs / "python", "-m", "pip", "--disable-pip-version-check", "install", "-q"]
    subprocess.run([*install, "-c", ROOT / "constraints.txt", wheel], check=True)
    return programs


def run_a_task(programs: Path, folder: Path) -> Any:
    """Enqueue a task, let a worker run it, and return its result."""
    (folder / "counting.py").write_text(AGENT, encoding="utf-8")
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "RELIGHT_", "COV"))
    }
    env = {**clean, "RELIGHT_HOME": str(folder / "home"), "RELIGHT_APP": "counting.py"}
    worker = subprocess.Popen([programs / "relight", "worker", "all"], env=env, cwd=folder)
    try:
        task = asked(programs, folder, env, "enqueue", "counter", "one two three")
        return asked(programs, folder, env, "wait", task["id"], "--timeout", "30")["result"]
    finally:
        worker.terminate()
        if worker.wait(30) != 0:
            raise SystemExit(f"the worker ended with {worker.returncode}")


def asked(programs: Path, folder: Path, env: dict[str, str], *args: str) -> Any:
    """What the installed command line answers."""
    done = subprocess.run(
        [programs / "relight", "--json", *args],
        env=env,
        cwd=folder,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return json.loads(done.stdout)


if __name__ == "__main__":
    main()
