"""The base classes of the sections of a spec."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A frozen table of settings; an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)


class PluginSection(Section):
    """A table whose `type` names a plugin; all keys but the section's own are the plugin's parameters.

    The plugin's own `Params` model checks the parameters (rlrun.plugins.validation) and reports errors at
    their position in the file.
    """

    model_config = ConfigDict(extra="allow")

    type: str
    """Name of the plugin, as its package registered it (`rlrun plugins list`)."""

    @property
    def params(self) -> dict[str, object]:
        """The plugin's own parameters, as written."""
        return dict(self.model_extra or {})
