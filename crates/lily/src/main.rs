//! The lily binary.
fn main() {}
