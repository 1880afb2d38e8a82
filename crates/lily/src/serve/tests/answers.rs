//! Reasoning and calls on every route: what users of other servers reported, played by a scripted model with its text
//! cut in many ways. Each name begins with the row of `tests/complaints.md` that it answers.

use serde_json::{Value, json};

use super::app;
use super::script::{Said, events, everywhere, post};

fn said(reasoning: &str, content: &str, calls: &[(&str, Value)]) -> Said {
    let calls = calls.iter().map(|(name, arguments)| ((*name).to_owned(), arguments.clone())).collect();
    Said { reasoning: reasoning.into(), content: content.into(), calls }
}

fn text_tool(name: &str) -> (&str, Value) {
    (name, json!({"type": "object", "properties": {"x": {"type": "string"}, "n": {"type": "integer"}}}))
}

fn call(name: &str, parameters: &[(&str, &str)]) -> String {
    let parameters: String =
        parameters.iter().map(|(name, value)| format!("<parameter={name}>\n{value}\n</parameter>\n")).collect();
    format!("<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>")
}

#[tokio::test]
async fn c15_an_answer_that_begins_inside_the_think_block_begins_as_reasoning() {
    let (app, _) = app(4);
    let got = everywhere(&app, "first I think\n</think>\n\nthen I say", &[], true).await;
    assert_eq!(got, said("first I think", "then I say", &[]));
}

#[tokio::test]
async fn c16_an_empty_think_block_is_never_seen() {
    let (app, _) = app(4);
    assert_eq!(everywhere(&app, "<think>\n\n</think>\n\nhello", &[], false).await, said("", "hello", &[]));
}

#[tokio::test]
async fn c17_without_thinking_the_answer_is_content() {
    let (app, _) = app(4);
    assert_eq!(everywhere(&app, "plain words", &[], false).await, said("", "plain words", &[]));
}

#[tokio::test]
async fn c18_tool_syntax_in_a_thought_stays_a_thought() {
    let (app, _) = app(4);
    let script = "I could write <tool_call> or <function=f> here.\n</think>\n\nno need";
    let got = everywhere(&app, script, &[text_tool("f")], true).await;
    assert_eq!(got, said("I could write <tool_call> or <function=f> here.", "no need", &[]));
}

#[tokio::test]
async fn c19_the_tag_that_closes_a_thought_is_never_seen() {
    let (app, _) = app(4);
    // As the engine closes it where a budget ends.
    let got = everywhere(&app, "one two\n</think>\n\nthree", &[], true).await;
    assert_eq!(got, said("one two", "three", &[]));
    let body = json!({
        "messages": [{"role": "user", "content": "script:never closed"}], "enable_thinking": true, "seed": 1,
    });
    let cut = post(&app, "/v1/chat/completions", &body).await;
    assert_eq!(cut["choices"][0]["message"]["reasoning_content"], "never closed", "a cut thought stays a thought");
}

#[tokio::test]
async fn c20_a_tag_in_pieces_is_a_tag_and_what_only_looks_like_one_is_text() {
    let (app, _) = app(4);
    let got = everywhere(&app, "a </thin air </think>b < c </ d", &[], true).await;
    assert_eq!(got, said("a </thin air", "b < c </ d", &[]));
}

#[tokio::test]
async fn c21_reasoning_comes_as_reasoning_content_and_both_names_go_in() {
    let (app, seen) = app(4);
    for name in ["reasoning_content", "reasoning"] {
        let body = json!({"messages": [
            {"role": "user", "content": "a"}, {"role": "assistant", "content": "b", name: "because"},
            {"role": "user", "content": "script:thought</think>said"},
        ], "enable_thinking": true});
        let reply = post(&app, "/v1/chat/completions", &body).await;
        assert_eq!(reply["choices"][0]["message"]["reasoning_content"], "thought");
        assert_eq!(seen.chat().messages[1]["reasoning_content"], "because");
    }
}

#[tokio::test]
async fn c23_calls_that_touch_are_two_calls() {
    let (app, _) = app(4);
    let script = format!("{}{}", call("f", &[("x", "a")]), call("g", &[("x", "b")]));
    let got = everywhere(&app, &script, &[text_tool("f"), text_tool("g")], false).await;
    assert_eq!(got, said("", "", &[("f", json!({"x": "a"})), ("g", json!({"x": "b"}))]));
}

#[tokio::test]
async fn c24_a_known_function_is_a_call_without_its_frame_and_prose_stays_whole() {
    let (app, _) = app(4);
    let tools = [text_tool("f")];
    let bare = "Well:\n<function=f>\n<parameter=x>\na\n</parameter>\n</function>";
    let got = everywhere(&app, bare, &tools, false).await;
    assert_eq!(got.calls, [("f".to_owned(), json!({"x": "a"}))]);
    assert_eq!(got.content.trim_end(), "Well:");
    for prose in ["write <function=foo> like this", "write <function=f> like this", "a <function=foo>\n</function> b"] {
        assert_eq!(everywhere(&app, prose, &tools, false).await, said("", prose, &[]));
    }
}

#[tokio::test]
async fn c25_malformed_calls_come_as_text_and_never_as_an_error() {
    let (app, _) = app(4);
    let tools = [text_tool("f")];
    for script in [
        "<tool_call>\n<function=f>\n</parameter>\n</function>\n</tool_call>",
        "<tool_call>\n{\"name\": \"f\"\n</tool_call>",
        "<tool_call>\n<function=f>\n<parameter=x>\nnever closed",
        "<tool_call>\n<function=unknown>\n</function>\n</tool_call>",
    ] {
        let got = everywhere(&app, script, &tools, false).await;
        assert!(!got.content.is_empty() || !got.calls.is_empty(), "{script}: nothing came out");
        if got.calls.is_empty() {
            assert_eq!(got.content, script, "the text reaches the user whole");
        }
    }
}

#[tokio::test]
async fn c27_code_in_a_parameter_comes_out_exactly() {
    let (app, _) = app(4);
    let code = "if a < b && \"c\" != '</d>' {\n\t<parameter>\\n</parameter\n}\n\n{\"json\": [1, \"é🙂\"]}";
    let script = call("f", &[("x", code), ("n", "12")]);
    let got = everywhere(&app, &script, &[text_tool("f")], false).await;
    assert_eq!(got.calls, [("f".to_owned(), json!({"x": code, "n": 12}))]);
}

#[tokio::test]
async fn c28_every_delta_of_a_call_has_its_index_and_the_first_has_all_names() {
    let (app, _) = app(4);
    let script = format!("script:{}\n{}", call("f", &[("x", "a")]), call("f", &[("x", "b")]));
    let tools = json!([{"type": "function", "function": {"name": "f", "parameters": text_tool("f").1}}]);
    let body = json!({"messages": [{"role": "user", "content": script}], "enable_thinking": false, "tools": tools});
    let chunks = events(&app, "/v1/chat/completions", body).await;
    let deltas = chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["tool_calls"].as_array()).flatten();
    let shapes: Vec<_> = deltas.map(|delta| (&delta["index"], &delta["type"], &delta["function"]["name"])).collect();
    let (function, f) = (&json!("function"), &json!("f"));
    assert_eq!(shapes, [(&json!(0), function, f), (&json!(1), function, f)]);
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "tool_calls");
}

#[tokio::test]
async fn c29_ids_are_there_and_differ() {
    let (app, _) = app(4);
    let script = format!("script:{}{}", call("f", &[]), call("f", &[]));
    let body = json!({"max_tokens": 500, "messages": [{"role": "user", "content": script}], "tools": [{"name": "f", "input_schema": {}}]});
    let reply = post(&app, "/v1/messages", &body).await;
    let ids: Vec<&Value> = reply["content"].as_array().unwrap().iter().map(|block| &block["id"]).collect();
    assert!(ids.len() == 2 && ids[0] != ids[1] && ids[0].as_str().unwrap().starts_with("toolu_"));
    assert_eq!(reply["stop_reason"], "tool_use");
}

#[tokio::test]
async fn c33_a_turn_of_one_call_is_not_empty() {
    let (app, _) = app(4);
    let got = everywhere(&app, &call("f", &[("n", "3")]), &[text_tool("f")], false).await;
    assert_eq!(got, said("", "", &[("f", json!({"n": 3}))]));
}

#[tokio::test]
async fn c35_without_tools_tool_syntax_is_text() {
    let (app, _) = app(4);
    let script = call("f", &[("x", "a")]);
    assert_eq!(everywhere(&app, &script, &[], false).await, said("", &script, &[]));
}
