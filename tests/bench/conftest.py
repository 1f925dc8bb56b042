from __future__ import annotations

import pytest

from .towers import Tower, folders


@pytest.fixture(scope="session", params=["windows", "deepstack"])
def tower(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tower:
    windows, deepstack = folders(tmp_path_factory.mktemp("towers"))
    return Tower({"windows": windows, "deepstack": deepstack}[request.param])
