//! Any order of requests, cancellations and failures: no block and no buffer is lost or lent twice, and a resumed
//! session holds what a fresh one would. The model is a chain of hashes (its state cannot be cut) and a cache that
//! holds the tokens.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use lily_kernels::backend::{BufferId, ExecutableId, Observer, Ticket};
use lily_kernels::devices::DeviceKind;
use lily_kernels::inputs::{KV_BLOCK, SequenceInputs, StepInputs};
use lily_kernels::mapped::MappedFile;
use lily_kernels::plan::Plan;
use lily_kernels::tensor::Space;
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

const MEMORY: MemoryLayout = MemoryLayout { layers: Vec::new(), state_bytes: 8, block_bytes: 4 * KV_BLOCK };
const BLOCKS: u32 = 6;
const SESSIONS: usize = 2;
const CHUNK: usize = 128;

/// Buffers alone. `failing` is the call of `allocate`, counted down, that finds no memory.
#[derive(Default)]
struct Buffers {
    live: HashMap<BufferId, Vec<u8>>,
    allocated: u32,
    failing: Option<usize>,
}

impl Buffers {
    fn u64_at(&self, buffer: BufferId, offset: usize) -> u64 {
        u64::from_le_bytes(self.live[&buffer][offset..offset + 8].try_into().unwrap())
    }
}

impl Backend for Buffers {
    fn allocate(&mut self, what: &'static str, bytes: usize) -> Result<BufferId, DeviceError> {
        if let Some(left) = self.failing.take() {
            self.failing = left.checked_sub(1);
            if self.failing.is_none() {
                return Err(DeviceError::OutOfMemory { what, bytes });
            }
        }
        self.allocated += 1;
        self.live.insert(BufferId(self.allocated), vec![0; bytes]);
        Ok(BufferId(self.allocated))
    }
    fn free(&mut self, buffer: BufferId) {
        self.live.remove(&buffer).expect("freed once");
    }
    fn copy(&mut self, from: (BufferId, usize), to: (BufferId, usize), bytes: usize) {
        let copied = self.live[&from.0][from.1..from.1 + bytes].to_vec();
        self.write(to.0, to.1, &copied);
    }
    fn clear(&mut self, buffer: BufferId, offset: usize, bytes: usize) {
        self.write(buffer, offset, &vec![0; bytes]);
    }
    fn write(&mut self, buffer: BufferId, offset: usize, bytes: &[u8]) {
        self.live.get_mut(&buffer).unwrap()[offset..offset + bytes.len()].copy_from_slice(bytes);
    }
    fn read(&mut self, _: BufferId, _: usize, _: &mut [u8]) {
        unreachable!()
    }
    fn available_bytes(&self) -> Option<u64> {
        None
    }

    fn kind(&self) -> DeviceKind {
        DeviceKind::Cpu
    }

    fn describe(&self) -> String {
        unreachable!()
    }
    fn open_weights(&mut self, _: Arc<MappedFile>, _: u64) -> Result<(), DeviceError> {
        unreachable!()
    }
    fn upload_constants(&mut self, _: &[f32]) -> Result<(), DeviceError> {
        unreachable!()
    }
    fn bind_kv(&mut self, _: BufferId, _: usize) {
        unreachable!()
    }
    fn compile(&mut self, _: Arc<Plan>) -> Result<ExecutableId, DeviceError> {
        unreachable!()
    }
    fn discard(&mut self, _: ExecutableId) {
        unreachable!()
    }
    fn submit(&mut self, _: ExecutableId, _: &StepInputs) -> Result<Ticket, DeviceError> {
        unreachable!()
    }
    fn interrupt_by(&mut self, _: Option<Arc<AtomicBool>>) {
        unreachable!()
    }
    fn wait(&mut self, _: Ticket) -> Result<(), DeviceError> {
        unreachable!()
    }
    fn logits(&mut self, _: usize, _: usize, _: &mut [f32]) {
        unreachable!()
    }
    fn sampled(&mut self, _: usize, _: &mut [u32]) {
        unreachable!()
    }
    fn poke(&mut self, _: Space, _: usize, _: &[u8]) {
        unreachable!()
    }
    fn peek(&mut self, _: Space, _: usize, _: &mut [u8]) {
        unreachable!()
    }
    fn observe(&mut self, _: ExecutableId, _: &StepInputs, _: &mut dyn Observer) -> Result<(), DeviceError> {
        unreachable!()
    }
}

/// The state after a token.
fn after(state: u64, token: u32) -> u64 {
    (state ^ u64::from(token) ^ 0x9e37_79b9).wrapping_mul(0x0100_0000_01b3).rotate_left(23)
}

/// One request.
#[derive(Debug, Clone)]
struct Ask {
    /// Conversations 0, 1 and 2 have their first 300 tokens in common.
    conversation: u32,
    prompt: usize,
    generate: usize,
    /// Steps until it is cancelled.
    patience: usize,
    /// Calls of `allocate` until one fails.
    failing: Option<usize>,
    /// The step after which the device fails.
    broken: Option<usize>,
}

fn token(conversation: u32, position: usize) -> u32 {
    let own = if conversation < 3 && position < 300 { 0 } else { conversation };
    own << 16 | position as u32
}

fn asks() -> impl Strategy<Value = Ask> {
    let rarely = |below: usize| prop_oneof![6 => Just(None), 1 => (0..below).prop_map(Some)];
    let lengths = prop_oneof![1..800usize, Just(256), Just(512), Just(1535), Just(1536), Just(1537)];
    (0..3u32, lengths, 0..60usize, prop_oneof![Just(1000), 0..20usize], rarely(4), rarely(8)).prop_map(
        |(conversation, prompt, generate, patience, failing, broken)| Ask {
            conversation,
            prompt,
            generate,
            patience,
            failing,
            broken,
        },
    )
}

struct World {
    store: Store,
    buffers: Buffers,
    kv: BufferId,
    budget: usize,
}

impl World {
    fn new(budget: usize) -> Self {
        let mut buffers = Buffers::default();
        let kv = buffers.allocate("the KV cache", BLOCKS as usize * MEMORY.block_bytes).unwrap();
        Self { store: Store::new(BLOCKS, SESSIONS), buffers, kv, budget }
    }

    /// What the device does in a step.
    fn step(&mut self, session: &mut Session, tokens: &[u32]) {
        let mut inputs = SequenceInputs::default();
        session.fill_inputs(0, tokens.len(), &mut inputs);
        let mut state = self.buffers.u64_at(inputs.state, 8 * inputs.state_half);
        for (position, &token) in (inputs.start..).zip(tokens) {
            state = after(state, token);
            let block = inputs.block_table[position / KV_BLOCK] as usize;
            self.buffers.write(self.kv, 4 * (block * KV_BLOCK + position % KV_BLOCK), &token.to_le_bytes());
        }
        self.buffers.write(inputs.state, 8 * (1 - inputs.state_half), &state.to_le_bytes());
        session.advance(tokens);
    }

    /// State and cache are those of the session's tokens.
    fn check_session(&self, session: &Session) {
        let state = session.tokens().iter().fold(0, |state, &token| after(state, token));
        assert_eq!(self.buffers.u64_at(session.state, 8 * session.half), state);
        let cache = self.buffers.live[&self.kv].as_chunks::<4>().0;
        for (position, token) in session.tokens().iter().enumerate() {
            let block = session.blocks[position / KV_BLOCK] as usize;
            assert_eq!(cache[block * KV_BLOCK + position % KV_BLOCK], token.to_le_bytes());
        }
    }

    /// Every block and every buffer has one owner.
    fn check_owners(&self) {
        let sessions = &self.store.idle;
        assert!(sessions.len() <= SESSIONS);
        let blocks: Vec<u32> = sessions.iter().flat_map(|s| s.blocks.clone()).collect();
        assert_eq!(blocks.len() + self.store.pool.available(), BLOCKS as usize);
        assert_eq!(blocks.iter().collect::<HashSet<_>>().len(), blocks.len());
        let snapshots = sessions.iter().flat_map(|s| s.snapshots.buffers());
        let owned: HashSet<BufferId> = sessions.iter().map(|s| s.state).chain(snapshots).chain([self.kv]).collect();
        assert_eq!(owned, self.buffers.live.keys().copied().collect());
        for session in sessions {
            assert!(session.snapshots.buffers().count() * MEMORY.state_bytes <= self.budget);
            assert_eq!(session.blocks.len(), session.len().div_ceil(KV_BLOCK), "no spare room while idle");
            self.check_session(session);
        }
    }

    /// As `Turn` does it: `None` if the request failed, else the tokens that were reused.
    fn ask(&mut self, ask: &Ask) -> Option<usize> {
        let prompt: Vec<u32> = (0..ask.prompt).map(|i| token(ask.conversation, i)).collect();
        self.buffers.failing = ask.failing;
        let mut session = self.store.take(&mut self.buffers, &MEMORY, &prompt).ok()?;
        let reused = session.len();
        assert!(reused < prompt.len() && prompt.starts_with(session.tokens()));
        self.check_session(&session);
        let done = self.run(&mut session, &prompt, ask);
        self.buffers.failing = None;
        match done {
            Some(()) => self.store.put(session),
            None => self.store.discard(&mut self.buffers, session),
        }
        done.map(|()| reused)
    }

    fn run(&mut self, session: &mut Session, prompt: &[u32], ask: &Ask) -> Option<()> {
        let mut steps = 0;
        self.store.reserve(&mut self.buffers, session, prompt.len() - session.len()).ok()?;
        while session.len() < ask.prompt + ask.generate && steps < ask.patience {
            let at = session.len();
            let chunk = match prompt.get(at..) {
                Some(rest) if !rest.is_empty() => rest[..rest.len().min(CHUNK - at % CHUNK)].to_vec(),
                _ => vec![token(ask.conversation, at)],
            };
            self.store.reserve(&mut self.buffers, session, chunk.len()).ok()?;
            self.step(session, &chunk);
            if at < prompt.len() {
                session.snapshot(&mut self.buffers, self.budget);
            }
            if ask.broken == Some(steps) {
                return None;
            }
            steps += 1;
        }
        session.snapshot(&mut self.buffers, self.budget);
        Some(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    #[test]
    fn nothing_leaks_and_a_resumed_session_is_as_good_as_a_fresh_one(
        budget in prop_oneof![Just(0), Just(8), Just(24), Just(1 << 20)],
        asks in vec(asks(), 1..20),
    ) {
        let mut world = World::new(budget);
        for ask in &asks {
            world.ask(ask);
            world.check_owners();
        }
        while !world.store.idle.is_empty() {
            world.store.evict(&mut world.buffers);
        }
        world.check_owners();
        assert_eq!((world.store.pool.available(), world.buffers.live.len()), (BLOCKS as usize, 1));
    }
}

fn plain(conversation: u32, prompt: usize, generate: usize) -> Ask {
    Ask { conversation, prompt, generate, patience: usize::MAX, failing: None, broken: None }
}

#[test]
fn the_same_prompt_again_runs_from_the_last_snapshot_before_its_end() {
    let mut world = World::new(1 << 20);
    assert_eq!(world.ask(&plain(11, 300, 5)), Some(0));
    assert_eq!(world.ask(&plain(11, 300, 5)), Some(256), "300 itself would leave no token to run");
    assert_eq!(world.ask(&plain(11, 200, 0)), Some(128), "a shorter prompt");
    assert_eq!(world.ask(&plain(11, 201, 0)), Some(200), "a longer one goes on where the session ends");
    assert_eq!(world.ask(&plain(11, 100, 0)), Some(0), "no snapshot so early: a session of its own");
    assert_eq!(world.store.idle.len(), 2);
}

#[test]
fn a_short_conversation_does_not_cost_a_long_one_with_the_same_beginning() {
    let mut world = World::new(1 << 20);
    assert_eq!(world.ask(&plain(1, 900, 5)), Some(0));
    assert_eq!(world.ask(&plain(2, 310, 0)), Some(0), "256 are there, but 649 would be lost");
    assert_eq!(world.ask(&plain(1, 920, 5)), Some(905));
    assert_eq!(world.ask(&plain(2, 320, 0)), Some(310));
    world.check_owners();
}

#[test]
fn without_a_budget_only_the_end_of_a_session_is_resumed() {
    let mut world = World::new(0);
    assert_eq!(world.ask(&plain(11, 300, 5)), Some(0));
    assert_eq!(world.ask(&plain(11, 310, 5)), Some(305));
    assert_eq!(world.ask(&plain(11, 310, 5)), Some(0));
}

#[test]
fn a_full_context_takes_the_idle_sessions_blocks_and_no_more_is_refused_without_loss() {
    let mut world = World::new(1 << 20);
    let all = BLOCKS as usize * KV_BLOCK;
    assert_eq!(world.ask(&plain(11, 400, 0)), Some(0));
    assert_eq!(world.ask(&plain(12, all + 1, 0)), None);
    assert_eq!(world.store.idle.len(), 1, "giving it up would not have helped");
    world.ask(&plain(12, all, 0)).unwrap();
    world.check_owners();
    assert_eq!((world.store.idle.len(), world.store.pool.available()), (1, 0));
    assert_eq!(world.ask(&plain(12, all, 0)), Some(all - CHUNK));
}

#[test]
fn without_memory_idle_sessions_make_room_and_snapshots_are_left_out() {
    let mut world = World::new(1 << 20);
    world.ask(&plain(11, 50, 0)).unwrap();
    assert_eq!(world.ask(&Ask { failing: Some(0), ..plain(12, 40, 0) }), Some(0));
    assert_eq!(world.store.idle.len(), 1, "the first session was given up");
    assert_eq!(world.ask(&Ask { failing: Some(1), ..plain(13, 200, 0) }), Some(0));
    assert_eq!(world.ask(&plain(13, 150, 0)), Some(0), "the snapshot at 128 found no memory");
    world.check_owners();
}
