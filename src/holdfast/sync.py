"""The same names for `def` agents: verbs that wait block here instead of being awaited."""

from . import *  # noqa: F403 (the same names, of which four are replaced)
from . import __all__ as __all__
from ._threads import first, gather, map  # noqa: A004 (the public name)
from ._timeouts import timeout_blocking as timeout
