//! The key/value cache: what writes it, what reads it.

use super::sources::{
    ATTENTION, ATTENTION_BLOCKS, ATTENTION_MERGE, ATTENTION_PARTS, ATTENTION_TILE, KV_WRITE, QK_NORM_ROPE_WRITE, ROPE,
};
use super::{Arguments, Prepared, type_code};
use crate::devices::DeviceKind;
use crate::inputs::KV_BLOCK;
use crate::metal::step::Step;
use crate::ops::attention::Attention;
use crate::ops::attention_merge::AttentionMerge;
use crate::ops::attention_parts::{AttentionParts, Cut};
use crate::ops::kv_write::{KvLayer, KvWrite};
use crate::ops::qk_norm_rope_write::QkNormRopeWrite;
use crate::ops::rope::Rope;
use crate::policy::{Grid, MERGED_ELEMENTS, shared_heads, tile_heads};

/// Elements of a head that `attention.metal` has registers for.
const MOST_HEAD_DIM: usize = 256;
/// Why attention cannot run here.
pub fn unsupported(o: &Attention) -> Option<String> {
    let dim = o.layer.head_dim;
    (dim > MOST_HEAD_DIM).then(|| format!("its attention takes heads of up to {MOST_HEAD_DIM} elements, not {dim}"))
}

/// `KvLayer` of `kv.metal`.
fn layer(step: &Step, layer: &KvLayer) -> Arguments {
    Arguments::of(&[layer.offset, layer.heads, layer.head_dim, step.kv_block_bytes()])
}

pub fn rope<'a>(step: &Step<'a>, grid: Grid, o: &Rope) -> Prepared<'a> {
    let buffers = vec![step.at(&o.x), step.at(&o.inv_freq), step.rows(), step.at(&o.out)];
    Prepared::new(ROPE, grid, buffers).arguments(Arguments::of(&[o.x.cols, o.head_dim, o.inv_freq.cols]))
}

pub fn kv_write<'a>(step: &Step<'a>, grid: Grid, o: &KvWrite) -> Prepared<'a> {
    let buffers = vec![step.at(&o.k), step.at(&o.v), step.rows(), step.tables(), step.kv()];
    Prepared::new(KV_WRITE, grid, buffers).constants(&[type_code(o.layer.dtype)]).arguments(layer(step, &o.layer))
}

pub fn qk_norm_rope_write<'a>(step: &Step<'a>, grid: Grid, o: &QkNormRopeWrite) -> Prepared<'a> {
    let (q, k) = (&o.q_norm, &o.k_norm);
    let mut buffers: Vec<_> =
        [&q.x, &k.x, &o.write.v, &q.weight, &k.weight, &o.q_rope.inv_freq].into_iter().map(|t| step.at(t)).collect();
    buffers.extend([step.rows(), step.tables(), step.at(&o.q_rope.out), step.kv()]);
    let arguments =
        Arguments::of(&[q.x.cols, q.stride, q.heads, k.x.cols, k.stride, o.write.v.cols, o.q_rope.inv_freq.cols]);
    Prepared::new(QK_NORM_ROPE_WRITE, grid, buffers)
        .constants(&[type_code(o.write.layer.dtype)])
        .arguments(layer(step, &o.write.layer))
        .arguments(arguments.float(q.eps).float(k.eps))
}

pub fn attention<'a>(step: &Step<'a>, grid: Grid, o: &Attention) -> Prepared<'a> {
    let buffers = vec![step.at(&o.q), step.rows(), step.tables(), step.kv(), step.at(&o.out)];
    let scale = 1.0 / (o.layer.head_dim as f32).sqrt();
    if grid.kernel != "attention_rows" {
        return Prepared::new(ATTENTION_TILE, grid, buffers)
            .constants(&[type_code(o.layer.dtype), tile_heads(o) as u32])
            .arguments(layer(step, &o.layer))
            .arguments(Arguments::of(&[o.q_heads(), step.tokens()]).float(scale));
    }
    Prepared::new(ATTENTION, grid, buffers)
        .constants(&[type_code(o.layer.dtype), shared_heads(o, step.switches) as u32])
        .arguments(layer(step, &o.layer))
        .arguments(Arguments::of(&[o.q_heads()]).float(scale))
}

/// `Cut` of `cut.metal`.
fn cut(cut: &Cut) -> Arguments {
    Arguments::of(&[cut.least, cut.most, cut.blocks_from, Cut::MOST_BLOCKS, KV_BLOCK, cut.capacity()])
}

pub fn attention_parts<'a>(step: &Step<'a>, grid: Grid, o: &AttentionParts) -> Prepared<'a> {
    let (a, switches) = (&o.attention, step.switches);
    let buffers = vec![step.at(&a.q), step.rows(), step.tables(), step.kv(), step.at(&o.parts)];
    let scale = 1.0 / (a.layer.head_dim as f32).sqrt();
    let source = if grid.kernel == "attention_blocks" { ATTENTION_BLOCKS } else { ATTENTION_PARTS };
    let coalesced = switches.is_on("kv-coalesced", DeviceKind::Metal);
    Prepared::new(source, grid, buffers)
        .constants(&[type_code(a.layer.dtype), shared_heads(a, switches) as u32, coalesced.into()])
        .arguments(layer(step, &a.layer))
        .arguments(cut(&o.cut))
        .arguments(Arguments::of(&[a.q_heads(), o.row_spans(&step.counts)]).float(scale))
}

pub fn attention_merge<'a>(step: &Step<'a>, grid: Grid, o: &AttentionMerge) -> Prepared<'a> {
    let (gate, dim) = (&o.gate, o.of.attention.layer.head_dim);
    let buffers = vec![step.at(&o.of.parts), step.at(&gate.gate), step.rows(), step.at(&gate.out)];
    Prepared::new(ATTENTION_MERGE, grid, buffers).arguments(cut(&o.of.cut)).arguments(Arguments::of(&[
        gate.heads,
        dim,
        MERGED_ELEMENTS,
        gate.stride,
        gate.start,
    ]))
}
