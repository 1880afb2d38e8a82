"""/openapi.json: whole, true, and no request that follows from it, or breaks its rules, brings the server down.

schemathesis makes the requests, the same ones each time.
"""

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import content_type_conformance, status_code_conformance

from conftest import Server

# What a request may not cost: answers as long as the context.
LIMITS = {"max_tokens": 4, "max_completion_tokens": 4, "max_output_tokens": 4}
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


@pytest.fixture(scope="module")
def api_schema(fuzzed, document):
    return schemathesis.openapi.from_dict(document).configure(base_url=fuzzed.root) if hasattr(
        schemathesis.openapi.from_dict(document), "configure") else schemathesis.openapi.from_url(
        f"{fuzzed.root}/openapi.json")


def test_every_address_is_in_the_document(document):
    assert document["openapi"].startswith("3.1") and LISTED <= set(document["paths"])
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert operation.get("summary") or operation.get("description"), f"{method} {path}"


schema = schemathesis.pytest.from_fixture("api_schema")


@schema.parametrize()
@settings(max_examples=25, derandomize=True, deadline=None, phases=[Phase.explicit, Phase.generate],
          suppress_health_check=list(HealthCheck))
def test_no_request_fails_the_server(case):
    if isinstance(case.body, dict):
        case.body |= {name: limit for name, limit in LIMITS.items() if isinstance(case.body.get(name), int)}
    reply = case.call(timeout=60)
    case.validate_response(reply, checks=[not_a_server_error, status_code_conformance, content_type_conformance])
