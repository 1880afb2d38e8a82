//! Kernels on an NVIDIA card: the same text compiled as CUDA C++, a threadgroup as a block and a simdgroup as a warp. It
//! shows that kernels compute the right numbers at sizes that the executor is too slow for; it looks at no access, and
//! says nothing about Apple's GPUs and their speed.

mod driver;

use std::ffi::{CString, c_void};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

use self::driver::{Driver, Module};
use crate::library::{BuildError, Launch};
use crate::translate::{Translation, translate};
use crate::work::{self, Work};

/// Where nvcc is looked for, in this order.
const COMPILERS: &[&str] = &["nvcc", "/usr/local/cuda/bin/nvcc"];

/// Products and sums are rounded one by one, as the references and the executor do it.
const FLAGS: &[&str] = &["-std=c++20", "-arch=sm_90", "-O3", "-fmad=false", "--expt-relaxed-constexpr", "-Ishim/cuda"];

/// The card's name, if this mode is chosen and there is one.
pub fn card() -> Option<String> {
    let chosen = crate::mode() == crate::Mode::Nvidia;
    if chosen { Driver::get().ok().map(|driver| driver.name.clone()) } else { None }
}

/// Whether kernels can be compiled here, card or not.
pub fn is_possible() -> bool {
    COMPILERS.iter().any(|compiler| Command::new(compiler).arg("--version").output().is_ok())
}

/// Whether there is a card. A missing compiler is told when something has to be compiled.
pub(crate) fn ready() -> Result<(), BuildError> {
    Driver::get().map(|_| ()).map_err(BuildError::Driver)
}

/// Compiles a source, unless an earlier process did.
///
/// # Errors
/// The source is wrong, or there is no nvcc.
pub fn compile(name: &str, source: &str) -> Result<(), BuildError> {
    built(&translate(name, source)?).map(|_| ())
}

/// The machine code of a translated source.
fn built(translation: &Translation) -> Result<Vec<u8>, BuildError> {
    let folder = work::folder()?;
    let id = work::id((&translation.text, FLAGS));
    let path = folder.join(format!("{id}.cubin"));
    if let Some(code) = work::sealed(&path) {
        return Ok(code);
    }
    let work = Work::new(&folder, &id)?;
    fs::write(work.0.join("kernels.cu"), &translation.text).map_err(|reason| work.failed(reason))?;
    nvcc(&work)?;
    work.finish("kernels.cubin", &path)?;
    let lost = |path: PathBuf| BuildError::File { path, reason: io::ErrorKind::UnexpectedEof.into() };
    work::sealed(&path).ok_or_else(|| lost(path))
}

fn nvcc(work: &Work) -> Result<(), BuildError> {
    let arguments = ["-cubin", "-o", "kernels.cubin", "kernels.cu"];
    for compiler in COMPILERS {
        let output = match Command::new(compiler).current_dir(&work.0).args(FLAGS).args(arguments).output() {
            Ok(output) => output,
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            Err(reason) => return Err(BuildError::File { path: Path::new(compiler).to_owned(), reason }),
        };
        let text = || [output.stdout.as_slice(), &output.stderr].concat();
        return match output.status.success() {
            true => Ok(()),
            false => Err(BuildError::Compiler { compiler, text: String::from_utf8_lossy(&text()).into_owned() }),
        };
    }
    Err(BuildError::NoCompiler(COMPILERS))
}

/// Memory of the host that the card uses at the same address; zeroes.
pub(crate) fn allocate(bytes: usize) -> Result<NonNull<u8>, String> {
    Driver::get()?.allocate(bytes)
}

/// # Safety
/// `start` is from `allocate`, and nobody uses it any more.
pub(crate) unsafe fn free(start: NonNull<u8>) {
    if let Ok(driver) = Driver::get() {
        // SAFETY: the caller's.
        unsafe { driver.free(start) };
    }
}

/// `metal::Arguments` of `cuda.h`.
#[repr(C)]
struct Arguments {
    buffers: [*mut c_void; 31],
    memories: [u32; 31],
}

/// Bytes that `setBytes` may bind at an index.
const MOST_BYTES: usize = 4096;

/// Kernels, loaded on the card.
pub struct Kernels {
    driver: &'static Driver,
    module: Module,
    /// Names for the host; their places are the shim's numbers.
    names: Vec<String>,
    constants: Vec<(usize, CString)>,
}

/// Function constants and copied bytes belong to one launch at a time; so does the blame for an error.
static LAUNCH: Mutex<()> = Mutex::new(());

impl Kernels {
    /// Builds a translated source and loads it.
    pub fn build(translation: &Translation) -> Result<Self, BuildError> {
        let driver = Driver::get().map_err(BuildError::Driver)?;
        let module = driver.load(&built(translation)?).map_err(BuildError::Driver)?;
        let names = translation.kernels.iter().map(|(name, _)| name.clone()).collect();
        let constant = |(index, name): &(usize, String)| Some((*index, CString::new(name.as_str()).ok()?));
        Ok(Self { driver, module, names, constants: translation.constants.iter().filter_map(constant).collect() })
    }

    /// Runs one dispatch to its end.
    ///
    /// # Safety
    /// As for `Library::launch`.
    pub unsafe fn launch(&self, launch: &Launch) -> Result<(), String> {
        let number = self.names.iter().position(|name| name == launch.kernel).ok_or("there is no such kernel")?;
        let name = CString::new(format!("msl_kernel_{number}")).map_err(|e| e.to_string())?;
        let driver = self.driver;
        let _one = LAUNCH.lock().unwrap_or_else(PoisonError::into_inner);
        let function = driver.function(&self.module, &name)?;
        for (index, value) in launch.constants {
            if let Some((_, name)) = self.constants.iter().find(|(i, _)| i == index) {
                driver.set_global(&self.module, name, value)?;
            }
        }
        let mut arguments = Arguments { buffers: [std::ptr::null_mut(); 31], memories: [0; 31] };
        for binding in launch.bindings {
            let at = if binding.writable {
                binding.at
            } else {
                // The card cannot see where the host keeps these.
                assert!(binding.bytes <= MOST_BYTES, "bound bytes are at most {MOST_BYTES}");
                // SAFETY: the scratch memory has so many bytes for each index, which is below 31, and nothing that runs
                // uses it; the binding's bytes can be read by the caller's promise.
                unsafe {
                    let to = driver.scratch()?.as_ptr().add(binding.index * MOST_BYTES);
                    std::ptr::copy_nonoverlapping(binding.at, to, binding.bytes);
                    to
                }
            };
            arguments.buffers[binding.index] = at.cast();
        }
        let mut shared = 0;
        for (index, bytes) in launch.memories {
            arguments.memories[*index] = shared;
            shared += bytes.next_multiple_of(16) as u32;
        }
        // SAFETY: the kernel takes this struct; what its pointers point to the card can use, by the caller's promise.
        unsafe { driver.launch(function, (launch.groups, launch.threads), shared, (&raw mut arguments).cast()) }
    }
}

impl Drop for Kernels {
    fn drop(&mut self) {
        self.driver.unload(&self.module);
    }
}
