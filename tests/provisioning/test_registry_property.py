"""Push, tag, untag and delete in any order: a collection keeps all that a tag refers to, and all that is newer than the grace period;
after the grace period nothing else is left.

This test computes what is reachable by itself, from what was pushed and not from the disk.
"""

import asyncio
import contextlib
import tempfile
from collections.abc import Set
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from chargehand.doors.provisioning.registry.collector import Collector
from chargehand.doors.provisioning.registry.layout import LAYERS, MANIFESTS, Layout
from chargehand.doors.provisioning.registry.refusals import Code, RegistryRefused
from chargehand.doors.provisioning.registry.shelves import Shelves
from tests.conftest import Clock
from tests.provisioning.registering import CONFIG, IMAGE, INDEX, LAYER, described, digest, image, index

GRACE = 100.0
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None  # a sync is fast there
REPOSITORIES = ["a", "a/b/c"]
NAMES = st.sampled_from(REPOSITORIES)
DATA = st.sampled_from([f"blob {number}".encode() for number in range(4)])
TAGS = st.sampled_from(["", "1", "2"])
WHICH = st.integers(0, 7)  # an index into those that exist, modulo their number


def digits(data: bytes) -> str:
    return digest(data).removeprefix("sha256:")


class Collections(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(dir=MEMORY)
        self.clock = Clock()
        self.layout = Layout(Path(self.folder.name))
        shelves = Shelves(self.layout, 1 << 20, self.clock)
        _, self.blobs, self.manifests, self.uploads = shelves.of("default")
        self.collector = Collector(self.layout, shelves, grace_seconds=GRACE, upload_seconds=GRACE, now=self.clock)
        self.runner = asyncio.Runner()
        self.pushed: dict[str, bytes] = {}  # every manifest that was ever pushed
        self.tags: dict[str, dict[str, str]] = {}
        self.since: dict[tuple[str, str], int] = {}  # (repository, digest) -> when it was last pushed

    def teardown(self) -> None:
        self.runner.close()
        self.folder.cleanup()

    # requests ---------------------------------------------------------------------------------------------------------

    @rule(name=NAMES, data=DATA)
    def push(self, name: str, data: bytes) -> None:
        upload = self.uploads.begin(name)
        self.uploads.append(name, upload, 0, data)
        self.uploads.finish(name, upload, digits(data))
        self.since[name, digits(data)] = self.clock.now

    @rule(name=NAMES, data=DATA, source=NAMES)
    def mount(self, name: str, data: bytes, source: str) -> None:
        if self.blobs.mount(name, digits(data), source):
            self.since[name, digits(data)] = self.clock.now

    @rule(
        name=NAMES,
        tag=TAGS,
        data=st.lists(DATA, max_size=2),
        subject=st.none() | WHICH,
        sent=st.sampled_from([1, 1, 0]),
    )
    def put_image(self, name: str, tag: str, data: list[bytes], subject: int | None, sent: int) -> None:
        """Push the blobs first, as clients do, unless `sent` is 0; then push the manifest."""
        for each in [b"{}", *data] if sent else []:
            self.push(name, each)
        about = self.descriptors(name, [] if subject is None else [subject])
        more = {"subject": about[0]} if about else {}
        body = image(described(CONFIG, b"{}"), *[described(LAYER, each) for each in data], **more)
        self.put(name, tag, body, IMAGE)

    @rule(name=NAMES, tag=TAGS, which=st.lists(WHICH, min_size=1, max_size=3))
    def put_index(self, name: str, tag: str, which: list[int]) -> None:
        self.put(name, tag, index(*self.descriptors(name, which)), INDEX)

    @rule(name=NAMES, tag=st.sampled_from(["1", "2"]))
    def delete_tag(self, name: str, tag: str) -> None:
        with contextlib.suppress(RegistryRefused):
            self.manifests.delete(name, tag)
            self.since[name, self.tags[name].pop(tag)] = self.clock.now

    @rule(name=NAMES, which=WHICH)
    def delete_manifest(self, name: str, which: int) -> None:
        for chosen in self.descriptors(name, [which]):
            item = chosen["digest"].removeprefix("sha256:")
            self.manifests.delete(name, chosen["digest"])
            self.since.pop((name, item), None)
            self.tags[name] = {tag: to for tag, to in self.tags.get(name, {}).items() if to != item}

    @rule(name=NAMES, data=DATA)
    def delete_blob(self, name: str, data: bytes) -> None:
        with contextlib.suppress(RegistryRefused):
            self.blobs.delete(name, digits(data))
            self.since.pop((name, digits(data)), None)

    @rule(seconds=st.sampled_from([1.0, GRACE / 3, GRACE / 2, GRACE + 1]))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    # collections ------------------------------------------------------------------------------------------------------

    @rule()
    def collect(self) -> None:
        had = self.held()
        young = {item for item, when in self.since.items() if when > self.clock.now - int(GRACE * 1_000_000)}
        must = had & self.reachable(had & young)
        self.runner.run(self.collector.collect())
        assert must <= self.held() <= had
        assert all(self.layout.blob(item).exists() for _, item in must)

    @rule()
    def collect_when_the_grace_is_over(self) -> None:
        self.clock.advance(GRACE + 1)
        had, reachable = self.held(), self.reachable()
        self.runner.run(self.collector.collect())
        assert self.held() == had & reachable
        assert {path.name for path in self.layout.blobs.directory.rglob("*") if path.is_file()} <= {
            item for _, item in reachable
        }

    @invariant()
    def every_tag_leads_to_a_manifest(self) -> None:
        for name, tags in self.tags.items():
            for tag, item in tags.items():
                assert self.manifests.get(name, tag).body == self.pushed[item]

    # ------------------------------------------------------------------------------------------------------------------

    def put(self, name: str, tag: str, body: bytes, media_type: str) -> None:
        try:
            self.manifests.put(name, tag or digest(body), body, media_type)
        except RegistryRefused as refused:
            assert refused.oci_code is Code.MANIFEST_BLOB_UNKNOWN  # noqa: PT017
            return
        self.pushed[digits(body)] = body
        self.since[name, digits(body)] = self.clock.now
        if tag:
            tags = self.tags.setdefault(name, {})
            if tag in tags:
                self.since[name, tags[tag]] = self.clock.now
            tags[tag] = digits(body)

    def descriptors(self, name: str, which: list[int]) -> list[dict[str, Any]]:
        there = sorted(entry.name for entry in self.layout.digits_in(name, MANIFESTS))
        bodies = [self.pushed[there[each % len(there)]] for each in which if there]
        return [described(msgspec.json.decode(body)["mediaType"], body) for body in bodies]

    def held(self) -> set[tuple[str, str]]:
        return {
            (name, entry.name)
            for name in REPOSITORIES
            for kind in (LAYERS, MANIFESTS)
            for entry in self.layout.digits_in(name, kind)
        }

    def reachable(self, young: Set[tuple[str, str]] = frozenset()) -> set[tuple[str, str]]:
        """Repeat over all manifests until nothing more is found."""
        found = {(name, item) for name, tags in self.tags.items() for item in tags.values()} | young
        while True:
            more = set(found)
            for name, item in self.held():
                if item not in self.pushed:
                    continue
                document = msgspec.json.decode(self.pushed[item])
                subject = document.get("subject", {}).get("digest", "").removeprefix("sha256:")
                if (name, subject) in self.held() and (name, subject) in found:
                    more.add((name, item))
                if (name, item) in found:
                    listed = [document.get("config"), document.get("subject")]
                    listed += [*document.get("layers", []), *document.get("manifests", [])]
                    more |= {(name, each["digest"].removeprefix("sha256:")) for each in listed if each}
            if more == found:
                return found
            found = more


Collections.TestCase.settings = settings(
    max_examples=70,
    stateful_step_count=40,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestCollections = Collections.TestCase
