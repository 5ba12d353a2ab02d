"""The `rlrun` command of this checkout: `python -m benchmarks.gpu.launch COMMAND …`.

A bare machine has the packed wheels on PYTHONPATH, where console scripts are not installed.
"""

from rlrun.cli.main import run

if __name__ == "__main__":
    run()
