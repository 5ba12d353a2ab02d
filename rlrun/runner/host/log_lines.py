"""The form of a line in a run's log files.

11-26 08:30:23 console: loading the engines
11-26 08:31:02 WARNING supervisor: engine 1 died
"""

import logging

_DATE = "%m-%d %H:%M:%S"


class LineFormatter(logging.Formatter):
    """Begins each line with the time, the level unless it is INFO, and the module, or the foreign package."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Returns the line without a traceback."""
        parts = record.name.split(".")
        source = parts[-1] if parts[0] == "rlrun" else parts[0]
        level = "" if record.levelno == logging.INFO else f"{record.levelname} "
        return f"{self.formatTime(record, _DATE)} {level}{source}: {record.message}"
