"""The policy file: only one that is there, whole and fully understood allows anything."""

from __future__ import annotations

import subprocess
import sys

import pytest

from relight.recovery import policy
from relight.recovery.policy import DEFAULT_TEXT, PolicyFault, RecoveryPolicy
from tests.conftest import ROOT

PATH = "/state/policy.toml"
GOOD = """
version = 1
[recovery]
low = "resume"
high = "ask"
exempt = []
"""


def test_the_shipped_file_resumes_low_and_asks_about_high() -> None:
    assert policy.parse(DEFAULT_TEXT, path=PATH) == RecoveryPolicy(PATH, "resume", "ask", frozenset())


def test_every_key_of_the_shipped_file_is_explained() -> None:
    lines = DEFAULT_TEXT.splitlines()
    for key in ("version", "low", "high", "exempt"):
        [position] = [number for number, line in enumerate(lines) if line.startswith(f"{key} =")]
        assert lines[position - 1].startswith("# ")


def test_an_operator_may_ask_always_and_exempt_named_agents() -> None:
    text = GOOD.replace('"resume"', '"ask"').replace("[]", '["fixer", "pkg.other-agent"]')
    assert policy.parse(text, path=PATH) == RecoveryPolicy(
        PATH, "ask", "ask", frozenset({"fixer", "pkg.other-agent"})
    )


@pytest.mark.parametrize("end", ["\n", "\r\n"], ids=["unix", "windows"])
def test_line_ends_do_not_matter(end: str) -> None:
    assert isinstance(policy.parse(GOOD.replace("\n", end), path=PATH), RecoveryPolicy)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (None, "missing or unreadable"),
        ("", "version is missing"),
        ("version = 1", "recovery is missing"),
        (GOOD.replace("version = 1", ""), "version is missing"),
        (GOOD.replace("version = 1", "version = 2"), "version is 2"),
        (GOOD.replace("version = 1", 'version = "1"'), "version is '1'"),
        (GOOD.replace("version = 1", "version = true"), "version is True"),
        (GOOD.replace("version = 1", "version = 1.0"), "version is 1.0"),
        (GOOD.replace("[recovery]", "[recovry]"), "recovry is unknown"),
        (GOOD.replace('low = "resume"', ""), "recovery.low is missing"),
        (GOOD.replace('high = "ask"', ""), "recovery.high is missing"),
        (GOOD.replace("exempt = []", ""), "recovery.exempt is missing"),
        (GOOD.replace('"resume"', '"Resume"'), "recovery.low is 'Resume'"),
        (GOOD.replace('"resume"', "true"), "recovery.low is True"),
        (GOOD.replace('high = "ask"', 'high = "resume"'), "recovery.high is 'resume'"),
        (GOOD.replace("[]", '"fixer"'), "recovery.exempt is 'fixer'"),
        (GOOD.replace("[]", "[1]"), "recovery.exempt.0 is 1"),
        (GOOD.replace("[]", '["*"]'), "recovery.exempt.0 is '*'"),
        (GOOD.replace("[]", '[""]'), "recovery.exempt.0 is ''"),
        ("version = 1\nrecovery = 5", "recovery is 5"),
        (GOOD.replace('"resume"', "['resume']"), "recovery.low is ['resume']"),
        (GOOD.replace('"resume"', "{x = 1}").replace("[]", "[[]]"), "recovery.exempt.0 is []"),
        (GOOD.replace("[]", '["a\\n"]'), "recovery.exempt.0 is"),
        (GOOD + 'mode = "fast"', "recovery.mode is unknown"),
        (GOOD + "[more]\nx = 1", "more is unknown"),
        (GOOD + 'low = "ask"', "not valid TOML"),
        (GOOD[:-20], "not valid TOML"),
        (GOOD[: GOOD.index("high")], "recovery.high is missing"),
        ("\ufeff" + GOOD, "not valid TOML"),
        ("\x00" * 40, "not valid TOML"),
        ("just text", "not valid TOML"),
    ],
    ids=str,
)
def test_anything_else_is_a_fault_that_names_the_file_and_the_cause(text: str | None, named: str) -> None:
    fault = policy.parse(text, path=PATH)
    assert isinstance(fault, PolicyFault)
    assert named in fault.reason
    assert str(fault) == f"policy {PATH}: {fault.reason}"


def test_the_cause_of_an_unreadable_file_is_told() -> None:
    assert policy.parse(None, path=PATH, cause="permission denied") == PolicyFault(PATH, "permission denied")


def test_reading_a_policy_does_not_load_pydantic() -> None:
    read = (
        f"from relight.recovery import policy; policy.parse({GOOD!r}, path='p'); policy.parse('', path='p')"
    )
    script = f"import sys; {read}; assert 'pydantic' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True, env={"PYTHONPATH": str(ROOT)})
