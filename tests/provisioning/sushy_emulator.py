"""sushy-emulator, but its fake machines switch on and off within SUSHY_DELAY_SECONDS (default 0), not within 1 to 11 s."""

import os
from types import SimpleNamespace

from sushy_tools.emulator import main  # type: ignore[import-untyped]
from sushy_tools.emulator.resources.systems import fakedriver  # type: ignore[import-untyped]

if __name__ == "__main__":
    delay = int(os.environ.get("SUSHY_DELAY_SECONDS", "0"))
    fakedriver.random = SimpleNamespace(randint=lambda _low, _high: delay)
    main.main()
