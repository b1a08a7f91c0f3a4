"""A script that cannot be imported on any image."""

import no_such_module  # noqa: F401
