//! Whatever is wrong with a model's files, a flag or a stream: the program ends by itself, with one sentence that
//! names the file and the field, without an answer, and it leaves every file as it was.
//! How each sentence reads in full is tested where it is made (`lily-engine/tests/checkpoint/damaged.rs`).
// tidy: allow(file-length): one table of bad inputs

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};

mod support;
use support::lily;

/// One bad input.
struct Row {
    name: &'static str,
    /// Done to a whole copy of the demo model. Only through `put` and what is built on it: the weights are a link.
    damage: fn(&Path),
    /// Words of the command line; `{}` is the folder.
    args: &'static str,
    /// What the sentence must contain.
    words: &'static [&'static str],
}

const RUN: &str = "run --model {} --no-think --temperature 0 --max-tokens 2 hi";
/// Far above what a two-word answer takes, on a machine that builds other things.
const PATIENCE: Duration = Duration::from_secs(60);
/// Address space of the program, in KiB: nothing may be allocated because a file says so.
const MEMORY_KIB: u32 = 4 << 20;

const fn file(name: &'static str, damage: fn(&Path), words: &'static [&'static str]) -> Row {
    Row { name, damage, args: RUN, words }
}

const fn command(name: &'static str, args: &'static str, words: &'static [&'static str]) -> Row {
    Row { name, damage: huge, args, words }
}

const WEIGHTS: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
const NORM: &str = "language_model.model.norm.weight";
const BIAS: &str = "language_model.model.layers.3.self_attn.q_proj.bias";
const LORA: &str = "language_model.model.layers.3.self_attn.q_proj.lora_A.weight";
const LFS: &[u8] = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n";

const WEIGHT_FILES: &[Row] = &[
    file("truncated shard", |f| put(f, WEIGHTS, &old(f, WEIGHTS)[..9_000_000]), &[WEIGHTS, "truncated"]),
    file("shard cut in its header", |f| put(f, WEIGHTS, &old(f, WEIGHTS)[..500]), &[WEIGHTS, "truncated"]),
    file(
        "oversized shard",
        |f| put(f, WEIGHTS, &[&old(f, WEIGHTS)[..], b"x"].concat()),
        &[WEIGHTS, "1 bytes follow the last tensor"],
    ),
    file("header longer than the file", |f| header_file(f, 99_999_999, "{}"), &[WEIGHTS, "header", "99999999"]),
    file("header of no length", |f| header_file(f, 0, ""), &[WEIGHTS, "header"]),
    file("header of any length", |f| header_file(f, u64::MAX, "{}"), &[WEIGHTS, "header", "18446744073709551615"]),
    file("header is no JSON", |f| header_file(f, 5, "{]{}["), &[WEIGHTS, "header"]),
    file("header is a list", |f| header_file(f, 2, "[]"), &[WEIGHTS, "header"]),
    file("header nested beyond reason", |f| header_text(f, &nested(50_000)), &[WEIGHTS, "header"]),
    file("header is no UTF-8", |f| put(f, WEIGHTS, b"\x04\0\0\0\0\0\0\0{\"\xff\""), &[WEIGHTS, "header"]),
    file(
        "names twice",
        |f| header_text(f, r#"{"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},"a":{}}"#),
        &[WEIGHTS, "a appears twice"],
    ),
    file("tensors overlap", |f| offsets(f, json!([0, 512])), &[WEIGHTS, "overlaps"]),
    file("tensors out of range", |f| offsets(f, json!([99_000_000, 99_000_512])), &[WEIGHTS, "99000512"]),
    file("offsets backwards", |f| offsets(f, json!([512, 0])), &[WEIGHTS, NORM, "backwards"]),
    file("offsets below zero", |f| offsets(f, json!([-1, 511])), &[WEIGHTS, NORM, "-1"]),
    file("offsets beyond numbers", |f| offsets(f, json!([1e300, 1e301])), &[WEIGHTS, NORM]),
    file("three offsets", |f| offsets(f, json!([0, 1, 2])), &[WEIGHTS, NORM]),
    file("a tensor larger than memory", |f| shape(f, json!([u64::MAX, 3])), &[WEIGHTS, NORM, "larger than any memory"]),
    file("a shape below zero", |f| shape(f, json!([-256])), &[WEIGHTS, NORM, "-256"]),
    file("a shape that is none", |f| shape(f, json!("wide")), &[WEIGHTS, NORM, "wide"]),
    file("another shape", |f| shape(f, json!([2, 128])), &[WEIGHTS, NORM, "[2, 128]"]),
    file("another dtype", |f| field(f, "dtype", json!("I16")), &[WEIGHTS, NORM, "I16"]),
    file("a dtype that is none", |f| field(f, "dtype", json!("F7")), &[WEIGHTS, NORM, "F7"]),
    file("an entry that is text", |f| header(f, |h| h[NORM] = json!("text")), &[WEIGHTS, NORM]),
    file("a tensor by another name", |f| rename(f, "language_model.model.nerm.weight"), &[NORM]),
    file("a name of two lines", |f| rename(f, "a\nb\u{1b}[2J"), &[NORM]),
    file("a bias of a projection", |f| header(f, |h| h[BIAS] = empty()), &[WEIGHTS, BIAS, "computes without it"]),
    file("an adapter", |f| header(f, |h| h[LORA] = empty()), &[WEIGHTS, LORA, "LoRA"]),
    file("weights that are no numbers", no_numbers, &["logits are not numbers at position"]),
    file("empty shard", |f| put(f, WEIGHTS, b""), &[WEIGHTS, "empty"]),
    file("five bytes", |f| put(f, WEIGHTS, b"12345"), &[WEIGHTS, "too few"]),
    file("Git LFS pointer", |f| put(f, WEIGHTS, LFS), &[WEIGHTS, "git lfs pull"]),
    file("shard is a folder", |f| put_folder(f, WEIGHTS), &[WEIGHTS, "directory"]),
    file("shard is a dangling link", |f| put_link(f, WEIGHTS, "nowhere"), &[INDEX, WEIGHTS, "no such file"]),
    file("shard is a link to itself", |f| put_link(f, WEIGHTS, WEIGHTS), &[WEIGHTS, "symbolic links"]),
];

const INDEXES: &[Row] = &[
    file("index is no JSON", |f| put(f, INDEX, b"{"), &[INDEX, "not a valid index"]),
    file("empty index", |f| put(f, INDEX, b""), &[INDEX, "not a valid index"]),
    file("index is a list", |f| put(f, INDEX, b"[]"), &[INDEX, "not a valid index"]),
    file("index without a map", |f| put(f, INDEX, b"{}"), &[INDEX, "weight_map"]),
    file("empty map", |f| put(f, INDEX, br#"{"weight_map":{}}"#), &[INDEX, "weight_map"]),
    file("map of numbers", |f| place(f, json!(7)), &[INDEX, "weight_map", NORM, "7"]),
    file("absent file", |f| place(f, json!("b.safetensors")), &[INDEX, "b.safetensors", "no such file"]),
    file("file above", |f| place(f, json!("../b.safetensors")), &[INDEX, NORM, "../b.safetensors"]),
    file("file anywhere", |f| place(f, json!("/etc/passwd")), &[INDEX, NORM, "/etc/passwd"]),
    file("the folder itself", |f| place(f, json!(".")), &[INDEX, NORM]),
    file("no name", |f| place(f, json!("")), &[INDEX, NORM]),
    file("a name of two lines", |f| place(f, json!("a\nb")), &[INDEX, r"a\nb"]),
    file("absent tensor", |f| index(f, |map| map["absent.weight"] = json!(WEIGHTS)), &[INDEX, "absent.weight"]),
    file("index is a folder", |f| put_folder(f, INDEX), &[INDEX, "directory"]),
    file("neither weights nor index", |f| (remove(f, WEIGHTS), remove(f, INDEX)).1, &[WEIGHTS, INDEX]),
];

const CONFIGS: &[Row] = &[
    file("no config", |f| remove(f, "config.json"), &["config.json"]),
    file("empty config", |f| put(f, "config.json", b""), &["config.json", "not valid JSON"]),
    file("config is no JSON", |f| put(f, "config.json", b"{\"a\": }"), &["config.json", "line 1 column 7"]),
    file("config is a list", |f| put(f, "config.json", b"[]"), &["config.json", "an object"]),
    file("config in UTF-16", |f| put(f, "config.json", b"\xff\xfe{\0}\0"), &["config.json", "UTF-8"]),
    file("config after a byte order mark", |f| put(f, "config.json", b"\xef\xbb\xbf{}"), &["config.json", "JSON"]),
    file("config is a pointer", |f| put(f, "config.json", LFS), &["config.json", "not valid JSON"]),
    file("config is a folder", |f| put_folder(f, "config.json"), &["config.json", "directory"]),
    file("config nested beyond reason", |f| put(f, "config.json", nested(50_000).as_bytes()), &["config.json"]),
    file("another architecture", |f| top(f, "model_type", json!("llama")), &["config.json", "model_type", "llama"]),
    file("no architecture", |f| top(f, "model_type", Value::Null), &["config.json", "model_type"]),
    file("a size that is text", |f| text(f, "hidden_size", json!("256")), &["config.json", "hidden_size"]),
    file("a size below zero", |f| text(f, "hidden_size", json!(-1)), &["config.json", "hidden_size", "-1"]),
    file("a size of zero", |f| text(f, "num_hidden_layers", json!(0)), &["config.json", "num_hidden_layers"]),
    file("a size with a fraction", |f| text(f, "head_dim", json!(2.5)), &["config.json", "head_dim", "2.5"]),
    file(
        "a size beyond reason",
        |f| text(f, "num_hidden_layers", json!(1_u64 << 40)),
        &["config.json", "num_hidden_layers"],
    ),
    file("a number beyond numbers", |f| put(f, "config.json", b"{\"a\":1e999}"), &["config.json", "out of range"]),
    file("no size", |f| text(f, "vocab_size", Value::Null), &["config.json", "vocab_size"]),
    file("an epsilon below zero", |f| text(f, "rms_norm_eps", json!(-1e-6)), &["config.json", "rms_norm_eps"]),
    file("sizes of other weights", |f| text(f, "hidden_size", json!(512)), &[WEIGHTS, "embed_tokens", "[4096, 32]"]),
    file("a vocabulary of other weights", |f| text(f, "vocab_size", json!(5000)), &[WEIGHTS, "embed_tokens"]),
    file("experts of other weights", |f| text(f, "num_experts", json!(16)), &[WEIGHTS, "mlp.gate"]),
    file("layers that are not there", |f| layers(f, 9), &["layers.8.", "no tensor"]),
    file(
        "layer types of another length",
        |f| text(f, "layer_types", json!(["full_attention"])),
        &["config.json", "layer_types", "num_hidden_layers"],
    ),
    file(
        "layer types unknown",
        |f| text(f, "layer_types", json!(["x", "x", "x", "x", "x", "x", "x", "x"])),
        &["config.json", "layer_types", "x"],
    ),
    file(
        "more experts chosen than there are",
        |f| text(f, "num_experts_per_tok", json!(33)),
        &["config.json", "num_experts_per_tok", "num_experts"],
    ),
    file(
        "heads that cannot be shared out",
        |f| text(f, "num_key_value_heads", json!(3)),
        &["config.json", "num_attention_heads", "num_key_value_heads"],
    ),
    file("an id outside the vocabulary", |f| top(f, "eos_token_id", json!(4096)), &["config.json", "eos_token_id"]),
    file("an activation", |f| text(f, "hidden_act", json!("gelu")), &["config.json", "hidden_act", "gelu"]),
    file("a bias", |f| text(f, "attention_bias", json!(true)), &["config.json", "attention_bias"]),
    file("another router", |f| text(f, "scoring_func", json!("sigmoid")), &["config.json", "scoring_func", "softmax"]),
    file("a rope type", |f| rope(f, "rope_type", json!("yarn")), &["config.json", "rope_type", "yarn"]),
    file("a rope of nothing", |f| rope(f, "rope_theta", json!(0)), &["config.json", "rope_theta"]),
    file("a rope beyond the head", |f| rope(f, "partial_rotary_factor", json!(1.5)), &["config.json", "rotary"]),
    file("seven bits", |f| quantization(f, "bits", json!(7)), &["7 bits"]),
    file("no bits", |f| quantization(f, "bits", json!(0)), &["config.json", "bits"]),
    file("a group of 48", |f| quantization(f, "group_size", json!(48)), &["48"]),
    file("a mode", |f| quantization(f, "mode", json!("mxfp4")), &["config.json", "mode", "mxfp4"]),
    file("a method", |f| quantization(f, "quant_method", json!("fp8")), &["config.json", "quant_method", "fp8"]),
    file("quantization is text", |f| top(f, "quantization", json!("4bit")), &["config.json", "quantization"]),
    file("text part is a list", |f| top(f, "text_config", json!([])), &["config.json", "text_config"]),
];

const GENERATION: &str = "generation_config.json";
const TOKENIZER: &str = "tokenizer.json";
const TOKENIZER_CONFIG: &str = "tokenizer_config.json";

const OTHER_FILES: &[Row] = &[
    file("sampling is no JSON", |f| put(f, GENERATION, b"{"), &[GENERATION, "not valid JSON"]),
    file("sampling is a folder", |f| put_folder(f, GENERATION), &[GENERATION, "directory"]),
    file("a temperature of words", |f| put(f, GENERATION, br#"{"temperature":"hot"}"#), &[GENERATION, "temperature"]),
    file("a temperature below zero", |f| put(f, GENERATION, br#"{"temperature":-1}"#), &[GENERATION, "temperature"]),
    file("a probability above one", |f| put(f, GENERATION, br#"{"top_p":2}"#), &[GENERATION, "top_p"]),
    file("an id of words", |f| put(f, GENERATION, br#"{"eos_token_id":"end"}"#), &[GENERATION, "eos_token_id"]),
    file("no tokenizer", |f| remove(f, TOKENIZER), &[TOKENIZER, "not found"]),
    file("empty tokenizer", |f| put(f, TOKENIZER, b""), &[TOKENIZER]),
    file("tokenizer is no JSON", |f| put(f, TOKENIZER, b"{]"), &[TOKENIZER]),
    file("tokenizer is an empty object", |f| put(f, TOKENIZER, b"{}"), &[TOKENIZER]),
    file("tokenizer is a pointer", |f| put(f, TOKENIZER, LFS), &[TOKENIZER]),
    file("tokenizer is no text", |f| put(f, TOKENIZER, &[0xff; 64]), &[TOKENIZER]),
    file("tokenizer is a folder", |f| put_folder(f, TOKENIZER), &[TOKENIZER, "directory"]),
    file("tokenizer nested beyond reason", |f| put(f, TOKENIZER, nested(50_000).as_bytes()), &[TOKENIZER]),
    file("tokenizer of another model", more_tokens, &[TOKENIZER, "vocab_size"]),
    file("merges of tokens that are none", |f| tokenizer(f, "merges", json!([["zq", "qz"]])), &[TOKENIZER]),
    file("a vocabulary without bytes", few_tokens, &[TOKENIZER, "no token for the byte 0x21"]),
    file("a vocabulary of words", |f| tokenizer(f, "vocab", json!({"a": "b"})), &[TOKENIZER]),
    file("a tokenizer by words", |f| pre_tokenizer(f, json!({"type": "Whitespace"})), &[TOKENIZER, "Whitespace"]),
    file(
        "chunks of nothing",
        |f| pre_tokenizer(f, json!({"type": "FixedLength", "length": 0})),
        &[TOKENIZER, "FixedLength"],
    ),
    file("a pattern that is none", |f| pre_tokenizer(f, split("(")), &[TOKENIZER, "parenthesis"]),
    file("a pattern beyond reason", |f| pre_tokenizer(f, split("(?:a{999}){999}{999}")), &[TOKENIZER, "regex"]),
    file(
        "a text that grows",
        |f| normalizer(f, json!({"type": "Replace", "pattern": {"String": "h"}, "content": "hhhh"})),
        &[TOKENIZER, "normalizer", "Replace"],
    ),
    file(
        "a charsmap that is none",
        |f| {
            normalizer(
                f,
                json!({"type": "Sequence", "normalizers": [{"type": "Precompiled", "precompiled_charsmap": "!"}]}),
            )
        },
        &[TOKENIZER, "normalizer", "Precompiled"],
    ),
    file("a prefix", |f| tokenizer(f, "continuing_subword_prefix", json!("##")), &[TOKENIZER, "prefix"]),
    file("a dropout", |f| tokenizer(f, "dropout", json!(0.5)), &[TOKENIZER, "dropout", "0.5"]),
    file("another model", |f| tokenizer(f, "type", json!("Unigram")), &[TOKENIZER, "Unigram"]),
    file("tokenizer config is no JSON", |f| put(f, TOKENIZER_CONFIG, b"{"), &[TOKENIZER_CONFIG]),
    file("tokenizer config is a folder", |f| put_folder(f, TOKENIZER_CONFIG), &[TOKENIZER_CONFIG, "directory"]),
    file("template is a folder", |f| put_folder(f, TEMPLATE), &[TEMPLATE, "directory"]),
    file("template is no text", |f| put(f, TEMPLATE, b"\xff\xfe"), &[TEMPLATE, "utf-8"]),
];

const TEMPLATE: &str = "chat_template.jinja";

const TEMPLATES: &[Row] = &[
    file("syntax", |f| put(f, TEMPLATE, b"{% if %}"), &["chat template", "line 1"]),
    file("nested beyond reason", |f| put(f, TEMPLATE, &parentheses(5000)), &["chat template", "recursion"]),
    file("fails", |f| put(f, TEMPLATE, b"{{ raise_exception('no\nway') }}"), &[r"no\nway"]),
    file("divides by zero", |f| put(f, TEMPLATE, b"{{ 1 // 0 }}"), &["chat template", "1 // 0"]),
    file("has no such filter", |f| put(f, TEMPLATE, b"{{ 1 | spin }}"), &["chat template", "spin"]),
    file("calls itself", |f| put(f, TEMPLATE, b"{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"), &["recursion"]),
    file("includes itself", |f| put(f, TEMPLATE, b"{% include 'chat template' %}"), &["chat template"]),
    file(
        "does not end",
        |f| put(f, TEMPLATE, b"{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"),
        &["chat template", "did not come to an end"],
    ),
    file(
        "doubles its text",
        |f| {
            put(
                f,
                TEMPLATE,
                b"{% set s = namespace(x='xxxx') %}{% for i in range(90) %}{% set s.x = s.x ~ s.x %}{% endfor %}",
            )
        },
        &["chat template", "did not come to an end"],
    ),
    file("writes without measure", |f| put(f, TEMPLATE, b"{{ 'x' * 99999999999 }}"), &["chat template"]),
    file("indents without measure", |f| put(f, TEMPLATE, b"{{ 'x\nx' | indent(99999999999) }}"), &["chat template"]),
    file(
        "replaces without measure",
        |f| put(f, TEMPLATE, b"{% set y = 'x' * 9999 %}{{ y|replace('x', y)|replace('x', y)|replace('x', y) }}"),
        &["chat template"],
    ),
    file("writes nothing", |f| put(f, TEMPLATE, b""), &["prompt", "no tokens"]),
    file(
        "is in no file",
        |f| (remove(f, TEMPLATE), tokenizer_config(f, "chat_template", Value::Null)).1,
        &["no chat template"],
    ),
];

const COMMANDS: &[Row] = &[
    command("no such model", "run --model {}/absent hi", &["absent", "No such file"]),
    command("model is a file", "run --model {}/config.json hi", &["config.json", "give the folder"]),
    command("model below a file", "run --model {}/config.json/x hi", &["config.json/x", "Not a directory"]),
    command("two models", "run --model {} --model {} hi", &["--model", "multiple times"]),
    command("two models to plan", "plan {} --model {}", &["--model", "PATH"]),
    command("no model", "run hi --model", &["--model", "value is required"]),
    command("no temperature", "run --model {} --temperature nan hi", &["temperature", "NaN"]),
    command("any temperature", "run --model {} --temperature inf hi", &["temperature", "inf"]),
    command("temperature below zero", "run --model {} --temperature -0.5 hi", &["temperature", "-0.5"]),
    command("temperature in words", "run --model {} --temperature warm hi", &["--temperature", "warm"]),
    command("top-p of nothing", "run --model {} --top-p 0 hi", &["top_p", "0"]),
    command("top-p above one", "run --model {} --top-p 1.01 hi", &["top_p", "1.01"]),
    command("top-p of no number", "run --model {} --top-p nan hi", &["top_p", "NaN"]),
    command("top-k below zero", "run --model {} --top-k -1 hi", &["-1"]),
    command("min-p below zero", "run --model {} --min-p -0.1 hi", &["min_p", "-0.1"]),
    command("a penalty of no number", "run --model {} --presence-penalty nan hi", &["presence_penalty", "NaN"]),
    command("a penalty out of range", "run --model {} --frequency-penalty -2.1 hi", &["frequency_penalty", "-2.1"]),
    command("a penalty of nothing", "run --model {} --repetition-penalty 0 hi", &["repetition_penalty", "0"]),
    command("a bias of no number", "run --model {} --logit-bias 1=nan hi", &["logit_bias", "NaN"]),
    command("a bias of no token", "run --model {} --logit-bias 4096=1 hi", &["logit_bias", "4096"]),
    command("a bias in words", "run --model {} --logit-bias never hi", &["--logit-bias", "never"]),
    command("more log-probabilities", "run --model {} --json --logprobs 21 hi", &["--logprobs", "21"]),
    command("a stop of nothing", "run --model {} --stop= hi", &["stop", "empty"]),
    command("no tokens wanted", "run --model {} --max-tokens 0 hi", &["max_tokens", "0"]),
    command("more tokens than numbers", "run --model {} --max-tokens 99999999999999999999 hi", &["--max-tokens"]),
    command("a seed in words", "run --model {} --seed lucky hi", &["--seed", "lucky"]),
    command("no threads", "run --model {} --threads 0 hi", &["--threads", "0"]),
    command("too many threads", "run --model {} --threads 1000000 hi", &["--threads", "at most"]),
    command("no context", "run --model {} --context 0 hi", &["--context", "0"]),
    command("too little context", "run --model {} --context 1 hi", &["--context 1", "2 to 32768"]),
    command("too much context", "run --model {} --context 32769 hi", &["--context 32769", "2 to 32768"]),
    command("context beyond memory", "run --model {} --context 18446744073709551615 hi", &["--context"]),
    command("prompt beyond the context", "run --model {} --context 8 hello-hello-hello", &["prompt", "--context"]),
    command("no prefill chunk", "run --model {} --prefill-chunk 0 hi", &["--prefill-chunk", "0"]),
    command("a precision", "run --model {} --precision int2 hi", &["--precision", "int2"]),
    command("a device", "run --model {} --device metal hi", &["--device", "metal"]),
    command("a flag", "run --model {} --speed 11 hi", &["--speed"]),
    command("a command", "fly --model {}", &["fly"]),
    command("no prompt", "run --model {}", &["no prompt"]),
    command("plan of no such file", "plan {}/absent", &["absent", "No such file"]),
    command("plan of weights", "plan {}/tokenizer.json", &["config.json", "model_type"]),
    command("plan of a step without tokens", "plan {} --tokens 0", &["--tokens", "0"]),
    command("plan of a step without bound", "plan {} --tokens 99999999999", &["--tokens 99999999999", "1048576"]),
    command("plan beyond the context", "plan {} --context 99999999999", &["--context 99999999999", "32768"]),
    command("plan without something unknown", "plan {} --without luck", &["luck"]),
    command("plan of no model that ever was", "plan {}/huge.json", &["config.json", "no model has so many"]),
    command("inspect no such model", "inspect {}/absent", &["absent", "No such file"]),
    command("inspect beyond the context", "inspect {} --context 99999999999", &["--context 99999999999"]),
    command("inspect no chunk", "inspect {} --prefill-chunk 0", &["--prefill-chunk", "0"]),
    command("pull a path", "pull ../../etc", &["OWNER/NAME", "../../etc"]),
    command("pull a revision elsewhere", "pull a/b --revision ../c", &["--revision", "../c"]),
    command("measure no such model", "bench --model {}/absent", &["absent", "No such file"]),
    command("measure nothing", "bench --model {} --tokens 0", &["--tokens", "0"]),
    command(
        "measure beyond the context",
        "bench --model {} --prompt-tokens 32768",
        &["--prompt-tokens 32768", "32768"],
    ),
    command("a page of no command", "man fly", &["no command fly"]),
    command("completions of no shell", "completions klingon", &["klingon"]),
    command("serve no such model", "serve --port 0 --model {}/absent", &["absent", "No such file"]),
    command("serve on no such port", "serve --port 65536 --model {}", &["--port", "65536"]),
    command("serve on no such address", "serve --host 256.0.0.1 --port 0 --model {}", &["256.0.0.1"]),
    command("serve a queue of nothing", "serve --queue 0 --model {}", &["--queue", "0"]),
    command("chat with no such model", "chat --model {}/absent", &["absent", "No such file"]),
];

/// The demo model takes about 40 MB beside its cache of 67 MB.
const MEMORY: &[Row] = &[
    command("not enough memory", "run --model {} --memory 1M hi", &["weights", "1.0 MB", "raise --memory"]),
    command(
        "not enough memory for this context",
        "run --model {} --memory 120M --context 32768 hi",
        &["KV cache", "120.0 MB", "lower --context to", "raise --memory"],
    ),
    command("not enough memory to serve", "serve --port 0 --memory 5MB --model {}", &["weights", "5.0 MB", "--memory"]),
    command("not enough memory to measure", "bench --model {} --memory 5MB", &["weights", "5.0 MB", "--memory"]),
    command("no memory", "run --model {} --memory 0 hi", &["--memory"]),
    command("memory in words", "run --model {} --memory plenty hi", &["--memory", "plenty"]),
];

#[test]
fn weight_files() {
    check(WEIGHT_FILES);
}

#[test]
fn indexes() {
    check(INDEXES);
}

#[test]
fn configs() {
    check(CONFIGS);
}

#[test]
fn other_files() {
    check(OTHER_FILES);
}

#[test]
fn templates() {
    check(TEMPLATES);
}

#[test]
fn memory() {
    check(MEMORY);
}

#[test]
fn command_lines() {
    check(COMMANDS);
}

/// Or the rows would prove nothing.
#[test]
fn the_undamaged_model_answers_in_this_memory() {
    let folder = model();
    let output = limited(&words(RUN, folder.path())).wait_with_output().expect("ends");
    assert!(output.status.success() && !output.stdout.is_empty(), "{}", support::stderr(&output));
}

/// Damage that the other commands that open a model must see too.
#[test]
fn every_command_refuses_a_damaged_model() {
    for args in ["chat --model {}", "serve --port 0 --model {}", "bench --model {}", "plan {}", "inspect {}"] {
        check(&[Row {
            args,
            ..file("config", |f| text(f, "hidden_size", json!("x")), &["config.json", "hidden_size"])
        }]);
    }
    for args in ["chat --model {}", "serve --port 0 --model {}", "inspect {}"] {
        check(&[Row { args, ..file("shard", |f| put(f, WEIGHTS, b""), &[WEIGHTS, "empty"]) }]);
    }
}

/// `/dev/full` is a disk without room.
#[test]
#[cfg(target_os = "linux")]
fn a_full_disk_is_a_sentence() {
    for args in [RUN, "run --json --model {} --max-tokens 2 hi", "plan {}", "inspect {}", "chat --model {}"] {
        let folder = model();
        let full = fs::OpenOptions::new().write(true).open("/dev/full").expect("opens");
        let mut command = lily(&words(args, folder.path()));
        let mut child = command.stdin(std::process::Stdio::piped()).stdout(full).spawn().expect("starts");
        // For `chat`, which would end without a word.
        let _ = std::io::Write::write_all(&mut child.stdin.take().expect("piped"), b"hi\n");
        let said = judge(&mut child).expect(args);
        assert!(said.contains("stdout: No space left on device"), "{args}: {said}");
    }
}

#[test]
fn stdin_that_is_no_text_or_no_file() {
    let folder = model();
    let words = words("run --model {}", folder.path());
    let bytes = folder.path().join("bytes");
    fs::write(&bytes, b"hi \xff\xfe").expect("writes");
    for (path, why) in [(bytes.as_path(), "UTF-8"), (folder.path(), "Is a directory")] {
        let mut child = lily(&words).stdin(fs::File::open(path).expect("opens")).spawn().expect("starts");
        let said = judge(&mut child).expect(why);
        assert!(said.contains("stdin") && said.contains(why), "{said}");
    }
}

#[test]
#[cfg(unix)]
fn arguments_that_are_no_text() {
    use std::os::unix::ffi::OsStrExt;
    let bytes = std::ffi::OsStr::from_bytes(b"\xff\xfe");
    let said = judge(&mut lily(&["run"]).arg(bytes).spawn().expect("starts")).expect("prompt");
    assert!(said.contains("invalid UTF-8"), "{said}");
    let said = judge(&mut lily(&["run", "hi", "--model"]).arg(bytes).spawn().expect("starts")).expect("model");
    assert!(said.contains("is not a model folder"), "{said}");
    let said = judge(&mut lily(&["run", "hi", "--model", "two\nlines"]).spawn().expect("starts")).expect("line");
    assert!(said.contains(r"two\nlines is not a model folder"), "{said}");
}

#[test]
fn a_port_that_is_taken() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("binds");
    let port = taken.local_addr().expect("bound").port().to_string();
    let said = judge(&mut lily(&["serve", "--port", &port]).spawn().expect("starts")).expect("port");
    assert!(said.contains(&format!("127.0.0.1:{port}: Address already in use")), "{said}");
}

#[test]
#[cfg(unix)]
fn unreadable_files() {
    use std::os::unix::fs::PermissionsExt;
    for name in [WEIGHTS, INDEX, "config.json", GENERATION, TOKENIZER, TOKENIZER_CONFIG] {
        let folder = model();
        put(folder.path(), name, &old(folder.path(), name));
        let path = folder.path().join(name);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).expect("sets");
        if fs::File::open(&path).is_ok() {
            // Not `eprintln!`, which the harness swallows when a test passes.
            let _ = std::io::Write::write_all(
                &mut std::io::stderr(),
                b"SKIP unreadable_files: this user may read every file\n",
            );
            return;
        }
        let said = judge(&mut lily(&words(RUN, folder.path())).spawn().expect("starts")).expect(name);
        assert!(said.contains(name) && said.contains("Permission denied"), "{said}");
    }
}

/// Runs every row and then tells all that is wrong.
fn check(rows: &[Row]) {
    let mut wrong = Vec::new();
    for row in rows {
        let folder = model();
        (row.damage)(folder.path());
        let before = listing(folder.path());
        match judge(&mut limited(&words(row.args, folder.path()))) {
            Err(problem) => wrong.push(format!("{}: {problem}", row.name)),
            Ok(said) => {
                let absent = row.words.iter().filter(|word| !said.contains(**word));
                wrong.extend(absent.map(|word| format!("{}: no {word:?} in {said:?}", row.name)));
            }
        }
        if listing(folder.path()) != before {
            wrong.push(format!("{}: the model's files changed", row.name));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), rows.len(), wrong.join("\n"));
}

fn words(args: &str, folder: &Path) -> Vec<String> {
    let folder = folder.to_str().expect("UTF-8");
    args.split(' ').map(|word| word.replace("{}", folder)).collect()
}

/// The program with bounded memory, where the system can bound it.
fn limited(args: &[String]) -> Child {
    let mut command = lily(args);
    if cfg!(target_os = "linux") {
        let limit = format!("ulimit -v {MEMORY_KIB}; exec \"$0\" \"$@\"");
        let program = command.get_program().to_owned();
        let mut shell = support::bare("sh");
        shell.args(["-c", &limit]).arg(program).args(args);
        command = shell;
    }
    command.spawn().expect("starts")
}

/// Waits for the end and gives the one sentence on stderr, or what is wrong with this end.
fn judge(child: &mut Child) -> Result<String, String> {
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().expect("waits") {
            break status;
        }
        if start.elapsed() > PATIENCE {
            let _ = child.kill();
            return Err(format!("still running after {PATIENCE:?}"));
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let (mut out, mut said) = (String::new(), String::new());
    if let Some(mut stdout) = child.stdout.take() {
        stdout.read_to_string(&mut out).expect("UTF-8");
    }
    child.stderr.take().expect("piped").read_to_string(&mut said).expect("UTF-8");
    // What was picked is no complaint; after a usage error stands how to go on.
    let mut lines = said.lines().filter(|line| !line.is_empty() && !line.starts_with("lily: model: "));
    let sentence = lines.next().unwrap_or_default().to_owned();
    let rest: Vec<&str> = lines.collect();
    let one = match status.code() {
        Some(1) => sentence.starts_with("lily: ") && rest.is_empty(),
        Some(2) => sentence.starts_with("error: ") && !rest.iter().any(|line| line.starts_with("error")),
        _ => false,
    };
    if one && out.is_empty() && !said.contains("panicked") {
        Ok(sentence)
    } else {
        Err(format!("{status}, stdout {out:?}, stderr {said:?}"))
    }
}

/// A copy of the demo model.
fn model() -> tempfile::TempDir {
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/lily-demo");
    let folder = tempfile::tempdir().expect("a folder");
    for entry in fs::read_dir(&demo).expect("lists") {
        let path = entry.expect("lists").path();
        let copy = folder.path().join(path.file_name().expect("named"));
        if path.extension().is_some_and(|kind| kind == "safetensors") {
            #[cfg(unix)]
            std::os::unix::fs::symlink(fs::canonicalize(&path).expect("is there"), copy).expect("links");
        } else {
            fs::copy(&path, copy).expect("copies");
        }
    }
    folder
}

/// Names, kinds, sizes and times of a folder's files.
fn listing(folder: &Path) -> Vec<(std::ffi::OsString, u64, Option<SystemTime>)> {
    let facts = |entry: fs::DirEntry| {
        let metadata = fs::metadata(entry.path()).or_else(|_| entry.metadata()).expect("metadata");
        (entry.file_name(), metadata.len(), metadata.modified().ok())
    };
    let mut all: Vec<_> = fs::read_dir(folder).expect("lists").map(|entry| facts(entry.expect("lists"))).collect();
    all.sort();
    all
}

fn old(folder: &Path, name: &str) -> Vec<u8> {
    fs::read(folder.join(name)).expect("reads")
}

fn remove(folder: &Path, name: &str) {
    fs::remove_file(folder.join(name)).expect("removes");
}

/// A file of this name and these bytes, in place of the one that is there.
fn put(folder: &Path, name: &str, bytes: &[u8]) {
    remove(folder, name);
    fs::write(folder.join(name), bytes).expect("writes");
}

fn put_folder(folder: &Path, name: &str) {
    remove(folder, name);
    fs::create_dir(folder.join(name)).expect("makes");
}

fn put_link(folder: &Path, name: &str, to: &str) {
    remove(folder, name);
    #[cfg(unix)]
    std::os::unix::fs::symlink(to, folder.join(name)).expect("links");
}

fn edit(folder: &Path, name: &str, change: impl FnOnce(&mut Value)) {
    let mut json = serde_json::from_slice(&old(folder, name)).expect("JSON");
    change(&mut json);
    put(folder, name, json.to_string().as_bytes());
}

fn top(folder: &Path, field: &str, value: Value) {
    edit(folder, "config.json", |config| config[field] = value);
}

fn text(folder: &Path, field: &str, value: Value) {
    edit(folder, "config.json", |config| config["text_config"][field] = value);
}

fn rope(folder: &Path, field: &str, value: Value) {
    edit(folder, "config.json", |config| config["text_config"]["rope_parameters"][field] = value);
}

fn layers(folder: &Path, count: usize) {
    text(folder, "num_hidden_layers", json!(count));
    text(folder, "layer_types", Value::Null);
}

fn quantization(folder: &Path, field: &str, value: Value) {
    edit(folder, "config.json", |config| config["quantization"][field] = value);
}

/// Beside the model, a config of sizes that are allowed one by one.
fn huge(folder: &Path) {
    let mut config: Value = serde_json::from_slice(&old(folder, "config.json")).expect("JSON");
    let text = &mut config["text_config"];
    for field in ["num_hidden_layers", "linear_num_value_heads", "linear_value_head_dim", "head_dim"] {
        text[field] = json!(1024);
    }
    text["layer_types"].take();
    fs::write(folder.join("huge.json"), config.to_string()).expect("writes");
}

fn index(folder: &Path, change: impl FnOnce(&mut Value)) {
    edit(folder, INDEX, |index| change(&mut index["weight_map"]));
}

fn place(folder: &Path, file: Value) {
    index(folder, |map| map[NORM] = file);
}

fn tokenizer(folder: &Path, field: &str, value: Value) {
    edit(folder, TOKENIZER, |tokenizer| tokenizer["model"][field] = value);
}

fn few_tokens(folder: &Path) {
    tokenizer(folder, "vocab", json!({"a": 0}));
    tokenizer(folder, "merges", json!([]));
}

fn normalizer(folder: &Path, value: Value) {
    edit(folder, TOKENIZER, |tokenizer| tokenizer["normalizer"] = value);
}

fn pre_tokenizer(folder: &Path, value: Value) {
    edit(folder, TOKENIZER, |tokenizer| tokenizer["pre_tokenizer"] = value);
}

fn split(pattern: &str) -> Value {
    json!({"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false},
        {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
    ]})
}

fn more_tokens(folder: &Path) {
    let token = json!({"id": 9999, "content": "<extra>", "special": true, "single_word": false, "lstrip": false,
        "rstrip": false, "normalized": false});
    edit(folder, TOKENIZER, |tokenizer| tokenizer["added_tokens"].as_array_mut().expect("a list").push(token));
}

fn tokenizer_config(folder: &Path, field: &str, value: Value) {
    edit(folder, TOKENIZER_CONFIG, |config| config[field] = value);
}

/// Weights that begin with this length and this header, and end there.
fn header_file(folder: &Path, length: u64, header: &str) {
    put(folder, WEIGHTS, &[&length.to_le_bytes(), header.as_bytes()].concat());
}

fn header_text(folder: &Path, header: &str) {
    header_file(folder, header.len() as u64, header);
}

/// The weights with another header before the same data.
fn header(folder: &Path, change: impl FnOnce(&mut Value)) {
    let bytes = old(folder, WEIGHTS);
    let (length, rest) = bytes.split_first_chunk().expect("a length");
    let (json, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
    let mut json = serde_json::from_slice(json).expect("JSON");
    change(&mut json);
    let json = json.to_string();
    put(folder, WEIGHTS, &[&(json.len() as u64).to_le_bytes(), json.as_bytes(), data].concat());
}

/// A tensor of no bytes.
fn empty() -> Value {
    json!({"dtype": "BF16", "shape": [0], "data_offsets": [0, 0]})
}

/// The last norm made of NaN.
fn no_numbers(folder: &Path) {
    let mut range = 0..0;
    header(folder, |header| {
        let offset = |i: usize| header[NORM]["data_offsets"][i].as_u64().expect("a number") as usize;
        range = offset(0)..offset(1);
    });
    let mut bytes = old(folder, WEIGHTS);
    let (length, data) = bytes.split_first_chunk_mut().expect("a length");
    let start = u64::from_le_bytes(*length) as usize;
    data[start..][range].fill(0xff);
    put(folder, WEIGHTS, &bytes);
}

fn field(folder: &Path, name: &str, value: Value) {
    header(folder, |header| header[NORM][name] = value);
}

fn offsets(folder: &Path, value: Value) {
    field(folder, "data_offsets", value);
}

fn shape(folder: &Path, value: Value) {
    field(folder, "shape", value);
}

/// The last norm by another name. Without an index, which would be the first to miss it.
fn rename(folder: &Path, name: &str) {
    remove(folder, INDEX);
    header(folder, |header| header[name] = header[NORM].take());
    header(folder, |header| drop(header.as_object_mut().expect("an object").remove(NORM)));
}

fn nested(depth: usize) -> String {
    "{\"a\":".repeat(depth)
}

fn parentheses(depth: usize) -> Vec<u8> {
    format!("{{{{ {}1{} }}}}", "(".repeat(depth), ")".repeat(depth)).into_bytes()
}
