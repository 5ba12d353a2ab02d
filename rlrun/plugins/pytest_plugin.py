"""For plugin authors: `pytest --rlrun-check PACKAGE` adds a test for each plugin of an installed package."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the option; without it, nothing of rlrun is imported."""
    parser.getgroup("rlrun").addoption(
        "--rlrun-check",
        metavar="PACKAGE",
        help="Check every rlrun plugin of an installed package against its contract.",
    )


def pytest_collection_modifyitems(session: pytest.Session, items: list[pytest.Item]) -> None:
    """Adds the checks to the collected tests."""
    package = session.config.getoption("--rlrun-check")
    if package is not None:
        from rlrun.plugins.registry import entries_of

        items.extend(
            PluginCheck.from_parent(session, name=str(entry), kind=entry.kind, plugin=entry.name)
            for entry in entries_of(str(package))
        )


class PluginCheck(pytest.Item):
    """A test that checks one plugin against its contract."""

    def __init__(self, *, kind: str, plugin: str, **item_arguments: object) -> None:
        super().__init__(**item_arguments)  # type: ignore[arg-type]
        self._kind = kind
        self._plugin = plugin

    def runtest(self) -> None:
        """Raises AssertionError if the plugin breaks its contract, saying how."""
        from rlrun.plugins.testing import check_plugin

        check_plugin(self._kind, self._plugin)

    def reportinfo(self) -> tuple[str, None, str]:
        """Returns how pytest names the test."""
        return "rlrun", None, f"{self._kind} plugin {self._plugin}"
