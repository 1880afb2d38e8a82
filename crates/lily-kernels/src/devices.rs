//! The devices, by name. Whoever opens one needs to know no more of it.

use crate::backend::{Backend, DeviceError};
use crate::cpu::CpuBackend;
use crate::plan::Precision;

/// What plans need to know of a device: which optimisations it has, and its number formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum DeviceKind {
    /// Threads that share a cache: a dispatch costs little, and matmuls take int8 activations.
    #[default]
    Cpu,
    /// A GPU behind Metal: each dispatch and each barrier costs, and activations are f32.
    Metal,
}

impl DeviceKind {
    /// Each with its name; plans can be described for all of them in any build.
    pub const ALL: &'static [(&'static str, Self)] = &[("cpu", Self::Cpu), ("metal", Self::Metal)];

    /// The kind of a device of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(n, _)| *n == name).map(|(_, kind)| *kind)
    }

    /// What `Precision::Fast` is on it.
    pub const fn fast(self) -> Precision {
        match self {
            Self::Cpu => Precision::Fast,
            Self::Metal => Precision::Half,
        }
    }
}

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
