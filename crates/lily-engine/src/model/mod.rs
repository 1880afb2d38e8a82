//! The model.

pub mod config; // config.json, read and checked
