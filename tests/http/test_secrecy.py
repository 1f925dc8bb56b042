"""What a caller sends is in no answer and in no log, and nothing that comes from outside is unpickled."""

from __future__ import annotations

import ast
import base64
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import encoder_pool
from encoder_pool.auth import Keys
from encoder_pool.http.routes import build_app
from tests.http.decoding_pool import DecodingPool
from tests.http.samples import png

PACKAGE = Path(encoder_pool.__file__).parent
MARK = "xyzzy"
KEY = "the-only-key"
IMAGE = {
    "type": "image_url",
    "image_url": {"url": "data:image/png;base64," + base64.b64encode(png()).decode()},
}
UNPICKLERS = {"pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}


def part(url: Any = None, **extra: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url, **extra}}


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def document(**changes: Any) -> dict[str, Any]:
    return {"model": "fake", "input": [IMAGE], **changes}


DOCUMENTS = [
    document(model=MARK),
    document(encoding_format=MARK),
    document(**{MARK: 1}),
    document(input=MARK),
    document(input=[MARK]),
    document(input=[{"type": MARK}]),
    document(input=[{MARK: MARK}]),
    document(input=[part(MARK)]),
    document(input=[part(f"https://{MARK}.example/{MARK}?{MARK}")]),
    document(input=[part(f"data:{MARK},x")]),
    document(input=[part(f"data:image/png;{MARK};base64,AAAA")]),
    document(input=[part(f"data:image/png;base64,{MARK}!")]),
    document(input=[part("data:image/png;base64," + encoded(MARK))]),
    document(input=[part("data:image/png;base64," + encoded("\x89PNG\r\n\x1a\n" + MARK * 20))]),
    document(input=[part({MARK: MARK})]),
    document(input=[{"type": "input_audio", "input_audio": {"data": MARK, "format": MARK}}]),
    document(input=[{"type": "input_audio", "input_audio": {"data": encoded("fLaC" + MARK * 20)}}]),
    document(input=[{"type": "input_audio", "input_audio": {"data": encoded("OggS" + MARK * 20)}}]),
    document(input=[{"type": "video_url", "video_url": {"url": "data:," + MARK}}]),
]
FORMS: list[dict[str, Any]] = [
    {"data": {"model": MARK}, "files": [("files", png())]},
    {"data": {"model": "fake", MARK: MARK}, "files": [("files", png())]},
    {"data": {"model": "fake", "encoding_format": MARK}, "files": [("files", png())]},
    {"data": {"model": "fake"}, "files": [("files", (MARK, MARK.encode(), f"image/{MARK}"))]},
    {"data": {"model": "fake"}, "files": [("files", (MARK, b"\xff\xd8\xff" + MARK.encode() * 9, MARK))]},
]
REQUESTS: list[dict[str, Any]] = [
    *({"json": body} for body in DOCUMENTS),
    *FORMS,
    {"content": MARK.encode(), "headers": {"content-type": "application/json"}},
    {"content": b'{"model": "' + MARK.encode() + b"\xff", "headers": {"content-type": "application/json"}},
    {"content": MARK.encode(), "headers": {"content-type": f"application/{MARK}"}},
    {"content": MARK.encode(), "headers": {"content-type": f"multipart/form-data; boundary={MARK}"}},
    {"content": MARK.encode(), "headers": {"content-type": f"multipart/form-data; {MARK}={MARK}"}},
    {"content": MARK.encode(), "headers": {"content-type": "image/png"}, "params": {"model": MARK}},
    {
        "content": MARK.encode(),
        "headers": {"content-type": "image/png"},
        "params": {"model": "fake", MARK: MARK},
    },
    {"json": document(), "headers": {"accept": f"text/{MARK}"}},
    {"json": document(), "headers": {"x-deadline-seconds": MARK}},
    {"json": document(), "headers": {"content-encoding": MARK}},
    {"json": document(), "headers": {"x-request-id": f"{MARK} {MARK}", "accept": "text/html"}},
    {"json": document(), "headers": {"authorization": f"Bearer {MARK}"}},
    {"json": document(), "headers": {"authorization": MARK}},
    {"json": document(), "headers": {"cookie": f"{MARK}={MARK}", "accept": "text/html"}},
]


@pytest.mark.parametrize("request_", REQUESTS, ids=range(len(REQUESTS)))
@pytest.mark.parametrize("path", ["/v1/encode", f"/{MARK}"])
async def test_no_part_of_a_request_is_in_its_error_or_in_the_log(
    path: str, request_: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "encoder_pool")
    app = build_app(DecodingPool(), keys=Keys([KEY]))
    headers = {"authorization": f"Bearer {KEY}", **request_.get("headers", {})}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://pool") as http:
        reply = await http.post(path, **{**request_, "headers": headers})
    assert 400 <= reply.status_code < 500
    seen = [reply.text, *reply.headers.values(), json.dumps(reply.json())]
    seen += [record.getMessage() + str(record.exc_info) for record in ours(caplog)]
    for text in seen:
        assert MARK not in text
        assert KEY not in text


def ours(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Without the lines of the test's own HTTP client."""
    return [record for record in caplog.records if record.name.startswith("encoder_pool")]


async def test_an_accepted_request_is_not_logged_either(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    app = build_app(DecodingPool(), keys=Keys([KEY]))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://pool") as http:
        headers = {"authorization": f"Bearer {KEY}"}
        reply = await http.post("/v1/encode", json=document(), headers=headers)
    assert reply.status_code == 200
    assert KEY not in caplog.text
    assert encoded(png().decode("latin-1"))[:40] not in caplog.text


def loads() -> Iterator[tuple[str, str]]:
    """Every import that can unpickle, and every call of a function that is named like torch's or numpy's."""
    for path in sorted(PACKAGE.rglob("*.py")):
        file = path.relative_to(PACKAGE).as_posix()
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                yield from ((file, alias.name.partition(".")[0]) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                yield file, (node.module or "").partition(".")[0]
            elif isinstance(node, ast.Call):
                yield file, ast.unparse(node.func)


def test_nothing_is_unpickled() -> None:
    found = set(loads())
    assert ("config.py", "pydantic") in found, "the walk sees imports"
    names = {name for _, name in found}
    assert not names & UNPICKLERS
    assert not names & {
        "torch.load",
        "np.load",
        "numpy.load",
        "eval",
        "exec",
        "yaml.load",
        "yaml.unsafe_load",
    }
