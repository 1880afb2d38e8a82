//! Answers that obey a schema or call a tool, from the built-in model and from one of random weights that would never do it
//! by itself.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use lily_engine::engine::{Engine, EngineError, EngineOptions, ModelSource, Precision};
use lily_engine::request::{
    CancelToken, ChatPrompt, Completion, Event, FinishReason, Prompt, Request, RequestError, ResponseFormat,
    SamplingParams, ToolChoice,
};
use lily_engine::text::{Grammars, Tokenizer};
use serde_json::{Value, json};

use crate::harness;
use crate::support::{root, shared};

/// Among the bytes of the random model.
const NEW_LINE: u32 = 10;

/// A model of random weights over bytes, whose ids they are, and the tags.
fn random_model(folder: &Path) -> Engine {
    let from = root().join("golden/architectures/mlx-q4");
    for name in ["config.json", "model.safetensors"] {
        std::fs::copy(from.join(name), folder.join(name)).unwrap();
    }
    std::fs::copy(root().join("models/lily-demo/chat_template.jinja"), folder.join("chat_template.jinja")).unwrap();
    let printable = |byte: &u32| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    let others = (0..256).filter(|byte| !printable(byte)).enumerate();
    let mut spellings: Vec<u32> = (0..256).collect();
    others.for_each(|(i, byte)| spellings[byte as usize] = 256 + i as u32);
    let spell = |code: &u32| char::from_u32(*code).unwrap().to_string();
    let vocab: serde_json::Map<String, Value> = spellings.iter().map(spell).zip((0..256).map(Value::from)).collect();
    let tags = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>"];
    let added: Vec<Value> = (256..)
        .zip(tags)
        .map(|(id, tag)| json!({"id": id, "content": tag, "special": tag.starts_with("<|"), "normalized": false}))
        .collect();
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false});
    let tokenizer = json!({
        "version": "1.0", "added_tokens": added, "normalizer": null, "pre_tokenizer": byte_level,
        "decoder": byte_level, "model": {"type": "BPE", "vocab": vocab, "merges": []},
    });
    std::fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    std::fs::write(folder.join("tokenizer_config.json"), json!({"eos_token": "<|im_end|>"}).to_string()).unwrap();
    let options = EngineOptions {
        precision: Precision::Exact,
        threads: Some(2),
        context_length: Some(4096),
        ..EngineOptions::new(ModelSource::Folder(folder.to_owned()))
    };
    Engine::open(&options).unwrap()
}

/// Runs a check on both models.
fn on_both(check: impl Fn(&mut Engine, &str)) {
    let folder = tempfile::tempdir().unwrap();
    check(&mut random_model(folder.path()), "random");
    check(&mut harness::demo(Precision::Exact), "demo");
}

fn chat(text: &str, tools: &[Value], thinking: bool) -> Request {
    let chat = ChatPrompt {
        messages: vec![json!({"role": "user", "content": text})],
        tools: tools.to_vec(),
        enable_thinking: Some(thinking),
        ..ChatPrompt::default()
    };
    Request { max_tokens: Some(900), ..Request::new(Prompt::Chat(chat), SamplingParams::GREEDY) }
}

fn run(engine: &mut Engine, request: &Request) -> Completion {
    engine.generate(request, &CancelToken::default(), &mut |_| ControlFlow::Continue(())).unwrap()
}

/// Greedy, and at temperature 1 with these seeds.
fn samplings(seeds: u64) -> impl Iterator<Item = SamplingParams> {
    let drawn = (1..=seeds).map(|seed| SamplingParams { temperature: 1.0, seed, ..SamplingParams::GREEDY });
    std::iter::once(SamplingParams::GREEDY).chain(drawn)
}

fn obeys(schema: &Value, value: &Value) -> Result<(), String> {
    let validator = jsonschema::options().should_validate_formats(true).build(schema).unwrap();
    validator.validate(value).map_err(|e| format!("{e}: {value} of {schema}"))
}

/// Schemas whose every answer is short.
fn schemas() -> Vec<Value> {
    let word = json!({"type": "string", "maxLength": 12});
    let object = |properties: Value, required: Value| json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false});
    vec![
        json!({"enum": ["red", "green", 7, null, {"a": [1]}]}),
        json!({"const": {"exactly": ["this", 1.5]}}),
        json!({"type": "boolean"}),
        json!({"type": "null"}),
        json!({"type": "integer", "minimum": -3, "maximum": 250}),
        json!({"type": "integer", "exclusiveMinimum": 0, "maximum": 100, "multipleOf": 5}),
        json!({"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"}),
        json!({"type": "string", "minLength": 3, "maxLength": 6}),
        json!({"type": "string", "format": "date"}),
        json!({"type": "string", "format": "uuid"}),
        json!({"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 4}),
        json!({"type": "array", "prefixItems": [word, {"type": "boolean"}], "items": false, "minItems": 2}),
        object(json!({"a": word, "b": {"type": "integer", "minimum": 0, "maximum": 9}}), json!(["a", "b"])),
        object(json!({"a": word, "b": word, "c": word}), json!(["b"])),
        object(
            json!({"in": object(json!({"deep": object(json!({"x": {"enum": ["y", "z"]}}), json!(["x"]))}), json!(["deep"]))}),
            json!(["in"]),
        ),
        json!({"anyOf": [word, {"type": "integer", "minimum": 10, "maximum": 99}, {"type": "null"}]}),
        json!({"$ref": "#/$defs/pair", "$defs": {"pair": object(json!({"left": {"$ref": "#/$defs/leaf"}, "right": {"$ref": "#/$defs/leaf"}}), json!(["left", "right"])), "leaf": {"enum": [1, 2]}}}),
        json!({"allOf": [object(json!({"k": {"type": "integer"}}), json!(["k"])), {"type": "object", "properties": {"k": {"minimum": 5, "maximum": 6}}}]}),
        json!({"type": ["boolean", "null"]}),
        json!({"type": "object", "properties": {"who": word}, "required": ["who"], "additionalProperties": false, "description": "said to the model, not checked", "title": "Who"}),
    ]
}

#[test]
fn content_obeys_any_schema() {
    on_both(|engine, name| {
        for schema in schemas() {
            for sampling in samplings(2) {
                let format = ResponseFormat::JsonSchema(schema.clone());
                let request = Request { sampling, response_format: format, ..chat("Say something.", &[], false) };
                let done = run(engine, &request);
                let text = &done.content;
                assert_eq!(done.finish_reason, FinishReason::Stop, "{name}: {schema}: {text}");
                let value: Value = serde_json::from_str(text).unwrap_or_else(|e| panic!("{name}: {e}: {text}"));
                obeys(&schema, &value).unwrap_or_else(|e| panic!("{name}: {e}"));
                assert!(done.reasoning.is_empty() && done.tool_calls.is_empty());
            }
        }
    });
}

#[test]
fn objects_without_a_bound_obey_as_far_as_they_come() {
    let schema = json!({"type": "object", "properties": {"n": {"type": "number", "minimum": 0}, "list": {"type": "array", "items": {"type": "string"}}}, "required": ["n"]});
    for (format, schema) in
        [(ResponseFormat::JsonObject, json!({"type": "object"})), (ResponseFormat::JsonSchema(schema.clone()), schema)]
    {
        let ends = std::cell::Cell::new(0);
        on_both(|engine, name| {
            for sampling in samplings(6) {
                let request = Request { sampling, response_format: format.clone(), ..chat("Say it.", &[], false) };
                let done = run(engine, &request);
                match (done.finish_reason, serde_json::from_str::<Value>(&done.content)) {
                    (FinishReason::Stop, Ok(value)) => {
                        obeys(&schema, &value).unwrap_or_else(|e| panic!("{name}: {e}"));
                        ends.set(ends.get() + 1);
                    }
                    // Numbers of JSON have no bound; those of Rust do.
                    (FinishReason::Stop, Err(e)) if e.to_string().starts_with("number out of range") => {}
                    (FinishReason::Length, result) => assert!(result.is_err_and(|e| e.is_eof()), "{}", done.content),
                    (reason, result) => panic!("{name}: {reason:?}, {result:?}: {}", done.content),
                }
            }
        });
        assert!(ends.get() >= 4, "{} came to an end", ends.get());
    }
}

fn tools() -> Vec<Value> {
    let book = json!({"type": "object", "required": ["title", "copies", "binding"], "properties": {
        "title": {"type": "string", "maxLength": 30},
        "copies": {"type": "integer", "minimum": 1, "maximum": 20},
        "binding": {"enum": ["cloth", "paper"]},
        "gift": {"type": "boolean"},
        "shelf": {"$ref": "#/$defs/shelf"},
    }, "additionalProperties": false, "$defs": {"shelf": {"type": "object", "properties": {"row": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["row"], "additionalProperties": false}}});
    let function = |name: &str, parameters: Value| json!({"type": "function", "function": {"name": name, "description": name, "parameters": parameters}});
    vec![function("order_book", book), function("list_books", json!({"type": "object", "properties": {}}))]
}

/// Each call names a tool, and its arguments are valid.
fn check_calls(done: &Completion, tools: &[Value], name: &str) {
    for call in &done.tool_calls {
        let tool = tools.iter().find(|tool| tool["function"]["name"] == call.name.as_str()).unwrap();
        let arguments = Value::Object(call.arguments.clone());
        obeys(&tool["function"]["parameters"], &arguments).unwrap_or_else(|e| panic!("{name}: {e}"));
    }
}

#[test]
fn a_required_or_named_tool_is_called_and_nothing_is_said() {
    let tools = tools();
    let named = ToolChoice::Named("order_book".into());
    on_both(|engine, name| {
        for (choice, sampling) in samplings(4).flat_map(|s| [(ToolChoice::Required, s), (named.clone(), s)]) {
            let request = chat("Order two copies of Emma.", &tools, false);
            let request = Request { sampling, tool_choice: choice, parallel_tool_calls: false, ..request };
            let done = run(engine, &request);
            assert_eq!(done.finish_reason, FinishReason::Stop, "{name}: {done:?}");
            assert_eq!((done.tool_calls.len(), done.content.as_str()), (1, ""), "{name}");
            assert!(request.tool_choice == ToolChoice::Required || done.tool_calls[0].name == "order_book");
            check_calls(&done, &tools, name);
        }
    });
}

#[test]
fn several_calls_come_only_where_they_may() {
    let folder = tempfile::tempdir().unwrap();
    let mut engine = random_model(folder.path());
    let (tools, mut several) = (tools(), 0);
    for sampling in samplings(8) {
        // A new line, where the answer could end too.
        let request = Request { logit_bias: vec![(NEW_LINE, 8.0)], ..chat("Order.", &tools, false) };
        let done = run(&mut engine, &Request { sampling, tool_choice: ToolChoice::Required, ..request });
        assert!(!done.tool_calls.is_empty(), "{}", done.content);
        // A call that the bound on tokens cut is text.
        assert!(done.finish_reason == FinishReason::Length || done.content.is_empty(), "{}", done.content);
        check_calls(&done, &tools, "random");
        several += usize::from(done.tool_calls.len() > 1);
    }
    assert!(several > 0, "no answer had several calls");
}

#[test]
fn thinking_is_free_and_structure_follows_it() {
    let schema = json!({"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": false});
    let mut engine = harness::demo(Precision::Exact);
    let mut thoughts = 0;
    for sampling in samplings(3) {
        let format = ResponseFormat::JsonSchema(schema.clone());
        let done = run(&mut engine, &Request { sampling, response_format: format, ..chat("Is 2 even?", &[], true) });
        assert_eq!(done.finish_reason, FinishReason::Stop);
        obeys(&schema, &serde_json::from_str(&done.content).unwrap()).unwrap();
        thoughts += done.reasoning.len();
        let tools = tools();
        let request = Request { sampling, tool_choice: ToolChoice::Required, ..chat("Is 2 even?", &tools, true) };
        let done = run(&mut engine, &request);
        assert!(!done.tool_calls.is_empty() && done.content.is_empty(), "{}", done.content);
        check_calls(&done, &tools, "demo");
    }
    assert!(thoughts > 0);
    // It may not end before its answer.
    let folder = tempfile::tempdir().unwrap();
    let mut engine = random_model(folder.path());
    for sampling in samplings(3) {
        let format = ResponseFormat::JsonSchema(schema.clone());
        let done = run(&mut engine, &Request { sampling, response_format: format, ..chat("Well?", &[], true) });
        match done.finish_reason {
            FinishReason::Stop => obeys(&schema, &serde_json::from_str(&done.content).unwrap()).unwrap(),
            FinishReason::Length => assert!(done.content.is_empty() && !done.reasoning.is_empty()),
            FinishReason::Cancelled => panic!("nobody cancelled"),
        }
    }
}

#[test]
fn a_strict_tool_leaves_text_free_and_binds_calls() {
    let mut strict = tools();
    strict.iter_mut().for_each(|tool| tool["function"]["strict"] = json!(true));
    let mut engine = harness::demo(Precision::Exact);
    let free = run(&mut engine, &chat("Hello!", &tools(), false));
    assert_eq!(run(&mut engine, &chat("Hello!", &strict, false)).tokens, free.tokens, "as without a grammar");
    // Nothing but a call can begin: a bias on its tag.
    let folder = tempfile::tempdir().unwrap();
    let mut engine = random_model(folder.path());
    let start = engine.codec().tokenizer().tag_ids().tool_call_start.unwrap();
    for sampling in samplings(4) {
        let request = chat("Order.", &strict, false);
        let request = Request { sampling, logit_bias: vec![(start, 100.0)], parallel_tool_calls: false, ..request };
        let done = run(&mut engine, &request);
        assert_eq!((done.finish_reason, done.tool_calls.len()), (FinishReason::Stop, 1), "{done:?}");
        check_calls(&done, &strict, "random");
    }
}

#[test]
fn what_cannot_be_enforced_is_refused_before_anything_runs() {
    let mut engine = harness::demo(Precision::Exact);
    let schema = json!({"type": "array", "uniqueItems": true});
    let request = Request { response_format: ResponseFormat::JsonSchema(schema), ..chat("Hi", &[], false) };
    let error = engine.generate(&request, &CancelToken::default(), &mut |_| panic!("it ran")).unwrap_err();
    let EngineError::Request(RequestError::Field { field, reason }) = error else { panic!("{error}") };
    assert!(field == "response_format" && reason.contains("uniqueItems"), "{field}: {reason}");
}

#[test]
fn a_bound_on_tokens_leaves_the_beginning_of_the_answer() {
    let mut engine = harness::demo(Precision::Exact);
    let format = ResponseFormat::JsonSchema(schemas()[14].clone());
    let request = Request { response_format: format, ..chat("Say something.", &[], false) };
    let whole = run(&mut engine, &request);
    for max in 1..whole.tokens.len() {
        let cut = run(&mut engine, &Request { max_tokens: Some(max), ..request.clone() });
        assert_eq!((cut.tokens.as_slice(), cut.finish_reason), (&whole.tokens[..max], FinishReason::Length));
        assert!(whole.content.starts_with(&cut.content));
    }
}

#[test]
fn a_stream_has_the_text_of_the_answer_and_repeats_itself() {
    let mut engine = harness::demo(Precision::Exact);
    let sampling = SamplingParams { temperature: 1.0, seed: 4, ..SamplingParams::GREEDY };
    let format = ResponseFormat::JsonSchema(schemas()[13].clone());
    let request = Request { sampling, response_format: format, ..chat("Say something.", &[], false) };
    let mut content = String::new();
    let mut sink = |event: Event| {
        if let Event::Content(text) = event {
            content.push_str(&text);
        }
        ControlFlow::Continue(())
    };
    let done = engine.generate(&request, &CancelToken::default(), &mut sink).unwrap();
    assert_eq!(content, done.content);
    assert_eq!(run(&mut engine, &request).tokens, done.tokens);
}

/// Where the system tells.
fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// Qwen3.6's vocabulary of 248,077 tokens, if this machine has it.
fn qwen36() -> Option<Grammars> {
    let folder = shared("oracle/tok/qwen36")?;
    let read = |name: &str| std::fs::read(folder.join(name)).unwrap();
    let tokenizer = Tokenizer::from_json(&read("tokenizer.json"), Some(&read("tokenizer_config.json"))).unwrap();
    let before = resident_kib();
    let (stop_ids, start) = (tokenizer.stop_ids().to_vec(), Instant::now());
    let grammars = Grammars::new(Arc::new(tokenizer), &stop_ids).unwrap();
    println!(
        "the vocabulary: {:.0} ms; memory in use {} KiB before, {} after",
        start.elapsed().as_secs_f64() * 1e3,
        before,
        resident_kib()
    );
    Some(grammars)
}

#[test]
#[ignore = "a measurement"]
fn mask_times() {
    let Some(grammars) = qwen36() else { return };
    let tokenizer = grammars.tokenizer();
    let code = "fn main() {\n    let x: Vec<&str> = vec![\"a\", \"b\"]; // two < three\n    println!(\"{x:?} {}\", x.len());\n}\n";
    let call = format!(
        "<tool_call>\n<function=order_book>\n<parameter=title>\n{}\n</parameter>\n<parameter=copies>\n12\n</parameter>\n<parameter=binding>\ncloth\n</parameter>\n</function>\n</tool_call>",
        code.repeat(8)
    );
    let list: Vec<Value> = (0..30)
        .map(|i| json!({"name": format!("Reader number {i}, who reads \"much\""), "age": i, "tags": ["a", "b c"]}))
        .collect();
    let rows = json!({"type": "object", "properties": {"rows": {"type": "array", "items": {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "tags": {"type": "array", "items": {"type": "string"}}}, "required": ["name", "age", "tags"], "additionalProperties": false}}}, "required": ["rows"], "additionalProperties": false});
    let mut tools = tools();
    tools[0]["function"]["parameters"]["properties"]["title"] = json!({"type": "string"});
    let format =
        |schema: Value| Request { response_format: ResponseFormat::JsonSchema(schema), ..chat("", &[], false) };
    for (name, request, text) in [
        ("rows by a schema", format(rows), json!({"rows": list}).to_string()),
        ("any object", format(json!({"type": "object"})), json!({"rows": list}).to_string()),
        ("a call with code", Request { tool_choice: ToolChoice::Required, ..chat("", &tools, false) }, call),
    ] {
        let start = Instant::now();
        let mut grammar = grammars.compile(&request, false).unwrap().unwrap();
        let compiled_ms = start.elapsed().as_secs_f64() * 1e3;
        let mut mask = vec![0; tokenizer.vocab_size().div_ceil(32)];
        let (mut masks, mut accepts) = (Vec::new(), 0.0);
        let ids = tokenizer.encode(&text).unwrap();
        for id in &ids {
            let start = Instant::now();
            grammar.mask(&mut mask).unwrap();
            masks.push(start.elapsed().as_secs_f64() * 1e6);
            let start = Instant::now();
            assert!(mask[*id as usize / 32] >> (id % 32) & 1 == 1, "{name}: {:?}", tokenizer.decode(&[*id], false));
            grammar.accept(*id).unwrap();
            accepts += start.elapsed().as_secs_f64() * 1e6;
        }
        masks.sort_by(f64::total_cmp);
        let (mean, at) =
            (masks.iter().sum::<f64>() / masks.len() as f64, |share: f64| masks[(masks.len() as f64 * share) as usize]);
        println!(
            "{name}: compiled in {compiled_ms:.1} ms; {} masks, µs: mean {mean:.0}, median {:.0}, 95 % {:.0}, most {:.0}; accept {:.0}",
            masks.len(),
            at(0.5),
            at(0.95),
            masks[masks.len() - 1],
            accepts / ids.len() as f64
        );
    }
}

#[test]
#[ignore = "a measurement"]
fn decode_times() {
    let mut engine = harness::demo(Precision::Fast);
    let schema = json!({"type": "array", "items": {"type": "integer", "minimum": 10, "maximum": 99}, "minItems": 60, "maxItems": 60});
    let bound = Request { response_format: ResponseFormat::JsonSchema(schema), ..chat("Count.", &[], false) };
    let _ = run(&mut engine, &bound);
    for round in 0..7 {
        let done = run(&mut engine, &bound);
        let tokens = done.tokens.len();
        let free = Request { ignore_eos: true, max_tokens: Some(tokens), ..chat("Count.", &[], false) };
        let free = run(&mut engine, &free);
        assert_eq!((free.tokens.len(), done.finish_reason), (tokens, FinishReason::Stop));
        let us = |done: &Completion| done.timings.decode_ms * 1e3 / tokens as f64;
        println!("round {round}: {tokens} tokens; µs a token: bound {:.0}, free {:.0}", us(&done), us(&free));
    }
}
