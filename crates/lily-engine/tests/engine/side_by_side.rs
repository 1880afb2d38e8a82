//! Requests that run at the same time: each gives what it gives alone, whoever joins, leaves or has to give way.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use lily_engine::engine::{Engine, EngineOptions, Precision};
use lily_engine::prepare::Preparer;
use lily_engine::request::{
    CancelToken, ChatPrompt, Completion, Event, FinishReason, Prompt, Request, ResponseFormat, SamplingParams,
    ToolChoice,
};
use lily_engine::schedule::{Drive, EngineThread, Job, RequestId, Stats, Update};
use serde_json::json;

use crate::harness;

fn options(precision: Precision, parallel: usize) -> EngineOptions {
    let parallel = NonZeroUsize::new(parallel).unwrap();
    EngineOptions { prefill_chunk: 64, parallel, ..harness::demo_options(precision) }
}

fn chat(text: &str, thinking: bool) -> Request {
    let messages = vec![json!({"role": "user", "content": text})];
    let chat = ChatPrompt { messages, enable_thinking: Some(thinking), ..ChatPrompt::default() };
    Request { max_tokens: Some(40), ..Request::new(Prompt::Chat(chat), SamplingParams::GREEDY) }
}

fn raw(first: u32, prompt: u32, generate: usize) -> Request {
    let ids = (0..prompt).map(|i| 300 + (i * 7 + first) % 1000).collect();
    let request = Request::new(Prompt::Tokens(ids), SamplingParams::GREEDY);
    Request { max_tokens: Some(generate), ignore_eos: true, ..request }
}

/// An answer that is a list of two small objects.
fn structured(sampling: SamplingParams) -> Request {
    let schema = json!({"type": "array", "minItems": 2, "maxItems": 2, "items": {"type": "object", "additionalProperties":
        false, "properties": {"who": {"enum": ["fox", "hen"]}, "n": {"type": "integer", "minimum": 0, "maximum": 99}},
        "required": ["who", "n"]}});
    Request { sampling, response_format: ResponseFormat::JsonSchema(schema), ..chat("Count them.", false) }
}

fn with_a_tool(sampling: SamplingParams) -> Request {
    let parameters =
        json!({"type": "object", "properties": {"city": {"enum": ["Rome", "Bern"]}}, "required": ["city"]});
    let tool =
        json!({"type": "function", "function": {"name": "weather", "description": "", "parameters": parameters}});
    let mut request = Request { sampling, max_tokens: Some(60), ..chat("Is it warm in Rome?", false) };
    if let Prompt::Chat(chat) = &mut request.prompt {
        chat.tools.push(tool);
    }
    request
}

fn requests() -> Vec<Request> {
    let hot = SamplingParams { temperature: 1.2, top_k: 40, top_p: 0.9, seed: 3, ..SamplingParams::GREEDY };
    let penalized = SamplingParams { repetition_penalty: 1.3, presence_penalty: 0.5, ..hot };
    vec![
        chat("What is the capital of France?", false),
        raw(1, 500, 20),
        Request { sampling: hot, ..chat("Tell me a story about a fox.", false) },
        chat("What is 27 + 58?", true),
        Request { sampling: penalized, ..raw(2, 130, 30) },
        Request { logprobs: Some(3), logit_bias: vec![(300, 2.0)], ..raw(3, 20, 12) },
        Request { stop: vec!["of Fr".into()], ..chat("What is the capital of France?", false) },
        Request { prompt_logprobs: Some(2), max_tokens: Some(0), ..raw(4, 90, 0) },
        Request { thinking_budget: Some(4), ..chat("What is 27 + 58?", true) },
        raw(5, 1, 3),
        structured(hot),
        Request { tool_choice: ToolChoice::Required, ..with_a_tool(SamplingParams::GREEDY) },
        Request { sampling: SamplingParams { seed: 4, ..hot }, ..raw(1, 500, 20) },
    ]
}

fn alone(options: &EngineOptions, request: &Request) -> Completion {
    let mut engine = Engine::open(options).unwrap();
    engine.generate(request, &CancelToken::default(), &mut |_| ControlFlow::Continue(())).unwrap()
}

/// Runs requests side by side, as many as there is room for; each joins at a turn. Those with patience are cancelled
/// after so many of their events.
fn together(engine: &mut Engine, requests: &[(Request, usize, Option<usize>)]) -> (Vec<Completion>, Vec<usize>) {
    let mut done: HashMap<RequestId, Completion> = HashMap::new();
    let mut events = vec![0; requests.len()];
    let (mut next, mut turn, mut seen) = (0, 0, Vec::new());
    while done.len() < requests.len() {
        while next < requests.len() && requests[next].1 <= turn && engine.running() < engine.capacity() {
            let prepared = engine.preparer().prepare(requests[next].0.clone()).unwrap();
            engine.begin(RequestId(next as u64), prepared, CancelToken::default());
            next += 1;
        }
        seen.push(engine.running());
        engine.step(&mut |id, update| {
            let at = id.0 as usize;
            match update {
                Update::Event(_) => events[at] += 1,
                Update::Done(result) => {
                    assert!(done.insert(id, (*result).unwrap()).is_none(), "ended twice");
                }
            }
            let gone = requests[at].2.is_some_and(|patience| events[at] > patience);
            if gone { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        turn += 1;
    }
    assert_eq!(engine.running(), 0);
    let completions = (0..requests.len()).map(|at| done.remove(&RequestId(at as u64)).unwrap()).collect();
    (completions, seen)
}

fn assert_same(got: &Completion, want: &Completion, what: &str) {
    assert_eq!(got.tokens, want.tokens, "{what}");
    assert_eq!((&got.content, &got.reasoning), (&want.content, &want.reasoning), "{what}");
    assert_eq!(got.finish_reason, want.finish_reason, "{what}");
    assert_eq!((&got.logprobs, &got.prompt_logprobs), (&want.logprobs, &want.prompt_logprobs), "{what}");
    assert_eq!(got.usage.prompt_tokens, want.usage.prompt_tokens, "{what}");
}

#[test]
fn each_request_gives_what_it_gives_alone() {
    for precision in [Precision::Exact, Precision::Fast] {
        let requests = requests();
        let want: Vec<Completion> = requests.iter().map(|request| alone(&options(precision, 1), request)).collect();
        for parallel in [1, 2, 5, 16] {
            let mut engine = Engine::open(&options(precision, parallel)).unwrap();
            let all: Vec<_> = requests.iter().enumerate().map(|(i, r)| (r.clone(), i * 3 % 20, None)).collect();
            let (got, seen) = together(&mut engine, &all);
            for (i, (got, want)) in got.iter().zip(&want).enumerate() {
                assert_same(got, want, &format!("{precision:?}, {parallel} at a time, request {i}"));
            }
            assert!(seen.iter().max().unwrap() >= &parallel.min(5), "they ran side by side");
        }
    }
}

#[test]
fn those_that_leave_change_nothing_for_those_that_stay() {
    let requests = requests();
    let mut engine = Engine::open(&options(Precision::Fast, 6)).unwrap();
    let all: Vec<_> = (0..44)
        .map(|i| {
            let patience = (i % 3 == 1).then_some(i / 3 % 7);
            (requests[i * 5 % requests.len()].clone(), i * 2, patience)
        })
        .collect();
    let (got, _) = together(&mut engine, &all);
    let mut cancelled = 0;
    for (i, got) in got.iter().enumerate() {
        let want = alone(&options(Precision::Fast, 1), &all[i].0);
        if got.finish_reason == FinishReason::Cancelled {
            cancelled += 1;
            assert!(all[i].2.is_some() && want.tokens.starts_with(&got.tokens));
        } else {
            assert_same(got, &want, &format!("request {i}"));
        }
    }
    assert!(cancelled >= 8, "{cancelled} were cancelled");
}

/// Four requests that need more blocks than there are: the younger ones give way, and lose nothing by it.
#[test]
fn a_full_cache_makes_the_youngest_wait_and_changes_no_answer() {
    let small = EngineOptions {
        context_length: Some(768),
        session_memory: Some(0),
        prefill_chunk: 128,
        ..options(Precision::Fast, 4)
    };
    let requests: Vec<Request> = (0..4)
        .map(|i| Request {
            sampling: SamplingParams { temperature: 1.0, seed: u64::from(i), ..SamplingParams::GREEDY },
            ..raw(i, 200 + 90 * i, 200)
        })
        .collect();
    let mut engine = Engine::open(&small).unwrap();
    let all: Vec<_> = requests.iter().map(|request| (request.clone(), 0, None)).collect();
    let (got, _) = together(&mut engine, &all);
    let stats = engine.stats();
    assert!(stats.preemptions > 0, "{stats:?}");
    for (i, (got, request)) in got.iter().zip(&requests).enumerate() {
        let want = alone(&small, request);
        assert_same(got, &want, &format!("request {i}"));
        assert_eq!(got.usage.cached_tokens, 0, "giving way is not told as reuse");
    }
}

/// A decode step is never more than one chunk away, however long the prompts that join.
#[test]
fn c63_a_long_prompt_holds_a_running_answer_up_for_one_chunk() {
    let mut engine = Engine::open(&options(Precision::Fast, 3)).unwrap();
    let prepare = |engine: &Engine, request| engine.preparer().prepare(request).unwrap();
    let first = prepare(&engine, raw(1, 20, 60));
    engine.begin(RequestId(0), first, CancelToken::default());
    let mut order = Vec::new();
    for turn in 0..50 {
        if turn == 5 {
            for id in [1, 2] {
                let long = prepare(&engine, raw(id, 1500, 1));
                engine.begin(RequestId(u64::from(id)), long, CancelToken::default());
            }
        }
        engine.step(&mut |id, update| {
            match update {
                Update::Event(Event::Content(_)) => order.push((id.0, 'd')),
                Update::Event(Event::Prefill { .. }) => order.push((id.0, 'p')),
                Update::Event(_) | Update::Done(_) => {}
            }
            ControlFlow::Continue(())
        });
    }
    let chunks: Vec<u64> = order.iter().filter(|(id, kind)| *id > 0 && *kind == 'p').map(|(id, _)| *id).collect();
    assert!(chunks.len() >= 40, "{} chunks ran", chunks.len());
    assert!(chunks[..40].windows(2).all(|pair| pair[0] != pair[1]), "prompts take turns");
    let mut since = 0;
    for (id, kind) in order.iter().skip(8) {
        since = if *id == 0 && *kind == 'd' { 0 } else { since + 1 };
        // A token may give no text of its own.
        assert!(since <= 4, "{order:?}");
    }
}

/// One request, many answers: they share the prompt's chunks.
#[test]
fn answers_to_the_same_prompt_compute_it_once() {
    let mut engine = Engine::open(&options(Precision::Fast, 4)).unwrap();
    let request = |seed| Request {
        sampling: SamplingParams { temperature: 1.0, seed, ..SamplingParams::GREEDY },
        ..raw(1, 640, 8)
    };
    let all: Vec<_> = (0..4).map(|seed| (request(seed), 0, None)).collect();
    let (got, _) = together(&mut engine, &all);
    for (seed, got) in got.iter().enumerate() {
        assert_eq!(got.tokens, alone(&options(Precision::Fast, 1), &request(seed as u64)).tokens);
    }
    let stats = engine.stats();
    // The last chunk, and nothing else, is run by each.
    assert_eq!(stats.prefilled_tokens, 640 + 3 * 64);
    let cached: usize = got.iter().map(|done| done.usage.cached_tokens).sum();
    assert_eq!(cached as u64 + stats.prefilled_tokens, 4 * 640);
}

/// Requests of all lengths, half of them sampled.
fn kinds() -> Vec<Request> {
    let lengths = [5, 20, 63, 64, 65, 200, 257, 700, 1500, 3000];
    let said = ["Hello!", "What is 27 + 58?", "Tell me a story."];
    let kind = |i: u32| {
        let hot = SamplingParams { temperature: 0.9, top_p: 0.95, seed: u64::from(i), ..SamplingParams::GREEDY };
        let sampling = if i.is_multiple_of(2) { SamplingParams::GREEDY } else { hot };
        match i % 5 {
            4 => Request { sampling, ..chat(said[i as usize % 3], i % 2 == 1) },
            _ => Request { sampling, ..raw(i % 4, lengths[i as usize % lengths.len()], 6 + i as usize % 20) },
        }
    };
    (0..40).map(kind).collect()
}

/// Sends one request and waits for its end; gives it up after so many of its events.
fn ask(thread: &EngineThread, preparer: &Preparer, request: &Request, patience: Option<usize>) -> Completion {
    let cancel = CancelToken::default();
    let (ended, end) = channel();
    let (gone, mut left) = (cancel.clone(), patience);
    let job = Job {
        prepared: preparer.prepare(request.clone()).unwrap(),
        cancel,
        sink: Box::new(move |_| {
            if left == Some(0) {
                gone.cancel();
            }
            left = left.map(|events| events.saturating_sub(1));
            ControlFlow::Continue(())
        }),
        done: Box::new(move |result| ended.send(result).unwrap()),
    };
    thread.submit(job).unwrap();
    end.recv_timeout(Duration::from_secs(300)).unwrap().unwrap()
}

/// Eight clients, each with one request after the other, a third of which it gives up.
#[test]
fn five_hundred_mixed_requests_from_eight_clients() {
    let kinds = kinds();
    let options =
        EngineOptions { prefill_chunk: 512, session_memory: Some(200_000_000), ..options(Precision::Fast, 6) };
    let alone: Vec<Completion> = kinds.iter().map(|request| alone(&options, request)).collect();
    let open = move || {
        let engine = Engine::open(&options)?;
        let preparer = engine.preparer();
        Ok((engine, preparer))
    };
    let (thread, preparer) = EngineThread::start(64, open).unwrap();
    let client = |client: usize| {
        let mut whole = 0;
        for i in (client..500).step_by(8) {
            let kind = i * 7 % kinds.len();
            let got = ask(&thread, &preparer, &kinds[kind], (i % 3 == 0).then_some(i % 5));
            if got.finish_reason == FinishReason::Cancelled {
                assert!(i % 3 == 0 && alone[kind].tokens.starts_with(&got.tokens));
            } else {
                assert_same(&got, &alone[kind], &format!("request {i}"));
                whole += 1;
            }
        }
        whole
    };
    let finished: usize = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..8)
            .map(|n| {
                scope.spawn({
                    let client = &client;
                    move || client(n)
                })
            })
            .collect();
        clients.into_iter().map(|client| client.join().unwrap()).sum()
    });
    assert!((330..=420).contains(&finished), "{finished} of 500 were not given up");
    // The last turn publishes its counts a moment after the last answer.
    let deadline = Instant::now() + Duration::from_secs(5);
    while thread.stats().running > 0 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    let stats: Stats = thread.stats();
    assert_eq!((stats.running, thread.waiting()), (0, 0));
    assert!(stats.snapshot_bytes <= stats.snapshot_budget_bytes && stats.kv_blocks_used <= stats.kv_blocks);
    println!("500 requests: {stats:?}");
}
