"""Environment variables that a spec gives to the processes of a job (`cluster.environment`); pure."""

from collections.abc import Mapping

from rlrun.specs.reading.secret_references import reveal


def variables_of(environment: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Returns the variables without secrets, and the values of those that refer to secrets.

    Raises ValueError with the name of a variable that is not set here.
    """
    revealed: dict[str, str] = reveal(environment)
    plain = {name: value for name, value in revealed.items() if value == environment[name]}
    return plain, {name: value for name, value in revealed.items() if name not in plain}
