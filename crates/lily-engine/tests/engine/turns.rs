//! Conversations: how much of each turn is taken from earlier ones, to the token, and that it changes nothing.

use std::ops::ControlFlow;

use lily_engine::engine::{DiskOptions, Engine, EngineOptions, Precision};
use lily_engine::request::{CancelToken, ChatPrompt, Completion, FinishReason, Prompt, Request, SamplingParams};
use lily_engine::schedule::Drive;
use serde_json::{Value, json};

use crate::harness;

const CHUNK: usize = 256;

fn options() -> EngineOptions {
    EngineOptions { prefill_chunk: CHUNK, session_memory: Some(1 << 30), ..harness::demo_options(Precision::Fast) }
}

fn run(engine: &mut Engine, request: &Request) -> Completion {
    engine.generate(request, &CancelToken::default(), &mut |_| ControlFlow::Continue(())).unwrap()
}

/// A conversation with an engine, and a plain list of the places where it can be resumed.
struct Conversation {
    engine: Engine,
    chat: ChatPrompt,
    max_tokens: usize,
    places: Vec<Vec<u32>>,
}

impl Conversation {
    fn new(chat: ChatPrompt) -> Self {
        Self { engine: Engine::open(&options()).unwrap(), chat, max_tokens: 40, places: Vec::new() }
    }

    fn request(&self) -> Request {
        Request {
            max_tokens: Some(self.max_tokens),
            ..Request::new(Prompt::Chat(self.chat.clone()), SamplingParams::GREEDY)
        }
    }

    /// Sends the conversation as it is; checks the count of tokens reused, and the answer against a cold one.
    fn ask(&mut self) -> Completion {
        let request = self.request();
        let ids = self.engine.codec().prompt_tokens(&request.prompt).unwrap().ids;
        let common = |place: &&Vec<u32>| place.len() < ids.len() && ids.starts_with(place);
        let want = self.places.iter().filter(common).map(Vec::len).max().unwrap_or(0);
        let before = self.engine.stats().prefilled_tokens;
        let done = run(&mut self.engine, &request);
        assert_eq!(done.usage.cached_tokens, want, "{:?}", self.chat.messages.last());
        let prefilled = self.engine.stats().prefilled_tokens - before;
        assert_eq!(prefilled as usize, ids.len() - want, "what was not reused was computed, and no more");
        let chunk_ends = (1..=ids.len() / CHUNK).map(|n| n * CHUNK);
        let points = self.engine.codec().resume_points(&self.chat, &ids);
        self.places.extend(points.into_iter().chain(chunk_ends).map(|len| ids[..len].to_vec()));
        let mut all = ids;
        all.extend(&done.tokens);
        all.pop();
        self.places.push(all);

        let mut cold = Engine::open(&options()).unwrap();
        let alone = run(&mut cold, &request);
        assert_eq!((&done.tokens, &done.content), (&alone.tokens, &alone.content), "cached = cold");
        assert_eq!(alone.usage.cached_tokens, 0);
        done
    }

    fn user(&mut self, text: &str) -> &mut Self {
        self.chat.messages.push(json!({"role": "user", "content": text}));
        self
    }

    fn assistant(&mut self, done: &Completion) {
        let mut message = json!({"role": "assistant", "content": done.content});
        if !done.reasoning.is_empty() {
            message["reasoning_content"] = done.reasoning.clone().into();
        }
        let call = |(i, call): (usize, &lily_engine::request::ToolCall)| json!({"id": format!("c{i}"), "type": "function", "function": {"name": call.name, "arguments": call.arguments}});
        if !done.tool_calls.is_empty() {
            message["tool_calls"] = done.tool_calls.iter().enumerate().map(call).collect();
        }
        self.chat.messages.push(message);
    }
}

fn chat(thinking: bool, preserve: bool, tools: Vec<Value>, system: Option<&str>) -> ChatPrompt {
    let template_kwargs = json!({"preserve_thinking": preserve}).as_object().unwrap().clone();
    let messages = system.map(|text| json!({"role": "system", "content": text})).into_iter().collect();
    ChatPrompt { messages, tools, enable_thinking: Some(thinking), template_kwargs }
}

fn tools() -> Vec<Value> {
    let parameters = json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]});
    vec![
        json!({"type": "function", "function": {"name": "get_weather", "description": "The weather", "parameters": parameters}}),
    ]
}

const QUESTIONS: [&str; 6] = [
    "Hello! My name is Ada and I love trains.",
    "What is the capital of France, and what is it known for?",
    "What is 27 + 58?",
    "What is my name?",
    "Tell me a story about a fox and a bear in the snow.",
    "Thank you. What is 12 + 30?",
];

#[test]
fn short_turns_reuse_the_newest_place_from_the_first_turn_on() {
    for (thinking, preserve) in [(false, false), (true, false), (true, true)] {
        for system in [None, Some("You are Tiny, and you answer in short sentences.")] {
            let mut talk = Conversation::new(chat(thinking, preserve, Vec::new(), system));
            let mut reused = 0;
            for question in QUESTIONS {
                let done = talk.user(question).ask();
                reused += usize::from(done.usage.cached_tokens > 0);
                talk.assistant(&done);
            }
            assert_eq!(reused, 5, "every turn but the first");
        }
    }
}

#[test]
fn where_think_blocks_are_kept_only_what_is_new_is_computed() {
    for (thinking, preserve) in [(false, true), (true, true)] {
        let mut talk = Conversation::new(chat(thinking, preserve, Vec::new(), None));
        talk.max_tokens = 400;
        let mut last: Option<Completion> = None;
        for question in &QUESTIONS[..4] {
            let done = talk.user(question).ask();
            if let Some(last) = last {
                let whole = last.usage.prompt_tokens + last.usage.completion_tokens - 1;
                assert_eq!(last.finish_reason, FinishReason::Stop);
                assert_eq!(done.usage.cached_tokens, whole, "all that was computed is reused");
            }
            talk.assistant(&done);
            last = Some(done);
        }
    }
}

#[test]
fn long_histories_and_tools_reuse_the_newest_place() {
    let paragraph = "The train left the station at noon and went over the hills to the sea. ";
    for thinking in [false, true] {
        let mut talk = Conversation::new(chat(thinking, false, tools(), Some(&paragraph.repeat(30))));
        talk.user(&paragraph.repeat(180));
        let first = talk.ask();
        assert!(first.usage.prompt_tokens >= 3000, "{}", first.usage.prompt_tokens);
        talk.assistant(&first);
        let done = talk.user("What is the weather in Paris?").ask();
        talk.assistant(&done);
        for (i, _) in done.tool_calls.iter().enumerate() {
            talk.chat
                .messages
                .push(json!({"role": "tool", "tool_call_id": format!("c{i}"), "content": "18 degrees, sunny"}));
        }
        if done.tool_calls.is_empty() {
            talk.user("And in Rome?");
        }
        let done = talk.ask();
        assert!(done.usage.cached_tokens > 2900);
        talk.assistant(&done);
        assert!(talk.user("Thank you.").ask().usage.cached_tokens > 2900);
    }
}

/// C03: a cached turn is a cold one to the last bit of every probability, not only in its choices.
#[test]
fn c03_probabilities_of_cached_turns_are_those_of_cold_ones() {
    let mut engine = Engine::open(&options()).unwrap();
    let mut chat = chat(false, true, Vec::new(), None);
    for turn in 0..8 {
        chat.messages.push(json!({"role": "user", "content": QUESTIONS[turn % QUESTIONS.len()]}));
        let request = Request::new(Prompt::Chat(chat.clone()), SamplingParams::GREEDY);
        let request = Request { max_tokens: Some(20), logprobs: Some(5), ..request };
        let done = run(&mut engine, &request);
        let cold = run(&mut Engine::open(&options()).unwrap(), &request);
        assert_eq!(done.usage.cached_tokens > 0, turn > 0);
        assert_eq!(done.logprobs, cold.logprobs, "turn {turn}");
        chat.messages.push(json!({"role": "assistant", "content": done.content}));
    }
}

/// C04: the same beginning, another end.
#[test]
fn c04_regenerated_and_edited_turns_reuse_up_to_the_last_common_place() {
    let system = "Answer the questions of the passengers politely. ".repeat(100);
    let mut talk = Conversation::new(chat(false, true, Vec::new(), Some(&system)));
    let shared = {
        let mut first = Conversation::new(talk.chat.clone());
        first.user("x");
        let ids = first.engine.codec().prompt_tokens(&first.request().prompt).unwrap().ids;
        first.engine.codec().resume_points(&first.chat, &ids)[0]
    };
    assert!(shared > 1000);
    for question in &QUESTIONS[..5] {
        let done = talk.user(question).ask();
        assert!(*question == QUESTIONS[0] || done.usage.cached_tokens >= shared, "the system message at least");
        talk.chat.messages.truncate(1);
    }
    talk.user(QUESTIONS[0]);
    let again = talk.ask();
    assert!(again.usage.prompt_tokens - again.usage.cached_tokens < 10, "asked again");
    talk.assistant(&again);
    let on = talk.user(QUESTIONS[1]).ask();
    assert!(on.usage.cached_tokens >= again.usage.prompt_tokens);
    talk.chat.messages.pop();
    let edited = talk.user("And now something else entirely?").ask();
    assert!(edited.usage.cached_tokens >= again.usage.prompt_tokens, "up to the edited message");
}

/// C05: nothing is left to compute, or one token less than was computed.
#[test]
fn c05_an_identical_prompt_and_one_a_token_shorter_run_at_least_one_token() {
    let mut engine = Engine::open(&options()).unwrap();
    let ids: Vec<u32> = (0..520).map(|i| 300 + i % 90).collect();
    let ask = |engine: &mut Engine, len: usize| {
        let request = Request::new(Prompt::Tokens(ids[..len].to_vec()), SamplingParams::GREEDY);
        run(engine, &Request { max_tokens: Some(3), ignore_eos: true, ..request })
    };
    for len in [520, 520, 519, 512, 511, 513, 256, 1] {
        let done = ask(&mut engine, len);
        assert!(done.usage.cached_tokens < len, "{len}");
        assert_eq!(done.tokens, ask(&mut Engine::open(&options()).unwrap(), len).tokens, "{len}");
    }
}

/// C06: short chats are reused from the first turn on.
#[test]
fn c06_a_chat_of_twenty_tokens_is_reused() {
    let mut talk = Conversation::new(chat(false, false, Vec::new(), None));
    talk.max_tokens = 12;
    for (turn, text) in ["Hello!", "What is 27 + 58?", "Thank you."].into_iter().enumerate() {
        let done = talk.user(text).ask();
        assert_eq!(done.usage.cached_tokens > 0, turn > 0);
        talk.assistant(&done);
    }
}

/// C07: the template drops reasoning from the history, or keeps it; either way no more than a turn is computed again.
#[test]
fn c07_a_template_that_rewrites_the_last_turn_costs_one_turn() {
    for (preserve, echo) in [(false, true), (false, false), (true, true), (true, false)] {
        let mut talk = Conversation::new(chat(true, preserve, Vec::new(), None));
        talk.max_tokens = 300;
        let mut lengths = vec![0];
        for question in &QUESTIONS[..4] {
            let mut done = talk.user(question).ask();
            let turn_before = lengths[lengths.len().saturating_sub(2)];
            assert!(done.usage.cached_tokens >= turn_before, "{preserve} {echo}");
            lengths.push(done.usage.prompt_tokens - 16);
            if !echo {
                done.reasoning.clear();
            }
            talk.assistant(&done);
        }
    }
}

/// C08, C09: many conversations; what is kept stays within its budget.
#[test]
fn c08_two_hundred_conversations_stay_within_the_budget() {
    let options = EngineOptions { session_memory: Some(40_000_000), ..options() };
    let mut engine = Engine::open(&options).unwrap();
    let mut most = 0;
    for i in 0..200u32 {
        let ids = (0..300).map(|t| 300 + (t * (i + 3)) % 997).collect();
        let request = Request::new(Prompt::Tokens(ids), SamplingParams::GREEDY);
        run(&mut engine, &Request { max_tokens: Some(2), ignore_eos: true, ..request });
        let stats = engine.stats();
        assert!(stats.snapshot_bytes <= stats.snapshot_budget_bytes && stats.kv_blocks_used <= stats.kv_blocks);
        most = most.max(stats.snapshot_bytes);
    }
    assert!(most <= 40_000_000 && most > 10_000_000, "{most}");
}

/// C13: turns of several conversations in turn.
#[test]
fn c13_interleaved_conversations_each_reuse_their_own() {
    let mut engine = Engine::open(&options()).unwrap();
    let mut chats: Vec<ChatPrompt> = (0..3).map(|_| chat(false, true, Vec::new(), None)).collect();
    for turn in 0..5 {
        for (who, chat) in chats.iter_mut().enumerate() {
            let text = format!("{} I am traveller {who}.", QUESTIONS[(turn + who) % QUESTIONS.len()]);
            chat.messages.push(json!({"role": "user", "content": text}));
            let request =
                Request { max_tokens: Some(30), ..Request::new(Prompt::Chat(chat.clone()), SamplingParams::GREEDY) };
            let done = run(&mut engine, &request);
            assert!(turn == 0 || done.usage.cached_tokens * 2 > done.usage.prompt_tokens, "turn {turn} of {who}");
            assert_eq!(done.tokens, run(&mut Engine::open(&options()).unwrap(), &request).tokens);
            chat.messages.push(json!({"role": "assistant", "content": done.content}));
        }
    }
}

/// C64: requests that were given up leave nothing behind but what others may use.
#[test]
fn c64_fifty_cancelled_prompts_leave_what_one_leaves() {
    let mut engine = Engine::open(&options()).unwrap();
    let request = Request {
        max_tokens: Some(5),
        ..Request::new(Prompt::Tokens((0..2000).map(|i| 300 + i % 700).collect()), SamplingParams::GREEDY)
    };
    let mut after_three = || {
        let mut chunks = 0;
        engine
            .generate(&request, &CancelToken::default(), &mut |_| {
                chunks += 1;
                if chunks > 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })
            .unwrap();
        engine.stats()
    };
    for _ in 0..10 {
        after_three();
    }
    let settled = after_three();
    for _ in 0..40 {
        let now = after_three();
        assert_eq!((now.snapshots, now.kv_blocks_used), (settled.snapshots, settled.kv_blocks_used));
    }
}

/// A model seldom writes a text in the tokens that the text is encoded in; the next turn has those it was written in.
#[test]
fn answers_keep_the_ids_that_they_were_written_in() {
    let mut unusual = 0;
    for seed in 0..12 {
        let mut engine = Engine::open(&options()).unwrap();
        let hot = SamplingParams { temperature: 8.0, seed, ..SamplingParams::GREEDY };
        let mut chat = chat(false, true, Vec::new(), None);
        chat.messages.push(json!({"role": "user", "content": QUESTIONS[4]}));
        // Letter by letter, and no two of them ever merged.
        let letter = |text: &str| engine.codec().tokenizer().token_to_id(text).map(|id| (id, 100.0));
        let logit_bias = ["t", "h", "e", "i", "n", "g"].into_iter().filter_map(letter).collect();
        let request = Request { max_tokens: Some(24), logit_bias, ..Request::new(Prompt::Chat(chat.clone()), hot) };
        let done = run(&mut engine, &request);
        let mut timeline = engine.codec().prompt_tokens(&request.prompt).unwrap().ids;
        timeline.extend(done.tokens.iter().filter(|id| !engine.codec().tokenizer().is_special(**id)));
        chat.messages.push(json!({"role": "assistant", "content": done.content}));
        chat.messages.push(json!({"role": "user", "content": QUESTIONS[2]}));
        let next = Prompt::Chat(chat);
        let ids = engine.codec().prompt_tokens(&next).unwrap().ids;
        let cold = Engine::open(&options()).unwrap();
        let usual = cold.codec().prompt_tokens(&next).unwrap().ids;
        if done.content.trim() != done.content || done.content.contains(char::REPLACEMENT_CHARACTER) {
            continue; // the template trims it, or bytes are no text
        }
        assert!(ids.starts_with(&timeline), "seed {seed}: the history is what was written");
        assert_eq!(engine.codec().tokenizer().decode(&ids, false), cold.codec().tokenizer().decode(&usual, false));
        unusual += usize::from(ids != usual);
        let again = run(&mut engine, &Request { max_tokens: Some(2), ..Request::new(next, SamplingParams::GREEDY) });
        assert!(again.usage.cached_tokens + 1 >= timeline.len(), "seed {seed}");
    }
    assert!(unusual >= 3, "{unusual} answers were written unusually");
}

/// C19: the budget closes the block as the template would, and nothing of that is seen.
#[test]
fn c19_a_thinking_budget_closes_the_block_and_the_answer_follows() {
    let mut engine = harness::demo(Precision::Fast);
    let mut chat = chat(true, false, Vec::new(), None);
    chat.messages.push(json!({"role": "user", "content": "What is 27 + 58?"}));
    let request = Request { max_tokens: Some(100), ..Request::new(Prompt::Chat(chat), SamplingParams::GREEDY) };
    let free = run(&mut engine, &request);
    assert!(free.usage.reasoning_tokens > 6 && !free.reasoning.is_empty());
    for budget in [0, 1, 4] {
        let done = run(&mut engine, &Request { thinking_budget: Some(budget), ..request.clone() });
        assert!(free.reasoning.starts_with(&done.reasoning) && done.reasoning.len() < free.reasoning.len());
        // The budget, a newline, and the tag.
        assert_eq!(done.usage.reasoning_tokens, budget + 2);
        assert!(!done.content.is_empty() && !done.content.contains("think") && !done.reasoning.contains("think"));
        assert_eq!(done.finish_reason, FinishReason::Stop);
    }
    let ample = run(&mut engine, &Request { thinking_budget: Some(1000), ..request });
    assert_eq!(ample.tokens, free.tokens);
}

/// Scores of the prompt are the log-softmax of its logits, at any length of chunk.
#[test]
fn scores_of_a_prompt_are_those_of_its_logits() {
    let ids: Vec<u32> = (0..70).map(|i| 300 + i * 13 % 900).collect();
    let logits = harness::logits(&mut harness::demo_runtime(Precision::Exact), &ids, 2048);
    let cols = logits.len() / ids.len();
    for prefill_chunk in [2048, 16, 7] {
        let mut engine =
            Engine::open(&EngineOptions { prefill_chunk, ..harness::demo_options(Precision::Exact) }).unwrap();
        let request = Request {
            prompt_logprobs: Some(2),
            max_tokens: Some(0),
            ..Request::new(Prompt::Tokens(ids.clone()), SamplingParams::GREEDY)
        };
        for _ in 0..2 {
            let done = run(&mut engine, &request);
            assert_eq!((done.tokens.len(), done.usage.cached_tokens), (0, 0));
            let scores = done.prompt_logprobs.unwrap();
            assert_eq!(scores.len(), ids.len() - 1);
            for (position, score) in scores.iter().enumerate() {
                let row = &logits[position * cols..(position + 1) * cols];
                let sum: f64 = row.iter().map(|logit| f64::from(*logit).exp()).sum();
                let want = f64::from(row[ids[position + 1] as usize]) - sum.ln();
                assert_eq!(score.token.id, ids[position + 1]);
                assert!((f64::from(score.token.logprob) - want).abs() < 1e-4, "{position}: {score:?}, {want}");
                assert!(score.top.len() == 2 && score.top[0].logprob >= score.top[1].logprob);
            }
        }
    }
}

/// The snapshot files under a folder.
fn snapshot_files(folder: &std::path::Path) -> Vec<std::path::PathBuf> {
    let entries = |path: &std::path::Path| std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
    entries(folder).flat_map(|model| entries(&model).collect::<Vec<_>>()).collect()
}

/// C12: a conversation goes on after a restart as if there had been none; at each place, and from whole files of this
/// model only.
#[test]
fn c12_a_conversation_survives_a_restart_and_damaged_or_foreign_files_do_not_count() {
    let folder = tempfile::tempdir().unwrap();
    let disk = DiskOptions { folder: folder.path().to_owned(), bytes: 1 << 30 };
    let stored = EngineOptions { session_disk: Some(disk), ..options() };
    let mut chat = chat(false, true, Vec::new(), Some(&"Be kind to the passengers. ".repeat(60)));
    chat.messages.push(json!({"role": "user", "content": QUESTIONS[0]}));
    let request = |chat: &ChatPrompt| Request {
        max_tokens: Some(60),
        ..Request::new(Prompt::Chat(chat.clone()), SamplingParams::GREEDY)
    };
    let mut engine = Engine::open(&stored).unwrap();
    let first = run(&mut engine, &request(&chat));
    engine.close();
    drop(engine);
    assert!(snapshot_files(folder.path()).len() >= 3, "the system message, the prompt, the end");

    let mut edited = chat.clone();
    edited.messages[1]["content"] = "Something else?".into();
    let again = chat.clone();
    chat.messages.push(json!({"role": "assistant", "content": first.content}));
    chat.messages.push(json!({"role": "user", "content": QUESTIONS[1]}));
    for chat in [&chat, &again, &edited] {
        let mut warm = Engine::open(&options()).unwrap();
        run(&mut warm, &request(&again));
        let want = run(&mut warm, &request(chat));
        let mut restarted = Engine::open(&stored).unwrap();
        let got = run(&mut restarted, &request(chat));
        assert!(want.usage.cached_tokens > 300);
        assert_eq!((got.usage, &got.tokens), (want.usage, &want.tokens));
    }
    let exact = EngineOptions { precision: Precision::Exact, ..stored.clone() };
    assert_eq!(run(&mut Engine::open(&exact).unwrap(), &request(&chat)).usage.cached_tokens, 0, "computed otherwise");
    let cold = run(&mut Engine::open(&options()).unwrap(), &request(&chat));
    for damage in [0, 50, 200, 100_000] {
        for file in snapshot_files(folder.path()) {
            let mut bytes = std::fs::read(&file).unwrap();
            let at = damage.min(bytes.len() - 1);
            bytes[at] ^= 0x10;
            std::fs::write(&file, bytes).unwrap();
        }
        let done = run(&mut Engine::open(&stored).unwrap(), &request(&chat));
        assert_eq!((done.usage.cached_tokens, &done.tokens), (0, &cold.tokens), "byte {damage}");
    }
    for file in snapshot_files(folder.path()) {
        let length = std::fs::metadata(&file).unwrap().len();
        std::fs::File::options().write(true).open(&file).unwrap().set_len(length / 2).unwrap();
    }
    assert_eq!(run(&mut Engine::open(&stored).unwrap(), &request(&chat)).usage.cached_tokens, 0);
}

/// What is given up in memory is found on the disk.
#[test]
fn conversations_beyond_the_memory_come_back_from_the_disk() {
    let folder = tempfile::tempdir().unwrap();
    let disk = DiskOptions { folder: folder.path().to_owned(), bytes: 1 << 30 };
    let small = EngineOptions { session_memory: Some(12_000_000), session_disk: Some(disk), ..options() };
    let mut engine = Engine::open(&small).unwrap();
    let prompt = |i: u32| {
        let ids = (0..700).map(|t| 300 + (t * (2 * i + 3)) % 997).collect();
        Request { max_tokens: Some(2), ignore_eos: true, ..Request::new(Prompt::Tokens(ids), SamplingParams::GREEDY) }
    };
    let first: Vec<Completion> = (0..10)
        .map(|i| {
            let done = run(&mut engine, &prompt(i));
            // The disk may be slower than the model, and is not waited for.
            std::thread::sleep(std::time::Duration::from_millis(150));
            done
        })
        .collect();
    let mut found = 0;
    for (i, first) in first.iter().enumerate() {
        let again = run(&mut engine, &prompt(i as u32));
        assert_eq!(again.tokens, first.tokens);
        found += usize::from(again.usage.cached_tokens >= 256);
    }
    assert!(found >= 8, "{found} of 10 were found");
    assert!(engine.stats().disk_snapshots > 10);
}
