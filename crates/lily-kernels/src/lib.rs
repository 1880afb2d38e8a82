//! Ops, plans, devices. Knows no model and no requests.

pub mod backend; // what a device offers
pub mod check; // the cases that check and bench share, and the check
pub mod cpu; // the CPU device
pub mod devices; // the devices of this build, by name
pub mod inputs; // what changes from step to step
pub mod mapped; // weight files in memory
#[cfg(any(target_vendor = "apple", feature = "software-metal"))]
pub mod metal; // the Metal device
pub mod op; // the closed list of ops and their contract
pub mod ops; // one folder an op
pub mod plan; // a step as data
pub mod policy; // what a dispatch becomes on a GPU
pub mod reference; // plain executor that checks and counts every access
mod slots; // buffers and plans by number
pub mod switches; // every ablation switch
pub mod tensor; // dtype, weight format, operands
