//! The CPU device.

pub mod columns; // columns of a matrix that one task may write
