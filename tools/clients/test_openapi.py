"""/openapi.json: whole, true, and no request that follows from it, or breaks its rules, brings the server down.

schemathesis makes the requests, the same ones each time.
"""

import collections

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import content_type_conformance, status_code_conformance

from lily import Server

# What a request may not cost: answers as long as the context.
LIMITS = {"max_tokens": 4, "max_completion_tokens": 4, "max_output_tokens": 4}
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance]
# For each operation; all of them take about a minute.
EXAMPLES = 40
LISTED = {"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens",
          "/v1/models", "/v1/models/{id}", "/tokenize", "/health/live", "/health/ready", "/metrics"}


@pytest.fixture(scope="module")
def fuzzed():
    """A server of its own: what it is sent may not matter to other tests."""
    server = Server("--model", "lily-demo", "--context", "2048")
    yield server
    assert server.child.poll() is None, "the server died"
    server.stop()


@pytest.fixture(scope="module")
def document(fuzzed):
    reply = requests.get(f"{fuzzed.root}/openapi.json")
    if reply.status_code == 404:
        pytest.skip("/openapi.json is not there")
    return reply.json()


def test_every_address_is_in_the_document(document):
    assert document["openapi"].startswith("3.1") and LISTED <= set(document["paths"])
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert operation.get("summary") or operation.get("description"), f"{method} {path}"


def failure_of(server, operation, statuses):
    """Sends what follows from the document, and what nearly does; the first reply that it does not allow."""

    @settings(max_examples=EXAMPLES, derandomize=True, database=None, deadline=None, phases=[Phase.explicit, Phase.generate],
              suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy())
    def ask(case):
        if isinstance(case.body, dict):
            limits = {name: limit for name, limit in LIMITS.items() if isinstance(case.body.get(name), int)}
            case.body = {**case.body, **limits, **({"model": server.model} if "model" in case.body else {})}
        reply = case.call(base_url=server.root, timeout=60)
        statuses[case.method, reply.status_code] += 1
        case.validate_response(reply, checks=CHECKS)

    try:
        ask()
    except Exception as error:
        return f"{operation.method.upper()} {operation.path}: {error}"


def test_no_request_fails_the_server(fuzzed, document):
    schema = schemathesis.openapi.from_dict(document)
    operations = [result.ok() for result in schema.get_all_operations()]
    statuses = collections.Counter()
    failures = [failure_of(fuzzed, operation, statuses) for operation in operations]
    assert len(operations) >= len(LISTED) and not any(failures), "\n\n".join(filter(None, failures))
    assert statuses["POST", 200] > 10 and statuses["POST", 400] > 50, f"requests that show little: {statuses}"


@pytest.mark.parametrize("path", sorted(path for path in LISTED if path.startswith("/v1/") and "models" not in path))
def test_bodies_that_are_none(fuzzed, path):
    for body in [b"", b"{", b"[]", b"null", b'"text"', b"{}", b"\xff\xfe", b'{"model": 1}', b"{" * 5000, b'{"a":1,"a":2}']:
        reply = requests.post(f"{fuzzed.root}{path}", data=body, headers={"content-type": "application/json"}, timeout=30)
        assert reply.status_code == 400 and reply.json()["error"]["message"], f"{path} {body[:20]}: {reply.text}"
