//! Ops, plans, devices. Knows no model and no requests.

pub mod mapped; // weight files in memory
pub mod tensor; // dtype, weight format, weight matrix
