//! Running ahead: the next step is submitted before a token is read, and nothing else is different for it.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use lily_engine::engine::{DEVICES, Engine, EngineOptions, Precision, Switches};
use lily_engine::request::{
    CancelToken, ChatPrompt, Completion, Event, FinishReason, Prompt, Request, ResponseFormat, SamplingParams,
};
use lily_kernels::backend::{Backend, BufferId, DeviceError, ExecutableId, Observer, Ticket};
use lily_kernels::cpu::CpuBackend;
use lily_kernels::devices::{self, DeviceKind};
use lily_kernels::inputs::StepInputs;
use lily_kernels::mapped::MappedFile;
use lily_kernels::plan::{Plan, Program};
use lily_kernels::tensor::Space;
use serde_json::json;

use crate::harness;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Call {
    Forward,
    Sample,
    Read,
}

/// A device that says it runs ahead, whether it does or not, and writes down what it is told.
struct Told {
    inner: Box<dyn Backend>,
    programs: HashMap<ExecutableId, Program>,
    calls: Arc<Mutex<Vec<Call>>>,
}

impl Told {
    fn new(inner: Box<dyn Backend>) -> (Box<Self>, Arc<Mutex<Vec<Call>>>) {
        let calls = Arc::<Mutex<Vec<Call>>>::default();
        (Box::new(Self { inner, programs: HashMap::new(), calls: Arc::clone(&calls) }), calls)
    }
}

impl Backend for Told {
    fn runs_ahead(&self) -> bool {
        true
    }
    fn describe(&self) -> String {
        self.inner.describe()
    }
    fn kind(&self) -> DeviceKind {
        self.inner.kind()
    }
    fn available_bytes(&self) -> Option<u64> {
        self.inner.available_bytes()
    }
    fn open_weights(&mut self, file: Arc<MappedFile>, first: u64) -> Result<(), DeviceError> {
        self.inner.open_weights(file, first)
    }
    fn upload_constants(&mut self, values: &[f32]) -> Result<(), DeviceError> {
        self.inner.upload_constants(values)
    }
    fn allocate(&mut self, what: &'static str, bytes: usize) -> Result<BufferId, DeviceError> {
        self.inner.allocate(what, bytes)
    }
    fn free(&mut self, buffer: BufferId) {
        self.inner.free(buffer);
    }
    fn bind_kv(&mut self, pool: BufferId, block_bytes: usize) {
        self.inner.bind_kv(pool, block_bytes);
    }
    fn copy(&mut self, from: (BufferId, usize), to: (BufferId, usize), bytes: usize) {
        self.inner.copy(from, to, bytes);
    }
    fn clear(&mut self, buffer: BufferId, offset: usize, bytes: usize) {
        self.inner.clear(buffer, offset, bytes);
    }
    fn write(&mut self, buffer: BufferId, offset: usize, bytes: &[u8]) {
        self.inner.write(buffer, offset, bytes);
    }
    fn read(&mut self, buffer: BufferId, offset: usize, out: &mut [u8]) {
        self.inner.read(buffer, offset, out);
    }
    fn compile(&mut self, plan: Arc<Plan>) -> Result<ExecutableId, DeviceError> {
        let program = plan.key.program;
        let executable = self.inner.compile(plan)?;
        self.programs.insert(executable, program);
        Ok(executable)
    }
    fn discard(&mut self, executable: ExecutableId) {
        self.inner.discard(executable);
    }
    fn submit(&mut self, executable: ExecutableId, inputs: &StepInputs) -> Result<Ticket, DeviceError> {
        let call = if self.programs[&executable] == Program::Sample { Call::Sample } else { Call::Forward };
        self.calls.lock().unwrap().push(call);
        self.inner.submit(executable, inputs)
    }
    fn interrupt_by(&mut self, flag: Option<Arc<AtomicBool>>) {
        self.inner.interrupt_by(flag);
    }
    fn wait(&mut self, ticket: Ticket) -> Result<(), DeviceError> {
        self.inner.wait(ticket)
    }
    fn logits(&mut self, rows: usize, cols: usize, out: &mut [f32]) {
        self.inner.logits(rows, cols, out);
    }
    fn sampled(&mut self, token_slot: usize, out: &mut [u32]) {
        self.calls.lock().unwrap().push(Call::Read);
        self.inner.sampled(token_slot, out);
    }
    fn poke(&mut self, space: Space, offset: usize, bytes: &[u8]) {
        self.inner.poke(space, offset, bytes);
    }
    fn peek(&mut self, space: Space, offset: usize, out: &mut [u8]) {
        self.inner.peek(space, offset, out);
    }
    fn observe(
        &mut self,
        executable: ExecutableId,
        inputs: &StepInputs,
        observer: &mut dyn Observer,
    ) -> Result<(), DeviceError> {
        self.inner.observe(executable, inputs, observer)
    }
}

fn options(on: bool) -> EngineOptions {
    let switches = Switches::default();
    let switches = if on { switches } else { switches.without("token-handoff").unwrap() };
    EngineOptions { switches, context_length: Some(512), ..harness::demo_options(Precision::Fast) }
}

fn chat(said: &[&str]) -> Request {
    let role = |i: usize| if i.is_multiple_of(2) { "user" } else { "assistant" };
    let messages = said.iter().enumerate().map(|(i, text)| json!({"role": role(i), "content": text})).collect();
    let chat = ChatPrompt { messages, enable_thinking: Some(false), ..ChatPrompt::default() };
    Request::new(Prompt::Chat(chat), SamplingParams::GREEDY)
}

const QUESTION: &str = "What is the capital of France?";
const ANSWER: &str = "The capital of France is Paris.";

/// Requests that end in every way there is, the later ones on sessions of the earlier ones.
fn a_pair() -> ResponseFormat {
    let item = json!({"enum": ["left", "right", 17]});
    ResponseFormat::JsonSchema(json!({"type": "array", "items": item, "minItems": 2, "maxItems": 2}))
}

fn requests() -> Vec<Request> {
    let hot = SamplingParams { temperature: 1.5, top_k: 40, top_p: 0.9, seed: 3, ..SamplingParams::GREEDY };
    let penalized = SamplingParams { repetition_penalty: 1.3, presence_penalty: 0.5, ..SamplingParams::GREEDY };
    let plain = chat(&[QUESTION]);
    let next = chat(&[QUESTION, ANSWER, "What is 27 + 58?"]);
    vec![
        plain.clone(),
        next.clone(),
        Request { stop: vec!["of Fr".into()], ..plain.clone() },
        next.clone(),
        Request { max_tokens: Some(3), ..next.clone() },
        Request { max_tokens: Some(1), ..plain.clone() },
        Request { sampling: hot, max_tokens: Some(12), ..plain.clone() },
        Request { sampling: penalized, max_tokens: Some(12), ignore_eos: true, ..plain.clone() },
        Request { logprobs: Some(2), logit_bias: vec![(300, 3.0)], max_tokens: Some(6), ..next },
        // To the end of the context, and over the end of a block of the cache.
        Request { ignore_eos: true, ..Request::new(Prompt::Tokens(vec![300; 505]), SamplingParams::GREEDY) },
        Request { max_tokens: Some(9), ..Request::new(Prompt::Tokens(vec![301; 251]), hot) },
        Request { sampling: hot, response_format: a_pair(), ..plain.clone() },
        plain,
    ]
}

/// What a request gives, and the tokens of the session that it leaves.
fn outcome(engine: &mut Engine, request: &Request) -> (Completion, Vec<u32>) {
    let done = engine.generate(request, &CancelToken::default(), &mut |_| ControlFlow::Continue(())).unwrap();
    let mut ids = engine.codec().prompt_tokens(&request.prompt).unwrap().ids;
    ids.extend(&done.tokens);
    // A token more, so that all of the session may be taken up.
    ids.push(0);
    let session = engine.runtime().take_session(&ids).unwrap();
    let tokens = session.tokens().to_vec();
    engine.runtime().keep(session);
    (done, tokens)
}

fn assert_same(device: &str, requests: &[Request], ahead: &mut Engine, plain: &mut Engine) {
    for (i, request) in requests.iter().enumerate() {
        let ((one, session), (other, plain_session)) = (outcome(ahead, request), outcome(plain, request));
        assert_eq!(one.tokens, other.tokens, "{device}, request {i}");
        assert_eq!((&one.content, one.finish_reason), (&other.content, other.finish_reason), "{device}, request {i}");
        assert_eq!((one.usage, one.logprobs), (other.usage, other.logprobs), "{device}, request {i}");
        assert_eq!(session, plain_session, "{device}, request {i}");
    }
}

#[test]
fn running_ahead_changes_no_text_and_no_session() {
    let (device, calls) = Told::new(Box::new(CpuBackend::new(None).unwrap()));
    let mut ahead = Engine::open_on(&options(true), device).unwrap();
    let mut plain = Engine::open_on(&options(false), Box::new(CpuBackend::new(None).unwrap())).unwrap();
    assert_same("cpu", &requests(), &mut ahead, &mut plain);
    let calls = calls.lock().unwrap();
    assert!(calls.windows(3).any(|calls| calls == [Call::Sample, Call::Forward, Call::Read]));
}

#[test]
fn running_ahead_changes_nothing_on_other_devices() {
    for device in &DEVICES[1..] {
        let open = |on| Engine::open_on(&options(on), devices::open(device, None).unwrap()).unwrap();
        let plain = chat(&[QUESTION]);
        let requests = [
            plain.clone(),
            Request { stop: vec!["of Fr".into()], ..plain.clone() },
            Request { max_tokens: Some(3), ..chat(&[QUESTION, ANSWER, "What is 27 + 58?"]) },
            Request { response_format: a_pair(), ..plain },
        ];
        assert_same(device, &requests, &mut open(true), &mut open(false));
    }
}

#[test]
fn the_step_of_a_token_is_submitted_before_the_token_is_read() {
    for device in DEVICES {
        for on in [true, false] {
            let (told, calls) = Told::new(devices::open(device, None).unwrap());
            let mut engine = Engine::open_on(&options(on), told).unwrap();
            let request = Request { max_tokens: Some(4), ignore_eos: true, ..chat(&[QUESTION]) };
            engine.generate(&request, &CancelToken::default(), &mut |_| ControlFlow::Continue(())).unwrap();
            use Call::{Forward, Read, Sample};
            let first = calls.lock().unwrap().iter().position(|call| *call == Sample).unwrap();
            let token = if on { [Sample, Forward, Read] } else { [Sample, Read, Forward] };
            // The last token takes no step.
            let want = [&token[..], &token[..], &token[..], &[Sample, Read]].concat();
            assert_eq!(calls.lock().unwrap()[first..], want, "{device}");
        }
    }
}

/// A cancelled answer leaves the session at the last token but one, as it does without running ahead.
#[test]
fn a_cancellation_drops_the_step_that_ran_ahead() {
    let left = |on: bool| {
        let (device, _) = Told::new(Box::new(CpuBackend::new(None).unwrap()));
        let mut engine = Engine::open_on(&options(on), device).unwrap();
        let cancel = CancelToken::default();
        let mut at_text = |event: Event| {
            if matches!(event, Event::Content(_)) {
                cancel.cancel();
            }
            ControlFlow::Continue(())
        };
        let request = chat(&[QUESTION]);
        let stopped = engine.generate(&request, &cancel, &mut at_text).unwrap();
        assert_eq!(stopped.finish_reason, FinishReason::Cancelled);
        let (done, session) = outcome(&mut engine, &request);
        assert_eq!(done.content, ANSWER);
        (stopped.tokens, stopped.usage, done.tokens, done.usage, session)
    };
    assert_eq!(left(true), left(false));
}
