//! What `fused-dequant` takes away: the weights of a prefill's matmuls are first written out in full, then read.

use super::arena::Temps;
use super::{Phase, PlanKey};
use crate::devices::DeviceKind;
use crate::op::Op;
use crate::ops::expand_weights::ExpandWeights;
use crate::tensor::{DType, Format, Matrix};

/// Puts an expansion before each matmul with codes, if the plan is one of those.
pub fn apply(ops: &mut Vec<(Op, String)>, temps: &mut Temps, key: &PlanKey) {
    let fused = key.phase != Phase::Prefill
        || key.device != DeviceKind::Metal
        || key.switches.is_on("fused-dequant", key.device);
    if fused {
        return;
    }
    for (mut op, scope) in std::mem::take(ops) {
        for weight in weights(&mut op) {
            if matches!(weight.format, Format::Affine { .. }) {
                let out = temps.tensor(weight.experts() * weight.rows, weight.cols, DType::Bf16);
                ops.push((ExpandWeights { weight: weight.clone(), out }.into(), scope.clone()));
                *weight = Matrix { format: Format::Dense(DType::Bf16), expanded: Some(out), ..weight.clone() };
            }
        }
        ops.push((op, scope));
    }
}

/// The matrices of ops that a prefill plan has; fused ones that take few rows are in decode plans only.
fn weights(op: &mut Op) -> Vec<&mut Matrix> {
    if let Op::Linear(o) = op {
        vec![&mut o.weight]
    } else if let Op::ExpertLinear(o) = op {
        vec![&mut o.weight]
    } else if let Op::ExpertGateUp(o) = op {
        vec![&mut o.gate.weight, &mut o.up.weight]
    } else {
        Vec::new()
    }
}
