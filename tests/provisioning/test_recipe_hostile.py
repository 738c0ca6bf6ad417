"""Hostile recipes: they are refused quickly and clearly, and no message repeats their values."""

import base64
import json
import time
from pathlib import Path
from typing import Any

import pytest

from chargehand.doors.provisioning.recipe.recipe import check, judge
from chargehand.doors.provisioning.recipe.text import MAX_SHOWN
from chargehand.doors.provisioning.refusals import ProvisioningRefused, RefusalDetail

LINUX = json.loads((Path(__file__).parents[2] / "docs/examples/recipes/linux.json").read_bytes())
MIB = 1 << 20


def linux(**changes: Any) -> bytes:
    return json.dumps({**LINUX, **changes}).encode()


def refused(text: bytes) -> tuple[RefusalDetail, ...]:
    with pytest.raises(ProvisioningRefused) as caught:
        check(text)
    assert (caught.value.http_status, caught.value.key) == (400, "validation.schema")
    assert len(caught.value.message) < 2000
    return caught.value.details


HOSTILE = {
    "a string of 10 MB": (linux(user_data="a" * 10_000_000), "", "too_large"),
    "a string of 3 MB": (linux(user_data="a" * (3 * MIB)), "/user_data", "too_large"),
    "a string of 3 MB where a word is expected": (linux(hostname="a" * (3 * MIB)), "/hostname", "too_large"),
    "a name of 3 MB": (linux(**{"a" * (3 * MIB): 1}), "", "too_large"),
    "a million brackets": (b"[" * MIB, "", "too_deep"),
    "a million pairs of brackets": (b"[" + b"[]," * MIB + b"0]", "", "too_large"),
    "deep in a field": (linux(notes=json.loads("[" * 50 + "]" * 50)), "", "too_deep"),
    "a million duplicates": (b"{" + b'"a":1,' * (MIB // 2) + b'"a":1}', "", "too_large"),
    "quotes that never end": (b'{"a":"' + b'\\"' * (3 * MIB // 2), "", "syntax"),
    "a backslash at the end": (b'{"a":"\\', "", "syntax"),
    "two thousand variables with long names": (linux(env={"X" * n: 1 for n in range(2000)}), "/env", "too_large"),
    "five thousand wrong variables": (linux(env={f"x{n}": 1 for n in range(5000)}), "/env", "too_large"),
    "a hundred wrong variables": (linux(env={f"x{n}": "y" * 30_000 for n in range(120)}), "/env", "too_large"),
    "nine thousand wrong partitions": (linux(partition_layout=[1] * 9000), "/partition_layout", "too_large"),
    "nine thousand texts for partitions": (
        linux(partition_layout=["x" * 400] * 9000),
        "/partition_layout",
        "too_large",
    ),
    "64 times 64 names that are nearly right": (
        linux(partition_layout=[{f"mountpoin{n}" + "t" * 90: "y" * 700 for n in range(64)}] * 64),
        "/partition_layout/0/size",
        "required",
    ),
    "ten thousand anchors and as many aliases": (
        linux(user_data="#cloud-config\n" + "".join(f"&{n} *{n} " for n in range(60_000))),
        "/user_data",
        "yaml_aliases",
    ),
    "a number of four million digits": (b'{"wim_index":' + b"9" * (4 * MIB - 50) + b"}", "", "syntax"),
    "a number of four thousand digits": (b'{"wim_index":' + b"9" * 4000 + b"}", "/task_target", "required"),
    "an exponent beyond the range of numbers": (b'{"wim_index":1e999}', "", "syntax"),
    "NaN": (b'{"wim_index":NaN}', "", "syntax"),
    "Infinity": (b'{"wim_index":-Infinity}', "", "syntax"),
    "half of a surrogate pair": (b'{"notes":"\\ud800"}', "", "syntax"),
    "no UTF-8": (b'{"notes":"\xff"}', "", "syntax"),
    "UTF-16": (json.dumps(LINUX).encode("utf-16"), "", "syntax"),
    "a byte order mark": (b"\xef\xbb\xbf{}", "", "syntax"),
    "nothing": (b"", "", "syntax"),
    "data after the end": (b"{} {}", "", "syntax"),
    "a comment": (b"{/* */}", "", "syntax"),
}


@pytest.mark.parametrize(("text", "path", "code"), HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_text_is_refused_clearly_within_a_second(text: bytes, path: str, code: str) -> None:
    started = time.process_time()
    details = refused(text)
    assert time.process_time() - started < 1.0
    assert (path, code) in {(detail.path, detail.code) for detail in details}


def test_duplicate_members_are_reported_with_their_paths() -> None:
    text = linux().replace(b'"wipe": true', b'"wipe": true, "wipe": true')
    text = text.replace(b'"transport": "nvme"', b'"transport": "nvme", "transport": "sas"')
    assert [(detail.path, detail.code) for detail in refused(text)] == [
        ("/wipe", "duplicate"),
        ("/target_disk/transport", "duplicate"),
    ]


def test_members_are_the_same_however_their_names_are_escaped() -> None:
    text = linux(notes='{"wipe": 1, }').replace(b'"wipe": true', b'"wipe": true, "\\u0077ipe": true')
    assert {(detail.path, detail.code) for detail in refused(text)} == {("/wipe", "duplicate")}
    in_a_list = json.dumps(linux_layout()).encode().replace(b'"size": "1G"', b'"size": "1G", "size": "2G"')
    assert ("/partition_layout/1/size", "duplicate") in {(each.path, each.code) for each in refused(in_a_list)}


def linux_layout() -> dict[str, Any]:
    return {**LINUX, "partition_layout": [{"size": "512M"}, {"size": "1G"}]}


WIDE = "😀" + "é" * 10 + "x" * 100_000


@pytest.mark.parametrize("ascii_escapes", [False, True])
def test_a_long_text_is_measured_in_bytes_and_kept_as_it_is(ascii_escapes: bool) -> None:
    document = {**LINUX, "user_data": WIDE, "network_config": {"content": WIDE}, "notes": "über"}
    text = json.dumps(document, ensure_ascii=ascii_escapes).encode()
    shown = judge(text).plain
    size = len(WIDE.encode())
    assert shown["user_data"] == shown["network_config"] == {"redacted": True, "bytes": size}
    assert shown["notes"] == "über"
    assert check(text).plain == document


@pytest.mark.parametrize("ascii_escapes", [False, True])
def test_a_long_text_that_has_too_many_bytes_but_not_too_many_characters_is_refused(ascii_escapes: bool) -> None:
    text = json.dumps({**LINUX, "meta_data": "é" * 131_073}, ensure_ascii=ascii_escapes).encode()
    [detail] = refused(text)
    assert (detail.path, detail.code) == ("/meta_data", "too_large")
    assert "262146 bytes" in detail.message


@pytest.mark.parametrize("space", [" ", "\u00a0", "\u2003", "\u2028", "\u3000"])
def test_aliases_are_counted_in_a_long_text_whatever_its_names_and_spaces(space: str) -> None:
    text = f"#cloud-config\na: &ñ{space}[1]\n" + "x" * 70_000 + f"b: *ñ{space}c\n" * 40
    for value in (text, {"content": text}, {"base64": base64.b64encode(text.encode()).decode()}):
        assert ("/user_data", "yaml_aliases") in {(each.path, each.code) for each in refused(linux(user_data=value))}


@pytest.mark.parametrize(
    ("end", "place"),
    [
        ("\x1b", ""),
        ("\x00", "/content"),
        ("\x7f", ""),
        ("A", "/base64"),
        ("é===", "/base64"),
        ("QQ=\n", "/base64"),
        ("=QQQ", "/base64"),
    ],
)
def test_a_long_text_is_checked_to_its_end(end: str, place: str) -> None:
    text = "A" * 80_000
    payload = {place[1:]: text + end} if place else text + end
    assert check(linux(meta_data={place[1:]: text} if place else text))
    assert [(each.path, each.code) for each in refused(linux(meta_data=payload))] == [(f"/meta_data{place}", "pattern")]


def test_a_long_text_with_an_invalid_character_or_escape_is_refused() -> None:
    for wrong in (b"\\ud83d", b"\\u12", b"\xff", b"\xed\xa0\x80", b"\x80" * 70_000, b"\\x"):
        text = linux(user_data="é" * 70_000 + "HERE").replace(b"HERE", wrong)
        assert [detail.code for detail in refused(text)] == ["syntax"]


def bomb(levels: int, fan: int) -> str:
    lines = ["a0: &a0 [lol]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * fan)}]" for n in range(1, levels)]
    return "#cloud-config\n" + "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    "text",
    [
        bomb(9, 9),
        bomb(30, 2),
        bomb(9, 9).replace(" ", "\t"),
        bomb(9, 9).replace("\n", "\r\n"),
        "## template: jinja\n" + bomb(9, 9),
        "Content-Type: multipart/mixed; boundary=x\n\n--x\nContent-Type: text/cloud-config\n\n" + bomb(9, 9),
        "#cloud-config\n" + json.dumps({"write_files": ["'", '"', "|"]}) + bomb(9, 9),
        '#cloud-config\n{a:&a: 1,"b":[' + "*a," * 50 + "]}",
    ],
)
def test_a_yaml_bomb_is_refused(text: str) -> None:
    for value in (text, {"content": text}, {"base64": base64.b64encode(text.encode()).decode()}):
        assert [(detail.path, detail.code) for detail in refused(linux(user_data=value))] == [
            ("/user_data", "yaml_aliases")
        ]
    assert [detail.path for detail in refused(linux(network_config=text, meta_data=text))] == [
        "/meta_data",
        "/network_config",
    ]


def test_a_few_aliases_and_scripts_that_look_like_aliases_are_accepted() -> None:
    shared = "#cloud-config\nbase: &base {a: 1}\n" + "".join(f"u{n}: *base\n" for n in range(32))
    assert check(linux(user_data=shared)).plain["user_data"] == shared
    script = "#!/bin/sh\n" + "a & b *a & *b\n" * 1000  # not a cloud-config, so it is not parsed as YAML
    assert check(linux(user_data=script))
    loop = "#cloud-config\nruncmd:\n" + "- for f in *.conf /etc/*; do cp $f /tmp && sync & done; cmd 2>&1\n" * 500
    assert check(linux(user_data=loop))


SECRET = "correct-horse-battery-staple"
LONG = "v" * (MAX_SHOWN + 1)


@pytest.mark.parametrize("field", ["user_data", "meta_data", "network_config", "unattend_xml", "ks_cfg", "env"])
@pytest.mark.parametrize(
    "wrap",
    [
        lambda secret: secret + "\0",
        lambda secret: {"content": secret + "\0"},
        lambda secret: {"base64": secret},
        lambda secret: {"file": secret},
        lambda secret: [secret],
        lambda secret: {"content": "#cloud-config &a " + "*a " * 40 + secret},
        lambda secret: {"USER_A": secret + "\0", "b": secret},
    ],
)
def test_messages_never_repeat_a_secret(field: str, wrap: Any) -> None:
    with pytest.raises(ProvisioningRefused) as caught:
        check(linux(**{field: wrap(SECRET)}))
    assert SECRET not in caught.value.message
    assert SECRET not in str(caught.value.details)


@pytest.mark.parametrize("field", ["task_target", "hostname", "target_disk", "notes", "oci_url", "on_success", "wipe"])
def test_messages_never_repeat_a_long_value(field: str) -> None:
    details = refused(linux(**{field: LONG + "\0"}))
    assert details
    assert LONG not in str(details)


def test_messages_never_repeat_a_url() -> None:
    for field in ("firmware_url", "oci_url"):
        assert SECRET not in str(refused(linux(**{field: f"https://user:{SECRET}@host/x"})))


def test_messages_escape_the_control_characters_of_a_name() -> None:
    details = refused(linux(**{"a\x1b[2Jb": 1}))
    assert "\x1b" not in details[0].message
    assert "\\x1b" in details[0].message
