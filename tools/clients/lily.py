"""A running `lily serve`, and a random tiny checkpoint for it. `lily.py COMMAND…` runs a command with the address of a
server behind its words.

LILY names the program; without it the release build of this repository is taken.
"""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import threading
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
LILY = os.environ.get("LILY", str(ROOT / "target/release/lily"))
# No settings of whoever runs this: they would change what is tested.
BARE = {name: value for name, value in os.environ.items() if not name.startswith("LILY_")}
BARE |= {"XDG_CONFIG_HOME": "/nonexistent", "HF_HUB_CACHE": "/nonexistent"}


class Server:
    """A running `lily serve` on a free port."""

    def __init__(self, *flags, env=None):
        command = [LILY, "serve", "--port", "0", *flags]
        self.child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=env or BARE)
        self.lines = []
        for line in self.child.stderr:
            self.lines.append(line)
            found = re.search(r"http://([^/\s]+)/v1", line)
            if found:
                break
        else:
            raise RuntimeError(f"{' '.join(command)} ended with {self.child.wait()}: {''.join(self.lines)}")
        self.root = f"http://{found.group(1)}"
        self.base = f"{self.root}/v1"
        threading.Thread(target=self._drain, daemon=True).start()
        with urllib.request.urlopen(f"{self.base}/models") as reply:
            self.model = json.load(reply)["data"][0]["id"]

    def _drain(self):
        for line in self.child.stderr:
            self.lines.append(line)

    def stop(self):
        """Ends it by a signal, as a service manager does; returns the exit code."""
        if self.child.poll() is None:
            self.child.send_signal(signal.SIGTERM)
        try:
            return self.child.wait(timeout=15)
        except subprocess.TimeoutExpired:
            self.child.kill()
            raise


def tokenizer():
    """Byte for byte, with the control tokens behind: 263 ids, for checkpoints of 264."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {byte: chr(byte) for byte in shown}
    letters |= {byte: chr(256 + at) for at, byte in enumerate(byte for byte in range(256) if byte not in letters)}
    control = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>"]
    is_special = lambda text: text.startswith("<|")
    added = [
        {"id": 256 + at, "content": text, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False, "special": is_special(text)}
        for at, text in enumerate(control)
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": byte_level, "post_processor": byte_level, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": {letters[byte]: byte for byte in range(256)}, "merges": []},
    }


def tiny_checkpoint(folder):
    """A golden checkpoint of random weights, with a tokenizer and the demo model's template beside it."""
    golden, demo = ROOT / "golden/architectures/mlx-q4", ROOT / "models/lily-demo"
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(golden / "model.safetensors", folder)
    # Its end token is a byte of this tokenizer.
    config = re.sub(r'"eos_token_id": \d+', '"eos_token_id": 256', (golden / "config.json").read_text())
    (folder / "config.json").write_text(config)
    shutil.copy(demo / "chat_template.jinja", folder)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer()))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>"}))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [256, 258], "temperature": 1.0}))
    return folder


if __name__ == "__main__":
    server = Server("--model", "lily-demo")
    try:
        code = subprocess.run([*sys.argv[1:], server.base]).returncode
    finally:
        server.stop()
    sys.exit(code)
