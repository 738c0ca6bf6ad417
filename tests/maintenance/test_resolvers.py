"""DNS servers from the network's configuration."""

from pathlib import Path

import pytest

from provision.places import Places
from provision.resolvers import FILE, STATE, keep_resolvers


@pytest.mark.parametrize(
    ("state", "written"),
    [
        (
            "OPER_STATE=routable\nDNS=10.0.2.3 fe80::3%eth0#dns.example.com\nDOMAINS=example.com lab.example.com\n",
            "nameserver 10.0.2.3\nnameserver fe80::3%eth0\nsearch example.com lab.example.com\n",
        ),
        ("DNS=1.1.1.1 2.2.2.2 3.3.3.3 4.4.4.4\n", "nameserver 1.1.1.1\nnameserver 2.2.2.2\nnameserver 3.3.3.3\n"),
        ("OPER_STATE=routable\n", ""),
    ],
)
def test_the_dns_servers_of_the_network_are_written_to_resolv_conf(tmp_path: Path, state: str, written: str) -> None:
    places = Places(tmp_path)
    for path, text in ((STATE, state), (FILE, "of an earlier run\n")):
        places.at(path).parent.mkdir(parents=True)
        places.at(path).write_text(text)
    keep_resolvers(places)
    assert places.at(FILE).read_text() == written


def test_without_dns_servers_nothing_is_changed(tmp_path: Path) -> None:
    places = Places(tmp_path)
    keep_resolvers(places)
    assert not places.at(FILE).exists()
