"""The decision about a task that lost its worker: every combination of facts, in the order of the rules."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from relight.models.tasks import TaskStatus
from relight.recovery.decision import NO_TRACES, Decision, Facts, Verdict, back_off_ms, decide, suspect_from
from relight.recovery.policy import PolicyFault, RecoveryPolicy

SHIPPED = RecoveryPolicy("/p/policy.toml", "resume", "ask", frozenset())
EXEMPTING = RecoveryPolicy("/p/policy.toml", "resume", "ask", frozenset({"fixer"}))
ASKING = RecoveryPolicy("/p/policy.toml", "ask", "ask", frozenset())
FAULT = PolicyFault("/p/policy.toml", "missing")
POLICIES: list[RecoveryPolicy | PolicyFault] = [SHIPPED, EXEMPTING, ASKING, FAULT]
RISKS = ["low", "high", "lo", "LOW", "", "High ", None]
FACTS = Facts(status="running", risk_text="low", agent_id="fixer", trace_count=3)

EVERYTHING: list[tuple[Facts, RecoveryPolicy | PolicyFault]] = [
    (Facts(status, risk, agent, traces, losses, doubt, suspect), policy)
    for status, risk, agent, traces, losses, doubt, suspect, policy in itertools.product(
        ["running", "interrupted"],
        RISKS,
        ["fixer", "other"],
        [0, 1, 50],
        [0, 1, 2, 3, 4],
        [(), ("a#0",), ("a#0", "b#0")],
        [None, "a#0"],
        POLICIES,
    )
]


def verdict(facts: Facts, policy: RecoveryPolicy | PolicyFault) -> Verdict:
    return decide(facts, policy, max_losses=3).verdict


def test_every_combination_follows_the_order_of_the_rules() -> None:
    for facts, policy in EVERYTHING:
        assert verdict(facts, policy) is expected(facts, policy), (facts, policy)


def expected(facts: Facts, policy: RecoveryPolicy | PolicyFault) -> Verdict:
    rules = [
        (facts.trace_count == 0, Verdict.SKIP),
        (facts.losses >= 3, Verdict.QUARANTINE),
        (policy is FAULT or facts.risk_text not in ("low", "high"), Verdict.ASK),
        (facts.in_doubt_writes != (), Verdict.ASK),
        (facts.risk_text == "high" and not (policy is EXEMPTING and facts.agent_id == "fixer"), Verdict.ASK),
        (facts.risk_text == "low" and policy is ASKING, Verdict.ASK),
        (True, Verdict.RESUME),
    ]
    return next(answer for applies, answer in rules if applies)


def test_nothing_resumes_by_itself_but_low_risk_and_the_exempted() -> None:
    resumed = [(facts, policy) for facts, policy in EVERYTHING if verdict(facts, policy) is Verdict.RESUME]
    for facts, policy in resumed:
        assert isinstance(policy, RecoveryPolicy)
        assert facts.risk_text == "low" or (facts.risk_text == "high" and facts.agent_id in policy.exempt)
        assert facts.in_doubt_writes == ()
        assert facts.losses < 3
    assert resumed


def test_every_decision_gives_a_reason() -> None:
    assert all(decide(facts, policy, max_losses=3).reason for facts, policy in EVERYTHING)


def test_without_traces_the_reason_is_the_agreed_one() -> None:
    found = decide(replace(FACTS, trace_count=0), FAULT, max_losses=3)
    assert found == Decision(Verdict.SKIP, NO_TRACES)
    assert NO_TRACES == "no execution traces available"


@pytest.mark.parametrize("risk", ["lo", "", None, "LOW"], ids=repr)
def test_an_unknown_risk_asks_and_its_reason_names_the_stored_value(risk: str | None) -> None:
    found = decide(replace(FACTS, risk_text=risk), SHIPPED, max_losses=3)
    assert found.verdict is Verdict.ASK
    assert repr(risk) in found.reason


def test_a_broken_policy_asks_and_its_reason_names_the_file_and_the_cause() -> None:
    found = decide(FACTS, FAULT, max_losses=3)
    assert found == Decision(Verdict.ASK, "policy /p/policy.toml: missing")


def test_a_step_in_doubt_asks_even_for_an_exempted_agent_and_is_named() -> None:
    found = decide(
        replace(FACTS, risk_text="high", in_doubt_writes=("send#0", "pay#1")), EXEMPTING, max_losses=3
    )
    assert found.verdict is Verdict.ASK
    assert "send#0, pay#1" in found.reason


def test_a_task_that_keeps_taking_its_worker_down_is_given_up_at_the_configured_loss() -> None:
    for limit in (1, 2, 3, 7):
        verdicts = [
            decide(replace(FACTS, losses=n), SHIPPED, max_losses=limit).verdict for n in range(limit + 1)
        ]
        assert verdicts == [Verdict.RESUME] * limit + [Verdict.QUARANTINE]


def test_the_reason_of_a_quarantine_names_the_suspect_step_and_the_losses() -> None:
    found = decide(replace(FACTS, losses=3, suspect_step="parse#4"), SHIPPED, max_losses=3)
    assert "parse#4" in found.reason
    assert "3 times" in found.reason
    assert "no step open" in decide(replace(FACTS, losses=3), SHIPPED, max_losses=3).reason


def test_a_task_waits_longer_after_each_loss_in_a_row_and_never_after_the_first() -> None:
    assert [back_off_ms(losses) for losses in range(10)] == [
        *(0, 0, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000)
    ]
    assert back_off_ms(2**63) == 60_000
    found = decide(replace(FACTS, losses=3), SHIPPED, max_losses=9)
    assert (found.verdict, found.wait_ms) == (Verdict.RESUME, 2_000)
    assert "3 times in a row" in found.reason


def test_a_suspect_is_a_task_for_which_one_more_loss_is_the_last() -> None:
    assert [suspect_from(limit) for limit in (1, 2, 3, 7)] == [1, 1, 2, 6]


def test_a_task_that_was_put_down_by_a_shutdown_goes_on_at_once() -> None:
    assert decide(replace(FACTS, losses=3, lost=False), SHIPPED, max_losses=9).wait_ms == 0


def test_a_shutdown_is_no_loss_whatever_the_limit() -> None:
    assert decide(replace(FACTS, status="interrupted"), SHIPPED, max_losses=0).verdict is Verdict.RESUME


@pytest.mark.parametrize("status", [status for status in TaskStatus if not status.is_recoverable()])
def test_a_task_that_recovery_must_not_touch_is_refused(status: TaskStatus) -> None:
    with pytest.raises(ValueError, match=status):
        decide(replace(FACTS, status=status), SHIPPED, max_losses=3)
