//! Runs steps on an engine and reads goldens.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use lily_engine::checkpoint::Checkpoint;
use lily_engine::engine::{Engine, EngineOptions, ModelSource, Precision, Switches};
use lily_engine::runtime::Runtime;
use lily_engine::session::Session;
use lily_kernels::backend::Observer;
use lily_kernels::cpu::CpuBackend;
use lily_kernels::op::Op;
use lily_kernels::plan::{Logits, Plan, Tap};
use lily_kernels::tensor::Tensor;
use safetensors::SafeTensors;

use crate::support;

/// The demo model.
pub fn demo(precision: Precision) -> Engine {
    Engine::open(&demo_options(precision)).unwrap()
}

/// Options of the demo model.
pub fn demo_options(precision: Precision) -> EngineOptions {
    EngineOptions { precision, ..EngineOptions::new(ModelSource::Embedded(support::DEMO)) }
}

/// A model without text, with room for 16,384 positions.
pub fn runtime(source: ModelSource, precision: Precision) -> Runtime {
    runtime_on(source, precision, CpuBackend::new(None).unwrap())
}

/// The same on a given device.
pub fn runtime_on(source: ModelSource, precision: Precision, device: CpuBackend) -> Runtime {
    let mut checkpoint = Checkpoint::open(&source).unwrap();
    Runtime::load(&mut checkpoint, Box::new(device), 16_384, precision, Switches::default()).unwrap()
}

/// The demo model without text.
pub fn demo_runtime(precision: Precision) -> Runtime {
    runtime(ModelSource::Embedded(support::DEMO), precision)
}

/// A checkpoint folder without text.
pub fn folder(path: &Path, precision: Precision) -> Runtime {
    runtime(ModelSource::Folder(path.to_owned()), precision)
}

/// Folders of `golden/architectures`: every layout, architecture and quantization, very small.
pub fn architectures() -> Vec<PathBuf> {
    let mut all: Vec<_> = std::fs::read_dir(support::root().join("golden/architectures"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_dir())
        .collect();
    all.sort();
    assert_eq!(all.len(), 15);
    all
}

/// A fresh session with room for `tokens` positions.
pub fn session(runtime: &mut Runtime, tokens: usize) -> Session {
    let mut session = runtime.take_session(&[]).unwrap();
    runtime.reserve(&mut session, tokens).unwrap();
    session
}

/// Logits of all tokens, `[T, V]`, computed in chunks of `chunk` (1 = decode steps).
pub fn logits(runtime: &mut Runtime, tokens: &[u32], chunk: usize) -> Vec<f32> {
    logits_in(runtime, tokens.chunks(chunk))
}

/// The same of a prompt of `prompt` tokens in one chunk, and one decode step for each token behind it.
pub fn prompt_and_steps(runtime: &mut Runtime, tokens: &[u32], prompt: usize) -> Vec<f32> {
    let (prompt, steps) = tokens.split_at(prompt);
    logits_in(runtime, std::iter::once(prompt).chain(steps.chunks(1)))
}

fn logits_in<'a>(runtime: &mut Runtime, chunks: impl Iterator<Item = &'a [u32]> + Clone) -> Vec<f32> {
    let mut session = session(runtime, chunks.clone().map(<[u32]>::len).sum());
    let stepper = &mut runtime.stepper;
    let mut out = Vec::new();
    for chunk in chunks {
        if let [token] = chunk {
            stepper.decode(&mut [&mut session], &[*token], false).unwrap();
        } else {
            stepper.prefill(&mut session, chunk, Logits::All).unwrap();
        }
        out.extend(stepper.logits(chunk.len()));
    }
    runtime.discard(session);
    out
}

/// Collects the named tensors of a step.
struct Taps {
    taps: Vec<Tap>,
    rows: usize,
    values: BTreeMap<String, Vec<f32>>,
}

impl Observer for Taps {
    fn after(&mut self, index: usize, _op: &Op, read: &dyn Fn(&Tensor, usize) -> Vec<f32>) {
        for tap in self.taps.iter().filter(|t| t.dispatch == index) {
            self.values.insert(tap.name.clone(), read(&tap.tensor, self.rows));
        }
    }
}

/// Hidden states by golden name and logits (as `logits`) of all tokens, in prefill chunks of `chunk`.
pub fn observe(runtime: &mut Runtime, tokens: &[u32], chunk: usize) -> BTreeMap<String, Vec<f32>> {
    let mut session = session(runtime, tokens.len());
    let stepper = &mut runtime.stepper;
    let mut all: BTreeMap<String, Vec<f32>> = BTreeMap::new();
    for chunk in tokens.chunks(chunk) {
        let rows = chunk.len();
        let collect = |plan: &Plan| Taps { taps: plan.taps.clone(), rows, values: BTreeMap::new() };
        let seen = stepper.observe_prefill(&mut session, chunk, collect).unwrap();
        for (name, values) in seen.values {
            all.entry(name).or_default().extend(values);
        }
        all.entry("logits".into()).or_default().extend(stepper.logits(rows));
    }
    runtime.discard(session);
    all
}

/// Greedy ids after a prompt, `count` of them.
pub fn greedy(runtime: &mut Runtime, prompt: &[u32], count: usize) -> Vec<u32> {
    let vocab = runtime.stepper.model().config.vocab_size;
    let mut session = session(runtime, prompt.len() + count);
    let stepper = &mut runtime.stepper;
    stepper.prefill(&mut session, prompt, Logits::Last).unwrap();
    let mut ids = Vec::new();
    while ids.len() < count {
        let id = top1(&stepper.logits(1), vocab)[0];
        ids.push(id);
        stepper.decode(&mut [&mut session], &[id], false).unwrap();
    }
    runtime.discard(session);
    ids
}

/// A golden file.
pub struct Golden(Vec<u8>);

impl Golden {
    /// Reads it.
    pub fn open(path: &Path) -> Self {
        Self(std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display())))
    }

    fn tensors(&self) -> SafeTensors<'_> {
        SafeTensors::deserialize(&self.0).unwrap()
    }

    /// Names of its tensors.
    pub fn names(&self) -> Vec<String> {
        self.tensors().names().iter().map(|n| (*n).to_owned()).collect()
    }

    /// An f32 tensor.
    pub fn floats(&self, name: &str) -> Vec<f32> {
        let tensors = self.tensors();
        let bytes = tensors.tensor(name).unwrap().data();
        bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
    }

    /// An i32 tensor of ids.
    pub fn ids(&self, name: &str) -> Vec<u32> {
        let tensors = self.tensors();
        let bytes = tensors.tensor(name).unwrap().data();
        bytes.chunks_exact(4).map(|b| u32::from_le_bytes(b.try_into().unwrap())).collect()
    }
}

/// Root mean square of the difference, relative to the golden's.
pub fn relative_rms(got: &[f32], want: &[f32]) -> f64 {
    assert_eq!(got.len(), want.len());
    let square = |x: f64| x * x;
    let error: f64 = got.iter().zip(want).map(|(g, w)| square(f64::from(*g) - f64::from(*w))).sum();
    let size: f64 = want.iter().map(|w| square(f64::from(*w))).sum();
    (error / size).sqrt()
}

/// Arg max of each row.
pub fn top1(logits: &[f32], vocab: usize) -> Vec<u32> {
    let best = |row: &[f32]| (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b]).then(b.cmp(&a))).unwrap();
    logits.chunks_exact(vocab).map(|row| best(row) as u32).collect()
}
