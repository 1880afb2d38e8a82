#!/usr/bin/env python3
"""Greedy answers of mlx-lm (CPU, float32) to the behaviour cases of the demo model.

usage: cases_golden.py --ckpt models/lily-demo --cases golden/demo/cases.json --out golden/demo/cases_mlx_f32.json
       [--max-tokens 400] [--longest 400]

written: one row a case: task, prompt_tokens, tokens (generated ids, the stop id included), right (whether the text is
the expected one). Prompts of more than --longest tokens are left out (null): mlx-lm's recurrence on a CPU takes minutes
for them.
"""
import argparse, json, sys
import mlx.core as mx
from mlx_lm import load
from mlx_lm.models.cache import make_prompt_cache

def expected_text(tk, case):
    """The answer as the template writes it into history, from the end of the prompt on."""
    e = dict(case["expected"])
    turn = dict(role="assistant", content=e["content"], reasoning_content=e["reasoning"])
    if e.get("tool_calls"):
        turn["tool_calls"] = e["tool_calls"]
    render = lambda messages, **k: tk.apply_chat_template(messages, tools=case["tools"], tokenize=False, **k)
    prompt = render(case["messages"], add_generation_prompt=True, enable_thinking=case["thinking"])
    return render([*case["messages"], turn])[len(prompt):].removesuffix("\n")


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--ckpt", required=True); ap.add_argument("--cases", required=True)
    ap.add_argument("--longest", type=int, default=400)
    ap.add_argument("--out", required=True); ap.add_argument("--max-tokens", type=int, default=400)
    a = ap.parse_args()
    mx.set_default_device(mx.cpu)
    model, tk = load(a.ckpt)
    model.set_dtype(mx.float32)
    rows = []
    for case in json.load(open(a.cases)):
        ids = tk.apply_chat_template(case["messages"], tools=case["tools"], add_generation_prompt=True,
                                     enable_thinking=case["thinking"])
        ids = list(ids["input_ids"] if hasattr(ids, "keys") else ids)
        if len(ids) > a.longest:
            rows.append(None)
            continue
        cache, tokens = make_prompt_cache(model), []
        logits = model(mx.array([ids]), cache=cache)[0, -1]
        while len(tokens) < a.max_tokens:
            tokens.append(int(logits.argmax()))
            if tokens[-1] in tk.eos_token_ids:
                break
            logits = model(mx.array([[tokens[-1]]]), cache=cache)[0, -1]
        right = tk.decode(tokens) == expected_text(tk, case)
        print(len(rows), case["task"], len(ids), right, file=sys.stderr, flush=True)
        rows.append(dict(task=case["task"], prompt_tokens=len(ids), tokens=tokens, right=right))
    with open(a.out, "w") as f:
        f.write("[\n" + ",\n".join(json.dumps(r) for r in rows) + "\n]\n")
    done = [r for r in rows if r]
    for task in dict.fromkeys(r["task"] for r in done):
        of = [r["right"] for r in done if r["task"] == task]
        print(f"{task}: {sum(of)} of {len(of)}")


if __name__ == "__main__":
    main()
