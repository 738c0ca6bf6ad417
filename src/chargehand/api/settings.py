"""The settings in force, for operators: what each means, its value, and which are not the default.

Secrets are never shown: of a value that may hold one, only whether it is set. Of what belongs to tenants (tokens, users, their
secrets) a caller sees that of its own tenant.
"""

from functools import cache
from importlib import resources
from typing import Annotated, Any

import msgspec

from chargehand.config import SETTINGS, Config, Secret, allowed, load_config
from chargehand.http.request import Request
from chargehand.http.response import Response
from chargehand.http.route import Route, reply
from chargehand.observability.logs import scrub_text

HIDDEN = "***"
# Not secrets by type, but made from one, or a command line in which somebody may have put one.
TOUCHY = frozenset({"hash", "wake_command"})
# Lists and tables of what belongs to tenants.
OWNED_LISTS = frozenset({"auth.tokens", "auth.users"})
OWNED_TABLES = frozenset({"webhooks.tenants"})


class SettingView(msgspec.Struct):
    name: Annotated[str, msgspec.Meta(description="As in the file: section.key", examples=["server.listen"])]
    variable: Annotated[str, msgspec.Meta(description="The environment variable that sets it")]
    value: Annotated[Any, msgspec.Meta(description=f"In force; {HIDDEN} in place of what is secret")]
    default: Any
    changed: Annotated[bool, msgspec.Meta(description="Whether somebody set it to something else than the default")]
    origin: Annotated[str, msgspec.Meta(description="Where it was set; empty: nowhere", examples=["the command line"])]
    secret: bool
    allowed: Annotated[str, msgspec.Meta(description="What it may be, in words")]
    meaning: Annotated[str, msgspec.Meta(description="In words; indented lines are examples")]


class SectionView(msgspec.Struct):
    section: str
    settings: list[SettingView]


class SettingsView(msgspec.Struct):
    sections: list[SectionView]


class SettingsApi:
    def __init__(self, config: Config) -> None:
        self._config = config

    def routes(self) -> list[Route]:
        return [
            Route("GET", "/engine/settings", self.get_settings, "The settings in force", "admin", "service",
                  "Without secrets. Of tokens, users and secrets of tenants, the caller's own tenant's only.", reply=SettingsView)
        ]  # fmt: skip

    async def get_settings(self, req: Request, resp: Response) -> None:
        reply(resp, view(self._config, req.caller.tenant))


def view(config: Config, tenant: str) -> SettingsView:
    plain, defaults = config.redacted(), _defaults().redacted()
    sections: dict[str, list[SettingView]] = {}
    for name, kind in SETTINGS.items():
        section, _, key = name.partition(".")
        value = _own(name, plain[section][key], tenant)
        sections.setdefault(section, []).append(
            SettingView(
                name,
                f"CHARGEHAND_{section}_{key}".upper(),
                _without_touchy(value),
                _without_touchy(defaults[section][key]),
                # Compare the values themselves: hidden secrets look alike.
                getattr(getattr(config, section), key) != getattr(getattr(_defaults(), section), key),
                config.origins.get(name, ""),
                kind is Secret,
                allowed(kind),
                meanings()[name],
            )
        )
    return SettingsView([SectionView(section, settings) for section, settings in sections.items()])


def _own(name: str, value: Any, tenant: str) -> Any:
    if name in OWNED_LISTS:
        return [each for each in value if each["tenant"] == tenant]
    if name in OWNED_TABLES:
        return {key: each for key, each in value.items() if key == tenant}
    return value


def _without_touchy(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: (each and HIDDEN) if key in TOUCHY else _without_touchy(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_without_touchy(each) for each in value]
    return scrub_text(value) if isinstance(value, str) else value


@cache
def _defaults() -> Config:
    return load_config(environ={})


@cache
def meanings() -> dict[str, str]:
    """Return the comment above each key of the defaults file: sentences in one line, each example in its own."""
    found: dict[str, str] = {}
    section, lines = "", list[str]()
    for line in resources.files("chargehand").joinpath("config.default.toml").read_text().splitlines():
        if line.startswith("#"):
            lines.append(line[1:])
        elif line.startswith("["):
            section, lines = line.strip("[]"), []
        elif "=" in line:
            found[f"{section}.{line.partition('=')[0].strip()}"] = _joined(lines)
            lines = []
        elif not line.strip():
            lines = []
    return found


def _joined(lines: list[str]) -> str:
    text = ""
    for line in lines:
        example = line.startswith("   ")
        after_example = text.rpartition("\n")[2].startswith("  ")
        between = "" if not text else "\n" if example or after_example else " "
        text += between + (f"  {line[3:]}" if example else line.strip())
    return text
