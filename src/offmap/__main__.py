"""`python -m offmap`, the same as `offmap`."""

from offmap.cli import main

main()
