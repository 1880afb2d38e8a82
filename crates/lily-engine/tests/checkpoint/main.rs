//! Opening models: real ones, configs alone, small ones built here, and damaged ones.
#![allow(clippy::unwrap_used, reason = "all of this is test code")]

mod configs;
mod damaged;
mod everything;
mod models;
mod never_panics;
mod small;
#[path = "../support/mod.rs"]
mod support;
