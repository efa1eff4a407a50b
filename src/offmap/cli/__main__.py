"""`python -m offmap.cli`, the same as `offmap`."""

from offmap.cli import main

main()
