"""The pytest fixture `rig`; this module loads nothing of Holdfast before a test asks for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from holdfast.testing import Rig


@pytest.fixture
def rig() -> Iterator[Rig]:
    """A `holdfast.testing.Rig` on a store in memory; a crash that the test wanted and that never came fails it."""
    from holdfast.testing import Rig

    rig = Rig()
    yield rig
    rig.close()
    rig.check()
