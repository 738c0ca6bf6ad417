"""Random recipes: valid ones are accepted, and every problem of a broken one points into the document."""

import copy
import json
from typing import Any

import yaml  # type: ignore[import-untyped]
from hypothesis import given, settings
from hypothesis import strategies as st

from chargehand.doors.provisioning.media.contents import recipe_files
from chargehand.doors.provisioning.recipe.payloads import aliases, searchable
from chargehand.doors.provisioning.recipe.recipe import check, judge
from chargehand.doors.provisioning.recipe.schema import FIELDS, problems
from chargehand.doors.provisioning.refusals import ProvisioningRefused

Document = dict[str, Any]

text = st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), max_size=40)
words = st.from_regex(r"[a-z0-9]{1,12}", fullmatch=True)
sizes = st.builds("{}{}{}".format, st.integers(1, 500), st.sampled_from("MG"), st.sampled_from(["", "iB"]))
payloads = text.filter(lambda value: "&" not in value) | st.builds(lambda value: {"content": value}, words)
payloads |= st.sampled_from([{"base64": "AAECAw=="}, {"base64": ""}])
hints = {
    "serial": text.filter(bool),
    "wwn": st.from_regex(r"0x[0-9a-f]{16}", fullmatch=True),
    "path": st.just("/dev/disk/by-path/pci-0000:00:17.0-ata-1"),
    "model": text.filter(bool),
    "rotational": st.booleans(),
    "min_size": sizes,
}
disks = st.sampled_from(["/dev/sda", "/dev/nvme0n1", "/dev/disk/by-id/wwn-0x5000"]) | st.fixed_dictionaries(
    {}, optional=hints
).filter(bool)
images = st.builds("{}.example:{}/{}/{}:{}".format, words, st.integers(1, 65535), words, words, words)
common = {
    "schema_version": st.sampled_from(["1", "1.0", "1.12"]),
    "notes": text,
    "on_success": st.sampled_from(["reboot", "power-off", "leave"]),
    "on_failure": st.sampled_from(["reboot", "power-off", "leave"]),
    "timeout_minutes": st.integers(1, 1440),
}
env = st.dictionaries(st.from_regex(r"USER_[A-Z0-9_]{1,64}", fullmatch=True), text, max_size=5)


@st.composite
def layouts(draw: st.DrawFn) -> list[Document]:
    boot: list[Document] = [
        {"size": "1M", "type_guid": "ef02", "format": "none"},
        {"size": "512M", "type_guid": "EF00", "format": "vfat", "mountpoint": "/boot/efi", "bootable": True},
    ]
    between: list[Document] = [
        {"size": draw(sizes), "type_guid": "8300", "format": draw(st.sampled_from(["ext4", "xfs", "btrfs", "none"]))}
        for _ in range(draw(st.integers(0, 5)))
    ]
    swap: list[Document] = [{"size": draw(sizes), "type_guid": "8200", "format": "swap"}] * draw(st.integers(0, 1))
    root: Document = {"size": draw(sizes | st.just("100%")), "type_guid": "8304", "format": "ext4", "mountpoint": "/"}
    chosen = draw(st.sampled_from([boot[:1], boot[1:], boot])) + between + swap + [root]
    return [{**part, "label": f"p{index}"} if draw(st.booleans()) else dict(part) for index, part in enumerate(chosen)]


linux = st.fixed_dictionaries(
    {
        "task_target": st.just("install-linux.target"),
        "wipe": st.just(True),
        "target_disk": disks,
        "oci_url": images,
        "partition_layout": layouts(),
    },
    optional={
        **common,
        "image_format": st.just("rootfs-tar"),
        "hostname": words,
        "user_data": payloads,
        "meta_data": payloads,
        "network_config": payloads,
        "env": env,
    },
)
esxi = st.fixed_dictionaries(
    {
        "task_target": st.just("install-esxi.target"),
        "wipe": st.just(True),
        "installer_iso": words.map("{}.iso".format),
        "ks_cfg": payloads,
    },
    optional=common,
)
update = st.fixed_dictionaries(
    {
        "task_target": st.just("supermicro-update.target"),
        "firmware_url": words.map("https://{}.example/fw.zip".format),
        "env": env.map(lambda given: {**given, "USER_FIRMWARE_SHA256": "0" * 64}),
    },
    optional=common,
)
recipes = linux | esxi | update

junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=80),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=80), children, max_size=3),
    max_leaves=6,
)


@given(recipes)
@settings(max_examples=60)
def test_a_random_valid_recipe_is_accepted_and_its_file_on_the_medium_fits_the_schema(document: Document) -> None:
    recipe = check(json.dumps(document).encode())
    assert recipe.plain == document
    on_medium = json.loads(recipe_files(recipe, "job")["recipe.json"])
    assert list(problems(on_medium)) == []
    shown = judge(json.dumps(document).encode()).plain
    for name in recipe.secrets:
        if name in document:
            assert set(shown[name]) == {"redacted", "bytes"}


def places(value: Any) -> list[tuple[Any, Any]]:
    """Return every (parent, key) in the document."""
    members = (
        list(value.items()) if isinstance(value, dict) else list(enumerate(value)) if isinstance(value, list) else []
    )
    return [(value, key) for key, _ in members] + [place for _, member in members for place in places(member)]


def refusal(body: bytes) -> ProvisioningRefused | None:
    try:
        check(body)
    except ProvisioningRefused as error:
        return error
    return None


def resolves(document: Any, path: str) -> bool:
    for segment in path.split("/")[1:]:
        name = segment.replace("~1", "/").replace("~0", "~")
        try:
            document = document[int(name)] if isinstance(document, list) else document[name]
        except (LookupError, TypeError, ValueError):
            return False
    return True


@given(recipes, st.data())
@settings(max_examples=150)
def test_every_problem_of_a_randomly_broken_recipe_points_into_the_document(
    document: Document, data: st.DataObject
) -> None:
    document = copy.deepcopy(document)  # strategies return the same objects again
    for _ in range(data.draw(st.integers(1, 3))):
        parent, key = data.draw(st.sampled_from(places(document)))
        change = data.draw(st.sampled_from(["replace", "remove", "add"]))
        if change == "replace":
            parent[key] = data.draw(junk)
        elif change == "remove":
            del parent[key]
        elif isinstance(parent, dict):
            parent[data.draw(st.text(max_size=80) | st.sampled_from(sorted(FIELDS)))] = data.draw(junk)
        if not document:
            break
    error = refusal(json.dumps(document).encode())
    if error is None:
        return
    assert error.key == "validation.schema"
    assert 1 <= len(error.details) <= 50
    for detail in error.details:
        path = detail.path.rpartition("/")[0] if detail.code == "required" else detail.path
        assert resolves(document, path), detail
        assert detail.code.isidentifier()
        assert detail.message


@given(st.binary(max_size=200) | junk.map(lambda value: json.dumps(value).encode()))
@settings(max_examples=150)
def test_random_bytes_are_refused_and_raise_nothing_else(body: bytes) -> None:
    error = refusal(body)
    assert error is not None
    assert error.http_status == 400


pieces = ["&a ", "*a ", "&b ", "*b ", "*a", "&a", "*a:", "- ", "a: ", "? ", "[", "]", "{", "}", ", ", "b", "1", '"b":']
pieces += ["\n", "\n  ", "\n- ", "\nb: ", "\n---\n", "|\n ", ">\n ", "'", '"', "# ", "!t ", "%", "\t"]


@given(st.lists(st.sampled_from(pieces), max_size=14).map("".join))
@settings(max_examples=400)
def test_no_alias_that_a_yaml_parser_finds_is_missed(document: str) -> None:
    try:
        yaml.compose(document)
        seen = sum(isinstance(event, yaml.AliasEvent) for event in yaml.parse(document))
    except yaml.YAMLError:
        return
    assert aliases(searchable(document)) >= seen


def test_the_count_and_a_yaml_parser_both_find_aliases() -> None:
    document = "a: &x [1]\nb: [*x, *x]\nc: {*x : 1}\n"
    assert (
        aliases(searchable(document)) == sum(isinstance(event, yaml.AliasEvent) for event in yaml.parse(document)) == 3
    )
