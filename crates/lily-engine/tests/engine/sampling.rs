//! Penalties, bias and log-probabilities against mlx-lm; stop strings; tokens that do not exist.

use std::ops::ControlFlow;
use std::path::Path;

use lily_engine::engine::{Engine, EngineOptions, ModelSource, Precision};
use lily_engine::request::{
    CancelToken, ChatPrompt, Completion, Event, FinishReason, Prompt, Request, SamplingParams, TokenLogprobs,
};
use serde_json::{Value, json};

use crate::harness;
use crate::support::{DEMO, root};

fn run(engine: &mut Engine, request: &Request) -> Completion {
    engine.generate(request, &CancelToken::default(), &mut |_| ControlFlow::Continue(())).unwrap()
}

fn chat(text: &str, enable_thinking: bool) -> Request {
    let messages = vec![json!({"role": "user", "content": text})];
    let chat = ChatPrompt { messages, enable_thinking: Some(enable_thinking), ..ChatPrompt::default() };
    Request { max_tokens: Some(120), ..Request::new(Prompt::Chat(chat), SamplingParams::GREEDY) }
}

fn ids(list: &Value) -> Vec<u32> {
    list.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

fn golden_request(row: &Value) -> Request {
    let setting = &row["setting"];
    let number = |name: &str, default: f64| setting[name].as_f64().unwrap_or(default) as f32;
    let sampling = SamplingParams {
        presence_penalty: number("presence_penalty", 0.0),
        frequency_penalty: number("frequency_penalty", 0.0),
        repetition_penalty: number("repetition_penalty", 1.0),
        ..SamplingParams::GREEDY
    };
    let bias = setting["logit_bias"].as_object();
    let bias = bias.into_iter().flatten().map(|(id, bias)| (id.parse().unwrap(), bias.as_f64().unwrap() as f32));
    Request {
        logit_bias: bias.collect(),
        logprobs: Some(5),
        max_tokens: Some(40),
        ..Request::new(Prompt::Tokens(ids(&row["prompt"])), sampling)
    }
}

#[test]
fn greedy_text_under_penalties_and_bias_equals_mlx_lm() {
    let json = std::fs::read_to_string(root().join("golden/demo/processors_mlx_f32.json")).unwrap();
    let rows: Vec<Value> = serde_json::from_str(&json).unwrap();
    assert_eq!(rows.len(), 28);
    let mut engine = harness::demo(Precision::Exact);
    let mut different = std::collections::BTreeSet::new();
    for row in &rows {
        let done = run(&mut engine, &golden_request(row));
        assert_eq!(done.tokens, ids(&row["tokens"]), "{}", row["setting"]);
        let scores = done.logprobs.unwrap();
        assert_eq!(scores.len(), done.tokens.len());
        for (i, score) in scores.iter().enumerate() {
            let close = |got: f32, want: &Value| (f64::from(got) - want.as_f64().unwrap()).abs() < 1e-3;
            assert!(close(score.token.logprob, &row["logprobs"][i]), "{score:?}, {}", row["logprobs"][i]);
            for (rank, top) in score.top.iter().enumerate() {
                assert!(close(top.logprob, &row["top_logprobs"][i][rank]), "{top:?}");
            }
            assert_eq!(score.top[0].id, ids(&row["top"][i])[0]);
        }
        different.insert(done.tokens);
    }
    println!("{} different answers", different.len());
    assert!(different.len() >= 10, "settings make a difference");
}

/// The tokens that events told of, by index among the answer's content tokens.
fn told(engine: &mut Engine, request: &Request) -> (Completion, Vec<TokenLogprobs>) {
    let mut told = Vec::new();
    let mut sink = |event| {
        if let Event::Logprobs(tokens) = event {
            told.extend(tokens);
        }
        ControlFlow::Continue(())
    };
    let done = engine.generate(request, &CancelToken::default(), &mut sink).unwrap();
    (done, told)
}

#[test]
fn log_probabilities_change_nothing_and_tell_each_content_token_once() {
    let mut engine = harness::demo(Precision::Fast);
    for thinking in [false, true] {
        let plain = chat("What is 27 + 58?", thinking);
        let (silent, none) = told(&mut engine, &plain);
        assert!(silent.logprobs.is_none() && none.is_empty());
        for count in [0, 4, 20] {
            let (done, told) = told(&mut engine, &Request { logprobs: Some(count), ..plain.clone() });
            assert_eq!((&done.tokens, &done.content), (&silent.tokens, &silent.content));
            let all = done.logprobs.unwrap();
            assert!(all.iter().map(|score| score.token.id).eq(done.tokens.iter().copied()));
            assert!(all.iter().all(|score| score.top.len() == count && score.token.logprob <= 0.0));
            let content: Vec<&TokenLogprobs> = all.iter().filter(|score| score.in_content).collect();
            assert!(content.iter().copied().eq(&told));
            let bytes: Vec<u8> = told.iter().flat_map(|score| score.token.bytes.clone()).collect();
            assert_eq!(String::from_utf8(bytes).unwrap().trim_start(), done.content);
            assert_eq!(thinking, content.len() + 1 < all.len(), "reasoning is left out");
        }
    }
}

#[test]
fn stop_strings_end_the_content_and_leave_reasoning_alone() {
    let mut engine = harness::demo(Precision::Fast);
    let plain = chat("What is 27 + 58?", true);
    let whole = run(&mut engine, &plain);
    assert!(whole.reasoning.contains("15") && whole.content.ends_with(" = 85"), "{whole:?}");
    let stopping = |stop: &str| Request { stop: vec![stop.into()], ..plain.clone() };
    let done = run(&mut engine, &stopping("15"));
    assert_eq!((&done.content, &done.reasoning, &done.tokens), (&whole.content, &whole.reasoning, &whole.tokens));
    for (stop, content) in [(" = 85", "27 + 58"), ("7", "2"), ("27", ""), ("85", "27 + 58 = "), ("85!", "27 + 58 = 85")]
    {
        let done = run(&mut engine, &stopping(stop));
        assert_eq!((done.content.as_str(), done.finish_reason), (content, FinishReason::Stop), "{stop}");
        assert_eq!(done.reasoning, whole.reasoning);
        assert!(whole.tokens.starts_with(&done.tokens));
        // It runs on for no longer than it has to.
        assert_eq!(done.tokens.len() == whole.tokens.len(), stop == "85!", "{stop}");
    }
    // The end of the text decides between a stop string and a longer one that began before it.
    let cut = Request { stop: vec!["58 = 85 or so".into(), "= 85".into()], ..plain };
    let done = run(&mut engine, &cut);
    assert_eq!((done.content.as_str(), done.finish_reason), ("27 + 58 ", FinishReason::Stop));
}

/// The demo model in a folder, some of its files changed.
fn folder(changed: &[(&str, Vec<u8>)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in DEMO.files {
        let bytes = changed.iter().find(|(other, _)| other == name).map_or(*bytes, |(_, bytes)| bytes);
        std::fs::write(folder.path().join(name), bytes).unwrap();
    }
    folder
}

fn open(folder: &Path) -> Engine {
    Engine::open(&EngineOptions::new(ModelSource::Folder(folder.to_owned()))).unwrap()
}

fn file(name: &str) -> Value {
    serde_json::from_slice(DEMO.files.iter().find(|(other, _)| *other == name).unwrap().1).unwrap()
}

/// Without `<think>` and `</think>` in its tokenizer, the model's last two rows are padding, and it wants one of them.
#[test]
fn padding_is_never_sampled_however_much_the_model_wants_it() {
    const FIRST_PADDING: u32 = 4094;
    let mut tokenizer = file("tokenizer.json");
    tokenizer["added_tokens"].as_array_mut().unwrap().retain(|token| token["id"].as_u64() < Some(FIRST_PADDING.into()));
    let mut config = file("tokenizer_config.json");
    if let Some(tokens) = config["added_tokens_decoder"].as_object_mut() {
        tokens.retain(|id, _| id.parse::<u32>().unwrap() < FIRST_PADDING);
    }
    let bytes = |json: Value| json.to_string().into_bytes();
    let folder = folder(&[("tokenizer.json", bytes(tokenizer)), ("tokenizer_config.json", bytes(config))]);
    let mut padded = open(folder.path());

    let mut whole = harness::demo(Precision::Fast);
    let prompt = whole.codec().prompt_tokens(&chat("What is 27 + 58?", true).prompt).unwrap().ids;
    let raw = |sampling| Request { max_tokens: Some(60), ..Request::new(Prompt::Tokens(prompt.clone()), sampling) };
    assert!(run(&mut whole, &raw(SamplingParams::GREEDY)).tokens.contains(&4095), "it closes its thoughts");

    let hot = SamplingParams { temperature: 3.0, seed: 1, ..SamplingParams::GREEDY };
    for sampling in [
        SamplingParams::GREEDY,
        hot,
        SamplingParams { top_p: 0.9, ..hot },
        SamplingParams { top_k: 5, min_p: 0.1, ..hot },
        SamplingParams { repetition_penalty: 0.01, presence_penalty: -2.0, ..hot },
    ] {
        // Everything else that the model may say is made less likely, except one.
        let logit_bias = (0..2000).map(|id| (id, -100.0)).collect();
        let request = Request { logit_bias, logprobs: Some(20), ignore_eos: true, ..raw(sampling) };
        let done = run(&mut padded, &request);
        assert_eq!(done.tokens.len(), 60);
        assert!(done.tokens.iter().all(|id| *id < FIRST_PADDING), "{sampling:?}: {:?}", done.tokens);
        let top = done.logprobs.unwrap().into_iter().flat_map(|score| score.top);
        assert!(top.into_iter().all(|token| token.id < FIRST_PADDING));
    }
    let biased = Request { logit_bias: vec![(FIRST_PADDING, 100.0)], ..raw(SamplingParams::GREEDY) };
    let error = padded.generate(&biased, &CancelToken::default(), &mut |_| ControlFlow::Continue(())).unwrap_err();
    assert_eq!(error.to_string(), "logit_bias: token id 4094 is outside the vocabulary of 4094");
}

#[test]
fn the_makers_repetition_penalty_is_the_default() {
    let mut config = file("generation_config.json");
    assert_eq!(harness::demo(Precision::Fast).default_sampling().repetition_penalty, 1.0);
    config["repetition_penalty"] = 1.25.into();
    let folder = folder(&[("generation_config.json", config.to_string().into_bytes())]);
    assert_eq!(open(folder.path()).default_sampling().repetition_penalty, 1.25);
}
