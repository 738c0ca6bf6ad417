"""Who lacks a program of the cluster is told which, and which package has it."""

from pathlib import Path

import pytest

from . import programs


def test_what_is_not_installed_is_named_with_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(programs, "DEBIAN", tmp_path)
    (tmp_path / "etcd").touch(mode=0o755)
    assert programs.missing() == "not installed: patroni, postgres (on Debian: apt install patroni postgresql)"


def test_nothing_is_said_of_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(programs, "DEBIAN", tmp_path)
    for name in ("etcd", "patroni", "postgres"):
        (tmp_path / name).touch(mode=0o755)
    assert programs.missing() == ""


def test_the_newest_of_several_versions_of_postgresql_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "DEBIAN", tmp_path)
    for version in ("9", "15", "17"):
        (tmp_path / version / "bin").mkdir(parents=True)
        (tmp_path / version / "bin" / "postgres").touch(mode=0o755)
    assert programs.postgres_folder() == tmp_path / "17" / "bin"
