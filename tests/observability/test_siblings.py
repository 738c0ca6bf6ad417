"""The metrics of several processes in one answer."""

import socket
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from chargehand.observability.metrics import Metrics
from chargehand.observability.siblings import Siblings, joined


def test_each_sample_says_whose_it_is_and_each_family_is_there_once() -> None:
    one, two = Metrics(), Metrics()
    for _ in range(3):
        one.count_move("engine", "submit")
    two.count_move("engine", "submit")
    two.count_move('odd {}"\\ \n\u2028kind', "claim")  # a kind of its own, with all that could be mistaken for syntax
    two.count_delivery("foreman", "retry", 0.2)
    text = joined({1: one.render(), 2: two.render()}).decode()
    families = {family.name: family.samples for family in text_string_to_metric_families(text)}
    heads = [line for line in text.split("\n") if line.startswith("#")]
    assert len(heads) == len(set(heads)) == 2 * len(families)
    moves = {(s.labels["process"], s.labels["kind"], s.labels["move"]): s.value for s in families["chargehand_moves"]}
    assert moves == {
        ("1", "engine", "submit"): 3,
        ("2", "engine", "submit"): 1,
        ("2", 'odd {}"\\ \n\u2028kind', "claim"): 1,
    }
    assert {sample.labels["process"] for sample in families["chargehand_delivery_seconds"]} == {"2"}
    assert [sample.labels for sample in families["chargehand_claim_waiters"]] == [{"process": "1"}, {"process": "2"}]


async def test_a_process_that_is_away_is_left_out(tmp_path: Path) -> None:
    async def render() -> bytes:
        return b"# HELP a A\n# TYPE a gauge\na 1.0\n"

    siblings = Siblings(tmp_path, 1, 3)
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(tmp_path / "2.metrics"))  # its socket is left, and nobody listens; the third was never there
        await siblings.listen(render)
        try:
            assert await siblings.metrics() == b'# HELP a A\n# TYPE a gauge\na{process="1"} 1.0\n'
        finally:
            siblings.close()
