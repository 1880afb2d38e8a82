//! Where a matrix, or a stack of them, lies on the device: in its file, if one follows the other there in equal steps, else
//! gathered into a buffer of its own when the plan is compiled.

use std::collections::HashMap;
use std::sync::Arc;

use super::device::{Buffer, Gpu, Place};
use crate::backend::{DeviceError, Feature};
use crate::mapped::MappedFile;
use crate::op::Op;
use crate::tensor::{FileSlice, Format, Matrix, Stored};

/// Elements, scales and biases.
const PARTS: usize = 3;

/// Metal binds buffers at multiples of 4; 16 lets a kernel load vectors where the weights allow it.
const ALIGN: usize = 16;

/// Where a stack begins, and the bytes from one matrix to the next.
#[derive(Clone, Copy)]
pub struct Stack<'a> {
    /// A place at or before the first byte of each part.
    pub places: [Place<'a>; PARTS],
    /// Bytes from there to it.
    pub at: [usize; PARTS],
    /// Steps.
    pub steps: [usize; PARTS],
}

impl Stack<'_> {
    /// Whether every row of every matrix begins at a multiple of so many bytes.
    pub fn is_aligned(&self, weight: &Matrix, bytes: usize) -> bool {
        let row = match weight.format {
            Format::Dense(dtype) => weight.cols * dtype.bytes(),
            Format::Affine { bits, .. } => weight.cols * usize::from(bits) / 8,
        };
        [self.at[0], self.steps[0], row].iter().all(|n| n.is_multiple_of(bytes))
    }
}

struct Gathered {
    /// Kept, so that its address stays its own.
    _stack: Arc<[Stored]>,
    buffer: Buffer,
    first: [usize; PARTS],
    steps: [usize; PARTS],
}

/// A weight file on the device.
struct File {
    /// Before the mapping, whose bytes it may be.
    buffer: Buffer,
    /// Where in the buffer the file begins: so far behind the buffer's start that its tensors are aligned.
    start: usize,
    /// Kept, where the buffer is the mapping itself.
    in_place: Option<Arc<MappedFile>>,
}

/// Weight files, and the stacks that were gathered from them.
#[derive(Default)]
pub struct Weights {
    files: Vec<File>,
    gathered: HashMap<*const Stored, Gathered>,
}

// SAFETY: the pointers are names of stacks that the values keep alive; nothing is read through them.
unsafe impl Send for Weights {}

/// Dense weights have neither scales nor biases; something is bound all the same.
fn parts(stored: &Stored) -> [FileSlice; PARTS] {
    let (scales, biases) = stored.affine.unwrap_or((stored.weight, stored.weight));
    [stored.weight, scales, biases]
}

/// The first matrix and the steps, if all follow in equal ones.
fn regular(weight: &Matrix) -> Option<([FileSlice; PARTS], [usize; PARTS])> {
    let first = parts(&weight.stack[0]);
    let next = parts(&weight.stack[weight.experts().min(2) - 1]);
    let mut steps = [0; PARTS];
    for i in 0..PARTS {
        steps[i] = next[i].offset.checked_sub(first[i].offset)?;
    }
    let follows = |(expert, stored): (usize, &Stored)| {
        let at = |i: usize| first[i].offset + steps[i] * expert as u64;
        parts(stored).iter().enumerate().all(|(i, slice)| slice.file == first[i].file && slice.offset == at(i))
    };
    weight.stack.iter().enumerate().all(follows).then(|| (first, steps.map(|step| step as usize)))
}

impl Weights {
    /// One more file, whose tensors begin at byte `first`: in place if they are aligned there, else copied to where they
    /// are.
    ///
    /// # Errors
    /// Memory ran out, or it is longer than a buffer can be.
    pub fn add(&mut self, gpu: &mut Gpu, file: Arc<MappedFile>, first: u64) -> Result<(), DeviceError> {
        let bytes = file.bytes();
        let start = ALIGN.wrapping_sub(first as usize % ALIGN) % ALIGN;
        let (needs, longest) = (bytes.len() + start, gpu.longest());
        if needs > longest {
            let name = file.name();
            let reason = format!("{name} has {} bytes, and a buffer of this GPU holds {longest} at most", bytes.len());
            return Err(DeviceError::Unsupported { device: "metal", reason });
        }
        if start == 0 && file.is_mapped() {
            // SAFETY: the mapping goes to the end of its last page, and the value below keeps it behind the buffer.
            if let Some(buffer) = unsafe { gpu.in_place(bytes) } {
                self.files.push(File { buffer, start, in_place: Some(file) });
                return Ok(());
            }
        }
        let buffer = gpu.buffer("a weight file", needs)?;
        buffer.write(start, bytes);
        self.files.push(File { buffer, start, in_place: None });
        Ok(())
    }

    /// How many files are in place, for people; nothing before the first.
    pub fn row(&self) -> Option<Feature> {
        let (all, in_place) = (self.files.len(), self.files.iter().filter(|file| file.in_place.is_some()).count());
        let why = format!("{in_place} of {all} files; the others were copied: embedded, or not aligned to {ALIGN}");
        (all > 0).then_some(Feature { name: "weights in place", available: in_place == all, why })
    }

    /// Gathers what an op needs in equal steps and has not.
    ///
    /// # Errors
    /// Memory ran out.
    pub fn prepare(&mut self, gpu: &mut Gpu, op: &Op) -> Result<(), DeviceError> {
        match op {
            Op::ExpandWeights(o) => self.gather(gpu, &o.weight),
            Op::ExpertLinear(o) => self.gather(gpu, &o.weight),
            Op::ExpertGateUp(o) => {
                self.gather(gpu, &o.gate.weight)?;
                self.gather(gpu, &o.up.weight)
            }
            Op::MoeGateUp(o) => {
                self.gather(gpu, &o.routed.gate.weight)?;
                self.gather(gpu, &o.routed.up.weight)
            }
            Op::MoeDown(o) => self.gather(gpu, &o.routed.weight),
            Op::NormLinears(_)
            | Op::LinearAdd(_)
            | Op::GatedDeltaStep(_)
            | Op::AttentionParts(_)
            | Op::AttentionMerge(_)
            | Op::Embed(_)
            | Op::RmsNorm(_)
            | Op::QuantizeRows(_)
            | Op::Linear(_)
            | Op::Rope(_)
            | Op::KvWrite(_)
            | Op::QkNormRopeWrite(_)
            | Op::Attention(_)
            | Op::SigmoidGate(_)
            | Op::SplitHeads(_)
            | Op::Conv1dSilu(_)
            | Op::GdnGates(_)
            | Op::L2Norm(_)
            | Op::GatedDelta(_)
            | Op::GatedRmsNorm(_)
            | Op::GatedDeltaNorm(_)
            | Op::RouterTopK(_)
            | Op::GroupRows(_)
            | Op::SwiGlu(_)
            | Op::CombineExperts(_)
            | Op::SharedExpertAdd(_)
            | Op::Add(_)
            | Op::MoeOutput(_)
            | Op::GatherRows(_)
            | Op::Sample(_) => Ok(()),
        }
    }

    fn gather(&mut self, gpu: &mut Gpu, weight: &Matrix) -> Result<(), DeviceError> {
        let name = weight.stack.as_ptr();
        if weight.expanded.is_some() || regular(weight).is_some() || self.gathered.contains_key(&name) {
            return Ok(());
        }
        let steps = parts(&weight.stack[0]).map(|slice| (slice.bytes as usize).next_multiple_of(ALIGN));
        let experts = weight.experts();
        let first = [0, experts * steps[0], experts * (steps[0] + steps[1])];
        let buffer = gpu.buffer("experts side by side", experts * steps.iter().sum::<usize>())?;
        for (expert, stored) in weight.stack.iter().enumerate() {
            for (i, slice) in parts(stored).iter().enumerate() {
                let file = &self.files[slice.file as usize];
                let from = file.start + slice.offset as usize;
                buffer.copy(first[i] + expert * steps[i], &file.buffer, from, slice.bytes as usize);
            }
        }
        self.gathered.insert(name, Gathered { _stack: Arc::clone(&weight.stack), buffer, first, steps });
        Ok(())
    }

    /// Where a stack lies.
    pub fn stack(&self, weight: &Matrix) -> Stack<'_> {
        if let Some(Gathered { buffer, first, steps, .. }) = self.gathered.get(&weight.stack.as_ptr()) {
            return Stack { places: first.map(|offset| Place { buffer, offset }), at: [0; PARTS], steps: *steps };
        }
        let (first, steps) = regular(weight).expect("`prepare` has gathered what is not");
        let place = |slice: FileSlice| {
            let File { buffer, start, .. } = &self.files[slice.file as usize];
            let offset = start + slice.offset as usize;
            (Place { buffer, offset: offset / ALIGN * ALIGN }, offset % ALIGN)
        };
        let both = first.map(place);
        Stack { places: both.map(|(place, _)| place), at: both.map(|(_, at)| at), steps }
    }
}
