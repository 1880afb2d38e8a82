//! Grammars over the vocabulary of the built-in model: what they let pass, and what random walks in them come to.

use std::sync::OnceLock;

use serde_json::json;

use super::*;
use crate::request::{ChatPrompt, Event, Prompt, ResponseFormat, SamplingParams, ToolCall, ToolChoice};
use crate::text::OutputParser;

fn grammars() -> &'static Grammars {
    static ALL: OnceLock<Grammars> = OnceLock::new();
    ALL.get_or_init(|| {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/lily-demo/tokenizer.json");
        let tokenizer = Tokenizer::from_json(&std::fs::read(path).unwrap(), None).unwrap();
        let stop_ids = tokenizer.stop_ids().to_vec();
        Grammars::new(Arc::new(tokenizer), &stop_ids).unwrap()
    })
}

fn request(tools: Vec<serde_json::Value>, choice: ToolChoice, format: ResponseFormat) -> Request {
    let chat = ChatPrompt { tools, ..ChatPrompt::default() };
    let mut request = Request::new(Prompt::Chat(chat), SamplingParams::GREEDY);
    (request.tool_choice, request.response_format) = (choice, format);
    request
}

fn json_request(schema: serde_json::Value) -> Request {
    request(Vec::new(), ToolChoice::Auto, ResponseFormat::JsonSchema(schema))
}

fn tool(name: &str, strict: bool, parameters: serde_json::Value) -> serde_json::Value {
    json!({"type": "function", "function": {"name": name, "strict": strict, "parameters": parameters}})
}

/// How much of a text the grammar lets pass, in bytes, and whether the answer may end there.
fn passes(grammar: &mut Grammar, text: &str) -> (usize, bool) {
    ids_pass(grammar, &grammars().tokenizer.encode(text).unwrap())
}

fn ids_pass(grammar: &mut Grammar, ids: &[u32]) -> (usize, bool) {
    let tokenizer = &grammars().tokenizer;
    let mut mask = vec![0; tokenizer.vocab_size().div_ceil(32)];
    let mut read = 0;
    for &id in ids {
        grammar.mask(&mut mask).unwrap();
        if mask[id as usize / 32] >> (id % 32) & 1 == 0 {
            return (read, false);
        }
        grammar.accept(id).unwrap();
        read += tokenizer.token_bytes(id).len();
    }
    (read, grammar.may_end().unwrap())
}

/// Whether the whole text is an answer to the request.
fn is_answer(request: &Request, open_think: bool, text: &str) -> bool {
    let mut grammar = grammars().compile(request, open_think).unwrap().unwrap();
    passes(&mut grammar, text) == (text.len(), true)
}

/// The same of a call of one parameter, in which tags are spelled by tokens of text.
fn is_value(request: &Request, opening: &str, value: &str, closing: &str) -> bool {
    let tokenizer = &grammars().tokenizer;
    let mut ids = tokenizer.encode(opening).unwrap();
    ids.extend(grammars().factory.tok_env().tok_trie().greedy_tokenize(value.as_bytes()));
    ids.extend(tokenizer.encode(closing).unwrap());
    let mut grammar = grammars().compile(request, false).unwrap().unwrap();
    ids_pass(&mut grammar, &ids) == (opening.len() + value.len() + closing.len(), true)
}

fn refusal(request: &Request) -> String {
    grammars().compile(request, false).unwrap_err().to_string()
}

/// An answer made of random tokens that the grammar allows. What could go on for ever is closed after a while.
fn walk(request: &Request, seed: u64) -> String {
    let tokenizer = &grammars().tokenizer;
    let mut grammar = grammars().compile(request, false).unwrap().unwrap();
    let mut mask = vec![0; tokenizer.vocab_size().div_ceil(32)];
    let (mut text, mut random) = (Vec::new(), seed.wrapping_mul(2).wrapping_add(1));
    for step in 0..300 {
        if grammar.must_end() || step > 60 && grammar.may_end().unwrap() {
            return String::from_utf8(text).unwrap();
        }
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        if random >> 60 == 0 || step > 60 {
            let closes = |close: &&&str| passes(&mut grammar.clone(), close).0 == close.len();
            if let Some(close) = ["\n</parameter>\n", "</function>\n", "\"", "}", "]"].iter().find(closes) {
                passes(&mut grammar, close);
                text.extend_from_slice(close.as_bytes());
                continue;
            }
        }
        grammar.mask(&mut mask).unwrap();
        let is_allowed = |id: &u32| mask[*id as usize / 32] >> (id % 32) & 1 == 1 && !tokenizer.stop_ids().contains(id);
        let allowed: Vec<u32> = (0..tokenizer.vocab_size() as u32).filter(is_allowed).collect();
        let id = allowed[(random >> 33) as usize % allowed.len()];
        text.extend_from_slice(tokenizer.token_bytes(id));
        grammar.accept(id).unwrap();
    }
    panic!("no end: {}", String::from_utf8_lossy(&text));
}

/// Calls and content of a text, read in pieces.
fn parsed(request: &Request, open_think: bool, text: &str) -> (String, Vec<ToolCall>) {
    let Prompt::Chat(chat) = &request.prompt else { unreachable!() };
    let mut parser = OutputParser::new(open_think, &chat.tools);
    let (mut content, mut calls) = (String::new(), Vec::new());
    let mut take = |events: Vec<Event>| {
        for event in events {
            if let Event::Content(text) = event {
                content.push_str(&text);
            } else if let Event::ToolCall(call) = event {
                calls.push(call);
            }
        }
    };
    for piece in text.split_inclusive(['<', '\n', 'a']) {
        take(parser.push(piece));
    }
    take(parser.finish());
    (content, calls)
}

fn written(name: &str, parameters: &[(&str, &str)]) -> String {
    let mut text = format!("<tool_call>\n<function={name}>\n");
    for (key, value) in parameters {
        text += &format!("<parameter={key}>\n{value}\n</parameter>\n");
    }
    text + "</function>\n</tool_call>"
}

#[test]
fn json_obeys_its_schema_and_then_ends() {
    let object = json_request(
        json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": false}),
    );
    for text in [r#"{"a":1}"#, "{\"a\": -20}", "{\n  \"a\": 3\n}"] {
        assert!(is_answer(&object, false, text), "{text}");
    }
    for text in [r#"{}"#, r#"{"a":"x"}"#, r#"{"a":1,"b":2}"#, r#"{"a":1} "#, " {\"a\":1}", "{\n\n\n\"a\":1}"] {
        assert!(!is_answer(&object, false, text), "{text}");
    }
    assert!(is_answer(&object, true, "hm {</think>\n\n{\"a\":1}"));
    assert!(!is_answer(&object, true, "hm"), "it may not end while it thinks");
    assert!(!is_answer(&object, true, "hm</think>\n\n"));
    let mut grammar = grammars().compile(&object, false).unwrap().unwrap();
    assert_eq!(passes(&mut grammar, r#"{"a":1}"#), (7, true));
    assert!(grammar.must_end() && grammar.is_bound());
}

#[test]
fn any_object_is_an_answer_to_json_object() {
    let any = request(Vec::new(), ToolChoice::Auto, ResponseFormat::JsonObject);
    assert!(is_answer(&any, false, r#"{"a": [1, {"b": null}], "ü": "\n"}"#));
    assert!(!is_answer(&any, false, "[1]") && !is_answer(&any, false, "{") && !is_answer(&any, false, ""));
}

#[test]
fn what_cannot_be_enforced_is_named() {
    let words = [
        (json!({"type": "object", "if": {}, "properties": {}}), "if"),
        (json!({"type": "array", "uniqueItems": true}), "uniqueItems"),
        (json!({"not": {"type": "string"}}), "not"),
        (json!({"type": "object", "properties": {"a": {"type": "array", "contains": {}}}}), "contains"),
        (json!({"type": "string", "format": "made-up"}), "made-up"),
        (json!({"type": "string", "pattern": "(?=a)b"}), "look"),
        (json!({"$ref": "#/$defs/missing"}), "missing"),
        (json!(5), "5"),
    ];
    for (schema, word) in words {
        let reason = refusal(&json_request(schema.clone()));
        assert!(reason.starts_with("response_format: ") && reason.contains(word), "{schema}: {reason}");
        assert!(!reason.contains('\n'), "{reason}");
    }
    let parameters = [
        (json!({"type": "object", "properties": {"a": {"type": "string", "not": {}}}}), "not"),
        (json!({"type": "object", "properties": {"a": {"type": "array", "uniqueItems": true}}}), "uniqueItems"),
        (json!({"type": "object", "patternProperties": {}}), "patternProperties"),
        (json!({"type": "object", "properties": {"a": {"type": "string", "format": "made-up"}}}), "made-up"),
        (json!({"type": "object", "properties": {"a": {"$ref": "#/$defs/b"}}}), "$ref"),
        (json!({"type": "object", "properties": {"a>": {}}}), "a>"),
        (json!({"type": "array"}), "object"),
    ];
    for (schema, word) in parameters {
        let reason = refusal(&request(vec![tool("t", true, schema.clone())], ToolChoice::Auto, ResponseFormat::Text));
        assert!(reason.starts_with("tools: t: ") && reason.contains(word), "{schema}: {reason}");
    }
    let none = request(Vec::new(), ToolChoice::Required, ResponseFormat::Text);
    assert!(refusal(&none).starts_with("tool_choice: "));
    let other = request(vec![tool("t", false, json!({}))], ToolChoice::Named("u".into()), ResponseFormat::Text);
    assert!(refusal(&other).contains("\"u\""));
}

#[test]
fn nothing_is_bound_without_a_reason() {
    let tools = vec![tool("t", false, json!({"type": "object", "uniqueItems": true}))];
    assert!(grammars().compile(&request(tools, ToolChoice::Auto, ResponseFormat::Text), true).unwrap().is_none());
    let raw = Request::new(Prompt::Raw("x".into()), SamplingParams::GREEDY);
    assert!(grammars().compile(&raw, false).unwrap().is_none());
}

fn weather() -> Vec<serde_json::Value> {
    let get = json!({"type": "object", "required": ["city"], "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
        "unit": {"enum": ["c", "f"]},
        "where": {"$ref": "#/$defs/place"},
    }, "$defs": {"place": {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"], "additionalProperties": false}}});
    vec![
        tool("get", true, get),
        tool("get_all", true, json!({"type": "object", "properties": {}})),
        tool("stop", true, json!(null)),
    ]
}

#[test]
fn calls_obey_their_schema() {
    let required = request(weather(), ToolChoice::Required, ResponseFormat::Text);
    let good = [
        written("get", &[("city", "Rome")]),
        written("get", &[("city", ""), ("days", "14"), ("unit", "f"), ("where", "{\"x\": 1.5}")]),
        written("get", &[("city", "\n  two\nlines \n"), ("unit", "c")]),
        written("get_all", &[]),
        written("stop", &[]),
    ];
    for text in &good {
        assert!(is_answer(&required, false, text), "{text}");
        assert!(is_answer(&required, true, &format!("so</think>\n\n{text}")), "{text}");
    }
    let bad = [
        String::new(),
        "Rome".into(),
        written("get", &[]),
        written("gone", &[]),
        written("get", &[("days", "3"), ("city", "Rome")]),
        written("get", &[("city", "Rome"), ("days", "15")]),
        written("get", &[("city", "Rome"), ("unit", "k")]),
        written("get", &[("city", "Rome"), ("where", "{\"y\": 1}")]),
        written("get", &[("city", "Rome"), ("more", "1")]),
        written("get_all", &[("city", "Rome")]),
        format!("{}\n", good[0]),
        format!("Here: {}", good[0]),
    ];
    for text in &bad {
        assert!(!is_answer(&required, false, text), "{text}");
    }
    let two = format!("{}\n{}", good[0], good[3]);
    assert!(is_answer(&required, false, &two));
    let mut one = required.clone();
    one.parallel_tool_calls = false;
    assert!(!is_answer(&one, false, &two) && is_answer(&one, false, &good[1]));
    let named = request(weather(), ToolChoice::Named("get_all".into()), ResponseFormat::Text);
    assert!(is_answer(&named, false, &good[3]) && !is_answer(&named, false, &good[0]));
}

#[test]
fn strings_are_taken_byte_for_byte() {
    let parameters = json!({"type": "object", "required": ["code"], "properties": {"code": {"type": "string"}, "n": {"type": "integer"}}});
    let required = request(vec![tool("run", false, parameters)], ToolChoice::Required, ResponseFormat::Text);
    let values = [
        "",
        "\"quoted\" 'and' `so`",
        "a < b && c > d",
        "<xml attr=\"1\">é</xml>",
        "5",
        "null",
        "true",
        "{\"a\": 1}",
        "fn main() {\n    println!(\"</p>\");\n}\n",
        "</parameter>",
        "x</parameter> y",
        "<tool_call>",
        "</function>",
        "<parameter=x>\n1\n",
        "\n\n",
        " lead and trail ",
        "日本語 🦀",
        "</parameter>\nx",
        "<function=run>",
        "\\n \\\" \t",
    ];
    let opening = "<tool_call>\n<function=run>\n<parameter=code>\n";
    let closing = "\n</parameter>\n<parameter=n>\n7\n</parameter>\n</function>\n</tool_call>";
    for value in values {
        let text = written("run", &[("code", value), ("n", "7")]);
        assert_eq!(text, format!("{opening}{value}{closing}"));
        assert!(is_value(&required, opening, value, closing), "{value:?}");
        let (content, calls) = parsed(&required, false, &text);
        assert_eq!((content.as_str(), calls.len()), ("", 1), "{value:?}");
        assert_eq!(serde_json::Value::Object(calls[0].arguments.clone()), json!({"code": value, "n": 7}));
    }
    // What would be read otherwise than it is meant cannot be written.
    for value in ["a\n</parameter>\nb", "</parameter></function>", "<tool_call><function=", "</function>\n</tool_call>"]
    {
        assert!(!is_value(&required, opening, value, closing), "{value:?}");
    }
}

#[test]
fn strings_keep_to_pattern_length_format_and_list() {
    let check = |schema: serde_json::Value, value: &str| {
        let parameters = json!({"type": "object", "required": ["v"], "properties": {"v": schema}});
        let required = request(vec![tool("t", false, parameters)], ToolChoice::Required, ResponseFormat::Text);
        is_answer(&required, false, &written("t", &[("v", value)]))
    };
    let cases: [(serde_json::Value, &[&str], &[&str]); 14] = [
        (json!({"type": "string", "pattern": "^a+$"}), &["a", "aaa"], &["", "ab", "ba"]),
        (json!({"type": "string", "pattern": "a|^b/$"}), &["xax", "b/"], &["xb/", "b"]),
        (json!({"type": "string", "pattern": "^\\d{2}"}), &["12", "123 x"], &["1", "x12"]),
        (json!({"type": "string", "minLength": 2, "maxLength": 3}), &["éé", "abc"], &["a", "abcd"]),
        (json!({"type": "string", "minLength": 2, "pattern": "^x"}), &["xy", "xyz"], &["x", "yx"]),
        (json!({"enum": ["a b", "\"", "</x>\n", 5, null]}), &["a b", "\"", "</x>\n", "5", "null"], &["a", "6"]),
        (json!({"const": "only"}), &["only"], &["other", ""]),
        (json!({"type": "string", "format": "date"}), &["2026-12-01"], &["2026-13-01", "today"]),
        (json!({"type": "string", "format": "email"}), &["a.b@c.org"], &["a.b"]),
        (json!({"type": ["string", "null"]}), &["null", "word", ""], &[]),
        (json!({"anyOf": [{"type": "string", "maxLength": 3}, {"type": "integer"}]}), &["abc", "12345"], &["abcd"]),
        (
            json!({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "integer"}, "maxItems": 2}]}),
            &["ls", "[1, 2]"],
            &["[1,2,3]", "[x]"],
        ),
        (json!({"type": "boolean"}), &["true", "false"], &["True", "yes", "\"true\""]),
        (
            json!({"oneOf": [{"type": "string", "pattern": "^s"}, {"type": "number", "minimum": 3}]}),
            &["so", "4"],
            &["2", "x"],
        ),
    ];
    for (schema, good, bad) in cases {
        good.iter().for_each(|value| assert!(check(schema.clone(), value), "{schema}: {value:?}"));
        bad.iter().for_each(|value| assert!(!check(schema.clone(), value), "{schema}: {value:?}"));
    }
}

#[test]
fn a_strict_tool_binds_every_call_and_nothing_else() {
    let mut tools = weather();
    tools.push(tool("lax", false, json!({"type": "object", "properties": {"n": {"type": "integer"}}})));
    let mut auto = request(tools, ToolChoice::Auto, ResponseFormat::Text);
    let call = written("get", &[("city", "Rome")]);
    let bare = "<function=get>\n<parameter=city>\nRome\n</parameter>\n</function>";
    for text in [
        "Just words, {\"a\": <function=of> x.",
        &call,
        &format!("Let me see.\n\n{call}"),
        &format!("One {call}\n{call} and more"),
        &format!("Bare {bare} and {call}"),
        &written("lax", &[("n", "no number"), ("other", "x\ny")]),
    ] {
        assert!(is_answer(&auto, false, text), "{text}");
        assert!(is_answer(&auto, true, &format!("<tool_call> or {text}</think>\n\n{text}")), "{text}");
    }
    for text in [
        format!("So: {}", written("get", &[("town", "Rome")])),
        written("none", &[]),
        "<tool_call>\nwords".into(),
        "<function=get>\nRome".into(),
        format!("{call} <tool_call>"),
    ] {
        assert!(!is_answer(&auto, false, &text), "{text}");
    }
    auto.parallel_tool_calls = false;
    assert!(is_answer(&auto, false, &call) && !is_answer(&auto, false, &format!("{call}\n{call}")));
}

#[test]
fn content_obeys_a_format_unless_a_tool_is_called() {
    let format = ResponseFormat::JsonSchema(json!({"type": "array", "items": {"type": "integer"}}));
    let lax = vec![tool("lax", false, json!({"type": "object"}))];
    let both = request(lax, ToolChoice::Auto, format);
    let call = written("lax", &[("k", "v")]);
    assert!(is_answer(&both, false, "[1, 2]") && is_answer(&both, false, &call));
    assert!(is_answer(&both, true, &format!("</think>\n\n{call}\n{call}")));
    assert!(!is_answer(&both, false, "words") && !is_answer(&both, false, &format!("[1]{call}")));
}

#[test]
fn random_walks_end_in_calls_that_are_read_as_calls() {
    let required = request(weather(), ToolChoice::Required, ResponseFormat::Text);
    for seed in 0..12 {
        let text = walk(&required, seed);
        let (content, calls) = parsed(&required, false, &text);
        assert!(content.is_empty() && !calls.is_empty(), "{text}");
        for call in calls {
            let city = call.arguments.get("city");
            assert!(call.name != "get" || city.is_some_and(serde_json::Value::is_string), "{text}");
            let days = call.arguments.get("days").map(|days| days.as_u64());
            assert!(days.is_none_or(|days| days.is_some_and(|days| (1..15).contains(&days))), "{text}");
        }
    }
}

/// C34: a tool without arguments, or a place where white space may stand, is no room for endless tabs and newlines.
#[test]
fn c34_white_space_has_an_end() {
    let json = json_request(json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}));
    let call = request(
        vec![tool("now", true, json!({"type": "object", "properties": {}}))],
        ToolChoice::Required,
        ResponseFormat::Text,
    );
    for (request, opening) in
        [(&json, "{"), (&json, "{\"a\":"), (&json, "{\"a\": 1"), (&call, ""), (&call, "<tool_call>\n<function=now>\n")]
    {
        for space in [" ", "\t", "\n", "\r\n", "\n\t "] {
            let mut grammar = grammars().compile(request, false).unwrap().unwrap();
            let text = format!("{opening}{}", space.repeat(200));
            let (read, _) = passes(&mut grammar, &text);
            assert!(read < opening.len() + 100, "{opening:?} and {space:?}: {read} bytes");
        }
    }
    assert!(is_answer(&call, false, "<tool_call>\n<function=now>\n</function>\n</tool_call>"));
}

#[test]
fn schemas_that_would_take_for_ever_are_refused_or_taken_soon() {
    let deep = (0..60).fold(json!({"type": "integer"}), |inner, _| json!({"type": "array", "items": inner}));
    let wide: serde_json::Map<String, serde_json::Value> =
        (0..400).map(|i| (format!("key{i}"), json!({"type": "string", "maxLength": 50}))).collect();
    let schemas = [
        json!({"$ref": "#"}),
        json!({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}),
        json!({"allOf": [{"$ref": "#"}, {"type": "object"}]}),
        json!({"anyOf": [{"$ref": "#"}, {"type": "array", "items": {"$ref": "#"}}]}),
        json!({"type": "string", "pattern": "((a{1000}){1000}){1000}"}),
        json!({"type": "string", "pattern": "(.*a){30}(a|b)*c(.*d){20}"}),
        json!({"type": "string", "minLength": 1_000_000_000}),
        json!({"type": "string", "maxLength": 1_000_000_000}),
        json!({"type": "array", "items": {"type": "integer"}, "minItems": 1_000_000_000}),
        json!({"type": "array", "items": {"type": "integer"}, "maxItems": 1_000_000_000}),
        json!({"type": "integer", "multipleOf": 999_999_937}),
        json!({"type": "number", "minimum": 1e300, "maximum": 1.000_000_1e300}),
        deep,
        json!({"type": "object", "properties": wide}),
    ];
    for schema in schemas {
        let start = std::time::Instant::now();
        let parameters = json!({"type": "object", "required": ["v"], "properties": {"v": schema}});
        let tools = vec![tool("t", true, parameters)];
        for request in [json_request(schema.clone()), request(tools, ToolChoice::Required, ResponseFormat::Text)] {
            if let Ok(Some(mut grammar)) = grammars().compile(&request, false) {
                let mut mask = vec![0; grammars().tokenizer.vocab_size().div_ceil(32)];
                // The grammar's own bounds may end it, but in words.
                let _ = grammar.mask(&mut mask);
            }
        }
        let seconds = start.elapsed().as_secs_f64();
        println!("{seconds:.2} s: {:.60}", schema.to_string());
        assert!(seconds < 5.0, "{seconds:.0} s: {schema:.80}");
    }
}
