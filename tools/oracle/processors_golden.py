#!/usr/bin/env python3
"""Greedy answers of mlx-lm (CPU, float32) under its own logits processors, and log-probabilities.

usage: processors_golden.py --ckpt models/lily-demo --out golden/demo/processors_mlx_f32.json [--max-tokens 40]

written: one row a prompt and setting: prompt (token ids), the setting, tokens (generated ids, the stop id included),
margin (smallest distance of the two largest processed logits on the way: where it is tiny, rounding may decide), and of
the logits before the processors, log-softmax: logprobs of the chosen tokens, top (ids) and top_logprobs of the five
largest.

mlx-lm looks at the last 20 tokens unless told otherwise; here at all. It lets presence and frequency penalties count the
prompt too; here, as in OpenAI's API, they are shown the generated tokens only.
"""
import argparse, json, sys
import mlx.core as mx
from mlx_lm import load
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.sample_utils import make_logits_processors

ALL = 1 << 30
PROMPTS = ["Hello!", "What is the capital of France?", "Sort this list: 42, 7, 19, 3, 7, 42",
           "Tell me a story about a fox named Rosa and a red kite."]


def settings(tk):
    first = lambda text: tk.encode(text)[0]
    bias = {first("The"): -100.0, first("You"): 4.5, first(" fox"): -2.25, tk.convert_tokens_to_ids("<|im_end|>"): -1.5}
    return [
        dict(repetition_penalty=1.3),
        dict(repetition_penalty=0.8),
        dict(presence_penalty=2.0),
        dict(frequency_penalty=2.0),
        dict(frequency_penalty=-2.0),
        dict(logit_bias=bias),
        dict(logit_bias=bias, repetition_penalty=1.15, presence_penalty=0.5, frequency_penalty=0.25),
    ]


def greedy(model, stop_ids, prompt, setting, max_tokens):
    of_all = make_logits_processors(setting.get("logit_bias"), setting.get("repetition_penalty"), ALL)
    of_generated = make_logits_processors(
        presence_penalty=setting.get("presence_penalty"), presence_context_size=ALL,
        frequency_penalty=setting.get("frequency_penalty"), frequency_context_size=ALL)
    cache, tokens, margin, logprobs, top, top_logprobs = make_prompt_cache(model), [], float("inf"), [], [], []
    logits = model(mx.array([prompt]), cache=cache)[:, -1]
    while len(tokens) < max_tokens:
        raw = logits[0] - mx.logsumexp(logits[0])
        processed = mx.array(logits)
        for processor in of_all:
            processed = processor(mx.array(prompt + tokens), processed)
        for processor in of_generated:
            processed = processor(mx.array(tokens, dtype=mx.uint32), processed)
        best = mx.sort(processed[0])[-2:]
        margin = min(margin, float(best[1] - best[0]))
        tokens.append(int(processed[0].argmax()))
        logprobs.append(round(float(raw[tokens[-1]]), 5))
        order = mx.argsort(-raw)[:5].tolist()
        top.append(order)
        top_logprobs.append([round(float(raw[i]), 5) for i in order])
        if tokens[-1] in stop_ids:
            break
        logits = model(mx.array([[tokens[-1]]]), cache=cache)[:, -1]
    return dict(tokens=tokens, margin=round(margin, 5), logprobs=logprobs, top=top, top_logprobs=top_logprobs)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--ckpt", required=True); ap.add_argument("--out", required=True)
    ap.add_argument("--max-tokens", type=int, default=40)
    a = ap.parse_args()
    mx.set_default_device(mx.cpu)
    model, tk = load(a.ckpt)
    model.set_dtype(mx.float32)
    rows = []
    for text in PROMPTS:
        ids = tk.apply_chat_template([dict(role="user", content=text)], add_generation_prompt=True, enable_thinking=False)
        ids = list(ids["input_ids"] if hasattr(ids, "keys") else ids)
        for setting in settings(tk):
            row = greedy(model, tk.eos_token_ids, ids, setting, a.max_tokens)
            print(text, setting, row["margin"], repr(tk.decode(row["tokens"])), file=sys.stderr, flush=True)
            rows.append(dict(prompt=ids, setting=setting, **row))
    with open(a.out, "w") as f:
        f.write("[\n" + ",\n".join(json.dumps(r) for r in rows) + "\n]\n")


if __name__ == "__main__":
    main()
