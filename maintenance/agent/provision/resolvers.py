"""Write the DNS servers of the network's configuration to /etc/resolv.conf.

We run no resolver of our own: starting one takes as long as all the rest of the network.
"""

from provision.journal import say
from provision.places import Places

STATE = "/run/systemd/netif/state"
FILE = "/etc/resolv.conf"
MOST = 3  # the C library uses no more


def keep_resolvers(places: Places) -> None:
    try:
        text = places.at(STATE).read_text(errors="replace")
    except OSError:
        return
    said = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    # A server may be followed by the name in its certificate, which only systemd-resolved uses.
    servers = [each.partition("#")[0] for each in said.get("DNS", "").split()]
    lines = [f"nameserver {each}" for each in servers[:MOST]]
    if domains := said.get("DOMAINS", "").split():
        lines.append(f"search {' '.join(domains)}")
    try:
        places.at(FILE).write_text("".join(f"{line}\n" for line in lines))
    except OSError as error:
        say(f"{FILE} cannot be written, names will not be found: {error.strerror}")
