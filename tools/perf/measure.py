#!/usr/bin/env python3
"""`lily bench` with several settings in alternation, medians, one row each in perf/log.jsonl.

usage: measure.py [--lily target/release/lily] [--model MODEL] [--prompt-tokens N] [--tokens N] [--rounds 5]
                  [--threads 1,2] [--precision fast,exact] [--note TEXT] [--dry]

Each round runs every setting once, so that a machine whose speed drifts slows all of them alike. `lily bench` measures
one round each time, behind a warm-up of its own.
"""
import argparse, datetime, itertools, json, os, pathlib, platform, statistics, subprocess, sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


def machine():
    try:
        names = [l.split(":", 1)[1].strip() for l in open("/proc/cpuinfo") if l.startswith("model name")]
    except OSError:
        names = [platform.processor() or platform.machine()] * (os.cpu_count() or 1)
    return f"{names[0]}, {len(names)} cores"


def run(a, threads, precision):
    command = [a.lily, "bench", "--json", "--rounds", "1", "--prompt-tokens", str(a.prompt_tokens), "--tokens",
               str(a.tokens), "--threads", threads, "--precision", precision] + (["--model", a.model] if a.model else [])
    r = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
    row = r["results"][0]
    return r["model"], (row["prefill_tps"]["median"], row["decode_tps"]["median"])


def record(found, a):
    """Prints (what, unit, values) with their medians, and makes them rows of the log unless `a.dry`."""
    load = f"{a.note} load average {os.getloadavg()[0]:.1f}".strip()
    head = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=ROOT).stdout
    command = " ".join(["tools/perf/" + pathlib.Path(sys.argv[0]).name] + [x for x in sys.argv[1:] if x != "--dry"])
    rows = [dict(commit=head.strip(), date=str(datetime.date.today()), machine=machine(), command=command, what=what,
                 value=round(statistics.median(values), 1), unit=unit, load=load,
                 spread=[round(min(values), 1), round(max(values), 1)]) for what, unit, values in found]
    for r in rows:
        print(f"{r['what']}: {r['value']} {r['unit']} ({r['spread'][0]}–{r['spread'][1]})")
    if not a.dry:
        with open(ROOT / "perf/log.jsonl", "a") as f:
            f.writelines(json.dumps(r, ensure_ascii=False) + "\n" for r in rows)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--lily", default=str(ROOT / "target/release/lily")); p.add_argument("--model")
    p.add_argument("--prompt-tokens", type=int, default=512); p.add_argument("--tokens", type=int, default=64)
    p.add_argument("--rounds", type=int, default=5); p.add_argument("--threads", default="1,2")
    p.add_argument("--precision", default="fast"); p.add_argument("--note", default="")
    p.add_argument("--dry", action="store_true", help="print only")
    a = p.parse_args()
    if a.tokens < 2:
        p.error("--tokens: the first token is no decode step, so at least 2")
    settings = list(itertools.product(a.precision.split(","), a.threads.split(",")))
    seen = {s: [] for s in settings}
    for _ in range(a.rounds):
        for precision, threads in settings:
            model, speeds = run(a, threads, precision)
            seen[precision, threads].append(speeds)
    names = (f"prefill of {a.prompt_tokens} tokens", f"decode of {a.tokens} tokens")
    record([(f"{model}, {name}, {precision}, threads {threads}", "tokens/s", values)
            for (precision, threads), runs in seen.items() for name, values in zip(names, zip(*runs))], a)


if __name__ == "__main__":
    main()
