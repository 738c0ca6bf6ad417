"""The awkward habits of BMCs, each a switch. The default is a BMC as the standard would have it, with two CD drives."""

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
    # what it is
    manufacturer: str = "Contoso"
    model: str = "Model 1"
    serial: str | None = "SN-1"  # None: it reports no serial
    sku: str | None = None
    uuid: str | None = "11111111-2222-3333-4444-555555555555"  # None: it reports no UUID
    systems: int = 1  # the last one is the one above; the others come first
    power: str = "Off"

    # media
    slots: tuple[tuple[str, tuple[str, ...]], ...] = TWO_CDS
    media_under: Literal["system", "manager"] = "system"
    wants: tuple[str, ...] = ()  # parameters without which InsertMedia is refused
    refuses: tuple[str, ...] = ()  # … and with which
    mute: bool = False  # refusals without a word
    patch_only: bool = False  # no actions for media; the drive is written to
    hollow_actions: bool = False  # actions that are offered and not there; the drive is written to
    eject_silent: bool = False  # says that it ejected and did not
    eject_body: Literal["any", "empty", "object"] = "any"
    insert_failures: int = 0  # 500 so often, for the last eject is not over
    insert_hangs: bool = False  # puts the image in and never says so
    insert_silent: bool = False  # says yes and puts nothing in
    abbreviates: bool = False  # shows only the file name of an image
    fetches: bool = False  # really asks for the image: HEAD and the first bytes, and again at each boot from it

    # boot
    override: Literal["works", "ignored", "continuous"] = "works"
    targets: tuple[str, ...] = TARGETS
    clears: Literal["disabled", "none", "hdd", "never"] = "disabled"  # what it takes to be rid of an override
    wants_mode: bool = False
    refuses_mode: bool = False
    dell_attributes: bool = False  # the override of the standard is taken and means nothing

    # power
    resets: tuple[str, ...] = RESETS
    reset_list: bool = True  # False: it does not say which it has
    resets_refused: tuple[str, ...] = ()  # offered, but not now
    action_info: bool = False  # the values of an action are in a resource of their own
    shows_power: str = ""  # whatever happens
    tells_reset: bool = True  # LastResetTime
    power_seconds: float = 0.0  # PoweringOn and PoweringOff take so long
    reset: Literal["works", "nothing", "hangs", "error", "error-done"] = "works"

    # the wire
    odd_targets: bool = False  # actions at paths that nobody could guess
    managed_by: bool = True  # False: the system does not name its manager
    task: Literal["", "succeeds", "fails", "state-succeeds", "vanishes", "endless", "nameless", "refused"] = ""
    busy: int = 0  # so many requests are turned away …
    busy_status: int = 503
    busy_methods: tuple[str, ...] = ("GET",)
    retry_after: str = "1"
    errors: int = 0  # so many GETs get a 500
    sessions: Literal["yes", "no", "full", "service"] = "yes"  # "service": only behind SessionService
    session_requests: int = 0  # a session is over after so many; 0 = never
    closed_root: bool = False  # even the root wants a password
    session_hangs: bool = False  # makes the session and never says so
    # "strong": shows W/"x" and wants "x"; "broken": shows one and takes none; "hidden": wants one and shows none
    etag: Literal["no", "required", "strong", "broken", "hidden"] = "no"
    away_after: tuple[str, ...] = ()  # "reset", "insert": then it drops all connections …
    away_seconds: float = 0.0  # … for so long
    slow_seconds: float = 0.0
    body: Literal["", "huge", "deep", "many", "headers", "html", "stranger"] = (
        ""  # instead of the system, or of the root
    )
    chatty: bool = False  # an action answers with more words than anybody reads
    calls_itself: str = ""  # the origin that it writes into Location, instead of the one it was called by
    redirect: str = ""  # "same": the system is behind a 307; else the URL that it points to
    echoes: bool = False  # refusals repeat what was sent, and by whom


@dataclass(frozen=True)
class Boot:
    """The system came up."""

    number: int
    serial: str
    reset_type: str
    images: dict[str, str]  # by drive
    cd: bool  # from the drive, by the override

    @property
    def image(self) -> str:
        return next(iter(self.images.values()), "")
