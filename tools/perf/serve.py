#!/usr/bin/env python3
"""What a server's clients see: tokens a second of answers side by side, and the first token of a turn whose history is
cached or not. One row each in perf/log.jsonl.

usage: serve.py [--lily target/release/lily] [--model MODEL] [--context N] [--parallel 1,2,4,8] [--tokens N]
                [--history N] [--rounds 5] [--note TEXT] [--dry]

Every round runs all settings once, so that a machine whose speed drifts slows all of them alike. Prompts are random, new
ones for every request, but for the turn that is to be found cached.
"""
import argparse, json, random, re, subprocess, threading, time, urllib.request

from measure import ROOT, record


class Server:
    """A started `lily serve` on a port of its own."""

    def __init__(self, a, parallel):
        command = [a.lily, "serve", "--port", "0", "--parallel", str(parallel), "--log-level", "off"]
        command += (["--model", a.model] if a.model else []) + (["--context", str(a.context)] if a.context else [])
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            found = re.search(r"serving (\S+) on (http://\S+)/v1", line)
            if found:
                self.model, self.url = found.groups()
                break
        else:
            raise SystemExit("the server did not start")
        threading.Thread(target=self.process.stderr.read, daemon=True).start()

    def complete(self, path, body, tokens):
        """Streams an answer: when its first and its last piece came, its text, and how much of the prompt was cached."""
        # Ends of an answer are forbidden, so that every answer has its length.
        body = body | {"max_tokens": tokens, "temperature": 0, "stream": True,
                       "stream_options": {"include_usage": True}, "logit_bias": {str(id): -100 for id in self.ends}}
        request = urllib.request.Request(self.url + path, json.dumps(body).encode())
        first, text, cached = None, "", None
        with urllib.request.urlopen(request, timeout=3600) as reply:
            for line in reply:
                if line.startswith(b"data: {"):
                    chunk = json.loads(line[6:])
                    for choice in chunk["choices"]:
                        piece = choice.get("text") or choice.get("delta", {}).get("content") or ""
                        first = first or (time.perf_counter() if piece else None)
                        text += piece
                    if chunk.get("usage"):
                        cached = chunk["usage"]["prompt_tokens_details"]["cached_tokens"]
        return first, time.perf_counter(), text, cached

    def find_ends(self):
        self.ends = []
        for text in ("<|im_end|>", "<|endoftext|>"):
            request = urllib.request.Request(self.url + "/tokenize", json.dumps({"prompt": text}).encode())
            self.ends += json.load(urllib.request.urlopen(request))["tokens"]

    def stop(self):
        self.process.terminate()
        self.process.wait()


def side_by_side(server, count, tokens):
    """Tokens a second of so many answers together, while all of them are being written."""
    times = [None] * count
    def ask(i):
        ids = [random.randrange(300, 3000) for _ in range(32)]
        times[i] = server.complete("/v1/completions", {"prompt": ids}, tokens)[:2]
    threads = [threading.Thread(target=ask, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    begin, end = max(first for first, _ in times), min(last for _, last in times)
    return sum((tokens - 1) * (end - begin) / (last - first) for first, last in times) / (end - begin)


def turns(server, history):
    """Milliseconds to the first token of a new conversation, and of its next turn, which finds it cached."""
    words = "time day way man woman world life hand part child eye place work week case point home water room area".split()
    messages = [{"role": "user", "content": " ".join(random.choices(words, k=history))}]
    kwargs = {"enable_thinking": False, "preserve_thinking": True}
    milliseconds, cached = [], None
    for question in (None, "And what of the next one? Tell me more of it, please, in a few words."):
        if question:
            messages += [{"role": "assistant", "content": text}, {"role": "user", "content": question}]
        start = time.perf_counter()
        body = {"messages": messages, "chat_template_kwargs": kwargs}
        first, _, text, cached = server.complete("/v1/chat/completions", body, 12)
        milliseconds.append((first - start) * 1e3)
    return milliseconds, cached


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--lily", default=str(ROOT / "target/release/lily")); p.add_argument("--model")
    p.add_argument("--context", type=int); p.add_argument("--parallel", default="1,2,4,8")
    p.add_argument("--tokens", type=int, default=64); p.add_argument("--history", type=int, default=3000)
    p.add_argument("--rounds", type=int, default=5); p.add_argument("--note", default="")
    p.add_argument("--dry", action="store_true", help="print only")
    a = p.parse_args()
    counts = [int(n) for n in a.parallel.split(",")]
    server = Server(a, max(counts))
    server.find_ends()
    speeds, cold, warm = {n: [] for n in counts}, [], []
    for n in counts:
        side_by_side(server, n, 8)  # plans are made once
    for _ in range(a.rounds):
        for n in counts:
            speeds[n].append(side_by_side(server, n, a.tokens))
        (new, again), cached = turns(server, a.history)
        cold.append(new)
        warm.append(again)
    server.stop()
    found = [(f"{n} answers side by side, all together", "tokens/s", speeds[n]) for n in counts]
    found += [(f"first token of a conversation of {a.history} words", "ms", cold),
              (f"first token of its next turn, with {cached} tokens cached", "ms", warm)]
    record([(f"{server.model}, serve, {name}", unit, values) for name, unit, values in found], a)


if __name__ == "__main__":
    main()
