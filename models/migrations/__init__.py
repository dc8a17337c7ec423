"""Migration scripts, applied in order by `relight.models.schema`."""
