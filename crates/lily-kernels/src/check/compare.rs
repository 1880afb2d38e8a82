//! Compares all memory after a step with the reference's.

use super::Report;
use super::case::{Case, Expected, Image};
use crate::backend::BufferId;
use crate::op::Access;
use crate::reference::{Place, Store, math};
use crate::tensor::DType;

/// Written elements within tolerance; all other bytes as they were before.
pub(super) fn compare(case: &Case, expected: &Expected, got: &Image) -> Result<Report, String> {
    check_untouched(case, expected, got)?;
    let outputs = case.plan.dispatches[0].op.contract().writes();
    let mut report = Report { elements: 0, worst: 0.0, cost: expected.touch.declared };
    for output in &outputs {
        let stores: Vec<&Store> = expected.stores.iter().filter(|s| s.declared.overlaps(output)).collect();
        let (elements, worst) = compare_output(case, output, &stores, (&expected.after, got))?;
        report.elements += elements;
        report.worst = report.worst.max(worst);
    }
    Ok(report)
}

/// The bytes of an image that a place stands for.
fn part<'a>(case: &Case, image: &'a Image, place: Place) -> &'a [u8] {
    match place {
        Place::Arena => &image.arena,
        Place::Slot(slot) => &image.slots[slot],
        Place::Logits => &image.logits,
        Place::Buffer(id) if id == case.kv_buffer() => &image.kv,
        Place::Buffer(id) => &image.states[id.0 as usize],
        Place::Temp(_) | Place::Constants | Place::Weights(_) => {
            unreachable!("{place:?} is never stored to as an output")
        }
    }
}

/// Every place of an image.
fn places(case: &Case) -> Vec<Place> {
    let mut places = vec![Place::Arena, Place::Slot(0), Place::Slot(1), Place::Logits];
    places.extend((0..=case.before.states.len()).map(|i| Place::Buffer(BufferId(i as u32))));
    places
}

fn check_untouched(case: &Case, expected: &Expected, got: &Image) -> Result<(), String> {
    for place in places(case) {
        let (before, after) = (part(case, &case.before, place), part(case, got, place));
        let mut written = vec![false; before.len()];
        for store in expected.stores.iter().filter(|s| s.place == place) {
            written[store.start..store.start + store.declared.bytes].fill(true);
        }
        let changed = (0..before.len()).find(|&i| !written[i] && before[i] != after[i]);
        if let Some(i) = changed {
            return Err(format!(
                "{place:?} byte {i} changed from {:#04x} to {:#04x}, and the op does not write it",
                before[i], after[i]
            ));
        }
    }
    Ok(())
}

/// One element of an output.
struct Element {
    at: String,
    want: f64,
    got: f64,
    /// What the storage type alone may add to the error.
    rounding: f64,
}

fn elements(case: &Case, store: &Store, images: (&Image, &Image)) -> Vec<Element> {
    let range = store.start..store.start + store.declared.bytes;
    let values = |image| numbers(store.dtype, &part(case, image, store.place)[range.clone()]);
    let pairs = values(images.0).into_iter().zip(values(images.1));
    let place = store.place;
    let element = |(i, (want, got)): (usize, (f64, f64))| Element {
        at: format!("{place:?} byte {}", store.start + i * store.dtype.bytes()),
        want,
        got,
        rounding: rounding(store.dtype) * want.abs(),
    };
    pairs.enumerate().map(element).collect()
}

fn numbers(dtype: DType, bytes: &[u8]) -> Vec<f64> {
    match dtype {
        DType::F32 | DType::Bf16 | DType::F16 => math::decode(dtype, bytes),
        DType::U32 => bytes.as_chunks().0.iter().map(|b| f64::from(u32::from_le_bytes(*b))).collect(),
        DType::I32 => bytes.as_chunks().0.iter().map(|b| f64::from(i32::from_le_bytes(*b))).collect(),
        DType::I8 => bytes.iter().map(|b| f64::from(i8::from_le_bytes([*b]))).collect(),
        DType::U8 => bytes.iter().map(|b| f64::from(*b)).collect(),
    }
}

/// Two values that differ in their last f32 bit may round to neighbours of a narrow type: this apart, relatively.
const fn rounding(dtype: DType) -> f64 {
    match dtype {
        DType::Bf16 => 1.0 / 128.0,
        DType::F16 => 1.0 / 1024.0,
        DType::F32 | DType::U32 | DType::I32 | DType::I8 | DType::U8 => 0.0,
    }
}

const fn is_float(dtype: DType) -> bool {
    match dtype {
        DType::F32 | DType::Bf16 | DType::F16 => true,
        DType::U32 | DType::I32 | DType::I8 | DType::U8 => false,
    }
}

/// Elements compared, and the largest error.
fn compare_output(
    case: &Case,
    output: &Access,
    stores: &[&Store],
    images: (&Image, &Image),
) -> Result<(usize, f64), String> {
    let all: Vec<Element> = stores.iter().flat_map(|s| elements(case, s, images)).collect();
    let exact = case.tolerance == 0.0 || stores.iter().any(|s| !is_float(s.dtype));
    let tolerance = if exact { 0.0 } else { case.tolerance };
    let rms = (all.iter().map(|e| e.want * e.want).sum::<f64>() / all.len().max(1) as f64).sqrt();
    let mut worst = 0.0f64;
    for e in &all {
        let rounding = if exact { 0.0 } else { e.rounding };
        let error = (e.want - e.got).abs() - rounding;
        // NaN is no error below the tolerance, so it fails.
        let passes = error <= tolerance * rms;
        if !passes {
            return Err(format!(
                "output {:?} from {}: {} is {}, expected {}; error {:.2e} of the RMS, tolerance {:.0e}",
                output.space,
                output.offset,
                e.at,
                e.got,
                e.want,
                error / rms,
                tolerance
            ));
        }
        if error > 0.0 {
            worst = worst.max(error / rms);
        }
    }
    Ok((all.len(), worst))
}
