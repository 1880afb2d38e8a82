//! What a model's files hold: configuration, tensors by kind, files, what will be resident, and what is odd.
//! Reads headers and small vectors; a folder with a `config.json` and no weights is described as it would be.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use lily_kernels::devices::DeviceKind;
use lily_kernels::plan::Precision;
use lily_kernels::switches::Switches;
use lily_kernels::tensor::{Format, Matrix};

use crate::budget::{Budget, Bytes};
use crate::checkpoint::{Checkpoint, CheckpointError, Declared, ModelFolder, ModelSource, TensorSource, Vector};
use crate::error::EngineError;
use crate::model::config::{Config, LayerType, MlpType};
use crate::model::memory::MemoryLayout;
use crate::model::qwen3_5::Qwen3_5;
use crate::model::weights::Weights;

/// How the model would be opened.
#[derive(Debug, Clone, Copy)]
pub struct InspectQuery {
    /// Number formats.
    pub precision: Precision,
    /// Positions of the cache; `None` takes the model's.
    pub context: Option<usize>,
    /// Prompt tokens of one step.
    pub prefill_chunk: usize,
}

/// Text of `lily inspect`.
///
/// # Errors
/// A file is damaged, or describes a model that Lily does not run: one sentence naming file and field.
pub fn inspect(source: &ModelSource, query: InspectQuery) -> Result<String, EngineError> {
    let folder = ModelFolder::look(source)?;
    let mut out = String::new();
    if folder.has_weights {
        let mut checkpoint = Checkpoint::open(source)?;
        let config = checkpoint.config().clone();
        let mut census = Census::new(&mut checkpoint);
        let weights = Weights::load(&config, &mut census)?;
        let table = census.table();
        checkpoint.check_unused()?;
        describe_config(&mut out, &checkpoint.name(), &config);
        let _ = writeln!(out, "layout            {}\n\n{table}", checkpoint.layout_name());
        describe_files(&mut out, &checkpoint);
        let bytes = checkpoint.weight_bytes();
        describe_memory(&mut out, config, weights, query, (bytes, folder.tokenizer_bytes))?;
        warn(&mut out, &[checkpoint.warnings(), folder.warnings].concat());
    } else {
        let mut declared = Declared::from_config(&folder.config_json)?;
        let config = declared.config().clone();
        let mut census = Census::new(&mut declared);
        let weights = Weights::load(&config, &mut census)?;
        let table = census.table();
        describe_config(&mut out, &folder.name, &config);
        let _ = writeln!(out, "layout            no weights here: sizes as MLX would write them\n\n{table}");
        let bytes = declared.bytes();
        describe_memory(&mut out, config, weights, query, (bytes, folder.tokenizer_bytes))?;
        warn(&mut out, &folder.warnings);
    }
    Ok(out)
}

fn describe_config(out: &mut String, name: &str, c: &Config) {
    let layers = |kind| c.layer_types.iter().filter(|k| **k == kind).count();
    let mlps = |kind| c.mlp_types.iter().filter(|k| **k == kind).count();
    let _ = writeln!(out, "model             {name} ({})", c.model_type);
    let _ = writeln!(
        out,
        "layers            {}: {} Gated DeltaNet, {} attention; hidden size {}",
        c.num_hidden_layers,
        layers(LayerType::LinearAttention),
        layers(LayerType::FullAttention),
        c.hidden_size
    );
    let _ = writeln!(
        out,
        "Gated DeltaNet    {} key heads of {}, {} value heads of {}, {} taps",
        c.linear_num_key_heads,
        c.linear_key_head_dim,
        c.linear_num_value_heads,
        c.linear_value_head_dim,
        c.linear_conv_kernel_dim
    );
    let _ = writeln!(
        out,
        "attention         {} query heads, {} key/value heads of {}, {} of them rotated (theta {})",
        c.num_attention_heads,
        c.num_key_value_heads,
        c.head_dim,
        c.rotary_dims(),
        c.rope_theta
    );
    if mlps(MlpType::Sparse) > 0 {
        let _ = writeln!(
            out,
            "experts           {} of {}, {} chosen, and a shared one of {}, in {} layers",
            c.num_experts,
            c.moe_intermediate_size,
            c.num_experts_per_tok,
            c.shared_expert_intermediate_size,
            mlps(MlpType::Sparse)
        );
    }
    if mlps(MlpType::Dense) > 0 {
        let _ = writeln!(out, "dense MLP         {} wide, in {} layers", c.intermediate_size, mlps(MlpType::Dense));
    }
    let tied = if c.tie_word_embeddings { ", also the head" } else { "" };
    let _ = writeln!(out, "vocabulary        {} rows{tied}", c.vocab_size);
    let _ = writeln!(out, "context           up to {} positions", c.max_position_embeddings);
}

fn describe_files(out: &mut String, checkpoint: &Checkpoint) {
    let _ = writeln!(out, "\n{:<44} {:>16} {:>9}  data starts at", "file", "bytes", "tensors");
    for file in checkpoint.weight_file_summaries() {
        let aligned = if file.data_start.is_multiple_of(16) { "aligned to 16" } else { "not aligned to 16" };
        let _ =
            writeln!(out, "{:<44} {:>16} {:>9}  {} ({aligned})", file.name, file.bytes, file.tensors, file.data_start);
    }
    let (tensors, bytes) = checkpoint.skipped();
    if tensors > 0 {
        let _ = writeln!(out, "not used: {tensors} tensors of the vision tower or the draft head, {}", Bytes(bytes));
    }
}

fn describe_memory(
    out: &mut String,
    config: Config,
    weights: Weights,
    query: InspectQuery,
    files: (u64, u64),
) -> Result<(), EngineError> {
    let InspectQuery { precision, context, prefill_chunk } = query;
    let memory = MemoryLayout::new(&config, precision);
    let per_position = memory.block_bytes / lily_kernels::inputs::KV_BLOCK;
    let state_bytes = memory.state_bytes;
    let model = Qwen3_5 { config, weights, memory };
    let budget = Budget::of(&model, files, (prefill_chunk, 1), (DeviceKind::Cpu, precision, Switches::default()), None);
    let allowance = budget.settle(context, None)?;
    let _ = writeln!(
        out,
        "\nmemory at {} positions, {} precision",
        allowance.context_length,
        format!("{precision:?}").to_lowercase()
    );
    for (name, bytes) in allowance.estimate.parts().into_iter().filter(|(_, bytes)| *bytes > 0) {
        let note = match name {
            "KV cache" => format!("  {per_position} bytes for each position"),
            "state" => format!("  {state_bytes} bytes for each half of a conversation's"),
            "weights" => "  mapped, shared with other processes".to_owned(),
            _ => String::new(),
        };
        let _ = writeln!(out, "  {name:<14} {:>10}{note}", Bytes(bytes).to_string());
    }
    // The two numbers, and the words, with which a context that does not fit is refused.
    let line = |name: &str, bytes, note| format!("  {name:<14} {:>10}{note}\n", Bytes(bytes).to_string());
    let estimate = allowance.estimate;
    out.push_str(&line("needs", estimate.needed(), ""));
    out.push_str(&line("sessions", estimate.sessions, "  fewer where memory is short"));
    out.push_str(&line("at most", estimate.at_most(), "  with sessions"));
    Ok(())
}

fn warn(out: &mut String, warnings: &[String]) {
    if !warnings.is_empty() {
        out.push('\n');
    }
    for warning in warnings {
        let _ = writeln!(out, "warning: {warning}");
    }
}

/// Tensors of one kind and format.
#[derive(Debug, Default)]
struct Row {
    modules: usize,
    parameters: u64,
    bytes: u64,
}

/// A source that counts what is asked of it.
struct Census<'a> {
    source: &'a mut dyn TensorSource,
    /// Kind and format, in the order first asked for, with the modules counted.
    kinds: Vec<(String, String)>,
    rows: BTreeMap<(String, String), Row>,
    seen: Vec<Matrix>,
}

impl<'a> Census<'a> {
    fn new(source: &'a mut dyn TensorSource) -> Self {
        Self { source, kinds: Vec::new(), rows: BTreeMap::new(), seen: Vec::new() }
    }

    fn count(&mut self, kind: String, format: String, parameters: u64, bytes: u64) {
        let key = (kind, format);
        if !self.rows.contains_key(&key) {
            self.kinds.push(key.clone());
        }
        let row = self.rows.entry(key).or_default();
        row.modules += 1;
        row.parameters += parameters;
        row.bytes += bytes;
    }

    fn table(&self) -> String {
        let mut out = String::new();
        let line = |out: &mut String, kind: &str, format: &str, row: &Row| {
            let _ =
                writeln!(out, "{kind:<44} {format:<24} {:>5} {:>15} {:>15}", row.modules, row.parameters, row.bytes);
        };
        let _ = writeln!(out, "{:<44} {:<24} {:>5} {:>15} {:>15}", "kind", "stored as", "count", "parameters", "bytes");
        let mut total = Row::default();
        for key in &self.kinds {
            let row = &self.rows[key];
            line(&mut out, &key.0, &key.1, row);
            total.modules += row.modules;
            total.parameters += row.parameters;
            total.bytes += row.bytes;
        }
        line(&mut out, "total", "", &total);
        out.pop();
        out
    }
}

impl TensorSource for Census<'_> {
    fn has(&self, path: &str) -> bool {
        self.source.has(path)
    }

    fn matrix(
        &mut self,
        path: &str,
        experts: Option<usize>,
        rows: usize,
        cols: usize,
    ) -> Result<Matrix, CheckpointError> {
        let matrix = self.source.matrix(path, experts, rows, cols)?;
        // A tied head is the embedding again.
        if !self.seen.contains(&matrix) {
            let parameters = (matrix.experts() * rows * cols) as u64;
            let bytes = matrix.stack.iter().map(|stored| stored.bytes() as u64).sum();
            self.count(kind_of(path), FormatName(matrix.format).to_string(), parameters, bytes);
            self.seen.push(matrix.clone());
        }
        Ok(matrix)
    }

    fn vector(&mut self, path: &str, shape: &[usize]) -> Result<Vector, CheckpointError> {
        let vector = self.source.vector(path, shape)?;
        let (elements, bytes) = (vector.values.len(), vector.values.len() * vector.stored.bytes());
        self.count(kind_of(path), FormatName(Format::Dense(vector.stored)).to_string(), elements as u64, bytes as u64);
        Ok(vector)
    }
}

/// A path without its layer's number.
fn kind_of(path: &str) -> String {
    let part = |part: &str| if part.bytes().all(|b| b.is_ascii_digit()) { "*".to_owned() } else { part.to_owned() };
    path.split('.').map(part).collect::<Vec<_>>().join(".")
}

struct FormatName(Format);

impl fmt::Display for FormatName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.0 {
            Format::Dense(dtype) => format!("{dtype:?}"),
            Format::Affine { bits, group, scale } => format!("{bits} bits / {group}, {scale:?}"),
        };
        f.write_str(&name.to_lowercase())
    }
}
