"""What the tests share: servers with the built-in model and with a random tiny checkpoint, and honest skips."""

import contextlib

import pytest
import requests

from lily import Server, tiny_checkpoint


def stopped(server):
    code = server.stop()
    assert code == 0, f"the server ended with {code}: {''.join(server.lines)}"


@pytest.fixture(scope="session")
def demo():
    server = Server("--model", "lily-demo")
    yield server
    stopped(server)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    folder = tiny_checkpoint(tmp_path_factory.mktemp("models") / "tiny")
    server = Server("--model", str(folder), "--context", "4096")
    yield server
    stopped(server)


@pytest.fixture
def unless_absent():
    """Skips, with a printed reason, where the server itself says that it does not do this yet."""
    @contextlib.contextmanager
    def check(field):
        try:
            yield
        except Exception as error:
            code, param = getattr(error, "code", None), getattr(error, "param", None) or ""
            if code == "unsupported_value" and param.startswith(field):
                pytest.skip(f"{field}: {error.message}")
            raise

    return check


@pytest.fixture
def needs():
    """Skips, with a printed reason, where an address is not there yet."""

    def check(server, path):
        reply = requests.post(f"{server.root}{path}", json={})
        if reply.status_code == 404 and "no such address" in reply.text:
            pytest.skip(f"{path} is not there")

    return check
