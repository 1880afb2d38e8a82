//! Opening models: real ones, configs alone, and damaged files.

mod models;
mod support;
