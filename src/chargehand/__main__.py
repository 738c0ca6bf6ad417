"""`python -m chargehand` is the same as `chargehand`."""

from chargehand.cli import main

main()
