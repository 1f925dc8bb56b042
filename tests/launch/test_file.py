from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from encoder_pool.config import PoolConfig, Section
from encoder_pool.launch.errors import ConfigError, HostUnfit, LaunchError, StartFailed
from encoder_pool.launch.file import ApplicationEntry, Document, HttpOptions, read_service_file
from tests.launch.toy_service import toy_args, toy_document, toy_entry, write
from tests.serve_schema import HTTPOptionsSchema, ServeApplicationSchema, ServeDeploySchema


def complaint(folder: Path, document: Any) -> str:
    """What is said of the document; every line of it names the file."""
    path = write(folder, document)
    with pytest.raises(ConfigError) as caught:
        read_service_file(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    return message.replace(f"{path}: ", "")


def test_a_file_is_read_into_applications_with_their_pools(tmp_path: Path) -> None:
    document = toy_document(tmp_path, toy_entry(tmp_path, "one"), toy_entry(tmp_path, "two"), port=8123)
    service = read_service_file(write(tmp_path, document))
    assert (service.host, service.port) == ("127.0.0.1", 8123)
    assert [(each.name, each.route_prefix) for each in service.applications] == [
        ("one", "/one"),
        ("two", "/two"),
    ]
    assert service.applications[0].config == PoolConfig.model_validate(toy_args(tmp_path))
    assert service.document == document


@pytest.mark.parametrize(
    ("ours", "serves"),
    [
        (Document, ServeDeploySchema),
        (HttpOptions, HTTPOptionsSchema),
        (ApplicationEntry, ServeApplicationSchema),
    ],
)
def test_the_known_keys_are_serves(ours: type[Section], serves: type[BaseModel]) -> None:
    assert set(ours.model_fields) == set(serves.model_fields)


def test_what_the_file_leaves_out_is_as_serve_has_it(tmp_path: Path) -> None:
    entry = {"import_path": "encoder_pool.builder:build_app", "args": toy_args(tmp_path)}
    service = read_service_file(write(tmp_path, {"applications": [entry]}))
    schema = ServeDeploySchema.model_validate(service.document)
    assert (service.host, service.port) == (schema.http_options.host, schema.http_options.port)
    (ours,), (serves,) = service.applications, schema.applications
    assert (ours.name, ours.route_prefix) == (serves.name, serves.route_prefix)


def test_another_port_is_in_the_urls_and_in_what_serve_gets(tmp_path: Path) -> None:
    document = toy_document(tmp_path, port=8123, request_timeout_s=5)
    service = read_service_file(write(tmp_path, document)).with_port(8124)
    assert service.url(service.applications[0]) == "http://127.0.0.1:8124/toys"
    assert service.document["http_options"] == {"host": "127.0.0.1", "port": 8124, "request_timeout_s": 5}
    assert document["http_options"]["port"] == 8123


def test_another_port_for_a_file_without_http_options(tmp_path: Path) -> None:
    service = read_service_file(write(tmp_path, {"applications": [toy_entry(tmp_path)]})).with_port(8124)
    assert service.document["http_options"] == {"port": 8124}


@pytest.mark.parametrize(
    ("host", "prefix", "url"),
    [
        ("127.0.0.1", "/toys", "http://127.0.0.1:8000/toys"),
        ("0.0.0.0", "/toys", "http://127.0.0.1:8000/toys"),
        ("example.org", "/", "http://example.org:8000"),
    ],
)
def test_a_url_is_one_that_a_client_on_this_host_can_use(
    tmp_path: Path, host: str, prefix: str, url: str
) -> None:
    entry = {**toy_entry(tmp_path), "route_prefix": prefix}
    service = read_service_file(write(tmp_path, toy_document(tmp_path, entry, host=host)))
    assert service.url(service.applications[0]) == url


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("applications: [a: b: c", "not YAML: while parsing a flow sequence"),
        ("\x00", "not YAML: "),
        ("", "not a Serve configuration; it needs a list 'applications'"),
        ("just words", "not a Serve configuration"),
        ("[1, 2]", "not a Serve configuration"),
        ("{}", "applications: Field required"),
        ("applications: []", "applications is empty"),
        ("applications: 3", "applications: Input should be a valid tuple"),
        ("applications: [3]", "applications[0]: must be a mapping"),
        ("applications: [{}]", "applications[0].import_path: Field required"),
        ("applications: [{}]", "applications[0].args: Field required"),
        ("applications: [{args: 3}]", "applications[0].args: must be a mapping"),
        ("http_options: [1]", "http_options: must be a mapping"),
        ("http_options: {port: http}", "http_options.port: Input should be a valid integer"),
        ("http_options: {port: 0}", "http_options.port: Input should be greater than or equal to 1"),
        ("http_options: {port: 65536}", "http_options.port: Input should be less than or equal to 65535"),
        ("http_option: {}", "unknown key 'http_option'; did you mean 'http_options'?"),
        ("http_options: {prot: 1}", "http_options: unknown key 'prot'; did you mean 'port'?"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused_with_the_place(
    tmp_path: Path, text: str, message: str
) -> None:
    assert message in complaint(tmp_path, text)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"route_prefx": "/x"}, "unknown key 'route_prefx'; did you mean 'route_prefix'?"),
        ({"route_prefix": "toys"}, ".route_prefix: String should match pattern '^/'"),
        ({"import_path": "other:app"}, ".import_path: Input should be 'encoder_pool.builder:build_app'"),
        ({"args": {"model": {}}}, ".args.model.name: Field required"),
    ],
)
def test_a_mistake_in_the_second_application_is_placed_there(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    wrong = {**toy_entry(tmp_path, "two"), **change}
    said = complaint(tmp_path, toy_document(tmp_path, toy_entry(tmp_path, "one"), wrong))
    assert message in said
    assert all(line.startswith("applications[1]") for line in said.splitlines())


def test_a_misspelt_key_of_a_pool_is_placed_and_the_nearest_named(tmp_path: Path) -> None:
    entry = toy_entry(tmp_path, queue={"max_token": 1})
    said = complaint(tmp_path, toy_document(tmp_path, entry))
    assert said == "applications[0].args.queue: unknown key 'max_token'; did you mean 'max_tokens'?"


def test_all_mistakes_are_told_at_once_a_line_each(tmp_path: Path) -> None:
    entry = toy_entry(tmp_path, queue={"max_bytes": -1}, shard={"threads": 0}, scaling={"min": 1})
    said = complaint(tmp_path, toy_document(tmp_path, entry, port=-1))
    places = [line.partition(": ")[0] for line in said.splitlines()]
    assert places == [
        "applications[0].args.queue.max_bytes",
        "applications[0].args.shard.threads",
        "applications[0].args.scaling",
        "http_options.port",
    ]


def test_a_value_is_not_repeated(tmp_path: Path) -> None:
    entry = toy_entry(tmp_path, queue={"max_bytes": "secret"})
    assert "secret" not in complaint(tmp_path, toy_document(tmp_path, entry))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "one"}, "two applications have the name 'one'"),
        ({"route_prefix": "/one"}, "two applications have the route_prefix '/one'"),
    ],
)
def test_two_applications_cannot_share_a_name_or_a_place(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    twin = {**toy_entry(tmp_path, "two"), **change}
    assert message in complaint(tmp_path, toy_document(tmp_path, toy_entry(tmp_path, "one"), twin))


def test_a_file_that_is_missing_a_folder_or_no_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nothing\.yaml: No such file or directory"):
        read_service_file(tmp_path / "nothing.yaml")
    with pytest.raises(ConfigError, match="Is a directory"):
        read_service_file(tmp_path)
    latin = tmp_path / "latin.yaml"
    latin.write_bytes(b"applications: \xe4")
    with pytest.raises(ConfigError, match=r"latin\.yaml: not YAML"):
        read_service_file(latin)


def test_a_mistake_ends_with_status_2_and_a_failed_start_with_1() -> None:
    assert (ConfigError.exit_status, HostUnfit.exit_status) == (2, 2)
    assert (StartFailed.exit_status, LaunchError.exit_status) == (1, 1)
