//! The CPU device.

pub mod columns; // columns of a matrix that one task may write
pub mod isa; // instruction sets
pub mod lanes; // sixteen f32 lanes, the unit of every kernel
