//! A Metal device in software, for machines that have none: the very text of the Metal kernels, compiled as C++ and run
//! thread by thread. It says nothing about speed, and nothing about Apple's compiler.
//! text → `translate` → `library` (compiled, run, checked); `strict` (types and address spaces); host → `metal` (Apple's names) → `commands` → `library`

mod commands;
pub mod counts;
pub mod library;
pub mod metal;
mod mode;
pub mod strict;
pub mod translate;

pub use counts::{count, take_counts};
pub use mode::{Mode, leave_out_barriers, mode, set_mode};
