#!/usr/bin/env python3
"""Goldens of every architecture and quantization: very small random checkpoints, and what mlx-lm and transformers
compute from them in float32.

usage: architectures.py OUT [NAME ...]        (all of them without a name; the environment of setup.sh)

OUT/NAME/ gets config.json, the weights, and golden.safetensors: tokens [T] i32, hidden.00 (embeddings), hidden.NN
(output of layer NN-1), hidden.norm [T,D], logits [T,V], greedy.tokens [8] i32.
A checkpoint whose choices are not decided (a router's last chosen expert or a most likely token that leads by less
than MARGIN) is made again with the next seed, so that rounding cannot change what the golden says.
"""
import copy, json, math, pathlib, shutil, struct, sys, tempfile
import numpy as np

TOKENS, GREEDY, MARGIN = 24, 8, 5e-3
USED, VOCAB = 256, 264                     # ids of the prompt are below USED; the rest of the vocabulary is padding
NP = dict(F32=np.float32, I32=np.int32, BF16=np.uint16)

# ---------------------------------------------------------------- shapes

def text_config(model_type, **over):
    c = dict(
        attention_bias=False, attention_dropout=0.0, attn_output_gate=True, dtype="bfloat16", eos_token_id=255,
        head_dim=32, hidden_act="silu", hidden_size=64, initializer_range=0.02, linear_conv_kernel_dim=4,
        linear_key_head_dim=32, linear_num_key_heads=2, linear_num_value_heads=4, linear_value_head_dim=32,
        max_position_embeddings=4096, model_type=model_type, num_attention_heads=4, num_hidden_layers=3,
        num_key_value_heads=2, rms_norm_eps=1e-6, tie_word_embeddings=False, use_cache=True, vocab_size=VOCAB,
        mamba_ssm_dtype="float32", full_attention_interval=3,
        rope_parameters=dict(mrope_interleaved=True, mrope_section=[2, 1, 1], rope_type="default",
                             rope_theta=10000000, partial_rotary_factor=0.25))
    c.update(over)
    every = c["full_attention_interval"]
    c.setdefault("layer_types", ["linear_attention" if (i + 1) % every else "full_attention"
                                 for i in range(c["num_hidden_layers"])])
    return c


def moe(**over):
    return text_config("qwen3_5_moe_text", **{**dict(
        num_experts=5, num_experts_per_tok=3, moe_intermediate_size=64, shared_expert_intermediate_size=64,
        mtp_num_hidden_layers=1, mtp_use_dedicated_embeddings=False, output_router_logits=False,
        router_aux_loss_coef=0.001), **over})


def dense(**over):
    return text_config("qwen3_5_text", **{**dict(intermediate_size=128), **over})


def next_config(**over):
    c = moe(head_dim=32, num_experts=6, num_experts_per_tok=2, norm_topk_prob=True, decoder_sparse_step=1,
            mlp_only_layers=[], intermediate_size=128, **over)
    rope = c.pop("rope_parameters")
    for k in ("mtp_num_hidden_layers", "mtp_use_dedicated_embeddings", "attn_output_gate", "mamba_ssm_dtype", "dtype",
              "layer_types"):
        c.pop(k)                           # published Qwen3-Next configurations have none of these
    c.update(model_type="qwen3_next", architectures=["Qwen3NextForCausalLM"], torch_dtype="bfloat16",
             rope_theta=rope["rope_theta"], partial_rotary_factor=0.25, rope_scaling=None)
    return c


def whole(text, vision=False):
    """the text model inside the configuration of a model that also sees"""
    kind = text["model_type"].removesuffix("_text")
    c = dict(architectures=["Qwen3_5MoeForConditionalGeneration" if "moe" in kind else
                            "Qwen3_5ForConditionalGeneration"],
             model_type=kind, image_token_id=257, video_token_id=258, vision_start_token_id=259,
             vision_end_token_id=260, tie_word_embeddings=text["tie_word_embeddings"], text_config=text)
    if vision:
        c["vision_config"] = dict(model_type=kind, depth=1, hidden_size=16, intermediate_size=16, num_heads=1,
                                  out_hidden_size=text["hidden_size"], patch_size=4, spatial_merge_size=2,
                                  temporal_patch_size=2, in_channels=3, num_position_embeddings=4)
    return c

# ---------------------------------------------------------------- random weights in Hugging Face's layout

def bf16(x):
    """float32 -> bfloat16 bits, round to nearest even"""
    u = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((u + 0x7FFF + ((u >> 16) & 1)) >> 16).astype(np.uint16)


class Weights:
    """name -> (dtype, array), in the order of the file"""

    def __init__(self, t, seed, f32=(), both=True):
        self.t, self.r, self.f32, self.both, self.all = t, np.random.default_rng(seed), f32, both, {}

    def put(self, name, value):
        wide = any(part in name for part in self.f32)
        self.all[name] = ("F32", value.astype(np.float32)) if wide else ("BF16", bf16(value))

    def lin(self, name, o, i, gain=1.0, lead=()):
        self.put(name, self.r.standard_normal((*lead, o, i)) * (gain / math.sqrt(i)))

    def norm(self, name, n, zero_centred=True):
        w = self.r.standard_normal(n) * 0.2
        if zero_centred and self.both:     # mlx-lm adds the 1 in bfloat16; w and 1 + w are both exact in steps of 1/128
            w = np.round(w * 128) / 128
        self.put(name, w if zero_centred else 1.0 + w)

    def feed_forward(self, pre, width, name="{}.weight"):
        H = self.t["hidden_size"]
        for n, o, i in (("gate_proj", width, H), ("up_proj", width, H), ("down_proj", H, width)):
            self.lin(pre + name.format(n), o, i)

    def mlp(self, pre):
        t, H = self.t, self.t["hidden_size"]
        if "num_experts" not in t:
            return self.feed_forward(pre, t["intermediate_size"])
        E, I = t["num_experts"], t["moe_intermediate_size"]
        self.lin(pre + "gate.weight", E, H, 1.5)
        if t["model_type"] == "qwen3_next":
            for e in range(E):
                self.feed_forward(f"{pre}experts.{e}.", I)
        else:
            self.lin(pre + "experts.gate_up_proj", 2 * I, H, 1.0, (E,))
            self.lin(pre + "experts.down_proj", H, I, 1.0, (E,))
        self.feed_forward(pre + "shared_expert.", t["shared_expert_intermediate_size"])
        self.lin(pre + "shared_expert_gate.weight", 1, H)

    def attention(self, pre):
        t, H, D = self.t, self.t["hidden_size"], self.t["head_dim"]
        nq, nk = t["num_attention_heads"], t["num_key_value_heads"]
        self.lin(pre + "q_proj.weight", nq * D * 2, H); self.lin(pre + "k_proj.weight", nk * D, H)
        self.lin(pre + "v_proj.weight", nk * D, H); self.lin(pre + "o_proj.weight", H, nq * D)
        self.norm(pre + "q_norm.weight", D); self.norm(pre + "k_norm.weight", D)

    def delta(self, pre):
        t, H = self.t, self.t["hidden_size"]
        hk, hv, dk, dv = (t["linear_num_key_heads"], t["linear_num_value_heads"], t["linear_key_head_dim"],
                          t["linear_value_head_dim"])
        conv = 2 * hk * dk + hv * dv
        if t["model_type"] == "qwen3_next":
            self.lin(pre + "in_proj_qkvz.weight", conv + hv * dv, H); self.lin(pre + "in_proj_ba.weight", 2 * hv, H, 1.2)
        else:
            self.lin(pre + "in_proj_qkv.weight", conv, H); self.lin(pre + "in_proj_z.weight", hv * dv, H)
            self.lin(pre + "in_proj_b.weight", hv, H, 1.5); self.lin(pre + "in_proj_a.weight", hv, H)
        self.put(pre + "conv1d.weight", self.r.standard_normal((conv, 1, t["linear_conv_kernel_dim"])) * 0.5)
        self.put(pre + "dt_bias", self.r.uniform(-3.5, 1.5, hv))
        self.put(pre + "A_log", np.log(0.02 + 8 * self.r.random(hv) ** 2))
        self.norm(pre + "norm.weight", dv, False)
        self.lin(pre + "out_proj.weight", H, hv * dv)

    def layer(self, pre, kind):
        self.norm(pre + "input_layernorm.weight", self.t["hidden_size"])
        self.norm(pre + "post_attention_layernorm.weight", self.t["hidden_size"])
        self.attention(pre + "self_attn.") if kind == "full_attention" else self.delta(pre + "linear_attn.")
        self.mlp(pre + "mlp.")

    def model(self, prefix, kinds, mtp=False, visual=False):
        t, H = self.t, self.t["hidden_size"]
        tied = t["tie_word_embeddings"]
        self.lin(prefix + "embed_tokens.weight", VOCAB, H, 0.5 * math.sqrt(H))
        for i, kind in enumerate(kinds):
            self.layer(f"{prefix}layers.{i}.", kind)
        self.norm(prefix + "norm.weight", H)
        if not tied:
            self.lin("lm_head.weight", VOCAB, H, 3.0)
        if mtp:
            self.lin("mtp.fc.weight", H, 2 * H)
            if t["model_type"] != "qwen3_next":
                self.layer("mtp.layers.0.", "full_attention")
            for n in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"):
                self.norm(f"mtp.{n}.weight", H)
        if visual:
            self.put("model.visual.patch_embed.proj.weight", self.r.standard_normal((16, 3, 2, 4, 4)))
        return self.all


def write_all(path, tensors, meta):
    """tensors: name -> (dtype, array)"""
    head, at = {"__metadata__": meta}, 0
    for k, (dtype, v) in tensors.items():
        head[k] = dict(dtype=dtype, shape=list(v.shape), data_offsets=[at, at + v.nbytes])
        at += v.nbytes
    h = json.dumps(head, separators=(",", ":")).encode()
    h += b" " * (-len(h) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(h)) + h)
        for _, v in tensors.values():
            f.write(np.ascontiguousarray(v).tobytes())


def write_shards(folder, tensors, sharded):
    """one file, or two with an index, cut in the middle of the experts of the second layer"""
    if not sharded:
        return write_all(folder / "model.safetensors", tensors, dict(format="pt"))
    names = list(tensors)
    cut = names.index("model.layers.1.mlp.experts.3.up_proj.weight")
    index = {}
    for i, part in enumerate((names[:cut], names[cut:])):
        file = f"model-{i + 1:05d}-of-00002.safetensors"
        write_all(folder / file, {n: tensors[n] for n in part}, dict(format="pt"))
        index.update({n: file for n in part})
    total = sum(v.nbytes for _, v in tensors.values())
    (folder / "model.safetensors.index.json").write_text(
        json.dumps(dict(metadata=dict(total_size=total), weight_map=dict(sorted(index.items()))), indent=1))


def make_hf(folder, seed, cfg, prefix="model.language_model.", f32=(), both=True, mtp=False, sharded=False):
    folder.mkdir(parents=True)
    t = cfg.get("text_config", cfg)
    every = t.get("full_attention_interval")
    kinds = t.get("layer_types") or ["linear_attention" if (i + 1) % every else "full_attention"
                                     for i in range(t["num_hidden_layers"])]
    w = Weights(t, seed, f32, both).model(prefix, kinds, mtp, "vision_config" in cfg)
    write_shards(folder, w, sharded)
    (folder / "config.json").write_text(json.dumps(cfg, indent=1))

# ---------------------------------------------------------------- what the libraries compute

class Undecided(Exception):
    pass


def decided(what, scores, k):
    """the k-th largest of each row leads the next one"""
    s = -np.sort(-scores.reshape(-1, scores.shape[-1]), axis=-1)
    lead = float((s[:, k - 1] - s[:, k]).min()) if k < s.shape[-1] else math.inf
    if lead < MARGIN:
        raise Undecided(f"{what} leads by {lead:.1e}")


def run_hf(folder, ids):
    import torch
    from transformers import AutoModelForCausalLM
    torch.set_num_threads(1)
    model, info = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager",
        output_loading_info=True)
    assert not info["missing_keys"] and not info["mismatched_keys"], info
    left = [k for k in info["unexpected_keys"] if not k.startswith(("mtp.", "model.visual."))]
    assert not left, left
    assert all(p.dtype == torch.float32 for p in model.parameters())
    keep, body, k = {}, model.eval().model, getattr(model.config, "num_experts_per_tok", 0)

    def grab(name):
        def hook(_module, _input, o):
            o = o[0] if isinstance(o, tuple) else o
            keep.setdefault(name, o.detach().numpy().reshape(-1, o.shape[-1]).copy())        # of the first call
        return hook

    def router(_module, _input, o):
        decided("a router", torch.nn.functional.linear(_input[0].reshape(-1, _module.weight.shape[1]),
                                                       _module.weight).detach().numpy(), k)
    body.embed_tokens.register_forward_hook(grab("hidden.00"))
    for i, layer in enumerate(body.layers):
        layer.register_forward_hook(grab(f"hidden.{i + 1:02d}"))
        if k:
            layer.mlp.gate.register_forward_hook(router)
    body.norm.register_forward_hook(grab("hidden.norm"))
    with torch.no_grad():
        r = model(input_ids=torch.tensor([ids]), use_cache=True)
        logits, toks = r.logits[0].numpy().copy(), []
        decided("a token", logits, 1)
        last = logits[-1]
        while len(toks) < GREEDY:
            decided("a continuation", last, 1)
            toks.append(int(last.argmax()))
            r = model(input_ids=torch.tensor([[toks[-1]]]), cache=r.cache, use_cache=True)
            last = r.logits[0, -1].numpy().copy()
    return golden(ids, keep, logits, toks)


def run_mlx(folder, ids):
    import mlx.core as mx
    from mlx.utils import tree_map
    from mlx_lm.utils import load_model
    from mlx_lm.models.base import create_attention_mask, create_ssm_mask
    mx.set_default_device(mx.cpu)
    model, _ = load_model(folder)
    model.update(tree_map(lambda p: p.astype(mx.float32) if mx.issubdtype(p.dtype, mx.floating) else p,
                          model.parameters()))
    f32 = lambda x: np.array(x.astype(mx.float32))
    lm = getattr(model, "language_model", model)
    body, cache, keep = lm.model, model.make_cache(), {}

    def forward(ids, first):
        h = body.embed_tokens(mx.array([ids]))
        fa, ssm = create_attention_mask(h, cache[body.fa_idx]), create_ssm_mask(h, cache[body.ssm_idx])
        seen = {"hidden.00": h}
        for i, (layer, c) in enumerate(zip(body.layers, cache)):
            y = layer.input_layernorm(h)
            h = h + (layer.linear_attn(y, ssm, c) if layer.is_linear else layer.self_attn(y, fa, c))
            z = layer.post_attention_layernorm(h)
            if hasattr(layer.mlp, "gate"):
                decided("a router", f32(layer.mlp.gate(z)), layer.mlp.top_k)
            h = h + layer.mlp(z)
            seen[f"hidden.{i + 1:02d}"] = h
        h = seen["hidden.norm"] = body.norm(h)
        if first:
            keep.update({n: f32(v[0]) for n, v in seen.items()})
        return f32((body.embed_tokens.as_linear(h) if lm.args.tie_word_embeddings else lm.lm_head(h))[0])
    logits, toks = forward(ids, True), []
    decided("a token", logits, 1)
    last = logits[-1]
    while len(toks) < GREEDY:
        decided("a continuation", last, 1)
        toks.append(int(last.argmax()))
        last = forward([toks[-1]], False)[-1]
    return golden(ids, keep, logits, toks)


def golden(ids, keep, logits, toks):
    assert len(set(logits.argmax(-1).tolist())) > TOKENS // 2, "degenerate logits"
    out = {"tokens": ("I32", np.array(ids, np.int32))}
    out.update({n: ("F32", keep[n]) for n in sorted(keep)})
    out["logits"] = ("F32", logits)
    out["greedy.tokens"] = ("I32", np.array(toks, np.int32))
    return out

# ---------------------------------------------------------------- quantized weights for transformers

def read_all(path):
    raw = pathlib.Path(path).read_bytes()
    n = struct.unpack("<Q", raw[:8])[0]
    head = json.loads(raw[8:8 + n])
    head.pop("__metadata__", None)
    for name, h in head.items():
        a, b = h["data_offsets"]
        data = np.frombuffer(raw, {**NP, "U32": np.uint32}[h["dtype"]], offset=8 + n + a,
                             count=(b - a) // {"BF16": 2}.get(h["dtype"], 4)).reshape(h["shape"])
        if h["dtype"] == "BF16":
            data = (data.astype(np.uint32) << 16).view(np.float32)
        yield name, data


def unpacked(words, scales, biases, inputs):
    """codes are a little-endian bit stream along each row; a weight is scale * code + bias of its group"""
    bits, group = words.shape[-1] * 32 // inputs, inputs // scales.shape[-1]
    stream = np.unpackbits(np.ascontiguousarray(words).view(np.uint8), axis=-1, bitorder="little")
    codes = stream.reshape(*words.shape[:-1], inputs, bits) @ (1 << np.arange(bits))
    codes = codes.reshape(*words.shape[:-1], -1, group).astype(np.float32)
    return (codes * scales[..., None] + biases[..., None]).reshape(*words.shape[:-1], inputs)


def from_mlx(source, folder):
    """An MLX checkpoint in float32 and in Hugging Face's layout, decoded here and not by MLX."""
    cfg = json.loads((source / "config.json").read_text())
    t, parts, out = cfg.get("text_config", cfg), dict(read_all(source / "model.safetensors")), {}
    flat = cfg["model_type"] == "qwen3_next"
    inputs = {"down_proj": t.get("intermediate_size"), "o_proj": t["num_attention_heads"] * t["head_dim"],
              "out_proj": t["linear_num_value_heads"] * t["linear_value_head_dim"],
              "switch_mlp.down_proj": t.get("moe_intermediate_size"),
              "shared_expert.down_proj": t.get("shared_expert_intermediate_size")}
    for k in [k for k in parts if k.endswith(".scales")]:
        stem = k.removesuffix(".scales")
        ends = [e for e in inputs if stem.endswith("." + e)]
        width = inputs[max(ends, key=len)] if ends else t["hidden_size"]
        parts[stem + ".weight"] = unpacked(parts.pop(stem + ".weight"), parts.pop(k), parts.pop(stem + ".biases"), width)
    for k, v in parts.items():
        if k.endswith(("layernorm.weight", "model.norm.weight", "q_norm.weight", "k_norm.weight")):
            v = v - 1
        if k.endswith("conv1d.weight"):
            v = v.transpose(0, 2, 1)
        if not flat:
            k = k.replace("language_model.model.", "model.language_model.").replace("language_model.lm_head", "lm_head")
        stem, _, leaf = k.partition("switch_mlp.")
        if not leaf:
            out[k] = v
        elif flat:
            out.update({f"{stem}experts.{e}.{leaf}": v[e] for e in range(len(v))})
        else:
            out[stem + "experts." + leaf.removesuffix(".weight")] = v
    for k in [k for k in out if k.endswith("experts.gate_proj")]:
        gate_up = np.concatenate([out.pop(k), out.pop(k.replace("gate_proj", "up_proj"))], axis=1)
        out[k.replace("gate_proj", "gate_up_proj")] = gate_up
    folder.mkdir()
    write_all(folder / "model.safetensors", {k: ("F32", v) for k, v in out.items()}, dict(format="pt"))
    for one in (cfg, t):
        one.pop("quantization", None); one.pop("quantization_config", None)
    if "rope_parameters" in t and "type" in t["rope_parameters"]:     # mlx-lm renames it
        t["rope_parameters"]["rope_type"] = t["rope_parameters"].pop("type")
    (folder / "config.json").write_text(json.dumps(cfg))
    return folder

# ---------------------------------------------------------------- mlx-lm's conversion

def to_mlx(source, folder, bits=None, predicate=None, f32=(), absent=()):
    """What `mlx_lm.convert` does, less the tokenizer that it would want: load, cast, quantize, save.

    predicate(path) gives the quantization of a module: None for the default, a dict, or False for none.
    f32: parts of names that keep float32; absent: paths to name as `false` in the configuration"""
    import mlx.core as mx
    from mlx.utils import tree_map_with_path
    from mlx_lm.utils import load_model, quantize_model, save_config, save_model
    mx.set_default_device(mx.cpu)
    model, cfg = load_model(source, lazy=True)
    keep = getattr(model, "cast_predicate", lambda _: True)
    model.update(tree_map_with_path(
        lambda n, v: v.astype(mx.bfloat16) if mx.issubdtype(v.dtype, mx.floating) and keep(n) and
        not any(part in n for part in f32) else v, model.parameters()))
    if bits:
        usual = model.quant_predicate or (lambda _path, _module: True)

        def choose(path, module):
            own = predicate(path) if predicate else None
            return usual(path, module) if own is None else own
        model, cfg = quantize_model(model, cfg, 64, bits, quant_predicate=choose)
        cfg["quantization"].update({path: False for path in absent})
    save_model(folder, model)
    (folder / "model.safetensors.index.json").unlink()          # one file needs none
    save_config(cfg, folder / "config.json")
    if bits:
        signs = {s > 0 for k, v in mx.load(str(folder / "model.safetensors")).items() if k.endswith(".scales")
                 for s in np.array(v.astype(mx.float32)).ravel().tolist()}
        assert signs == {True, False}, "scales of one sign only"


KINDS = ("embed_tokens", "lm_head", "q_proj", "k_proj", "v_proj", "o_proj", "in_proj_qkv", "in_proj_z", "in_proj_a",
         "in_proj_b", "out_proj", "shared_expert.gate_up", "shared_expert.down_proj", "switch_mlp.gate_up",
         "switch_mlp.down_proj", "mlp.gate", "shared_expert_gate", "mlp.gate_up", "mlp.down_proj")


def kind_of(path):
    for part in ("shared_expert", "switch_mlp", "mlp"):
        if path.endswith((f".{part}.gate_proj", f".{part}.up_proj")):
            return f"{part}.gate_up"
    return max((k for k in KINDS if path.endswith(k)), key=len)


def spread(turn, bits, special=()):
    """Groups of 32, 64 and 128 over all kinds of modules, each kind another at each turn; routers at 8 bits.

    special: end of a path -> a quantization of its own, or False"""
    def predicate(path):
        for end, own in dict(special).items():
            if path.endswith(end):
                return own
        kind = kind_of(path)
        group = (32, 64, 128)[(KINDS.index(kind) + turn) % 3]
        eight = kind in ("mlp.gate", "shared_expert_gate")
        return None if group == 64 else dict(group_size=group, bits=8 if eight else bits)
    return predicate

# ---------------------------------------------------------------- the list

NORMS = ("norm.weight", "layernorm.weight")
WIDE = dict(hidden_size=128, moe_intermediate_size=128, shared_expert_intermediate_size=128, num_experts=4,
            num_experts_per_tok=2, num_hidden_layers=2, full_attention_interval=2)


def quantized(bits, turn, text, f32=(), special=(), absent=()):
    def make(folder, seed, work):
        make_hf(work / "hf", seed, whole(text), f32=f32)
        to_mlx(work / "hf", folder, bits, spread(turn, bits, special), f32, absent)
    return make


def hf(cfg, **options):
    return lambda folder, seed, work: make_hf(folder, seed, copy.deepcopy(cfg), **options)


def converted(source, bits=None):
    def make(folder, seed, work):
        VARIANTS[source][0](work / "hf", seed, work)
        to_mlx(work / "hf", folder, bits)
    return make


# name: (how it is made, the library whose numbers are the golden, whether the other one can run it too)
VARIANTS = {
    "hf-moe": (hf(whole(moe(moe_intermediate_size=32, shared_expert_intermediate_size=48), vision=True), mtp=True), "hf", True),
    "hf-dense-r1": (hf(whole(dense(linear_num_value_heads=2, tie_word_embeddings=True, num_hidden_layers=4,
                                   full_attention_interval=2)), mtp=True), "hf", True),
    "hf-dense-r2": (hf(dense(linear_num_value_heads=4, tie_word_embeddings=True,
                             architectures=["Qwen3_5ForCausalLM"]), prefix="model.", both=False), "hf", False),
    "hf-dense-r3": (hf(whole(dense(linear_num_value_heads=6, intermediate_size=96, num_key_value_heads=1))),
                    "hf", True),
    "hf-dense-r4": (hf(whole(dense(linear_num_key_heads=1, linear_num_value_heads=4, full_attention_interval=4,
                                   layer_types=["full_attention", "linear_attention", "full_attention"])),
                       f32=("A_log", *NORMS), both=False), "hf", False),
    "hf-next": (hf(next_config(), prefix="model.", sharded=True, mtp=True), "hf", True),
    "mlx-bf16": (converted("hf-moe"), "mlx", True),
    "mlx-next-q4": (converted("hf-next", 4), "mlx", True),
    "mlx-q2": (quantized(2, 0, moe(**WIDE)), "mlx", True),
    "mlx-q3": (quantized(3, 1, moe(**WIDE)), "mlx", True),
    "mlx-q4": (quantized(4, 2, moe(**{**WIDE, "num_experts": 5, "num_experts_per_tok": 3, "num_hidden_layers": 3}),
                         special=(("v_proj", dict(group_size=64, bits=6)), ("in_proj_a", False),
                                  ("in_proj_b", dict(group_size=64, bits=8))),
                         absent=("language_model.model.layers.0.linear_attn.in_proj_a",)), "mlx", True),
    "mlx-q5": (quantized(5, 3, moe(**WIDE)), "mlx", True),
    "mlx-q6": (quantized(6, 4, moe(**WIDE), f32=("A_log",),
                         special=(("switch_mlp.up_proj", dict(group_size=32, bits=8)),
                                  ("shared_expert.up_proj", dict(group_size=128, bits=5)))), "mlx", True),
    "mlx-q8": (quantized(8, 5, moe(**WIDE), f32=("A_log", *NORMS)), "mlx", True),
    "mlx-dense-q4": (quantized(4, 0, dense(hidden_size=128, tie_word_embeddings=True, num_hidden_layers=2,
                                           full_attention_interval=2)), "mlx", True),
}


def difference(a, b):
    """largest absolute difference of the logits; the other choices must be the same"""
    assert (a["greedy.tokens"][1] == b["greedy.tokens"][1]).all()
    return float(np.abs(a["logits"][1] - b["logits"][1]).max())


def make(name, out):
    build, library, both = VARIANTS[name]
    for seed in range(1, 100):
        ids = np.random.default_rng(1000 + seed).integers(0, USED, TOKENS).tolist()
        with tempfile.TemporaryDirectory() as work:
            work = pathlib.Path(work)
            build(work / name, seed, work)
            try:
                if library == "hf":
                    result = run_hf(work / name, ids)
                    other = run_mlx(work / name, ids) if both else None
                else:
                    result = run_mlx(work / name, ids)
                    # for a plain conversion, what transformers makes of the original
                    other = run_hf(work / "hf" if name == "mlx-bf16" else from_mlx(work / name, work / "wide"), ids)
                note = f", the other library differs by {difference(result, other):.1e}" if other else ""
            except Undecided as why:
                print(f"{name}: seed {seed}: {why}")
                continue
            write_all(work / name / "golden.safetensors", result, dict(library=library, dtype="float32"))
            shutil.rmtree(out / name, ignore_errors=True)
            shutil.copytree(work / name, out / name)
        size = sum(f.stat().st_size for f in (out / name).iterdir())
        std = result["logits"][1].std()
        print(f"{name}: seed {seed}, {size / 1e3:.0f} kB, logits' std {std:.2f}{note}")
        return
    sys.exit(f"{name}: no seed is decided")


if __name__ == "__main__":
    target = pathlib.Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    for one in sys.argv[2:] or VARIANTS:
        make(one, target)
