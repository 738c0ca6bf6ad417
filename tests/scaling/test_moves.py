"""The protocol of docs/scaling.md holds whatever dies when, and each of its rules is needed."""

import re
from collections import Counter
from pathlib import Path

import pytest

from tests.scaling.placement import TenantMap, home_by_hash
from tests.scaling.protocol import Rules
from tests.scaling.simulation import Broken, Simulation

PAGE = (Path(__file__).parents[2] / "docs/scaling.md").read_text()
SEEDS = range(200)
CLUSTERS = ("one", "two", "three", "four")
MANY = [f"tenant-{number}" for number in range(10_000)]
WITHOUT = {
    "marks": "clusters do not look whether they have the tenant",
    "freeze": "rows are copied while others change them",
    "verify": "the move is decided before the copy is verified",
    "decide_once": "a second mover decides anew",
    "numbers": "a mover that is late is not refused",
    "floor": "a node with an old list of clusters makes new tenants",
}


def test_nothing_is_lost_granted_twice_or_served_in_two_places_and_every_move_ends() -> None:
    seen: Counter[str] = Counter()
    for seed in SEEDS:
        simulation = Simulation(seed)
        try:
            simulation.run()
        except Broken as broken:
            raise AssertionError(f"seed {seed}: {broken}") from broken
        seen += simulation.seen
    # A run in which little happens would prove little.
    least = {
        "a job was acknowledged": 1_000,
        "a job was finished": 1_000,
        "a tenant was moved": 600,
        "a move was taken back": 400,
        "a cluster was added": 150,
        "a node was refused": 5_000,
        "a node had an old map": 800,
        "an answer was lost": 400,
        "rows were lost on the way": 15,
        "a database stopped to answer": 1_000,
    }
    assert {what: seen[what] for what, count in least.items() if seen[what] < count} == {}


@pytest.mark.parametrize("rule", WITHOUT, ids=WITHOUT.values())
def test_the_checker_finds_what_goes_wrong_if(rule: str) -> None:
    for seed in SEEDS:
        try:
            Simulation(seed, Rules(**{rule: False})).run()
        except Broken:
            return
    raise AssertionError("nothing goes wrong: the rule is not needed, or not checked")


def test_a_cluster_that_is_added_takes_its_share_and_nothing_moves_between_the_others() -> None:
    before = {tenant: home_by_hash(tenant, CLUSTERS) for tenant in MANY}
    after = {tenant: home_by_hash(tenant, (*CLUSTERS, "five")) for tenant in MANY}
    moved = [tenant for tenant in MANY if before[tenant] != after[tenant]]
    assert {after[tenant] for tenant in moved} == {"five"}
    by_remainder = sum(number % 4 != number % 5 for number in range(len(MANY)))
    [shown] = re.findall(r"of 10,000 tenants, ([\d,]+) move .* would move ([\d,]+)", PAGE.replace("\n", " "))
    assert shown == (f"{len(moved):,}", f"{by_remainder:,}")
    sizes = Counter(after.values())
    [shown] = re.findall(r"between ([\d,]+) and ([\d,]+) tenants", PAGE.replace("\n", " "))
    assert shown == (f"{min(sizes.values()):,}", f"{max(sizes.values()):,}")


def test_the_map_names_only_tenants_that_are_not_where_the_hash_says() -> None:
    known = MANY[:100]
    before = TenantMap(clusters=CLUSTERS)
    after = before.with_cluster("five", known)
    assert [after.home(tenant) for tenant in known] == [before.home(tenant) for tenant in known]
    assert after.exceptions.keys() == {tenant for tenant in known if home_by_hash(tenant, after.clusters) == "five"}
    for tenant in list(after.exceptions):
        after = after.with_home(tenant, "five")
    assert not after.exceptions


def test_the_page_names_every_rule_that_can_be_left_out() -> None:
    assert [rule for rule in WITHOUT if f"`{rule}`" not in PAGE] == []
