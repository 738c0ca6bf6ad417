"""The progress of a step: written to a file for the heartbeat, and reported at the step's beginning and end."""

import time
from collections.abc import Callable

from provision.controller import STOPPED, Controller
from provision.errors import ToldToStop
from provision.journal import say
from provision.places import Places

FILE = "progress.json"
EVERY = 1.0  # seconds between two notes of the same step


class Progress:
    def __init__(self, places: Places, unit: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._places = places
        self._unit = unit
        self._clock = clock
        self._noted = float("-inf")
        self._controller = Controller.of(places)

    def begin(self) -> None:
        """Report the beginning. Raise ToldToStop if the controller withdrew its permission; no answer does not stop us."""
        if self._places.has(STOPPED):
            raise ToldToStop((self._places.run / STOPPED).read_text())
        self._note(0.0, "begins")
        self._report({"step": self._unit, "percent": 0.0, "message": "begins"})

    def moved(self, count: int, size: int) -> None:
        if self._clock() - self._noted < EVERY and count != size:
            return
        percent = min(100.0, round(100.0 * count / size, 1)) if size else None
        self._note(percent, f"{count >> 20} MiB" + (f" of {size >> 20}" if size else ""))

    def finish(self) -> None:
        self._note(100.0, "done")
        self._report({"step": self._unit, "percent": 100.0, "finished": True})

    def _note(self, percent: float | None, message: str) -> None:
        self._noted = self._clock()
        self._places.write(FILE, {"step": self._unit, "percent": percent, "message": message})

    def _report(self, progress: dict[str, object]) -> None:
        if self._controller is None:
            return
        try:
            self._controller.progress(progress)
        except OSError as error:
            say(f"the progress could not be reported: {error}")
