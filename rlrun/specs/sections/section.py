"""The base of every section of a spec."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A frozen table of settings; a key it does not name is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)


class PluginSection(Section):
    """A table whose `type` names a plugin; the keys it does not name itself are the plugin's parameters.

    The parameters are checked by the plugin's own `Params` model (rlrun.plugins.validation), at their place
    in the file.
    """

    model_config = ConfigDict(extra="allow")

    type: str
    """Name of the plugin, as its package registered it (`rlrun plugins list`)."""

    @property
    def params(self) -> dict[str, object]:
        """The plugin's own parameters, as written."""
        return dict(self.model_extra or {})
