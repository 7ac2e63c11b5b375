"""python -m vlmsafe: the vlmsafe command where only the package is installed."""

from vlmsafe.cli import main

main()
