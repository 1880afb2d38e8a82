//! Scratch memory, sessions, cancellation, limits.

use std::ops::ControlFlow;

use lily_engine::engine::{Engine, EngineError, EngineOptions, Precision};
use lily_engine::report::{self, PlanQuery};
use lily_engine::request::{
    CancelToken, ChatPrompt, Event, FinishReason, Prompt, Request, RequestError, SamplingParams,
};
use serde_json::json;

use crate::harness;
use crate::support::root;

fn raw(tokens: Vec<u32>, max_tokens: Option<usize>) -> Request {
    Request { max_tokens, ignore_eos: true, ..Request::new(Prompt::Tokens(tokens), SamplingParams::GREEDY) }
}

fn go(_: Event) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn open(context_length: usize) -> Engine {
    let options = harness::demo_options(Precision::Fast);
    Engine::open(&EngineOptions { context_length: Some(context_length), ..options }).unwrap()
}

#[test]
fn arena_bytes_are_equal_at_4k_and_128k_context() {
    let config = root().join("golden/checkpoint/qwen3_6_35b_a3b_4bit.config.json");
    let config = std::fs::read_to_string(config).unwrap();
    let arena = |context: usize, decode: bool| {
        let tokens = if decode { 1 } else { 2048 };
        let (device, precision) = (lily_kernels::devices::DeviceKind::Cpu, Precision::Fast);
        let query = PlanQuery { tokens, decode, context, device, precision, without: Vec::new(), dispatches: false };
        let report = report::plan(&config, &query).unwrap();
        let line = report.lines().find(|l| l.starts_with("arena bytes: ")).unwrap();
        line.trim_start_matches("arena bytes: ").parse::<usize>().unwrap()
    };
    for decode in [true, false] {
        assert_eq!(arena(4096, decode), arena(131_072, decode));
    }
    println!("arena: {} bytes to decode, {} to prefill 2,048", arena(4096, true), arena(4096, false));
}

#[test]
fn scratch_memory_does_not_grow_with_the_tokens_computed() {
    let measure = |context: usize, tokens: usize| {
        let mut engine = open(context);
        let done = engine.generate(&raw(vec![300; tokens], Some(4)), &CancelToken::default(), &mut go).unwrap();
        assert_eq!(done.tokens.len(), 4);
        engine.runtime().stepper.arena_bytes()
    };
    assert_eq!(measure(4096, 2100), measure(32_768, 6200));
}

#[test]
fn cancellation_keeps_what_was_computed() {
    let options = EngineOptions { prefill_chunk: 64, ..harness::demo_options(Precision::Fast) };
    let mut engine = Engine::open(&options).unwrap();
    let prompt: Vec<u32> = (0..400).map(|i| 300 + i % 50).collect();
    let mut chunks = 0;
    let mut after_three = |event: Event| {
        chunks += usize::from(matches!(event, Event::Prefill { .. }));
        if chunks == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let request = raw(prompt, Some(5));
    let stopped = engine.generate(&request, &CancelToken::default(), &mut after_three).unwrap();
    assert_eq!((stopped.finish_reason, stopped.tokens.len()), (FinishReason::Cancelled, 0));
    let done = engine.generate(&request, &CancelToken::default(), &mut go).unwrap();
    assert_eq!(done.usage.cached_tokens, 3 * 64, "the chunks before the cancellation are reused");
    let cold = Engine::open(&options).unwrap().generate(&request, &CancelToken::default(), &mut go).unwrap();
    assert_eq!(done.tokens, cold.tokens);

    let cancel = CancelToken::default();
    let mut after_some_text = |event: Event| {
        if matches!(event, Event::Content(_)) {
            cancel.cancel();
        }
        ControlFlow::Continue(())
    };
    let long = raw(vec![500; 20], Some(1000));
    let stopped = engine.generate(&long, &cancel, &mut after_some_text).unwrap();
    assert_eq!(stopped.finish_reason, FinishReason::Cancelled);
    assert!(!stopped.tokens.is_empty() && stopped.tokens.len() < 1000);
}

#[test]
fn requests_out_of_range_are_refused_in_one_sentence_and_harm_nothing() {
    let mut engine = open(512);
    let greedy = SamplingParams::GREEDY;
    let sampled = |sampling| Request { sampling, ..raw(vec![300; 8], Some(2)) };
    let biased = |bias: &[(u32, f32)]| Request { logit_bias: bias.to_vec(), ..raw(vec![300; 8], Some(2)) };
    let stopping = |stop| Request { stop, ..raw(vec![300; 8], Some(2)) };
    let rows = [
        (raw(vec![300; 512], Some(1)), "the prompt has 512 tokens, the context 512: shorten it, or raise --context"),
        (raw(vec![], Some(1)), "prompt: it has no tokens"),
        (raw(vec![4096], Some(1)), "prompt: token id 4096 is outside the vocabulary of 4096"),
        (raw(vec![300], Some(0)), "max_tokens: 0 is not a positive number"),
        (sampled(SamplingParams { temperature: -1.0, ..greedy }), "temperature: -1 is not a finite number ≥ 0"),
        (sampled(SamplingParams { temperature: f32::NAN, ..greedy }), "temperature: NaN is not a finite number ≥ 0"),
        (sampled(SamplingParams { top_p: 0.0, ..greedy }), "top_p: 0 is not in (0, 1]"),
        (sampled(SamplingParams { min_p: 1.5, ..greedy }), "min_p: 1.5 is not in [0, 1]"),
        (sampled(SamplingParams { presence_penalty: 2.5, ..greedy }), "presence_penalty: 2.5 is not in [-2, 2]"),
        (sampled(SamplingParams { frequency_penalty: -3.0, ..greedy }), "frequency_penalty: -3 is not in [-2, 2]"),
        (
            sampled(SamplingParams { repetition_penalty: 0.0, ..greedy }),
            "repetition_penalty: 0 is not a finite number > 0",
        ),
        (biased(&[(3, 100.5)]), "logit_bias: 100.5 for id 3 is not in [-100, 100]"),
        (biased(&[(3, f32::NAN)]), "logit_bias: NaN for id 3 is not in [-100, 100]"),
        (biased(&[(3, 1.0), (4, 1.0), (3, 2.0)]), "logit_bias: id 3 is there twice"),
        (biased(&[(4096, 1.0)]), "logit_bias: token id 4096 is outside the vocabulary of 4096"),
        (stopping(vec!["x".into(); 17]), "stop: 17 strings are more than 16"),
        (stopping(vec!["x".into(), String::new()]), "stop: an empty string ends every answer before it begins"),
        (Request { logprobs: Some(21), ..raw(vec![300], Some(2)) }, "top_logprobs: 21 is more than 20"),
    ];
    for (request, sentence) in rows {
        let error = engine.generate(&request, &CancelToken::default(), &mut go).unwrap_err();
        assert!(matches!(error, EngineError::Request(_)));
        assert_eq!(error.to_string(), sentence);
    }
    let no_user = ChatPrompt { messages: vec![json!({"role": "bogus"})], ..ChatPrompt::default() };
    let request = Request { prompt: Prompt::Chat(no_user), ..raw(vec![], None) };
    let result = engine.generate(&request, &CancelToken::default(), &mut go);
    assert!(matches!(result, Ok(_) | Err(EngineError::Request(RequestError::Template(_)))));
    let done = engine.generate(&raw(vec![300; 8], Some(2)), &CancelToken::default(), &mut go).unwrap();
    assert_eq!(done.tokens.len(), 2);
}

#[test]
fn generation_ends_at_the_context_and_at_max_tokens() {
    let mut engine = open(300);
    let to_the_end = engine.generate(&raw(vec![300; 290], None), &CancelToken::default(), &mut go).unwrap();
    assert_eq!((to_the_end.finish_reason, to_the_end.tokens.len()), (FinishReason::Length, 10));
    let three = engine.generate(&raw(vec![301; 20], Some(3)), &CancelToken::default(), &mut go).unwrap();
    assert_eq!((three.finish_reason, three.tokens.len()), (FinishReason::Length, 3));
}

/// More conversations than sessions or blocks: old ones give way, nothing fails, answers stay the same.
#[test]
fn many_conversations_share_a_small_cache() {
    let mut engine = open(512);
    let prompt = |i: u32| raw((0..200).map(|t| 300 + (t * (i + 1)) % 97).collect(), Some(4));
    let first: Vec<Vec<u32>> =
        (0..12).map(|i| engine.generate(&prompt(i), &CancelToken::default(), &mut go).unwrap().tokens).collect();
    for i in (0..12).rev() {
        let again = engine.generate(&prompt(i), &CancelToken::default(), &mut go).unwrap();
        assert_eq!(again.tokens, first[i as usize]);
    }
}

#[test]
fn options_out_of_range_are_refused() {
    let options = harness::demo_options(Precision::Fast);
    for (options, sentence) in [
        (
            EngineOptions { context_length: Some(40_000), ..options.clone() },
            "--context 40000: this model takes 2 to 32768 positions",
        ),
        (
            EngineOptions { context_length: Some(0), ..options.clone() },
            "--context 0: this model takes 2 to 32768 positions",
        ),
        (EngineOptions { prefill_chunk: 0, ..options }, "--prefill-chunk 0: a chunk has at least one token"),
    ] {
        assert_eq!(Engine::open(&options).err().unwrap().to_string(), sentence);
    }
}

/// A chunk may take seconds on a large model: a cancellation ends it in the middle, as if it had never begun.
#[test]
fn cancellation_ends_a_chunk_in_the_middle_and_leaves_no_trace() {
    let options = EngineOptions { prefill_chunk: 8192, ..harness::demo_options(Precision::Fast) };
    let mut engine = Engine::open(&options).unwrap();
    let request = raw((0..6000).map(|i| 300 + i * 7 % 500).collect(), Some(3));
    let cancel = CancelToken::default();
    let stopped = std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(std::time::Duration::from_millis(60));
            cancel.cancel();
        });
        engine.generate(&request, &cancel, &mut go).unwrap()
    });
    assert_eq!((stopped.finish_reason, stopped.tokens.len()), (FinishReason::Cancelled, 0));
    let done = engine.generate(&request, &CancelToken::default(), &mut go).unwrap();
    assert_eq!(done.usage.cached_tokens, 0, "the chunk was not finished");
    let cold = Engine::open(&options).unwrap().generate(&request, &CancelToken::default(), &mut go).unwrap();
    assert_eq!(done.tokens, cold.tokens);
}

#[test]
fn c61_memory_bounds_the_context_or_refuses_in_one_sentence() {
    let open = |memory, context_length| {
        Engine::open(&EngineOptions { memory: Some(memory), context_length, ..harness::demo_options(Precision::Fast) })
    };
    let info = open(1 << 40, None).unwrap().info();
    assert_eq!((info.context_length, info.warnings.len()), (32_768, 0));
    // Weights, states, scratch and tokenizer take 100 MB: what is left is a part of the cache.
    let engine = open(130_000_000, None).unwrap();
    let info = engine.info();
    assert!((4096..32_768).contains(&info.context_length), "{}", info.context_length);
    assert!(info.warnings[0].starts_with(&format!("the context is {} positions, not", info.context_length)));
    let refused = open(130_000_000, Some(32_768)).err().unwrap().to_string();
    let (fits, rest) = refused.split_once("lower --context to ").unwrap().1.split_once(',').unwrap();
    assert_eq!(rest, " or raise --memory");
    assert_eq!(open(130_000_000, Some(fits.parse().unwrap())).unwrap().info().context_length.to_string(), fits);
    let refused = open(1_000_000, None).err().unwrap().to_string();
    assert!(refused.contains("1.0 MB may be used: raise --memory") && !refused.contains('\n'), "{refused}");
}
