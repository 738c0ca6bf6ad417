"""Which servers know names: what the network's configuration was told of them, written where every program looks.

There is no resolver of our own: one that starts takes as long as all the rest of the network.
"""

from provision.journal import say
from provision.places import Places

STATE = "/run/systemd/netif/state"
FILE = "/etc/resolv.conf"
MOST = 3  # more are not looked at


def keep_resolvers(places: Places) -> None:
    try:
        text = places.at(STATE).read_text(errors="replace")
    except OSError:
        return
    said = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    # A server may be followed by the name that its certificate has, which only a resolver of systemd's looks at.
    servers = [each.partition("#")[0] for each in said.get("DNS", "").split()]
    lines = [f"nameserver {each}" for each in servers[:MOST]]
    if domains := said.get("DOMAINS", "").split():
        lines.append(f"search {' '.join(domains)}")
    try:
        places.at(FILE).write_text("".join(f"{line}\n" for line in lines))
    except OSError as error:
        say(f"{FILE} cannot be written, names will not be found: {error.strerror}")
