//! Where kernels are built, and where what was built is kept: a folder beside the running program. Several processes may
//! build the same at once.

use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::{Hash, Hasher};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::library::BuildError;

/// The shim, as it stands beside this crate's sources.
pub const SHIM: &[(&str, &str)] = &[
    ("types.h", include_str!("../shim/types.h")),
    ("kernel.h", include_str!("../shim/kernel.h")),
    ("machine.h", include_str!("../shim/machine.h")),
    ("counting.h", include_str!("../shim/counting.h")),
    ("machine.cpp", include_str!("../shim/machine.cpp")),
    ("cuda.h", include_str!("../shim/cuda.h")),
    ("strict.h", include_str!("../shim/strict.h")),
    ("tensor.h", include_str!("../shim/tensor.h")),
    ("strict_tensor.h", include_str!("../shim/strict_tensor.h")),
    ("include/metal_tensor", include_str!("../shim/include/metal_tensor")),
    (
        "include/MetalPerformancePrimitives/MetalPerformancePrimitives.h",
        include_str!("../shim/include/MetalPerformancePrimitives/MetalPerformancePrimitives.h"),
    ),
    ("strict/metal_tensor", include_str!("../shim/strict/metal_tensor")),
    (
        "strict/MetalPerformancePrimitives/MetalPerformancePrimitives.h",
        include_str!("../shim/strict/MetalPerformancePrimitives/MetalPerformancePrimitives.h"),
    ),
    ("include/metal_stdlib", include_str!("../shim/include/metal_stdlib")),
    ("include/metal_simdgroup", include_str!("../shim/include/metal_simdgroup")),
    ("include/metal_simdgroup_matrix", include_str!("../shim/include/metal_simdgroup_matrix")),
    ("include/metal_atomic", include_str!("../shim/include/metal_atomic")),
    ("include/metal_math", include_str!("../shim/include/metal_math")),
    ("strict/metal_stdlib", include_str!("../shim/strict/metal_stdlib")),
    ("strict/metal_simdgroup", include_str!("../shim/strict/metal_simdgroup")),
    ("strict/metal_simdgroup_matrix", include_str!("../shim/strict/metal_simdgroup_matrix")),
    ("strict/metal_atomic", include_str!("../shim/strict/metal_atomic")),
    ("strict/metal_math", include_str!("../shim/strict/metal_math")),
    ("cuda/metal_stdlib", include_str!("../shim/cuda/metal_stdlib")),
    ("cuda/metal_simdgroup", include_str!("../shim/cuda/metal_simdgroup")),
    ("cuda/metal_simdgroup_matrix", include_str!("../shim/cuda/metal_simdgroup_matrix")),
    ("cuda/metal_atomic", include_str!("../shim/cuda/metal_atomic")),
    ("cuda/metal_math", include_str!("../shim/cuda/metal_math")),
];

/// Where builds are kept.
pub fn folder() -> Result<PathBuf, BuildError> {
    let program = std::env::current_exe().unwrap_or_default();
    let folder = program.parent().unwrap_or_else(|| Path::new(".")).join("software-metal");
    let made = fs::create_dir_all(&folder);
    made.map(|()| folder.clone()).map_err(|reason| BuildError::File { path: folder, reason })
}

/// The name of what is built from the shim and these texts and flags.
pub fn id(of: impl Hash) -> String {
    let mut hasher = DefaultHasher::new();
    (SHIM, of).hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

const SUM: usize = 8;

/// What a built file ends with: who loads it does not care, and a file that was cut short is found before it is mapped.
fn sum(bytes: &[u8]) -> [u8; SUM] {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish().to_le_bytes()
}

/// A whole built file, without its seal; none if there is none, or if it is not whole.
pub fn sealed(path: &Path) -> Option<Vec<u8>> {
    let mut bytes = fs::read(path).ok()?;
    let seal = bytes.split_off(bytes.len().checked_sub(SUM)?);
    (seal == sum(&bytes)).then_some(bytes)
}

/// A folder with the shim, to build in.
pub struct Work(pub PathBuf);

impl Work {
    pub fn new(folder: &Path, id: &str) -> Result<Self, BuildError> {
        static BUILDS: AtomicU32 = AtomicU32::new(0);
        let number = BUILDS.fetch_add(1, Ordering::Relaxed);
        let work = Self(folder.join(format!("{id}-{}-{number}", std::process::id())));
        let failed = |reason| work.failed(reason);
        ["shim/include/MetalPerformancePrimitives", "shim/cuda", "shim/strict/MetalPerformancePrimitives"]
            .iter()
            .try_for_each(|part| fs::create_dir_all(work.0.join(part)))
            .map_err(failed)?;
        for (name, text) in SHIM {
            fs::write(work.0.join("shim").join(name), text).map_err(failed)?;
        }
        Ok(work)
    }

    pub fn failed(&self, reason: io::Error) -> BuildError {
        BuildError::File { path: self.0.clone(), reason }
    }

    /// Seals the result and moves it to its place, once all of it is on the disk.
    pub fn finish(&self, result: &str, to: &Path) -> Result<(), BuildError> {
        let result = self.0.join(result);
        let seal = || {
            let sum = sum(&fs::read(&result)?);
            let mut file = fs::File::options().append(true).open(&result)?;
            file.write_all(&sum)?;
            file.sync_all()?;
            fs::rename(&result, to)
        };
        seal().map_err(|reason| self.failed(reason))
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        // What cannot be removed does no harm.
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_was_cut_short_or_written_to_is_not_sealed() {
        let path = folder().expect("a folder").join("sealed");
        assert!(sealed(&path).is_none());
        let work = Work::new(&folder().expect("a folder"), "test").expect("a folder");
        fs::write(work.0.join("result"), [7; 1000]).expect("written");
        work.finish("result", &path).expect("sealed");
        assert_eq!(sealed(&path), Some(vec![7; 1000]));
        let whole = fs::read(&path).expect("read");
        for damaged in [&whole[..900], &whole[..3], &[&whole[..500], &[8], &whole[501..]].concat()] {
            fs::write(&path, damaged).expect("written");
            assert!(sealed(&path).is_none());
        }
        fs::remove_file(&path).expect("removed");
    }
}
