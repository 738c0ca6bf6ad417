"""A real PgBouncer in front of the tests' PostgreSQL, on a socket in a folder of its own."""

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

PORT = 6432  # part of the socket's name; nothing listens on TCP


@contextmanager
def pgbouncer(postgres_url: str, pool_mode: str, **settings: object) -> Iterator[str]:
    """Yield the URL of the same database by way of PgBouncer."""
    address, _, far = postgres_url.partition("?host=")
    # PgBouncer does not run as root, and only PostgreSQL's user can enter the folder of its socket. Ours is not below pytest's
    # folders, which nobody else can enter.
    user = Path(far).stat().st_uid
    with TemporaryDirectory(prefix="chargehand-pooler-") as name:
        os.chown(name, user, -1)
        lines = {"unix_socket_dir": name, "listen_port": PORT, "auth_type": "any", "pool_mode": pool_mode, **settings}
        config, log, socket = (Path(name, file) for file in ("pgbouncer.ini", "log", f".s.PGSQL.{PORT}"))
        config.write_text(
            f"[databases]\n* = host={far} user=postgres\n[pgbouncer]\n"
            + "\n".join(f"{key} = {value}" for key, value in lines.items())
        )
        with log.open("ab") as output:
            process = subprocess.Popen(["pgbouncer", str(config)], stdout=output, stderr=output, user=user)
        try:
            while not socket.exists():
                assert process.poll() is None, log.read_text()
                time.sleep(0.01)
            yield f"{address}?host={name}&port={PORT}"
        finally:
            process.kill()
            process.wait()
