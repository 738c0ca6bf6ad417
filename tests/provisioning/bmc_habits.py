"""The deviations of real BMCs, each a switch. The default is a BMC that follows the standard, with two CD drives."""

from dataclasses import dataclass
from typing import Literal

USER, PASSWORD = "operator", "hunter2-and-longer"

CD = ("CD", "DVD")
USB = ("Floppy", "USBStick")

TWO_CDS = (("Cd1", CD), ("Cd2", CD))
ONE_CD = (("Cd1", CD),)
CD_AND_USB = (("Cd1", CD), ("RemovableDisk", USB))

RESETS = ("On", "ForceOff", "GracefulShutdown", "ForceRestart", "GracefulRestart", "PowerCycle", "Nmi")
TARGETS = ("None", "Pxe", "Cd", "Usb", "Hdd")


@dataclass(frozen=True)
class Habits:
    # identity
    manufacturer: str = "Contoso"
    model: str = "Model 1"
    serial: str | None = "SN-1"  # None: it reports no serial
    sku: str | None = None
    uuid: str | None = "11111111-2222-3333-4444-555555555555"  # None: it reports no UUID
    systems: int = 1  # the last one has the identity above; the others come first
    power: str = "Off"

    # media
    slots: tuple[tuple[str, tuple[str, ...]], ...] = TWO_CDS
    media_under: Literal["system", "manager"] = "system"
    wants: tuple[str, ...] = ()  # parameters that InsertMedia requires
    refuses: tuple[str, ...] = ()  # parameters that InsertMedia refuses
    mute: bool = False  # refuses without a message
    patch_only: bool = False  # no actions for media; the drive is patched
    hollow_actions: bool = False  # offers actions that do not exist; the drive is patched
    eject_silent: bool = False  # accepts an eject without effect
    eject_body: Literal["any", "empty", "object"] = "any"
    insert_failures: int = 0  # so many inserts get a 500, because the last eject is still under way
    insert_hangs: bool = False  # inserts the image and never answers
    insert_silent: bool = False  # accepts an insert without effect
    abbreviates: bool = False  # shows only the file name of an image
    fetches: bool = False  # really requests the image: HEAD and the first bytes, and again at each boot from it

    # boot
    override: Literal["works", "ignored", "continuous"] = "works"
    targets: tuple[str, ...] = TARGETS
    clears: Literal["disabled", "none", "hdd", "never"] = "disabled"  # what clears an override
    wants_mode: bool = False
    refuses_mode: bool = False
    dell_attributes: bool = False  # the standard override is accepted without effect

    # power
    resets: tuple[str, ...] = RESETS
    reset_list: bool = True  # False: it does not list its kinds of reset
    resets_refused: tuple[str, ...] = ()  # kinds that are offered, but refused
    action_info: bool = False  # the values of an action are in a separate resource
    shows_power: str = ""  # always shows this state
    tells_reset: bool = True  # shows LastResetTime
    power_seconds: float = 0.0  # how long PoweringOn and PoweringOff take
    reset: Literal["works", "nothing", "hangs", "error", "error-done"] = "works"

    # the wire
    odd_targets: bool = False  # actions at unusual paths
    managed_by: bool = True  # False: the system does not name its manager
    task: Literal["", "succeeds", "fails", "state-succeeds", "vanishes", "endless", "nameless", "refused"] = ""
    busy: int = 0  # so many requests are refused …
    busy_status: int = 503
    busy_methods: tuple[str, ...] = ("GET",)
    retry_after: str = "1"
    errors: int = 0  # so many GETs get a 500
    sessions: Literal["yes", "no", "full", "service"] = "yes"  # "service": only behind SessionService
    session_requests: int = 0  # a session expires after so many; 0 = never
    closed_root: bool = False  # even the root requires a password
    session_hangs: bool = False  # creates the session and never answers
    # "strong": shows W/"x" and requires "x"; "broken": shows one and accepts none; "hidden": requires one and shows none
    etag: Literal["no", "required", "strong", "broken", "hidden"] = "no"
    away_after: tuple[str, ...] = ()  # "reset", "insert": then it drops all connections …
    away_seconds: float = 0.0  # … for so long
    slow_seconds: float = 0.0
    body: Literal["", "huge", "deep", "many", "headers", "html", "stranger"] = (
        ""  # instead of the system, or of the root
    )
    chatty: bool = False  # the answer to an action is huge
    calls_itself: str = ""  # the origin in its Location headers, instead of the one it was called by
    redirect: str = ""  # "same": the system is behind a 307; else the URL that it points to
    echoes: bool = False  # refusals repeat the request and its credentials


@dataclass(frozen=True)
class Boot:
    """A boot of the system."""

    number: int
    serial: str
    reset_type: str
    images: dict[str, str]  # by drive
    cd: bool  # booted from the drive, because of the override

    @property
    def image(self) -> str:
        return next(iter(self.images.values()), "")
