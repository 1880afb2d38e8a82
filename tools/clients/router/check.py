"""Two Lily instances behind LiteLLM's proxy: a conversation stays where it is cached, and outlives its instance.

By hand: check.py, with the Python of a virtual environment that holds requirements-by-hand.txt.
"""

import os
import pathlib
import secrets
import socket
import subprocess
import sys
import tempfile
import time

import requests

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from lily import Server  # noqa: E402

QUESTIONS = ["My name is Ada and I love trains.", "What is the capital of France?", "What is my name?"]


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Proxy:
    """The proxy with our configuration, on a free port."""

    def __init__(self, first, second, log):
        port = free_port()
        self.key = "sk-" + secrets.token_hex(32)
        env = {**os.environ, "LILY_A": first.base, "LILY_B": second.base, "LITELLM_LOCAL_MODEL_COST_MAP": "True",
               "LITELLM_MASTER_KEY": self.key}
        command = [pathlib.Path(sys.executable).parent / "litellm", "--config", HERE / "config.yaml",
                   "--host", "127.0.0.1", "--port", str(port)]
        self.child = subprocess.Popen(command, env=env, stdout=log, stderr=log)
        self.base = f"http://127.0.0.1:{port}"
        for _ in range(240):
            try:
                if requests.get(f"{self.base}/health/liveliness", timeout=1).ok:
                    return
            except requests.RequestException:
                time.sleep(0.5)
            assert self.child.poll() is None, "the proxy ended"
        raise AssertionError("the proxy did not start")

    def ask(self, session, messages):
        """One turn: text, cached tokens, prompt tokens, and the instance that answered."""
        body = {"model": "lily", "messages": messages, "temperature": 0, "max_tokens": 60,
                "chat_template_kwargs": {"enable_thinking": False}}
        headers = {"authorization": f"Bearer {self.key}", "x-litellm-session-id": session}
        reply = requests.post(f"{self.base}/v1/chat/completions", json=body, headers=headers, timeout=120)
        assert reply.status_code == 200, reply.text
        data = reply.json()
        cached = (data["usage"].get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        return data["choices"][0]["message"]["content"], cached, data["usage"]["prompt_tokens"], reply.headers["x-litellm-model-id"]


class Talk:
    """A conversation that grows."""

    def __init__(self, proxy, session):
        self.proxy, self.session, self.messages = proxy, session, []
        self.places, self.cached, self.prompts = [], [], []

    def turn(self, question):
        self.messages.append({"role": "user", "content": question})
        text, cached, prompt, place = self.proxy.ask(self.session, self.messages)
        self.messages.append({"role": "assistant", "content": text})
        self.places.append(place)
        self.cached.append(cached)
        self.prompts.append(prompt)
        return text


def main():
    servers = [Server("--model", "lily-demo"), Server("--model", "lily-demo")]
    log = tempfile.TemporaryFile("w+")
    proxy = None
    try:
        proxy = Proxy(*servers, log)
        talks = [Talk(proxy, f"talk-{at}") for at in range(6)]
        for question in QUESTIONS[:2]:
            for talk in talks:
                talk.turn(question)
        assert all(len(set(talk.places)) == 1 for talk in talks), [talk.places for talk in talks]
        used = {talk.places[0] for talk in talks}
        assert used == {"lily-a", "lily-b"}, f"all conversations went to {used}"
        # The second prompt is the first one and what was said since: all of the first but its last part is there.
        shares = [talk.cached[1] / talk.prompts[0] for talk in talks]
        assert min(shares) > 0.5, f"cached shares of the earlier prompt: {shares}"
        print(f"ok      router: six conversations stay where they are cached ({min(shares):.0%} of the earlier prompt or more)")

        servers[0].child.kill()
        servers[0].child.wait()
        for talk in talks:
            assert "Ada" in talk.turn(QUESTIONS[2]), talk.messages
        assert {talk.places[-1] for talk in talks} == {"lily-b"}, [talk.places for talk in talks]
        moved = [talk for talk in talks if talk.places[0] == "lily-a"]
        print(f"ok      router: {len(moved)} conversations go on at the other instance when theirs is killed")
        for talk in moved:
            talk.turn("What do I love?")
        assert min(talk.cached[-1] / talk.prompts[-2] for talk in moved) > 0.5, [talk.cached for talk in moved]
        print("ok      router: and are cached there from then on")
    except AssertionError as error:
        print(f"FAILED  router: {error}")
        log.seek(0)
        print(log.read()[-1500:], file=sys.stderr)
        sys.exit(1)
    finally:
        if proxy:
            proxy.child.terminate()
            proxy.child.wait()
        for server in servers:
            server.child.kill()
            server.child.wait()


main()
