//! The reference passes every case, and the check reports what a device can do wrong.

use super::*;
use crate::backend::{ExecutableId, Observer, Ticket};
use crate::devices::DeviceKind;
use crate::mapped::MappedFile;
use crate::ops::add::Add;
use crate::reference::ReferenceBackend;
use crate::tensor::{DType, Space};

#[test]
fn every_op_has_cases_and_the_reference_passes_them() {
    for &kind in OpKind::ALL {
        let cases = cases(kind);
        assert!(cases.len() >= STEPS.len(), "{} has {} cases", kind.name(), cases.len());
        for case in &cases {
            let report = check_case(case, &mut ReferenceBackend::new()).unwrap();
            assert!(report.elements > 0 && report.worst == 0.0, "{}: {report:?}", case.name);
        }
    }
}

#[test]
fn names_tell_cases_apart() {
    let mut names: Vec<String> = OpKind::ALL.iter().flat_map(|kind| cases(*kind)).map(|c| c.name).collect();
    let all = names.len();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), all);
}

#[test]
fn cases_are_the_same_every_time() {
    for kind in [OpKind::Attention, OpKind::Linear, OpKind::GatedDeltaNorm] {
        for (a, b) in cases(kind).iter().zip(&cases(kind)) {
            let bits = |c: &Case| c.constants.iter().map(|v| v.to_bits()).collect::<Vec<u32>>();
            let all = |c: &Case| (c.before.clone(), c.inputs.clone(), c.weights.bytes().to_vec(), bits(c));
            assert!(all(a) == all(b), "{}", a.name);
        }
    }
}

#[test]
fn a_seed_changes_the_contents_and_nothing_else() {
    let (first, other) = (cases(OpKind::Attention), seeded(7, || cases(OpKind::Attention)));
    for (a, b) in first.iter().zip(&other) {
        let same = (&a.name, &a.plan.dispatches, a.before.kv.len()) == (&b.name, &b.plan.dispatches, b.before.kv.len());
        assert!(same && a.before.arena != b.before.arena, "{}", a.name);
    }
    let again = cases(OpKind::Attention);
    assert!(first.iter().zip(&again).all(|(a, b)| a.before == b.before), "a seed outlives its use");
}

/// Not built here: some have hundreds of megabytes. `lab sweep` runs them.
#[test]
fn every_op_has_cases_at_the_models_shapes() {
    for &kind in OpKind::ALL {
        assert!(true_shapes(kind).len() >= 2, "{}", kind.name());
    }
    let reports: Vec<Report> = true_shapes(OpKind::RouterTopK)[..2]
        .iter()
        .map(|case| check_case(&case.build(3), &mut ReferenceBackend::new()).unwrap())
        .collect();
    assert!(reports.iter().all(|report| report.elements > 0), "{reports:?}");
}

/// A device that does one thing wrong after each step.
struct Faulty {
    inner: ReferenceBackend,
    fault: fn(&mut ReferenceBackend),
}

impl Backend for Faulty {
    fn submit(&mut self, executable: ExecutableId, inputs: &StepInputs) -> Result<Ticket, DeviceError> {
        let ticket = self.inner.submit(executable, inputs)?;
        (self.fault)(&mut self.inner);
        Ok(ticket)
    }
    fn available_bytes(&self) -> Option<u64> {
        None
    }

    fn kind(&self) -> DeviceKind {
        self.inner.kind()
    }

    fn describe(&self) -> String {
        "faulty".to_owned()
    }
    fn open_weights(&mut self, file: Arc<MappedFile>, first: u64) -> Result<(), DeviceError> {
        self.inner.open_weights(file, first)
    }
    fn upload_constants(&mut self, values: &[f32]) -> Result<(), DeviceError> {
        self.inner.upload_constants(values)
    }
    fn allocate(&mut self, what: &'static str, bytes: usize) -> Result<BufferId, DeviceError> {
        self.inner.allocate(what, bytes)
    }
    fn free(&mut self, buffer: BufferId) {
        self.inner.free(buffer);
    }
    fn bind_kv(&mut self, pool: BufferId, block_bytes: usize) {
        self.inner.bind_kv(pool, block_bytes);
    }
    fn copy(&mut self, from: (BufferId, usize), to: (BufferId, usize), bytes: usize) {
        self.inner.copy(from, to, bytes);
    }
    fn clear(&mut self, buffer: BufferId, offset: usize, bytes: usize) {
        self.inner.clear(buffer, offset, bytes);
    }
    fn write(&mut self, buffer: BufferId, offset: usize, bytes: &[u8]) {
        self.inner.write(buffer, offset, bytes);
    }
    fn read(&mut self, buffer: BufferId, offset: usize, out: &mut [u8]) {
        self.inner.read(buffer, offset, out);
    }
    fn compile(&mut self, plan: Arc<crate::plan::Plan>) -> Result<ExecutableId, DeviceError> {
        self.inner.compile(plan)
    }
    fn discard(&mut self, executable: ExecutableId) {
        self.inner.discard(executable);
    }
    fn interrupt_by(&mut self, flag: Option<Arc<std::sync::atomic::AtomicBool>>) {
        self.inner.interrupt_by(flag);
    }
    fn wait(&mut self, ticket: Ticket) -> Result<(), DeviceError> {
        self.inner.wait(ticket)
    }
    fn logits(&mut self, rows: usize, cols: usize, out: &mut [f32]) {
        self.inner.logits(rows, cols, out);
    }
    fn sampled(&mut self, token_slot: usize, out: &mut [u32]) {
        self.inner.sampled(token_slot, out);
    }
    fn poke(&mut self, space: Space, offset: usize, bytes: &[u8]) {
        self.inner.poke(space, offset, bytes);
    }
    fn peek(&mut self, space: Space, offset: usize, out: &mut [u8]) {
        self.inner.peek(space, offset, out);
    }
    fn observe(
        &mut self,
        executable: ExecutableId,
        inputs: &StepInputs,
        observer: &mut dyn Observer,
    ) -> Result<(), DeviceError> {
        self.inner.observe(executable, inputs, observer)
    }
}

/// `a`, `b` and `out` have 4 rows of 16 f32 each, of which 3 are true, at arena bytes 64, 384 and 704.
fn add_case() -> Case {
    let mut b = CaseBuilder::new(Step::Prefill { bucket: 4, start: 0, rows: 3 });
    let (x, y) = (b.normal(1, 16), b.normal(1, 16));
    let out = b.output(4, 16, DType::F32);
    assert_eq!((x.offset, y.offset, out.offset), (64, 384, 704));
    b.finish("for faults", Add { a: x, b: y, out }, 1e-6)
}

/// What the check says about a device with a fault, or "" if it says nothing.
fn verdict(case: &Case, fault: fn(&mut ReferenceBackend)) -> String {
    check_case(case, &mut Faulty { inner: ReferenceBackend::new(), fault }).err().unwrap_or_default()
}

fn peek_f32(device: &mut ReferenceBackend, offset: usize) -> f32 {
    let mut bytes = [0; 4];
    device.peek(Space::Arena, offset, &mut bytes);
    f32::from_le_bytes(bytes)
}

#[test]
fn a_device_without_fault_is_not_reported() {
    assert_eq!(verdict(&add_case(), |_| ()), "");
}

#[test]
fn bytes_outside_the_output_are_reported() {
    let (case, zero) = (add_case(), "to 0x00, and the op does not write it");
    for (at, fault) in [
        (703, (|d| d.poke(Space::Arena, 703, &[0])) as fn(&mut ReferenceBackend)), // before the output
        (704 + 3 * 64, |d| d.poke(Space::Arena, 704 + 3 * 64, &[0])),              // a row beyond the true count
        (960, |d| d.poke(Space::Arena, 960, &[0])),                                // behind the output
        (1023, |d| d.poke(Space::Arena, 1023, &[0])),                              // the arena's last byte
    ] {
        let said = verdict(&case, fault);
        assert!(said.contains(&format!("Arena byte {at} changed from 0xff {zero}")), "{said}");
    }
    let said = verdict(&case, |d| d.poke(Space::Arena, 100, &[0, 0, 0, 0]));
    assert!(said.contains("Arena byte 10") && said.contains(zero), "an input was overwritten: {said}");
    let said = verdict(&case, |d| d.poke(Space::NextTokens, 2, &[0]));
    assert!(said.contains(&format!("Slot(1) byte 2 changed from 0xff {zero}")), "{said}");
}

#[test]
fn rows_left_out_and_wrong_values_are_reported() {
    let case = add_case();
    let said = verdict(&case, |d| d.poke(Space::Arena, 704 + 64, &[0xFF; 64]));
    assert!(said.contains("Arena byte 768 is NaN"), "{said}");
    let said = verdict(&case, |d| {
        let wrong = peek_f32(d, 712) + 1e-4;
        d.poke(Space::Arena, 712, &wrong.to_le_bytes());
    });
    assert!(said.contains("Arena byte 712 is") && said.contains("tolerance 1e-6"), "{said}");
    let said = verdict(&case, |d| {
        let close = peek_f32(d, 712) + 1e-7;
        d.poke(Space::Arena, 712, &close.to_le_bytes());
    });
    assert_eq!(said, "", "within tolerance");
}

#[test]
fn a_padded_row_that_takes_part_is_reported() {
    // Whatever a device computes from the poison of a padded row is NaN.
    let said = verdict(&add_case(), |d| {
        let tainted = peek_f32(d, 712) + 0.0 * peek_f32(d, 64 + 3 * 64);
        d.poke(Space::Arena, 712, &tainted.to_le_bytes());
    });
    assert!(said.contains("Arena byte 712 is NaN"), "{said}");
}

#[test]
fn state_and_cache_are_guarded() {
    let case = cases(OpKind::Conv1dSilu).remove(1);
    // The half that the step reads, a guard of the half that it writes.
    let said = verdict(&case, |d| d.clear(BufferId(0), 64, 4));
    assert!(said.contains("Buffer(BufferId(0)) byte 64 changed"), "{said}");
    assert_eq!(case.before.states[0].len(), 2 * 3968, "4 taps of 320 channels");
    let said = verdict(&case, |d| d.clear(BufferId(0), 3968, 1));
    assert!(said.contains("Buffer(BufferId(0)) byte 3968 changed from 0xff"), "{said}");

    let case = cases(OpKind::KvWrite).remove(0);
    let said = verdict(&case, |d| d.clear(BufferId(0), 0, 1));
    assert!(said.contains("Buffer(BufferId(0)) byte 0 changed from 0xff"), "{said}");
}
