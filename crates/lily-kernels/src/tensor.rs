//! Element types, weight formats, and where a weight's bytes lie.
//! A weight is never cast: MLX pads no header, so its bytes start at any offset and are read unaligned.

use std::sync::Arc;

/// Element type of a stored or computed tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DType {
    /// IEEE binary32.
    F32,
    /// The upper half of an f32.
    Bf16,
    /// IEEE binary16.
    F16,
    /// Token ids, packed quantized words.
    U32,
    /// Signed 32-bit integers.
    I32,
    /// Quantized activations.
    I8,
    /// Raw bytes.
    U8,
}

impl DType {
    /// Bytes of one element.
    pub const fn bytes(self) -> usize {
        match self {
            Self::F32 | Self::U32 | Self::I32 => 4,
            Self::Bf16 | Self::F16 => 2,
            Self::I8 | Self::U8 => 1,
        }
    }
}

/// A byte range of one opened weight file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FileSlice {
    /// Index of the file, in the order in which the checkpoint lists them.
    pub file: u32,
    /// First byte, from the start of the file.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
}

/// How a matrix is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    /// One element per weight, f32, bf16 or f16.
    Dense(DType),
    /// MLX affine codes: value = scale·q + bias, one (scale, bias) per `group` consecutive inputs of a row;
    /// the codes of a row are a little-endian bit stream of `bits` each.
    Affine {
        /// Bits per code.
        bits: u8,
        /// Inputs that share a scale and a bias.
        group: u16,
        /// Element type of scales and biases.
        scale: DType,
    },
}

/// Activations that share a scale when they are quantized.
const ACTIVATION_GROUP: usize = crate::ops::quantize_rows::GROUP;

impl Format {
    /// Whether a matrix of `cols` inputs multiplies int8 activations: their groups are whole ones, or halves, of its own.
    pub const fn takes_int8(&self, cols: usize) -> bool {
        match self {
            Self::Dense(_) => false,
            Self::Affine { group, .. } => {
                let group = *group as usize;
                let fits = group == ACTIVATION_GROUP / 2 || group.is_multiple_of(ACTIVATION_GROUP);
                fits && cols.is_multiple_of(ACTIVATION_GROUP)
            }
        }
    }
}

/// Where the bytes of one `[rows, cols]` matrix lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Stored {
    /// Elements or packed codes.
    pub weight: FileSlice,
    /// Scales and biases, `[rows, cols / group]` each; `None` for dense formats.
    pub affine: Option<(FileSlice, FileSlice)>,
}

/// A weight matrix, or a stack of them: `[experts, rows, cols]`, `y = x·Wᵀ` with x of `cols` elements.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Matrix {
    /// Outputs (N).
    pub rows: usize,
    /// Inputs (K).
    pub cols: usize,
    /// Storage, the same for the whole stack.
    pub format: Format,
    /// One for each expert, wherever a checkpoint keeps them; one for an ordinary matrix.
    pub stack: Arc<[Stored]>,
    /// Where a step keeps all of it, `[experts · rows, cols]`, after an `expand_weights`; the stack is then not read.
    pub expanded: Option<Tensor>,
}

/// A device buffer: a sequence's recurrent state, a snapshot, the KV block pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, PartialOrd, Ord)]
pub struct BufferId(pub u32);

/// Where an operand lives. Virtual: what each name stands for is settled when a step is submitted, so that
/// nothing per-step is baked into a dispatch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Space {
    /// A temporary of the plan being recorded; becomes a range of `Arena` when the plan is finished.
    Temp(u32),
    /// The device's one scratch buffer.
    Arena,
    /// Small f32 tensors (norms, conv taps, gates), uploaded once.
    Constants,
    /// A mapped weight file.
    Weights(u32),
    /// The half of each sequence's recurrent state that this step reads.
    StateIn,
    /// The half that it writes. Ping-pong: a step that ran past a stop is undone by choosing the other half.
    StateOut,
    /// One KV block: offsets are relative to the start of whichever block the block table names.
    Kv,
    /// Token ids of this step, one slot per row.
    Tokens,
    /// Token ids of the next step: sampling writes here, so that a step can be submitted before the last is read.
    NextTokens,
    /// Logits, kept until the next step that writes logits.
    Logits,
}

/// A dense row-major `[rows, cols]` operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tensor {
    /// Where it lives.
    pub space: Space,
    /// First byte within the space.
    pub offset: usize,
    /// Rows; for per-token tensors the plan's bucket, of which a step may use fewer.
    pub rows: usize,
    /// Elements of a row.
    pub cols: usize,
    /// Element type.
    pub dtype: DType,
}

impl Tensor {
    /// Bytes of the whole tensor.
    pub const fn bytes(&self) -> usize {
        self.rows * self.row_bytes()
    }

    /// Bytes of one row.
    pub const fn row_bytes(&self) -> usize {
        self.cols * self.dtype.bytes()
    }
}

impl FileSlice {
    /// Part `index` of `parts` equal ones.
    pub const fn part(&self, index: usize, parts: usize) -> Self {
        let bytes = self.bytes / parts as u64;
        Self { file: self.file, offset: self.offset + index as u64 * bytes, bytes }
    }
}

impl Stored {
    /// Part `index` of `parts` equal ones, in every tensor.
    pub fn part(&self, index: usize, parts: usize) -> Self {
        let affine = self.affine.map(|(scales, biases)| (scales.part(index, parts), biases.part(index, parts)));
        Self { weight: self.weight.part(index, parts), affine }
    }

    /// Codes, scales and biases together.
    pub fn bytes(&self) -> usize {
        (self.weight.bytes + self.affine.map_or(0, |(scales, biases)| scales.bytes + biases.bytes)) as usize
    }
}

impl Matrix {
    /// A stack of `experts` that `stored` holds one after the other.
    pub fn stacked(experts: usize, rows: usize, cols: usize, format: Format, stored: Stored) -> Self {
        Self {
            rows,
            cols,
            format,
            stack: (0..experts).map(|expert| stored.part(expert, experts)).collect(),
            expanded: None,
        }
    }

    /// Matrices in the stack.
    pub fn experts(&self) -> usize {
        self.stack.len()
    }

    /// Bytes of one expert's codes, scales and biases together.
    pub fn expert_bytes(&self) -> usize {
        self.expanded.map_or(self.stack[0].bytes(), |t| t.bytes() / self.experts())
    }

    /// Bytes of one row's codes, scales and biases together.
    pub fn row_bytes(&self) -> usize {
        self.expert_bytes() / self.rows
    }
}
