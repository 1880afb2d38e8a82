//! What a model is and what it would do, as text for people, without running it; and what a
//! device makes of its kernels.

mod device;
mod inspect;
mod plan;
mod selftest;

pub use device::device;
pub use inspect::{InspectQuery, inspect};
pub use plan::{PlanQuery, plan};
pub use selftest::{KernelReport, check_kernels};
