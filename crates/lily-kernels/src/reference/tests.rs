//! The executor refuses what a contract does not allow, and lends fused ops private memory.

use super::*;
use crate::devices::DeviceKind;
use crate::inputs::{SequenceInputs, StepInputs};
use crate::op::Op;
use crate::ops::add::Add;
use crate::plan::{Dispatch, Logits, Phase, Plan, PlanKey, Precision, Program};
use crate::switches::Switches;
use crate::tensor::{DType, Space, Tensor};

/// One row of four at an arena offset.
fn at(offset: usize) -> Tensor {
    Tensor { space: Space::Arena, offset, rows: 1, cols: 4, dtype: DType::F32 }
}

fn add(a: usize, b: usize, out: usize) -> Op {
    Add { a: at(a), b: at(b), out: at(out) }.into()
}

fn plan(ops: Vec<Op>) -> Plan {
    let key = PlanKey {
        program: Program::Forward,
        phase: Phase::Decode,
        token_bucket: 1,
        sequence_bucket: 1,
        logits: Logits::None,
        precision: Precision::Exact,
        device: DeviceKind::Cpu,
        switches: Switches::default(),
    };
    let dispatch = |(stage, op)| Dispatch { op, stage, scope: String::new() };
    let dispatches: Vec<Dispatch> = ops.into_iter().enumerate().map(dispatch).collect();
    let stages = dispatches.len();
    Plan { key, dispatches, stages, arena_bytes: 128, logits_bytes: 0, taps: Vec::new(), fusions: Vec::new() }
}

fn one_token() -> StepInputs {
    StepInputs { sequences: vec![SequenceInputs { num_rows: 1, ..Default::default() }], ..Default::default() }
}

/// Memory with 1, 2, 3, 4 at byte 0 and 16 bytes at 16 that nothing has written.
fn memory(plan: &Plan) -> Memory {
    let mut mem = Memory::new();
    mem.prepare(plan);
    mem.poke(Space::Arena, 0, &math::encode(DType::F32, &[1.0, 2.0, 3.0, 4.0]));
    mem
}

#[test]
fn counts_distinct_bytes() {
    let plan = plan(vec![add(0, 0, 32), add(0, 32, 64)]);
    let mut mem = memory(&plan);
    let touches = run_plan(&plan, &mut mem, &one_token());
    assert_eq!((touches[0].read, touches[0].written), (16, 16), "both terms are the same bytes");
    assert!(!touches[0].agrees(), "the contract of add counts two terms");
    assert!(touches[1].agrees(), "{:?}", touches[1]);
    assert_eq!(mem.look_rows(&at(64), 1), [3.0, 6.0, 9.0, 12.0]);
}

#[test]
#[should_panic(expected = "add reads Arena byte 16, which nothing has written")]
fn unwritten_bytes_are_not_read() {
    let plan = plan(vec![add(0, 16, 32)]);
    run_plan(&plan, &mut memory(&plan), &one_token());
}

#[test]
#[should_panic(expected = "add reads Arena byte 0, which nothing has written")]
fn nothing_in_the_arena_outlives_a_step() {
    let plan = plan(vec![add(0, 0, 32)]);
    let mut mem = memory(&plan);
    run_plan(&plan, &mut mem, &one_token());
    run_plan(&plan, &mut mem, &one_token());
}

#[test]
#[should_panic(expected = "add works in place")]
fn an_op_that_writes_what_it_reads_is_refused() {
    let plan = plan(vec![add(0, 0, 8)]);
    run_plan(&plan, &mut memory(&plan), &one_token());
}

#[test]
#[should_panic(expected = "add reads 16 undeclared bytes: Arena from 4")]
fn undeclared_reads_are_refused() {
    let plan = plan(vec![]);
    let mut mem = memory(&plan);
    mem.poke(Space::Arena, 16, &[0; 4]);
    mem.begin_op(&add(0, 32, 64));
    mem.row(&at(4), 0);
}

#[test]
#[should_panic(expected = "add writes 16 undeclared bytes: Arena from 68")]
fn undeclared_writes_are_refused() {
    let mut mem = memory(&plan(vec![]));
    mem.begin_op(&add(0, 32, 64));
    mem.set_row(&at(68), 0, &[0.0; 4]);
}

#[test]
#[should_panic(expected = "poison read")]
fn poison_that_a_harness_left_is_not_read() {
    let plan = plan(vec![add(0, 16, 32)]);
    let mut mem = memory(&plan);
    mem.poke(Space::Arena, 16, &[POISON; 16]);
    run_plan(&plan, &mut mem, &one_token());
}

#[test]
fn temporaries_are_private_and_do_not_count() {
    let mut mem = memory(&plan(vec![]));
    mem.begin_op(&add(0, 0, 32));
    let temp = Tensor { space: Space::Temp(9), ..at(0) };
    mem.set_row(&temp, 0, &[5.0; 4]);
    assert_eq!(mem.row(&temp, 0), [5.0; 4]);
    assert_eq!(mem.end_op(), (0, 0));
}

#[test]
#[should_panic(expected = "reads Temp(9) byte 0, which nothing has written")]
fn temporaries_end_with_the_op() {
    let mut mem = memory(&plan(vec![]));
    let temp = Tensor { space: Space::Temp(9), ..at(0) };
    mem.set_row(&temp, 0, &[5.0; 4]);
    mem.end_op();
    mem.row(&temp, 0);
}
