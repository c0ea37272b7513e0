"""Mechanisms of the cores taken out, one at a time: a seed must find it, or the simulation sleeps."""

from __future__ import annotations

import ast

import pytest
from mutation import Mutation, replace
from mutations import MUTATIONS
from simulate import BUDGET, find

pytestmark = pytest.mark.timeout(600)


def check_found(mutation: Mutation) -> None:
    assert find(mutation) is not None, f"{mutation} breaks no promise in {BUDGET} seeds"


def of_rule(rule: int) -> list[Mutation]:
    found = [mutation for mutation in MUTATIONS if mutation.rule == rule]
    assert found
    return found


@pytest.mark.parametrize("mutation", [each for each in MUTATIONS if not each.rule], ids=str)
def test_a_mutation_is_found(mutation: Mutation) -> None:
    check_found(mutation)


@pytest.mark.parametrize("mutation", of_rule(1), ids=str)
def test_rule_1_a_ddl_span_in_no_minimum_is_found(mutation: Mutation) -> None:
    check_found(mutation)


@pytest.mark.parametrize("mutation", of_rule(2), ids=str)
def test_rule_2_reports_that_count_for_another_assignment_or_too_early_is_found(mutation: Mutation) -> None:
    check_found(mutation)


@pytest.mark.parametrize("mutation", of_rule(3), ids=str)
def test_rule_3_a_plan_that_runs_on_half_of_its_rows_is_found(mutation: Mutation) -> None:
    check_found(mutation)


@pytest.mark.parametrize("mutation", of_rule(4), ids=str)
def test_rule_4_a_row_that_is_written_as_often_as_it_comes_is_found(mutation: Mutation) -> None:
    check_found(mutation)


@pytest.mark.parametrize("mutation", of_rule(5), ids=str)
def test_rule_5_folding_that_frees_a_number_is_found(mutation: Mutation) -> None:
    check_found(mutation)


@pytest.mark.parametrize("mutation", of_rule(6), ids=str)
def test_rule_6_two_drivers_that_share_a_record_is_found(mutation: Mutation) -> None:
    check_found(mutation)


@pytest.mark.parametrize("mutation", of_rule(8), ids=str)
def test_rule_8_metadata_that_goes_back_is_found(mutation: Mutation) -> None:
    check_found(mutation)


@pytest.mark.parametrize("mutation", of_rule(9), ids=str)
def test_rule_9_a_ddl_that_comes_too_early_is_found(mutation: Mutation) -> None:
    check_found(mutation)


@pytest.mark.parametrize("mutation", of_rule(10), ids=str)
def test_rule_10_a_plan_under_another_config_is_found(mutation: Mutation) -> None:
    check_found(mutation)


@pytest.mark.parametrize("mutation", of_rule(11), ids=str)
def test_rule_11_a_checkpoint_that_is_not_reached_is_found(mutation: Mutation) -> None:
    check_found(mutation)


@pytest.mark.parametrize("mutation", of_rule(14), ids=str)
def test_rule_14_history_that_counts_unasked_is_found(mutation: Mutation) -> None:
    check_found(mutation)


@pytest.mark.parametrize("mutation", of_rule(15), ids=str)
def test_rule_15_a_date_of_todays_clock_is_found(mutation: Mutation) -> None:
    check_found(mutation)


@pytest.mark.parametrize("mutation", of_rule(16), ids=str)
def test_rule_16_an_unknown_outcome_taken_for_success_is_found(mutation: Mutation) -> None:
    check_found(mutation)


@pytest.mark.parametrize("mutation", of_rule(17), ids=str)
def test_rule_17_a_store_that_holds_nobody_back_or_the_lowest_is_found(mutation: Mutation) -> None:
    check_found(mutation)


@pytest.mark.parametrize("mutation", of_rule(18), ids=str)
def test_rule_18_a_commit_that_decides_its_own_key_only_is_found(mutation: Mutation) -> None:
    check_found(mutation)


@pytest.mark.parametrize("mutation", of_rule(20), ids=str)
def test_rule_20_a_message_of_another_plan_that_counts_is_found(mutation: Mutation) -> None:
    check_found(mutation)


@pytest.mark.parametrize("mutation", of_rule(21), ids=str)
def test_rule_21_a_driver_that_cleans_anothers_house_is_found(mutation: Mutation) -> None:
    check_found(mutation)


@pytest.mark.parametrize("mutation", of_rule(24), ids=str)
def test_rule_24_a_target_that_is_no_barrier_is_found(mutation: Mutation) -> None:
    check_found(mutation)


@pytest.mark.parametrize("mutation", of_rule(25), ids=str)
def test_rule_25_entries_that_are_written_out_of_order_are_found(mutation: Mutation) -> None:
    check_found(mutation)


@pytest.mark.parametrize(
    ("old", "new", "found", "now"),
    [
        ("f(x, 'a')", "g(x)", 1, "if not g(x):\n    return h(y=1)"),  # however it is written
        ("x", "z", 1, "if not f(z, 'a'):\n    return h(y=1)"),
        ("x", "", 1, "if not f('a'):\n    return h(y=1)"),
        ("y=1", "y=2", 1, "if not f(x, 'a'):\n    return h(y=2)"),
        ("if not f(x, 'a'):", "if True:", 1, "if True:\n    return h(y=1)"),
        ("return h(y=1)", "i = 1\nreturn i", 1, "if not f(x, 'a'):\n    i = 1\n    return i"),
        ("f(x)", "g(x)", 0, "if not f(x, 'a'):\n    return h(y=1)"),
    ],
)
def test_a_mutation_finds_its_place_by_syntax(old: str, new: str, found: int, now: str) -> None:
    tree = ast.parse('if (not f(\n    x,  # a comment\n    "a",\n)):\n    return h(y=1)')
    assert replace(tree, old, new) == found
    assert ast.unparse(tree) == now
