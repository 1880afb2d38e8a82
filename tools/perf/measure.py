#!/usr/bin/env python3
"""Prefill and decode speed of `lily run`, settings in alternation, medians, one row each in perf/log.jsonl.

usage: measure.py [--lily target/release/lily] [--model DIR] [--prompt-words N] [--tokens N] [--rounds 5]
                  [--threads 1,2] [--precision fast,exact] [--note TEXT] [--dry]

Each round runs every setting once, so that a machine whose speed drifts slows all of them alike. The first round warms
up and does not count.
"""
import argparse, datetime, itertools, json, os, pathlib, platform, statistics, subprocess, sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


def machine():
    try:
        names = [l.split(":", 1)[1].strip() for l in open("/proc/cpuinfo") if l.startswith("model name")]
    except OSError:
        names = [platform.processor() or platform.machine()] * (os.cpu_count() or 1)
    return f"{names[0]}, {len(names)} cores"


def run(a, threads, precision, prompt):
    command = [a.lily, "run", "--json", "--raw", "--temperature", "0", "--ignore-eos", "--max-tokens", str(a.tokens),
               "--threads", threads, "--precision", precision] + (["--model", a.model] if a.model else [])
    out = subprocess.run(command, input=prompt, capture_output=True, text=True, check=True).stdout
    r = json.loads(out)
    u, t = r["usage"], r["timings_ms"]
    # The first token comes from the prompt's last logits; the others cost a step each.
    return r["model"], u["prompt_tokens"], (u["prompt_tokens"] / t["prefill"] * 1e3,
                                           (u["completion_tokens"] - 1) / t["decode"] * 1e3)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--lily", default=str(ROOT / "target/release/lily")); p.add_argument("--model")
    p.add_argument("--prompt-words", type=int, default=400); p.add_argument("--tokens", type=int, default=64)
    p.add_argument("--rounds", type=int, default=5); p.add_argument("--threads", default="1,2")
    p.add_argument("--precision", default="fast"); p.add_argument("--note", default="")
    p.add_argument("--dry", action="store_true", help="print only")
    a = p.parse_args()
    docs = json.load(open(ROOT / "golden/demo/eval_docs.json"))
    prompt = " ".join(" ".join(docs).replace("<|im_start|>", "").replace("<|im_end|>", "").split()[:a.prompt_words])
    settings = list(itertools.product(a.precision.split(","), a.threads.split(",")))
    seen = {s: [] for s in settings}
    for i in range(a.rounds + 1):
        for precision, threads in settings:
            model, prompt_tokens, speeds = run(a, threads, precision, prompt)
            if i:
                seen[precision, threads].append(speeds)
    load = f"{a.note} load average {os.getloadavg()[0]:.1f}".strip()
    head = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=ROOT).stdout
    command = "tools/perf/measure.py " + " ".join(x for x in sys.argv[1:] if x != "--dry")
    rows = []
    for (precision, threads), runs in seen.items():
        for name, values in zip((f"prefill of {prompt_tokens} tokens", f"decode of {a.tokens} tokens"), zip(*runs)):
            rows.append(dict(commit=head.strip(), date=str(datetime.date.today()), machine=machine(),
                             command=command.strip(), what=f"{model}, {name}, {precision}, threads {threads}",
                             value=round(statistics.median(values), 1), unit="tokens/s", load=load,
                             spread=[round(min(values), 1), round(max(values), 1)]))
    for r in rows:
        print(f"{r['what']}: {r['value']} tokens/s ({r['spread'][0]}–{r['spread'][1]})")
    if not a.dry:
        with open(ROOT / "perf/log.jsonl", "a") as f:
            f.writelines(json.dumps(r, ensure_ascii=False) + "\n" for r in rows)


if __name__ == "__main__":
    main()
