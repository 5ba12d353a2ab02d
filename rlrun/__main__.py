"""`python -m rlrun`."""

from rlrun.cli.main import run

run()
