//! Every case of every op on the CPU device, with each instruction set that this machine has.

use lily_kernels::check::{cases, check_case};
use lily_kernels::cpu::CpuBackend;
use lily_kernels::cpu::isa::Isa;
use lily_kernels::op::OpKind;

#[test]
fn every_instruction_set_passes_every_case() {
    let mut failures = Vec::new();
    for kind in OpKind::ALL {
        for case in cases(*kind) {
            for isa in Isa::available() {
                let mut device = CpuBackend::with_isa(Some(2), isa).expect("the machine starts two threads");
                let failure = check_case(&case, &mut device).err();
                failures.extend(failure.map(|f| format!("{}: {f}", isa.name())));
            }
        }
    }
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}
