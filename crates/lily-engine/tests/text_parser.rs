//! Output text → reasoning, content, calls. Every case also runs cut into single characters, in two pieces at every
//! place, and cut at random: the joined events must be the same.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use lily_engine::request::{Event, ToolCall};
use lily_engine::text::OutputParser;
use proptest::prelude::*;
use serde_json::{Value, json};

/// What a client holds at the end.
#[derive(Debug, Clone, PartialEq, Default)]
struct Answer {
    reasoning: String,
    content: String,
    calls: Vec<ToolCall>,
}

fn parse(open_think: bool, tools: &[Value], pieces: &[&str]) -> Answer {
    let mut parser = OutputParser::new(open_think, tools);
    let mut events: Vec<Event> = pieces.iter().flat_map(|piece| parser.push(piece)).collect();
    events.extend(parser.finish());
    let mut answer = Answer::default();
    for event in events {
        match event {
            Event::Reasoning(text) => {
                assert!(!text.is_empty());
                answer.reasoning += &text;
            }
            Event::Content(text) => {
                assert!(!text.is_empty());
                answer.content += &text;
            }
            Event::ToolCall(call) => answer.calls.push(call),
            event @ (Event::Start { .. } | Event::Prefill { .. } | Event::Logprobs(_)) => panic!("{event:?}"),
        }
    }
    answer
}

/// Parses `text` whole and in every simple way of cutting.
fn answer(open_think: bool, tools: &[Value], text: &str) -> Answer {
    let whole = parse(open_think, tools, &[text]);
    let mut buffer = [0; 4];
    let chars: Vec<String> = text.chars().map(|c| c.encode_utf8(&mut buffer).to_owned()).collect();
    let chars: Vec<&str> = chars.iter().map(String::as_str).collect();
    assert_eq!(parse(open_think, tools, &chars), whole, "by character: {text:?}");
    for (at, _) in text.char_indices() {
        assert_eq!(parse(open_think, tools, &[&text[..at], &text[at..]]), whole, "cut at {at}: {text:?}");
    }
    whole
}

fn tools() -> Vec<Value> {
    let properties = json!({
        "city": {"type": "string"}, "days": {"type": "integer"}, "scale": {"type": "number"}, "deep": {"type": "boolean"},
        "list": {"type": "array"}, "opts": {"type": "object"}, "maybe": {"type": ["integer", "null"]},
        "name_or_none": {"type": ["string", "null"]}, "any": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
        "level": {"enum": [1, 2, 3]}, "mode": {"enum": ["1", "a"]}, "ref": {"$ref": "#/$defs/count"}, "untyped": {}
    });
    let defs = json!({"count": {"type": "integer"}});
    vec![
        json!({"type": "function", "function": {"name": "get_weather",
            "parameters": {"type": "object", "properties": properties, "$defs": defs}}}),
        json!({"type": "function", "function": {"name": "ping"}}),
    ]
}

fn call(name: &str, arguments: Value) -> ToolCall {
    ToolCall { name: name.into(), arguments: arguments.as_object().unwrap().clone() }
}

fn check(open_think: bool, tools: &[Value], text: &str, reasoning: &str, content: &str, calls: &[ToolCall]) {
    let expected = Answer { reasoning: reasoning.into(), content: content.into(), calls: calls.to_vec() };
    assert_eq!(answer(open_think, tools, text), expected, "{text:?}");
}

#[test]
fn reasoning_is_split_from_content() {
    // The prompt opened the block, so only the closing tag comes.
    check(true, &[], "because\n</think>\n\nYes.", "because", "Yes.", &[]);
    check(true, &[], "\n a \n b \n</think>\n\n  indented\n", "a \n b", "  indented\n", &[]);
    check(true, &tools(), "because</think>Yes.\n", "because", "Yes.\n", &[]);
    // The model opens it itself, also a second time.
    check(false, &[], "<think>\nbecause\n</think>\n\nYes.", "because", "Yes.", &[]);
    check(true, &[], "<think>\nbecause\n</think>\n\nYes.", "because", "Yes.", &[]);
    // Without reasoning the answer is content, to the byte.
    check(false, &[], "  Yes.\n\n", "", "  Yes.\n\n", &[]);
    check(false, &tools(), "\nYes. <b> a < b\n", "", "\nYes. <b> a < b\n", &[]);
    check(false, &[], "", "", "", &[]);
    check(false, &[], " \n", "", " \n", &[]);
}

#[test]
fn an_empty_think_pair_is_never_visible() {
    for tools in [vec![], tools()] {
        check(false, &tools, "<think>\n\n</think>\n\nYes.", "", "Yes.", &[]);
        check(true, &tools, "\n</think>\n\nYes.", "", "Yes.", &[]);
        check(true, &tools, "</think>", "", "", &[]);
        check(false, &tools, "\n</think>\n\nYes.", "", "Yes.", &[]);
        check(false, &tools, "<think></think><think>\n</think>Yes.", "", "Yes.", &[]);
    }
}

#[test]
fn truncated_thinking_stays_reasoning() {
    check(true, &[], "because it", "because it", "", &[]);
    check(true, &[], "because \n\n", "because", "", &[]);
    check(true, &[], "because </thi", "because </thi", "", &[]);
    check(false, &tools(), "<think>\nbecause", "because", "", &[]);
    check(true, &[], "", "", "", &[]);
}

#[test]
fn tags_are_tags_only_where_they_count() {
    check(true, &[], "a < b </thin </think>x", "a < b </thin", "x", &[]);
    check(false, &[], "Use <think> and </think> tags.", "", "Use <think> and </think> tags.", &[]);
    check(true, &[], "r</think>Then </think> again", "r", "Then </think> again", &[]);
    check(false, &[], "<thinking>x</thinking>", "", "<thinking>x</thinking>", &[]);
    check(
        true,
        &tools(),
        "I could write <tool_call>\n<function=ping>\n</function>\n</tool_call>\n</think>\n\nNo.",
        "I could write <tool_call>\n<function=ping>\n</function>\n</tool_call>",
        "No.",
        &[],
    );
}

#[test]
fn calls_are_read_and_typed() {
    let text = "<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n<parameter=days>\n2\n</parameter>\n\
                </function>\n</tool_call>";
    let oslo = call("get_weather", json!({"city": "Oslo", "days": 2}));
    check(false, &tools(), text, "", "", std::slice::from_ref(&oslo));
    check(true, &tools(), &format!("why\n</think>\n\n{text}"), "why", "", std::slice::from_ref(&oslo));
    check(false, &tools(), &format!("Let me look.\n\n{text}\n"), "", "Let me look.", std::slice::from_ref(&oslo));
    check(false, &tools(), &format!("{text}\n{text}"), "", "", &[oslo.clone(), oslo.clone()]);
    check(false, &tools(), &format!("{text}{text}"), "", "", &[oslo.clone(), oslo.clone()]);
    check(false, &tools(), &format!("A\n{text}\nB"), "", "A\nB", std::slice::from_ref(&oslo));
    check(
        false,
        &tools(),
        "<tool_call>\n<function=ping>\n</function>\n</tool_call>",
        "",
        "",
        &[call("ping", json!({}))],
    );
    // Two functions in one block, no white space at all, missing `>`.
    let two = "<tool_call><function=ping></function><function=get_weather><parameter=city>x</parameter></function></tool_call>";
    check(false, &tools(), two, "", "", &[call("ping", json!({})), call("get_weather", json!({"city": "x"}))]);
    let missing = "<tool_call>\n<function=get_weather\n<parameter=city\nOslo\n</parameter>\n</function>\n</tool_call>";
    check(false, &tools(), missing, "", "", &[call("get_weather", json!({"city": "Oslo"}))]);
    // Without tools, the same text is text.
    check(false, &[], text, "", text, &[]);
    check(true, &[], &format!("r</think>\n\n{text}\n"), "r", &format!("{text}\n"), &[]);
}

#[test]
fn values_follow_the_schema() {
    let typed = |key: &str, text: &str| {
        let text = format!(
            "<tool_call>\n<function=get_weather>\n<parameter={key}>\n{text}\n</parameter>\n</function>\n</tool_call>"
        );
        let answer = parse(false, &tools(), &[&text]);
        assert_eq!(answer.content, "");
        answer.calls[0].arguments[key].clone()
    };
    let cases = [
        ("city", "5", json!("5")),
        ("city", "null", json!("null")),
        ("city", "", json!("")),
        ("city", " a\n ", json!(" a\n ")),
        ("city", "\n\nx\n", json!("\n\nx\n")),
        ("city", "\"q\"", json!("\"q\"")),
        ("days", "5", json!(5)),
        ("days", " 5 ", json!(5)),
        ("days", "5.0", json!(5)),
        ("days", "5.5", json!("5.5")),
        ("days", "five", json!("five")),
        ("days", "null", json!(null)),
        ("days", "true", json!("true")),
        ("scale", "1", json!(1)),
        ("scale", "1.50", json!(1.5)),
        ("scale", "1e-6", json!(1e-6)),
        ("deep", "true", json!(true)),
        ("deep", "False", json!(false)),
        ("deep", "1", json!("1")),
        ("list", "[1, \"a\"]", json!([1, "a"])),
        ("list", "[1,", json!("[1,")),
        ("list", "{}", json!("{}")),
        ("opts", "{\"a\": {\"b\": null}}", json!({"a": {"b": null}})),
        ("opts", "None", json!(null)),
        ("maybe", "null", json!(null)),
        ("maybe", "7", json!(7)),
        ("name_or_none", "null", json!(null)),
        ("name_or_none", "7", json!("7")),
        ("any", "7", json!(7)),
        ("any", "seven", json!("seven")),
        ("any", "null", json!("null")),
        ("level", "2", json!(2)),
        ("mode", "1", json!("1")),
        ("ref", "3", json!(3)),
        ("untyped", "3", json!("3")),
        ("not_in_schema", "{\"a\": 1}", json!("{\"a\": 1}")),
    ];
    for (key, text, expected) in cases {
        assert_eq!(typed(key, text), expected, "{key}: {text:?}");
    }
}

#[test]
fn code_in_a_value_is_exact() {
    let codes = [
        "if a < b && c > d {\n    print(\"</b>\", '&amp;');\n}\n",
        "<a href=\"x\">\n</a>",
        "{\"k\": \"</parameter>\", \"t\": [1]}",
        "x = '<tool_call>' + \"</tool_call>\"",
        "</parameter> is a tag, </function> too",
        "<parameter=x>\n<function=ping>\n</function>",
        "\n\nfirst lines empty\r\n\ttab 🙂\n\n",
        "</",
        "</think>",
        "if text.startswith(\"<tool_call>\"):",
        "Example:\n<tool_call>\n<function=ping>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>\nend",
    ];
    for code in codes {
        let text = format!(
            "<tool_call>\n<function=get_weather>\n<parameter=city>\n{code}\n</parameter>\n<parameter=days>\n1\n</parameter>\n\
             </function>\n</tool_call>"
        );
        check(false, &tools(), &text, "", "", &[call("get_weather", json!({"city": code, "days": 1}))]);
    }
}

#[test]
fn a_call_without_its_outer_tag_is_a_call() {
    let text = "<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n</function>";
    let oslo = [call("get_weather", json!({"city": "Oslo"}))];
    check(false, &tools(), text, "", "", &oslo);
    check(false, &tools(), &format!("Now: {text}\n</tool_call>"), "", "Now:", &oslo);
    check(
        false,
        &tools(),
        &format!("{text}\n</tool_call>\n<tool_call>\n{text}\n</tool_call>"),
        "",
        "",
        &[oslo.clone(), oslo.clone()].concat(),
    );
}

#[test]
fn what_is_no_call_reaches_the_user_whole() {
    let texts = [
        // Unknown tool, JSON instead of XML, prose, stray and missing tags, cut off.
        "<tool_call>\n<function=nope>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>",
        "<tool_call>\n{\"name\": \"ping\", \"arguments\": {}}\n</tool_call>",
        "Write <tool_call> and </tool_call> around it.",
        "The syntax is <function=foo> in angle brackets.",
        "<function=ping> is how it starts.",
        "<tool_call>\n<function=ping>\n</parameter>\n</function>\n</tool_call>",
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n</function>\n</tool_call>",
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nOs",
        "<tool_call>\n<function=ping>\n</function>",
        "<tool_call>",
        "<function=",
        "a </tool_call> b </function>",
        "<tool_call></tool_call>",
        "<tool_call>\n<function=>\n</function>\n</tool_call>",
        "<function=<function=ping>",
        "text <tool_cal",
        " \n<tool_call>\n<function=x",
    ];
    for text in texts {
        check(false, &tools(), text, "", text, &[]);
    }
    let long = format!("<tool_call>\n<function={}", "x".repeat(300));
    check(false, &tools(), &long, "", &long, &[]);
    // A good call after a bad one, and a call inside a bad one.
    let good = "<tool_call>\n<function=ping>\n</function>\n</tool_call>";
    let bad = "<tool_call>\nno\n</tool_call>";
    check(false, &tools(), &format!("{bad}\n{good}"), "", bad, &[call("ping", json!({}))]);
    let inside =
        format!("<tool_call>\n<function=nope>\n<parameter=a>\n{good}\n</parameter>\n</function>\n</tool_call>");
    check(false, &tools(), &inside, "", &inside, &[]);
    let prose = "<tool_call> no <function=ping></function> </tool_call>";
    check(false, &tools(), prose, "", prose, &[]);
}

#[test]
fn text_comes_as_soon_as_it_is_decided() {
    let mut parser = OutputParser::new(true, &tools());
    let reasoning = |text: &str| vec![Event::Reasoning(text.into())];
    let content = |text: &str| vec![Event::Content(text.into())];
    assert_eq!(parser.push("be"), reasoning("be"));
    assert_eq!(parser.push("cause </th"), reasoning("cause"));
    assert_eq!(parser.push("e"), reasoning(" </the"));
    assert_eq!(parser.push("\n</think>"), vec![]);
    assert_eq!(parser.push("\n\nYes"), content("Yes"));
    assert_eq!(parser.push(" a <"), content(" a"));
    assert_eq!(parser.push(" b"), content(" < b"));
    assert_eq!(parser.push("<tool_call>\n<function=ping>\n"), vec![]);
    assert_eq!(parser.push("</function>\n</tool_call>"), vec![Event::ToolCall(call("ping", json!({})))]);
    assert_eq!(parser.push("\n"), vec![]);
    assert_eq!(parser.finish(), vec![]);

    let mut parser = OutputParser::new(false, &[]);
    assert_eq!(parser.push("<tool_call> "), content("<tool_call> "));
    let mut parser = OutputParser::verbatim();
    assert_eq!(parser.push("<think>\n"), content("<think>\n"));
    assert_eq!(parser.finish(), vec![]);
}

#[test]
fn a_long_value_costs_linear_time() {
    let mut parser = OutputParser::new(false, &tools());
    let started = std::time::Instant::now();
    assert_eq!(parser.push("<tool_call>\n<function=get_weather>\n<parameter=city>\n"), vec![]);
    for _ in 0..200_000 {
        assert_eq!(parser.push("word </"), vec![]);
    }
    let events = parser.push("\n</parameter>\n</function>\n</tool_call>");
    assert!(matches!(&events[..], [Event::ToolCall(_)]));
    assert!(started.elapsed().as_secs() < 5, "{:?}", started.elapsed());
}

/// Texts made of what the parser looks for.
fn texts() -> impl Strategy<Value = Vec<&'static str>> {
    let fragments = prop::sample::select(vec![
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
        "<function=",
        "<function=ping>",
        "<function=get_weather>",
        "</function>",
        "<parameter=city>",
        "<parameter=days>",
        "</parameter>",
        "\n",
        " ",
        "a",
        "5",
        "<",
        "</",
        ">",
        "é",
        "🙂",
        "<tool_call>\n<function=ping>\n</function>\n</tool_call>",
        "</parameter>\n</function>\n</tool_call>",
        "<tool_call>\n<function=get_weather>\n<parameter=city>\n",
    ]);
    prop::collection::vec(fragments, 0..24)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn cutting_changes_nothing(
        fragments in texts(), open_think: bool, with_tools: bool, cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
    ) {
        let text = fragments.concat();
        let tools = if with_tools { tools() } else { vec![] };
        let mut bounds: Vec<usize> = cuts.iter().map(|cut| cut.index(text.len() + 1)).filter(|&at| text.is_char_boundary(at)).collect();
        bounds.extend([0, text.len()]);
        bounds.sort_unstable();
        let pieces: Vec<&str> = bounds.windows(2).map(|pair| &text[pair[0]..pair[1]]).collect();
        prop_assert_eq!(parse(open_think, &tools, &pieces), parse(open_think, &tools, &[&text]));
    }

    #[test]
    fn nothing_but_tags_and_white_space_is_lost(fragments in texts()) {
        let text = fragments.concat();
        let answer = parse(false, &tools(), &[&text]);
        if answer.calls.is_empty() {
            let bare = |text: &str| text.replace("<think>", "").replace("</think>", "").split_whitespace().collect::<String>();
            prop_assert_eq!(bare(&(answer.reasoning + &answer.content)), bare(&text));
        }
    }
}
