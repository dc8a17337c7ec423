"""The policy file: there with its directory, for its owner alone, and never replaced."""

from __future__ import annotations

from pathlib import Path

import pytest

from relight.recovery.policy import PolicyFault, RecoveryPolicy
from relight.workers import policy_file


def test_the_policy_that_ships_is_valid_and_for_its_owner_alone(tmp_path: Path) -> None:
    file = policy_file.create(tmp_path)
    assert file.stat().st_mode & 0o777 == 0o600
    assert isinstance(policy_file.load(tmp_path), RecoveryPolicy)


def test_an_existing_policy_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text("broken", encoding="utf-8")
    policy_file.create(tmp_path)
    assert (tmp_path / "policy.toml").read_text(encoding="utf-8") == "broken"


@pytest.mark.parametrize("content", [None, b"", b"version =", b"\xff\xfe", b"version = 9"])
def test_a_policy_that_cannot_be_followed_is_a_fault_that_names_its_path(
    tmp_path: Path, content: bytes | None
) -> None:
    if content is not None:
        (tmp_path / "policy.toml").write_bytes(content)
    fault = policy_file.load(tmp_path)
    assert isinstance(fault, PolicyFault)
    assert str(tmp_path / "policy.toml") in str(fault)


def test_a_policy_that_is_a_folder_is_a_fault(tmp_path: Path) -> None:
    (tmp_path / "policy.toml").mkdir()
    assert "unreadable" in str(policy_file.load(tmp_path))
