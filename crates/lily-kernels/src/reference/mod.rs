//! The reference executor: runs a finished plan with plain code in f64, checks every load and store against the op's
//! declared ranges, and counts the distinct bytes that each dispatch touches. Slow, and obviously right.

mod backend;
mod byte_set;
pub mod math;
mod memory;
mod run;
mod tensors;
#[cfg(test)]
mod tests;
pub mod weights;

pub use backend::ReferenceBackend;
pub(crate) use byte_set::Place;
pub use memory::Memory;
pub(crate) use memory::{POISON, Store};
pub(crate) use run::run_observed;
pub use run::{DispatchTouch, run_plan};
pub(crate) use tensors::KvRow;
