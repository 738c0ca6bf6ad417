"""Merge the settings: defaults < file < environment < command line.

Each is validated with its origin, so that a message can name both the setting and where it was set.
"""

import os
import tomllib
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_origin

import msgspec

from chargehand.config.checking import bare, hint, problems, rules, succeeds
from chargehand.config.settings import (
    FILE_VARIABLES,
    SECTIONS,
    SETTINGS,
    VARIABLES,
    Config,
    host_and_port,
    is_loopback,
    wrap,
)
from chargehand.errors import ConfigError

_MAX_FILE_BYTES = 1024 * 1024

_DEFAULTS = "the defaults"
# Variables of the client, and those that `chargehand worker` sets for the programs that it runs.
_OF_CLIENTS = ("CHARGEHAND_URL", "CHARGEHAND_TOKEN", "CHARGEHAND_TASK_ID", "CHARGEHAND_COMMAND", "CHARGEHAND_ATTEMPT")
_NOT_SETTINGS = (*_OF_CLIENTS, "CHARGEHAND_TEST_", "CHARGEHAND_E2E_", "CHARGEHAND_CHAOS_", "CHARGEHAND_BENCH_")


class Setting(NamedTuple):
    key: str
    value: Any
    origin: str


def load_config(
    file: Path | None = None, environ: Mapping[str, str] = os.environ, overrides: Mapping[str, Any] = {}
) -> Config:
    """Return the merged settings, or raise a ConfigError that says which one is wrong and where it was set.

    An override of None counts as not given, so that a command can pass its options as they are.
    """
    given: dict[str, Setting] = {}
    for each in map(_in_full, _in_order(file, environ, overrides)):
        if problem := next(problems(each.value, SETTINGS[each.key], each.key), None):
            raise ConfigError(f"{problem} ({each.origin})")
        given[each.key] = each
    config = _assemble(given)
    for name, holds, problem in rules(config):
        if not holds:
            raise ConfigError(f"{name} {problem} ({_origins(f'{name} {problem}', given)})")
    return config


def require_safe(config: Config) -> None:
    """Raise ConfigError if the server would listen on more than loopback without authentication."""
    if config.has_auth:
        return
    for setting, listen in (("server.listen", config.server.listen), ("tasks.grpc_listen", config.tasks.grpc_listen)):
        if listen and not is_loopback(host_and_port(listen)[0]):
            raise ConfigError(
                f"{setting} is {listen}, which other machines can reach, but authentication is not configured: "
                "add a token to auth.tokens (`chargehand token` creates one), or listen on 127.0.0.1"
            )


def _origins(problem: str, given: Mapping[str, Setting]) -> str:
    # If two settings contradict each other, blame the one that was set, not the default.
    blamed = (each.origin for key, each in given.items() if key in problem and each.origin != _DEFAULTS)
    return ", ".join(dict.fromkeys(blamed))


def _in_order(file: Path | None, environ: Mapping[str, str], overrides: Mapping[str, Any]) -> Iterator[Setting]:
    yield from _in_toml(resources.files("chargehand").joinpath("config.default.toml").read_bytes(), _DEFAULTS)
    if file is not None:
        yield from _in_toml(_read(file), str(file))
    yield from _in_environ(environ)
    yield from _in_overrides(overrides)


def _in_full(given: Setting) -> Setting:
    """Expand a plain string: in place of a list of strings to that list, in an array of tables to the short form of a table."""
    kind = SETTINGS[given.key]
    item = get_args(kind)[0] if get_origin(kind) is tuple else None
    if item is not None and bare(item) is str and isinstance(given.value, str):
        return given._replace(value=[given.value] if given.value else [])
    short_form = getattr(item, "short_form", "")
    if not short_form or not isinstance(given.value, list | tuple):
        return given
    return given._replace(value=[{short_form: each} if isinstance(each, str) else each for each in given.value])


def _assemble(given: Mapping[str, Setting]) -> Config:
    sections: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
    for each in given.values():
        section, _, name = each.key.partition(".")
        sections[section][name] = each.value
    origins = {each.key: each.origin for each in given.values() if each.origin != _DEFAULTS}
    return msgspec.convert({**sections, "origins": origins}, Config, dec_hook=wrap)


def _read(file: Path, named_by: str = "") -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        where = f" ({named_by})" if named_by else ""
        raise ConfigError(f"{file}: cannot be read: {error.strerror}{where}") from error


def _in_toml(content: bytes, origin: str) -> Iterator[Setting]:
    for section, table in _decode_toml(content, origin).items():
        if section not in SECTIONS:
            raise ConfigError(f"{section} is not a section{hint(section, SECTIONS)} ({origin})")
        if not isinstance(table, dict):
            raise ConfigError(f"{section} must be a table ({origin})")
        for name, value in table.items():
            yield Setting(_known(f"{section}.{name}", origin), value, origin)


def _decode_toml(content: bytes, origin: str) -> dict[str, Any]:
    try:
        return tomllib.loads(content.decode())
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{origin}: not UTF-8 (at line {line})") from error
    except tomllib.TOMLDecodeError as error:
        # tomllib names line and column, except where the document ends too early.
        message = str(error).replace("at end of document", f"at line {len(content.splitlines())}, end of document")
        raise ConfigError(f"{origin}: not valid TOML: {message}") from error


def _in_environ(environ: Mapping[str, str]) -> Iterator[Setting]:
    for name, text in sorted(environ.items()):
        if not name.startswith("CHARGEHAND_") or name.startswith(_NOT_SETTINGS):
            continue
        if name not in VARIABLES and name in FILE_VARIABLES:
            yield _in_value_file(name, Path(text), environ)
            continue
        if name not in VARIABLES:
            raise ConfigError(f"{name} is not a setting{hint(name, VARIABLES)} (the environment)")
        key = VARIABLES[name]
        if not succeeds(str.encode, text):
            raise ConfigError(f"{key} must be UTF-8 (environment variable {name})")
        yield Setting(key, _parse(text, SETTINGS[key]), f"environment variable {name}")


def _in_value_file(name: str, file: Path, environ: Mapping[str, str]) -> Setting:
    key, origin = FILE_VARIABLES[name], f"environment variable {name}"
    if (other := name.removesuffix("_FILE")) in environ:
        raise ConfigError(f"{key} is set twice: by {other} and by {name}; set one of them")
    content = _read(file, origin)
    if len(content) > _MAX_FILE_BYTES:
        raise ConfigError(f"{key} must not exceed {_MAX_FILE_BYTES} bytes ({file}, {origin})")
    try:
        # Editors add the line break: it is not part of the secret.
        text = content.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise ConfigError(f"{key} must be UTF-8 ({file}, {origin})") from None
    return Setting(key, _parse(text, SETTINGS[key]), f"{file}, {origin}")


def _in_overrides(overrides: Mapping[str, Any]) -> Iterator[Setting]:
    for name, value in overrides.items():
        key = _known(name, "the command line")
        if isinstance(value, os.PathLike):
            value = os.fspath(value)
        if value is not None:
            yield Setting(key, _parse(value, SETTINGS[key]) if isinstance(value, str) else value, "the command line")


def _known(key: str, origin: str) -> str:
    if key not in SETTINGS:
        raise ConfigError(f"{key} is not a setting{hint(key, SETTINGS)} ({origin})")
    return key


def _parse(text: str, kind: Any) -> Any:
    """Convert a text to the type of a setting. A text that cannot be converted is returned as it is, and fails the check."""
    if bare(kind) in (int, float, bool):
        try:
            return msgspec.convert(text, bare(kind), strict=False)
        except msgspec.ValidationError:
            return text
    if get_origin(kind) not in (tuple, dict):
        return text
    item = get_args(kind)[0]
    listed = get_origin(kind) is tuple and (bare(item) is str or hasattr(item, "short_form"))
    if listed and not text.lstrip().startswith("["):
        return [item.strip() for item in text.split(",") if item.strip()]
    for decode in (msgspec.json.decode, lambda toml: tomllib.loads(f"value = {toml}")["value"]):
        try:
            return decode(text)
        except (msgspec.DecodeError, tomllib.TOMLDecodeError):
            continue
    return text
