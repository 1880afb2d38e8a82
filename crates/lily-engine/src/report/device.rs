//! What a device has and lacks, and which optimisations it takes.

use std::fmt::Write as _;

use lily_kernels::devices;
use lily_kernels::switches::SWITCHES;

use crate::error::EngineError;

/// Text of `lily inspect --device`.
///
/// # Errors
/// The device cannot be opened.
pub fn device(name: &str) -> Result<String, EngineError> {
    let mut backend = devices::open(name, None)?;
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(out, "device            {}", backend.describe());
    let _ = writeln!(out, "fast precision    {}", format!("{:?}", backend.kind().fast()).to_lowercase());
    if let Some(bytes) = backend.available_bytes() {
        let _ = writeln!(out, "memory            {} may be used", crate::budget::Bytes(bytes));
    }
    for row in backend.features() {
        let _ = writeln!(out, "{:<34} {:<4} {}", row.name, if row.available { "yes" } else { "no" }, row.why);
    }
    out.push_str("\noptimisations, on unless they are turned off\n");
    for switch in SWITCHES.iter().filter(|switch| switch.is_of(backend.kind())) {
        let _ = writeln!(out, "{:<18} {}", switch.name, switch.doc);
    }
    if !backend.runs_ahead() {
        out.push_str("it answers when a step is done, so no step is submitted ahead of the last one's token\n");
    }
    Ok(out)
}
