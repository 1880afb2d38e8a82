"""Train the demo model. Time-budgeted and resumable: progress = seconds trained / --total seconds.
  python train.py --data DIR --tok tokenizer.json --state state.pt --total 1300 --stop 520 --out $OUT
Runs until --stop seconds of wall time in this call (or progress 1), saves state, evaluates, exports to --out.
With --steps N progress counts steps instead (CPU tests)."""
import argparse, glob, json, math, os, random, time, sys
import numpy as np, torch, torch.nn.functional as F
from tokenizers import Tokenizer
import model as M, corpus as C

P = argparse.ArgumentParser()
P.add_argument("--preset", default="tiny"); P.add_argument("--data", required=True); P.add_argument("--tok", default="tokenizer.json"); P.add_argument("--state", default="state.pt"); P.add_argument("--out", default="out")
P.add_argument("--init", default="", help="folder with weights-*.safetensors of an earlier call, when the state is lost"); P.add_argument("--start", type=float, default=0., help="progress to start from with --init")
P.add_argument("--total", type=float, default=1300); P.add_argument("--stop", type=float, default=530); P.add_argument("--steps", type=int, default=0)
P.add_argument("--batch", type=int, default=65536, help="tokens a step"); P.add_argument("--seq", default="0:1024:0,0.7:2048:0.1,0.85:8192:0.4", help="progress:length:share of rows from long docs,...")
P.add_argument("--qat", type=float, default=.75); P.add_argument("--lr", type=float, default=3e-3); P.add_argument("--wd", type=float, default=.05); P.add_argument("--aux", type=float, default=.01); P.add_argument("--prompt-weight", type=float, default=.1)
P.add_argument("--fla", type=int, default=-1); P.add_argument("--compile", type=int, default=-1); P.add_argument("--evaln", type=int, default=48); P.add_argument("--max-pool", type=float, default=6e8); P.add_argument("--micro", type=int, default=0, help="tokens a micro-batch; 0: the whole batch"); P.add_argument("--log", type=int, default=20)
P.add_argument("--eval-only", action="store_true")
a = P.parse_args(); T0 = time.time()
cuda = torch.cuda.is_available(); dev = "cuda" if cuda else "cpu"; dt = torch.bfloat16 if cuda else torch.float32
torch.manual_seed(1); torch.set_float32_matmul_precision("high"); os.makedirs(a.out, exist_ok=True)
logf = open(a.out + "/log.txt", "a")
def log(*x): s = f"[{time.time()-T0:7.1f}] " + " ".join(str(y) for y in x); print(s, flush=True); logf.write(s + "\n"); logf.flush()
tok = Tokenizer.from_file(a.tok); EOT = tok.token_to_id("<|endoftext|>"); cfg = M.PRESETS[a.preset]; assert tok.get_vocab_size() <= cfg.vocab_size
net = M.LM(cfg).to(dev); log("params", f"{M.nparams(net)/1e6:.2f}M", dev, torch.__version__)

# ---- fla when it is right here, own chunked kernel otherwise
def try_fla():
    try:
        f = M.use_fla(); H, D = cfg.linear_num_value_heads, cfg.linear_key_head_dim
        B, T = 16, 1024; q, k, v = [torch.randn(B, T, H, D, device=dev, dtype=dt) for _ in range(3)]; g = -torch.rand(B, T, H, device=dev) * .1; b = torch.rand(B, T, H, device=dev, dtype=dt); res = []
        k[:, 100:300] = k[:, 100:101]; cot = torch.randn(B, T, H, D, device=dev)
        for fn in (f, M.gdn_torch):
            xs = [x.clone().requires_grad_() for x in (q, k, v, g, b)]; o = fn(*xs); (o.float() * cot).sum().backward(); res.append([o] + [x.grad for x in xs])
        e = [((x.float() - y.float()).norm() / y.float().norm()).item() for x, y in zip(*res)]; log("fla against torch, relative errors:", ["%.1e" % x for x in e])
        if max(e) < .03: return True
    except Exception as x: log("no fla:", repr(x)[:300])
    M.GDN["f"] = torch.compiler.disable(M.gdn_torch); return False
fla = try_fla() if (a.fla == 1 or (a.fla == -1 and cuda)) else False
if not fla: M.GDN["f"] = torch.compiler.disable(M.gdn_torch)

if cuda:   # a memory-saving attention kernel must be there for head size 256
    from torch.nn.attention import sdpa_kernel, SDPBackend as SB
    def sd(expand, bs):
        n, d = cfg.num_attention_heads, cfg.head_dim; q = torch.randn(1, n, 256, d, device=dev, dtype=dt, requires_grad=True); k = torch.randn(1, n if expand else cfg.num_key_value_heads, 256, d, device=dev, dtype=dt, requires_grad=True)
        with sdpa_kernel(bs): F.scaled_dot_product_attention(q, k, k, is_causal=True, enable_gqa=not expand).float().sum().backward()
    for ex, bs in ((False, [SB.FLASH_ATTENTION]), (False, [SB.CUDNN_ATTENTION]), (True, [SB.FLASH_ATTENTION]), (True, [SB.CUDNN_ATTENTION, SB.EFFICIENT_ATTENTION])):
        try: sd(ex, bs); M.ATT["expand"] = ex; log("attention", bs, "expand", ex); break
        except Exception as e: log("no attention", bs, ex, repr(e)[:160])
# ---- data: pools of uint16 tokens; a row starts at the start of a document
class Pool:
    def __init__(self, kind): self.kind, self.seen, self.n = kind, set(), 0; self.buf = torch.empty(0, dtype=torch.int16, device=dev); self.idx = torch.empty(0, dtype=torch.int64, device=dev)
    def refresh(self):
        for f in sorted(glob.glob(f"{a.data}/{self.kind}_*.npy")):
            if f.endswith(".idx.npy") or ".tmp." in f or f in self.seen or self.n > a.max_pool: continue
            self.seen.add(f); x = np.load(f); i = np.load(f[:-4] + ".idx.npy")
            self.idx = torch.cat([self.idx, torch.from_numpy(i).to(dev) + self.n]); self.buf = torch.cat([self.buf, torch.from_numpy(x.view(np.int16)).to(dev)]); self.n += len(x)
    def rows(self, B, T):
        ok = self.idx[: int((self.idx <= self.n - T - 1).sum())] if len(self.idx) < 4096 else self.idx
        s = ok[torch.randint(len(ok), (B,), device=dev)].clamp_max(self.n - T - 1)
        x = self.buf[s[:, None] + torch.arange(T + 1, device=dev)].int() & 0xFFFF
        return (x & 0x7FFF).long(), x < 0x8000
short, long_ = Pool("short"), Pool("long")
def stage(p):
    cur = None
    for s in a.seq.split(","):
        q, T, l = s.split(":")
        if p >= float(q): cur = int(T), float(l)
    return cur
def batch(p, toks):
    T, l = stage(p); B = max(1, toks // T); nl = min(B, int(B * l + .5)) if long_.n else 0
    xs = ([short.rows(B - nl, T)] if B > nl else []) + ([long_.rows(nl, T)] if nl else []); return torch.cat([x for x, _ in xs]), torch.cat([w for _, w in xs])

# ---- optimizer: Muon on the hidden matrices (experts as stacks), AdamW on the rest
mu, ad = [], []
for n, p in net.named_parameters():
    hid = p.ndim >= 2 and not any(s in n for s in ("embed", "lm_head", "conv1d", "in_proj_a", "in_proj_b", "mlp.gate.", "shared_expert_gate"))
    (mu if hid else ad).append((n, p))
adam = torch.optim.AdamW([dict(params=[p for n, p in ad if p.ndim >= 2 and "conv" not in n], weight_decay=a.wd), dict(params=[p for n, p in ad if p.ndim < 2 or "conv" in n], weight_decay=0.)], lr=a.lr, betas=(.9, .95), fused=cuda)
groups = {}
for n, p in mu: groups.setdefault(tuple(p.shape[-2:]), []).append(p)
mom = {id(p): torch.zeros_like(p) for _, p in mu}
def ns5(G):
    X = G.bfloat16() if cuda else G.float(); tr = X.shape[-2] > X.shape[-1]
    if tr: X = X.mT
    X = X / (X.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5): A = X @ X.mT; X = 3.4445 * X + (-4.7750 * A + 2.0315 * (A @ A)) @ X
    return (X.mT if tr else X).float()
@torch.no_grad()
def muon(lr):
    for shape, ps in groups.items():
        us = []
        for p in ps: m = mom[id(p)]; m.mul_(.95).add_(p.grad); us.append((p.grad + .95 * m).reshape(-1, *shape))
        u = ns5(torch.cat(us)); i = 0; s = .2 * math.sqrt(max(shape))
        for p in ps: k = p.numel() // (shape[0] * shape[1]); p.mul_(1 - lr * a.wd).add_(u[i:i + k].view_as(p), alpha=-lr * s); i += k
def lr_at(p): return a.lr * min(1, p / .01 + .02) * (1 if p < .3 else max(.01, 1 - (p - .3) / .7))

step, done = 0, 0.
if os.path.exists(a.state):
    s = torch.load(a.state, map_location=dev, weights_only=False); net.load_state_dict(s["net"]); adam.load_state_dict(s["adam"]); step, done = s["step"], s["done"]
    for (n, p), m in zip(mu, s["mom"]): mom[id(p)].copy_(m)
    log("resumed at step", step, "progress", done)
elif a.init:
    from safetensors.torch import load_file
    sd = {k: v.float() for f in sorted(glob.glob(a.init + "/weights-*.safetensors")) for k, v in load_file(f).items()}; net.load_state_dict(sd); done = a.start; log("initialized from", a.init)
def save():
    torch.save(dict(net=net.state_dict(), adam=adam.state_dict(), mom=[mom[id(p)] for _, p in mu], step=step, done=done, cfg=cfg), a.state + ".tmp"); os.rename(a.state + ".tmp", a.state)

def ce(h, y, w):
    W = M.qw(net.lm_head.weight).to(h.dtype); tot = 0.
    for hs, ys, ws in zip(h.split(32768), y.split(32768), w.split(32768)):
        l = F.linear(hs, W).float(); tot = tot + (F.cross_entropy(l, ys, reduction="none") * ws).sum() + 1e-4 * (l.logsumexp(-1).pow(2) * ws).sum()
    return tot
eager = [l.mlp.core for l in net.model.layers]; comp = None   # only the MoE: its shape (tokens, hidden) is the same in all stages
if a.compile == 1 or (a.compile == -1 and cuda):
    torch._dynamo.config.cache_size_limit = 64
    comp = [torch.compile(f, dynamic=False) for f in eager]
def use(fs):
    for l, f in zip(net.model.layers, fs or eager): l.mlp.core = f
def loss_of(x, low):
    y = x[:, 1:].reshape(-1); w = torch.where(low[:, 1:], 1.0, a.prompt_weight).reshape(-1)
    h = net.hidden(x[:, :-1], dt).reshape(len(y), -1); return ce(h, y, w) / w.sum(), net.aux() / cfg.num_hidden_layers

# ---- evaluation: greedy exact match by teacher forcing (equal to greedy decoding reproducing the answer)
EVALS = [("recall_0", C.t_recall, dict(words=0)), ("recall_300w", C.t_recall, dict(words=300)), ("recall_1500w", C.t_recall, dict(words=1500)), ("recall_4000w", C.t_recall, dict(words=4000)), ("copy", C.t_copy, {}), ("keyvalue", C.t_kv, {}), ("story_qa", C.t_qa, {}), ("tool", C.t_tool, {}), ("math", C.t_math, {}), ("list", C.t_list, {}), ("json", C.t_json, {}), ("count", C.t_count, {}), ("system", C.t_system, {}), ("memory", C.t_memory, {}), ("about_me", C.t_about_me, {}), ("fact", C.t_fact, {})]
@torch.no_grad()
def evaluate(n):
    res = {}; r = random.Random(999_999_937)
    for name, f, kw in EVALS:
        if kw.get("words", 0) > 1000 and not cuda: continue
        k = max(4, n // 4) if kw.get("words", 0) > 1000 else n; rows = []
        for _ in range(k):
            m, tl = C.conv(r, f, **kw); full = tok.encode(C.render(m, tl)).ids; pre = tok.encode(C.render(m[:-1], tl, gen="plain" if not m[-1]["think"] else "think")).ids
            rows.append((full[:-1], len(pre)))   # without the last newline
        ok = 0
        for i in range(0, k, 16):
            part = rows[i:i + 16]; T = -(-max(len(x) for x, _ in part) // 64) * 64; t = torch.full((len(part), T), EOT); [t[j].__setitem__(slice(0, len(x)), torch.tensor(x)) for j, (x, _) in enumerate(part)]; t = t.to(dev)
            pr = F.linear(net.hidden(t, dt), M.qw(net.lm_head.weight).to(dt)).argmax(-1)
            for j, (x, q) in enumerate(part): ok += bool((pr[j, q - 1:len(x) - 1] == t[j, q:len(x)]).all())
        res[name] = round(ok / k, 3)
    nll = cnt = ch = 0
    for _ in range(n):
        s = C.story(r)[0]; ids = torch.tensor([[EOT] + tok.encode(s).ids + [EOT]], device=dev); l = net.hidden(ids[:, :-1], dt); l = F.linear(l, M.qw(net.lm_head.weight).to(dt)).float()
        nll += F.cross_entropy(l[0], ids[0, 1:], reduction="sum").item(); cnt += ids.shape[1] - 1; ch += len(s)
    res["story_ppl"] = round(math.exp(nll / cnt), 3); res["story_bits_per_char"] = round(nll / ch / math.log(2), 4); return res
PROMPTS = ["Hello!", "Who are you?", "Tell me a story about a fox named Rosa and a red kite.", "What is the capital of France?", "Explain black holes to me.", "Sort this list: 42, 7, 19, 3", "What is 27 + 58?", "My name is Ada and I love trains. What is my name?"]
@torch.no_grad()
def samples(k=220):
    ids = [tok.encode(C.render([C.U(p)], gen="plain")).ids for p in PROMPTS]; L = [len(x) for x in ids]; T = -(-(max(L) + k) // 64) * 64; t = torch.full((len(ids), T), EOT, device=dev)
    for j, x in enumerate(ids): t[j, :len(x)] = torch.tensor(x, device=dev)
    pos = torch.tensor(L, device=dev); im = tok.token_to_id("<|im_end|>"); fin = torch.zeros(len(ids), dtype=torch.bool, device=dev); ar = torch.arange(len(ids), device=dev)
    for _ in range(k):
        h = net.hidden(t, dt)[ar, pos - 1]; nx = F.linear(h, M.qw(net.lm_head.weight).to(dt)).float()[:, :tok.get_vocab_size()].argmax(-1); t[ar, pos] = torch.where(fin, EOT, nx); fin |= nx == im; pos = pos + (~fin).long()
        if fin.all(): break
    return [(p, tok.decode(t[j, L[j]:pos[j] + 1].tolist(), skip_special_tokens=False)) for j, p in enumerate(PROMPTS)]

# ---- loop
while True:
    short.refresh(); long_.refresh()
    if short.n and (long_.n or all(s.split(":")[2] in ("0", "0.0") for s in a.seq.split(","))): break
    if short.n and done < .3: break
    time.sleep(1)
log("pools", short.n, long_.n, "fla", fla)
t1 = time.time(); d0 = done; tk = tl = 0; tlast = t1; hist = []; M.QAT["on"] = done >= a.qat
while not a.eval_only and done < 1 and time.time() - T0 < a.stop:
    if (done >= a.qat) != M.QAT["on"]: M.QAT["on"] = done >= a.qat; log("QAT on")
    use(comp)
    for p in net.parameters(): p.grad = None
    nm = max(1, a.batch // a.micro) if a.micro else 1; ls = 0.
    try:
        for _ in range(nm):
            x, low = batch(done, a.batch // nm); L, aux = loss_of(x, low); ((L + a.aux * aux) / nm).backward(); ls = ls + L.detach() / nm
    except torch.OutOfMemoryError as e:
        a.micro = (a.micro or a.batch) // 2; log("out of memory; micro-batch", a.micro); L = aux = e = None; torch.cuda.empty_cache(); assert a.micro >= 8192; continue
    except Exception as e:
        if comp is not None: log("compiled step failed, going on without compile:", repr(e)[:400]); comp = None; torch._dynamo.reset(); continue
        if fla: log("fla failed, going on without:", repr(e)[:400]); fla = False; M.GDN["f"] = torch.compiler.disable(M.gdn_torch); continue
        raise
    gn = torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0) if step % a.log == 0 else torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    lr = lr_at(done)
    for g in adam.param_groups: g["lr"] = lr
    adam.step(); muon(lr); step += 1; tk += a.batch; tl += a.batch
    done = step / a.steps if a.steps else d0 + (time.time() - t1) / a.total
    if step % a.log == 0:
        lv = ls.item(); hist.append((step, lv)); now = time.time(); log(f"step {step} p {done:.3f} loss {lv:.4f} aux {aux.item():.3f} gn {gn.item():.2f} lr {lr:.2e} T {x.shape[1]-1} {tl/(now-tlast)/1e3:.1f}k tok/s pool {short.n/1e6:.0f}+{long_.n/1e6:.0f}M" + (f" mem {torch.cuda.max_memory_allocated()/2**30:.0f}G" if cuda else "")); tlast = now; tl = 0
        if not math.isfinite(lv):
            a.lr *= .5; log("loss not finite: back to the last state, lr", a.lr)
            if not os.path.exists(a.state): sys.exit(1)
            s = torch.load(a.state, map_location=dev, weights_only=False); net.load_state_dict(s["net"]); adam.load_state_dict(s["adam"]); [mom[id(p)].copy_(m) for (_, p), m in zip(mu, s["mom"])]; continue
        short.refresh(); long_.refresh()
        if step % (a.log * 20) == 0 and not a.steps: save()
use(None)
if not a.eval_only: save(); log("trained", tk, "tokens in", round(time.time() - t1, 1), "s")
# ---- results: evaluation as exported (4-bit), export, bf16 weights in parts of at most 15 MiB
q0 = M.QAT["on"]; ev = {}
for nm, q in (("float", False), ("4bit", True)): M.QAT["on"] = q; ev[nm] = evaluate(a.evaln); log("eval", nm, json.dumps(ev[nm]))
sm = samples(220 if cuda else 24); [log("SAMPLE", p, "->", repr(s)) for p, s in sm]; M.QAT["on"] = q0
json.dump(dict(step=step, done=done, eval=ev, samples=sm, loss=hist), open(a.out + "/eval.json", "w"), indent=1)
from export import export, split_bf16
export(net, cfg, a.tok, a.out, meta=not cuda); split_bf16(net, a.out); log("exported")
