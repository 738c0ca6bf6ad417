"""The measured server of media: the product, with one file in place of the media of jobs.

`python -m bench.media_server FILE STORE_URL DATA_DIR` prints the URL of the file and ends with its standard input.
"""

import asyncio
import sys
import time
from pathlib import Path

import uvloop

from chargehand.app import Server
from chargehand.collector import calm_collector
from chargehand.config import load_config
from chargehand.doors.provisioning.media.serving import MediaServer
from chargehand.doors.provisioning.media.source import MediaSource
from chargehand.doors.provisioning.media.urls import MediaUrls
from chargehand.observability.logs import configure_logs


def whole(path: Path) -> MediaSource:
    size = path.stat().st_size
    return MediaSource(size, '"bench"', [(path, 0, size)])


async def main(file: str, store_url: str, data_dir: str) -> None:
    config = load_config(
        environ={},
        overrides={
            "server.listen": "127.0.0.1:0",
            "server.data_dir": data_dir,
            "store.url": store_url,
            "log.level": "error",
            "inference.embedded": "off",
        },
    )
    configure_logs(config.log.level, "json")
    server = await Server.open(config)
    path = Path(file)
    source = whole(path)

    async def find(_job_id: str, _name: str) -> MediaSource:
        return source

    urls = MediaUrls(b"bench", lambda: server.url, lambda: time.time_ns() // 1000)
    await server.start(extra_routes=MediaServer(urls, find, lambda *_: None).routes())
    calm_collector()
    print(urls.url("bench", path.name, 3600), flush=True)
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))
