"""An application that wants a key, behind Serve and HAProxy."""

from __future__ import annotations

import httpx
import pytest

from encoder_pool import EncoderClient
from encoder_pool.client import UnauthorizedError
from tests.service.running import KEY, Service
from tests.toy import toy

pytestmark = pytest.mark.service


def test_only_callers_with_a_key_get_further_than_health_and_readiness(several: Service) -> None:
    url = f"{several.root}/bulky"
    for path in ("/health", "/ready"):
        assert httpx.get(url + path, timeout=30).status_code == 200
    for path in ("/info", "/v1/models", "/docs", "/nothing"):
        reply = httpx.get(url + path, timeout=30)
        assert (reply.status_code, reply.json()["error"]["code"]) == (401, "missing_api_key")
        assert reply.headers["www-authenticate"] == 'Bearer realm="encoder-pool"'
    with EncoderClient(url, api_key="wrong") as client, pytest.raises(UnauthorizedError):
        client.encode(b"\x89PNG\r\n\x1a\n" + toy(1))
    with EncoderClient(url, api_key=KEY) as client:
        assert client.models() == ["bulky"]
    assert KEY not in httpx.get(f"{url}/info", timeout=30, headers={"authorization": f"Bearer {KEY}"}).text
