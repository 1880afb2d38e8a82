//! A Metal device in software, for machines that have none: the very text of the Metal kernels, compiled as C++ and run
//! thread by thread. It says nothing about speed, and nothing about Apple's compiler.
//! text → `translate` → `library` → `software` (compiled as C++, run, checked) or `nvidia` (compiled as CUDA C++, run);
//! text → `strict` (types and address spaces); host → `metal` (Apple's names) → `commands` → `library`

mod commands;
pub mod counts;
pub mod library;
mod machine;
pub mod metal;
mod mode;
pub mod nvidia;
mod queue;
mod software;
pub mod strict;
pub mod translate;
mod work;

pub use counts::{count, take_counts};
pub use machine::{Machine, machine, set_machine};
pub use mode::{Mode, leave_out_barriers, mode, set_mode};
pub use queue::{HostCounts, host_counts};
