//! The devices of this build, by name. Whoever opens one needs to know no more of it.

use crate::backend::{Backend, DeviceError};
use crate::cpu::CpuBackend;

/// Names that `open` knows; the first is the default.
pub const NAMES: &[&str] = &[
    "cpu",
    #[cfg(target_vendor = "apple")]
    "metal",
    #[cfg(all(feature = "software-metal", not(target_vendor = "apple")))]
    "software-metal",
];

/// Opens a device; `threads` are for one that runs on the processor.
///
/// # Errors
/// There is no such device in this build, or the machine lacks it.
pub fn open(name: &str, threads: Option<usize>) -> Result<Box<dyn Backend>, DeviceError> {
    match name {
        "cpu" => Ok(Box::new(CpuBackend::new(threads)?)),
        #[cfg(any(target_vendor = "apple", feature = "software-metal"))]
        "metal" | "software-metal" if NAMES.contains(&name) => Ok(Box::new(crate::metal::MetalBackend::new()?)),
        _ => Err(DeviceError::Unknown { name: name.to_owned(), names: NAMES.join(", ") }),
    }
}
