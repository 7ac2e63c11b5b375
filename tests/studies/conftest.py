"""What the tests of studies share."""

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="session")
def _short_pauses() -> Iterator[None]:
    """Commands of tests end soon: a pause for each that was chosen for hours would take most of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vlmsafe.studies.execute._PAUSE", 0.02)
        yield
