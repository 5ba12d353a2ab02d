"""For authors: `pytest --rlrun-check PACKAGE` has a test for each plugin of an installed package."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option; without it nothing of rlrun is imported."""
    parser.getgroup("rlrun").addoption(
        "--rlrun-check",
        metavar="PACKAGE",
        help="Check every rlrun plugin of an installed package against its contract.",
    )


def pytest_collection_modifyitems(session: pytest.Session, items: list[pytest.Item]) -> None:
    """Add the checks to what was collected."""
    package = session.config.getoption("--rlrun-check")
    if package is not None:
        from rlrun.plugins.registry import entries_of

        items.extend(
            PluginCheck.from_parent(session, name=str(entry), kind=entry.kind, plugin=entry.name)
            for entry in entries_of(str(package))
        )


class PluginCheck(pytest.Item):
    """The contract of one plugin."""

    def __init__(self, *, kind: str, plugin: str, **given: object) -> None:
        super().__init__(**given)  # type: ignore[arg-type]
        self._kind = kind
        self._plugin = plugin

    def runtest(self) -> None:
        """Raises AssertionError with what the plugin does wrong."""
        from rlrun.plugins.testing import check_plugin

        check_plugin(self._kind, self._plugin)

    def reportinfo(self) -> tuple[str, None, str]:
        """How pytest names it."""
        return "rlrun", None, f"{self._kind} plugin {self._plugin}"
