//! What each optimisation claims to save, counted on the device in software: with its switch on, and off.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "all of this is test code")]
#![cfg(all(feature = "software-metal", not(target_vendor = "apple")))]

mod counting;

use counting::{KV, Moved, STATE, cases_where, launches, moved, without};
use lily_kernels::check::Case;
use lily_kernels::op::{Op, OpKind};
use lily_kernels::ops::attention::Attention;
use lily_kernels::ops::gated_delta_norm::GatedDeltaNorm;
use lily_kernels::ops::linear::Activations;
use lily_kernels::tensor::{DType, Format};
use software_metal::counts::BindingCounts;

/// Cases with eight query heads of 256 elements for each key/value head.
fn eight_heads(kind: OpKind, dtype: DType) -> Vec<Case> {
    cases_where(kind, |op| {
        attention_of(op)
            .is_some_and(|a| (a.q_heads() / a.layer.heads, a.layer.head_dim, a.layer.dtype) == (8, 256, dtype))
    })
}

fn attention_of(op: &Op) -> Option<&Attention> {
    if let Op::AttentionParts(o) = op {
        return Some(&o.attention);
    }
    if let Op::Attention(o) = op { Some(o) } else { None }
}

/// What the launches of one kernel moved, over all cases that run it.
fn cache_traffic(cases: &[Case], kernel: &str) -> Moved {
    let all: Vec<_> = cases.iter().flat_map(launches).filter(|launch| launch.kernel == kernel).collect();
    assert!(!all.is_empty(), "no case runs {kernel}");
    moved(&all, KV)
}

/// Rows of a prefill read the same positions; these cases have one row a sequence.
fn of_one_token(cases: Vec<Case>) -> Vec<Case> {
    cases.into_iter().filter(|case| case.inputs.sequences.iter().all(|s| s.num_rows == 1)).collect()
}

#[test]
fn eight_query_heads_read_a_cached_row_twice_and_eight_times_without_packing() {
    for (kind, kernel, dtype) in
        [(OpKind::Attention, "attention_rows", DType::F32), (OpKind::AttentionParts, "attention_parts", DType::Bf16)]
    {
        let cases = of_one_token(eight_heads(kind, dtype));
        let packed = cache_traffic(&cases, kernel);
        assert_eq!(packed.loads.bytes, 2 * packed.read as u64, "{kernel}: {packed:?}");
        let alone: Vec<Case> = cases.iter().map(|case| without(case, "gqa-pack")).collect();
        let alone = cache_traffic(&alone, kernel);
        assert_eq!(alone.loads.bytes, 8 * alone.read as u64, "{kernel}: {alone:?}");
        println!("{kernel}: each cached byte read 2 times for 8 heads, without gqa-pack 8 times");
    }
}

#[test]
fn a_load_of_the_cache_touches_one_line_and_several_without_coalescing() {
    for (dtype, lines) in [(DType::Bf16, 4), (DType::F32, 8)] {
        let cases = eight_heads(OpKind::AttentionParts, dtype);
        let on = cache_traffic(&cases, "attention_parts");
        assert_eq!(on.loads.lines, on.loads.simdgroups, "{dtype:?}: {on:?}");
        let off: Vec<Case> = cases.iter().map(|case| without(case, "kv-coalesced")).collect();
        let off = cache_traffic(&off, "attention_parts");
        assert_eq!(off.loads.lines, lines * off.loads.simdgroups, "{dtype:?}: {off:?}");
        assert_eq!((on.loads.simdgroups, on.loads.bytes), (off.loads.simdgroups, off.loads.bytes), "{dtype:?}");
        println!("{dtype:?}: 1 line a load of the cache, without kv-coalesced {lines}");
    }
}

/// A lane's eight elements are one load of 16 bytes (bf16), so that a simdgroup's load is four whole lines.
#[test]
fn whole_blocks_are_loaded_in_whole_lines() {
    let blocks = cache_traffic(&eight_heads(OpKind::AttentionParts, DType::Bf16), "attention_blocks");
    println!("attention_blocks: {blocks:?}");
    assert_eq!((blocks.loads.bytes, blocks.loads.lines), (512 * blocks.loads.simdgroups, 4 * blocks.loads.simdgroups));
}

#[test]
fn the_state_is_read_once_and_written_once_however_long_the_chunk() {
    let mut lengths = Vec::new();
    for kind in [OpKind::GatedDelta, OpKind::GatedDeltaNorm] {
        for case in cases_where(kind, |_| true) {
            let (Op::GatedDelta(delta) | Op::GatedDeltaNorm(GatedDeltaNorm { delta, .. })) =
                &case.plan.dispatches[0].op
            else {
                unreachable!("asked for")
            };
            let bytes = case.inputs.sequences.len() * delta.state_in.bytes();
            let state = moved(&launches(&case), STATE);
            assert_eq!((state.read, state.written), (bytes, bytes), "{}", case.name);
            assert_eq!((state.loads.bytes, state.stores.bytes), (bytes as u64, bytes as u64), "{}", case.name);
            lengths.extend(case.inputs.sequences.iter().map(|s| s.num_rows));
        }
    }
    lengths.sort_unstable();
    lengths.dedup();
    println!("chunks of {lengths:?} tokens: twice the state's bytes each");
    assert!(lengths.len() > 3 && lengths.contains(&17));
}

/// Weights of a few bits stay so in memory: a matmul writes its outputs and nothing else.
#[test]
fn matmuls_write_no_expanded_weights() {
    let affine = |format: Format| matches!(format, Format::Affine { .. });
    let mut cases =
        cases_where(OpKind::Linear, |op| matches!(op, Op::Linear(o) if affine(o.weight.format) && full(&o.x)));
    cases.extend(cases_where(
        OpKind::ExpertLinear,
        |op| matches!(op, Op::ExpertLinear(o) if affine(o.weight.format) && full(&o.x)),
    ));
    let mut outputs = 0;
    for case in &cases {
        let op = &case.plan.dispatches[0].op;
        let out = if let Op::Linear(o) = op {
            case.inputs.rows(o.rows) * o.out.row_bytes()
        } else if let Op::ExpertLinear(o) = op {
            case.inputs.num_tokens() * o.groups.top_k() * o.out.row_bytes()
        } else {
            unreachable!("asked for")
        };
        let written: usize = launches(case).iter().flat_map(|l| &l.bindings).map(BindingCounts::written_bytes).sum();
        assert_eq!(written, out, "{}", case.name);
        outputs += out;
    }
    println!("{} cases: {outputs} bytes of outputs written, 0 of expanded weights", cases.len());
}

const fn full(x: &Activations) -> bool {
    matches!(x, Activations::Full(_))
}
