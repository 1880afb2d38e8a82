//! `golden/demo/cases.json`: what the demo model must say, at the floors of its own evaluation.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use lily_engine::engine::{Engine, Precision};
use lily_engine::request::{CancelToken, ChatPrompt, Completion, Prompt, Request, SamplingParams};
use serde_json::{Value, json};

use crate::harness;
use crate::support::root;

/// What 16 cases instead of the evaluation's 48 may cost (the README of `golden/demo`).
const SLACK: f64 = 0.08;
/// Tasks that the model's own evaluation does not score; the share that mlx-lm's arithmetic (exact precision) reaches.
const UNSCORED: [(&str, f64); 2] = [("define", 0.0), ("translate", 0.0)];

fn read(name: &str) -> Value {
    serde_json::from_str(&std::fs::read_to_string(root().join("golden/demo").join(name)).unwrap()).unwrap()
}

fn request(case: &Value) -> Request {
    let chat = ChatPrompt {
        messages: case["messages"].as_array().unwrap().clone(),
        tools: case["tools"].as_array().cloned().unwrap_or_default(),
        enable_thinking: Some(case["thinking"].as_bool().unwrap()),
        ..ChatPrompt::default()
    };
    Request { prompt: Prompt::Chat(chat), sampling: SamplingParams::GREEDY, max_tokens: Some(400), ignore_eos: false }
}

fn run(engine: &mut Engine, case: &Value) -> Completion {
    engine.generate(&request(case), &CancelToken::default(), &mut |_| ControlFlow::Continue(())).unwrap()
}

fn as_expected(done: &Completion, expected: &Value) -> bool {
    let calls: Vec<Value> = done
        .tool_calls
        .iter()
        .map(|c| json!({"type": "function", "function": {"name": c.name, "arguments": c.arguments}}))
        .collect();
    let want = expected["tool_calls"].as_array().cloned().unwrap_or_default();
    done.content == expected["content"].as_str().unwrap_or_default()
        && done.reasoning == expected["reasoning"].as_str().unwrap_or_default()
        && calls == want
}

fn shares(precision: Precision) -> BTreeMap<String, (usize, usize)> {
    let mut engine = harness::demo(precision);
    let mut tally: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    for case in read("cases.json").as_array().unwrap() {
        let done = run(&mut engine, case);
        if !as_expected(&done, &case["expected"]) {
            println!("{}: {done:?} instead of {}", case["task"], case["expected"]);
        }
        let (right, all) = tally.entry(case["task"].as_str().unwrap().to_owned()).or_default();
        *right += usize::from(as_expected(&done, &case["expected"]));
        *all += 1;
    }
    tally
}

fn check(precision: Precision) {
    let scored = read("eval.json")["eval"]["4bit"].clone();
    let tally = shares(precision);
    println!("{precision:?}: {tally:?}");
    assert_eq!(tally.values().map(|(_, all)| all).sum::<usize>(), 248);
    let mut below = Vec::new();
    for (task, (right, all)) in &tally {
        let unscored = UNSCORED.iter().find(|(name, _)| name == task).map(|(_, share)| *share);
        let reference = scored[task].as_f64().or(unscored).unwrap();
        if (*right as f64) < (reference - SLACK) * *all as f64 {
            below.push(format!("{task}: {right} of {all}, floor {:.2}", reference - SLACK));
        }
    }
    assert!(below.is_empty(), "{below:?}");
}

#[test]
fn behaviour_cases_pass_at_their_floors_in_fast_precision() {
    check(Precision::Fast);
}

#[test]
fn behaviour_cases_pass_at_their_floors_in_exact_precision() {
    check(Precision::Exact);
}
