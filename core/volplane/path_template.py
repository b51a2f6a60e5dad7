"""`PathTemplate` under its former name: import it from `volplane.directory`."""

from volplane.directory.parameters import (
    DEFAULT_TEMPLATE,
    MAXIMUM_BYTES,
    MAXIMUM_COMPONENTS,
    PLACEHOLDERS,
    PathTemplate,
)

__all__ = ["DEFAULT_TEMPLATE", "MAXIMUM_BYTES", "MAXIMUM_COMPONENTS", "PLACEHOLDERS", "PathTemplate"]
