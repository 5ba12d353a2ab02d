"""Arguments of the SGLang server that another trainer passes on."""

from rlrun.converters.imports.secrets import is_secret
from rlrun.specs.derived.sglang_arguments import SERVER, flag_name


def why_reserved(name: str) -> str | None:
    """Returns why a spec cannot set an argument of the server; None if it can."""
    argument = flag_name(name)
    if argument not in SERVER.own and not is_secret(argument):
        return None
    decides = SERVER.own.get(argument)
    return "set by rlrun" + (f": {decides}" if decides else "")
