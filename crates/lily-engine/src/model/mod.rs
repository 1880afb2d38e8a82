//! The model: its config, its weights, where its state lives, and its mathematics, once.

pub mod config; // config.json, read and checked
pub mod memory; // recurrent state and KV cache of one sequence
pub mod qwen3_5; // the math, recorded into plans
pub mod weights; // tensors by Hugging Face name
