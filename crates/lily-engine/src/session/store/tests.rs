//! Any order of requests side by side, cancellations and failures: no block and no buffer is lost, none that somebody
//! writes is held by anybody else, and a resumed session holds what a fresh one would. The model is a chain of hashes
//! (its state cannot be cut) and a cache that holds the tokens.

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
const SESSIONS: usize = 3;
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

/// A request on its way.
struct Running {
    ask: Ask,
    prompt: Vec<u32>,
    session: Session,
    steps: usize,
}

struct World {
    store: Store,
    buffers: Buffers,
    kv: BufferId,
    budget: usize,
    running: Vec<Running>,
}

impl World {
    fn new(budget: usize) -> Self {
        let mut buffers = Buffers::default();
        let kv = buffers.allocate("the KV cache", BLOCKS as usize * MEMORY.block_bytes).unwrap();
        let size = CacheSize { blocks: BLOCKS, snapshot_bytes: budget };
        Self { store: Store::new(size, kv, &MEMORY), buffers, kv, budget, running: Vec::new() }
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

    /// State and cache are those of these tokens.
    fn check(&self, tokens: &[u32], state: (BufferId, usize), blocks: &[u32]) {
        let want = tokens.iter().fold(0, |state, &token| after(state, token));
        assert_eq!(self.buffers.u64_at(state.0, 8 * state.1), want);
        let cache = self.buffers.live[&self.kv].as_chunks::<4>().0;
        for (position, token) in tokens.iter().enumerate() {
            let block = blocks[position / KV_BLOCK] as usize;
            assert_eq!(cache[block * KV_BLOCK + position % KV_BLOCK], token.to_le_bytes());
        }
    }

    fn check_session(&self, session: &Session) {
        self.check(session.tokens(), (session.state, session.half), &session.blocks);
    }

    /// Every block has the holders that it counts, every buffer one owner, every snapshot what its tokens lead to.
    fn check_all(&self) {
        let mut holders = vec![0; BLOCKS as usize];
        let mut hold = |blocks: &[u32]| blocks.iter().for_each(|block| holders[*block as usize] += 1);
        let mut owned: HashSet<BufferId> = [self.kv].into_iter().chain(self.store.spare.iter().copied()).collect();
        let (mut owners, mut snapshots) = (owned.len(), 0);
        for (id, snapshot) in self.store.tree.iter() {
            let tokens = self.store.tree.tokens(id);
            assert_eq!(snapshot.blocks.len(), tokens.len().div_ceil(KV_BLOCK));
            self.check(&tokens, (snapshot.state, 0), &snapshot.blocks);
            hold(&snapshot.blocks);
            owned.insert(snapshot.state);
            (owners, snapshots) = (owners + 1, snapshots + 1);
        }
        for running in &self.running {
            self.check_session(&running.session);
            hold(&running.session.blocks);
            owned.insert(running.session.state);
            owners += 1;
        }
        assert_eq!(owned.len(), owners, "a buffer has two owners");
        assert_eq!(owned, self.buffers.live.keys().copied().collect());
        assert!(snapshots * MEMORY.state_bytes <= self.budget);
        assert_eq!(self.store.held().blocks_used, holders.iter().filter(|count| **count > 0).count());
        for (block, count) in holders.into_iter().enumerate() {
            assert_eq!(self.store.pool.holders(block as u32), count, "block {block}");
        }
    }

    /// Begins a request; `None` if there was no memory, else the tokens that were reused.
    fn begin(&mut self, ask: &Ask) -> Option<usize> {
        let prompt: Vec<u32> = (0..ask.prompt).map(|i| token(ask.conversation, i)).collect();
        self.buffers.failing = ask.failing;
        let begun = self.store.begin(&mut self.buffers, &prompt);
        self.buffers.failing = None;
        let session = begun.ok()?;
        let reused = session.len();
        assert!(reused < prompt.len() && prompt.starts_with(session.tokens()));
        self.running.push(Running { ask: ask.clone(), prompt, session, steps: 0 });
        Some(reused)
    }

    /// Moves the request at a place on by a chunk or a token; takes it out if that was its end.
    fn advance(&mut self, at: usize) {
        let mut running = self.running.remove(at);
        let Running { ask, prompt, session, steps } = &mut running;
        if session.len() >= ask.prompt + ask.generate || *steps >= ask.patience {
            return self.store.end(&mut self.buffers, running.session);
        }
        if session.len() < prompt.len() {
            let _ = self.store.catch_up(&mut self.buffers, session, prompt);
        }
        let at = session.len();
        let chunk = match prompt.get(at..) {
            Some(rest) if !rest.is_empty() => rest[..rest.len().min(CHUNK - at % CHUNK)].to_vec(),
            _ => vec![token(ask.conversation, at)],
        };
        if self.store.reserve(&mut self.buffers, session, chunk.len()).is_err() {
            return self.store.discard(running.session);
        }
        self.step(session, &chunk);
        if at < prompt.len() {
            self.store.snapshot(&mut self.buffers, session);
        }
        *steps += 1;
        if ask.broken.is_some_and(|broken| broken < *steps) {
            return self.store.discard(running.session);
        }
        self.running.push(running);
    }

    /// Runs one request to its end by itself; what it reused.
    fn ask(&mut self, ask: &Ask) -> Option<usize> {
        let reused = self.begin(ask)?;
        while let Some(last) = self.running.len().checked_sub(1) {
            self.advance(last);
        }
        self.check_all();
        Some(reused)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    #[test]
    fn nothing_leaks_and_a_resumed_session_is_as_good_as_a_fresh_one(
        budget in prop_oneof![Just(0), Just(8), Just(24), Just(1 << 20)],
        asks in vec(asks(), 1..20),
        turns in vec(0..SESSIONS, 0..200),
    ) {
        let mut world = World::new(budget);
        let (mut asks, mut turns) = (asks.iter(), turns.into_iter());
        loop {
            let ask = if world.running.len() < SESSIONS { asks.next() } else { None };
            match ask {
                Some(ask) => {
                    world.begin(ask);
                }
                None if world.running.is_empty() => break,
                None => {}
            }
            world.check_all();
            if !world.running.is_empty() {
                let at = turns.next().unwrap_or(0) % world.running.len();
                world.advance(at);
            }
        }
        world.check_all();
        while let Some(id) = world.store.tree.cheapest() {
            world.store.drop_snapshot(&mut world.buffers, id);
        }
        world.check_all();
        assert_eq!(world.store.pool.available(), BLOCKS as usize);
        assert!(world.store.spare.len() <= SESSIONS);
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
    assert_eq!(world.ask(&plain(11, 201, 0)), Some(200), "a longer one goes on where the shorter ended");
    assert_eq!(world.ask(&plain(11, 305, 5)), Some(300), "and the first is still there");
    assert_eq!(world.ask(&plain(11, 100, 0)), Some(0), "no snapshot so early");
}

#[test]
fn conversations_with_the_same_beginning_fork_from_it() {
    let mut world = World::new(1 << 20);
    assert_eq!(world.ask(&plain(1, 900, 5)), Some(0));
    assert_eq!(world.ask(&plain(2, 310, 0)), Some(256));
    assert_eq!(world.ask(&plain(1, 920, 5)), Some(905), "neither costs the other anything");
    assert_eq!(world.ask(&plain(2, 320, 0)), Some(310));
}

#[test]
fn one_that_runs_moves_on_to_where_another_has_come() {
    let mut world = World::new(1 << 20);
    world.begin(&plain(5, 600, 0)).unwrap();
    world.begin(&plain(5, 700, 0)).unwrap();
    for _ in 0..3 {
        world.advance(0); // the first; it goes to the end of the line
        world.running.rotate_right(1);
    }
    assert_eq!(world.running[0].session.len(), 3 * CHUNK);
    world.advance(1);
    assert_eq!(world.running[1].session.len(), 4 * CHUNK, "three chunks were there already");
    world.check_all();
}

#[test]
fn without_a_budget_nothing_is_resumed() {
    let mut world = World::new(0);
    assert_eq!(world.ask(&plain(11, 300, 5)), Some(0));
    assert_eq!(world.ask(&plain(11, 310, 5)), Some(0));
}

#[test]
fn a_full_context_takes_the_snapshots_blocks_and_no_more_is_refused_without_loss() {
    let mut world = World::new(1 << 20);
    let all = BLOCKS as usize * KV_BLOCK;
    assert_eq!(world.ask(&plain(11, 400, 0)), Some(0));
    let snapshots = world.store.held().snapshots;
    world.begin(&plain(12, 100, 0)).unwrap();
    let mut session = world.running.pop().unwrap().session;
    assert!(world.store.reserve(&mut world.buffers, &mut session, all + 1).is_err());
    assert_eq!(world.store.held().snapshots, snapshots, "giving them up would not have helped");
    world.store.discard(session);
    world.ask(&plain(12, all, 0)).unwrap();
    assert_eq!(world.store.pool.available(), 0);
    assert_eq!(world.ask(&plain(12, all, 0)), Some(all - CHUNK));
}

#[test]
fn without_memory_snapshots_make_room_and_are_left_out() {
    let mut world = World::new(1 << 20);
    world.begin(&plain(11, 50, 0)).unwrap();
    world.begin(&plain(14, 50, 0)).unwrap();
    world.advance(1);
    let before = world.store.held().snapshots;
    assert_eq!(world.begin(&Ask { failing: Some(0), ..plain(12, 40, 0) }), Some(0));
    assert_eq!(world.store.held().snapshots, before - 1, "one was given up");
    world.running.clear();
    let mut world = World::new(1 << 20);
    world.begin(&plain(13, 200, 0)).unwrap();
    world.buffers.failing = Some(0);
    world.advance(0);
    assert_eq!((world.store.held().snapshots, world.buffers.failing), (0, None), "128 found no memory");
    world.check_all();
}
