//! The names that a host can do without: residency sets, archives of pipelines, and what they need of Foundation.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use super::{
    MTLBuffer, MTLFunction, NSError, NSString, Object, Object1, ProtocolObject, Retained, numbers, object,
    other_protocol,
};
use crate::commands::{Memory, Pipeline};
use crate::queue::locked;

/// Bytes of a page on the machines that this runs on.
pub const PAGE: usize = 4096;

/// The system's version.
pub fn system_version() -> (u32, u32) {
    crate::machine::machine().system
}

numbers! {
    /// Families of GPUs.
    MTLGPUFamily(isize) { Apple1 = 1001, Apple7 = 1007, Apple8 = 1008, Apple9 = 1009, Apple10 = 1010, Metal4 = 5002 }
    /// How a pipeline is made.
    MTLPipelineOption(usize) { FailOnBinaryArchiveMiss = 1 << 2 }
}

/// A list.
pub struct NSArray<T>(Vec<Retained<T>>);
impl<T> NSArray<T> {
    /// Of these.
    pub fn from_retained_slice(slice: &[Retained<T>]) -> Retained<Self> {
        Retained::new(Self(slice.to_vec()))
    }
}

/// A place of a file.
pub struct NSURL(PathBuf);
impl NSURL {
    /// Of this path.
    pub fn fileURLWithPath(path: &NSString) -> Retained<Self> {
        Retained::new(Self(path.0.clone().into()))
    }
}

/// What residency sets hold.
pub trait MTLAllocation {}

/// Buffers of a residency set, and how many there were at its last commit.
#[derive(Default)]
pub struct Residents {
    buffers: Vec<Arc<Memory>>,
    committed: usize,
}

/// How a set is made.
pub struct MTLResidencySetDescriptor(());
impl MTLResidencySetDescriptor {
    /// The defaults.
    pub fn new() -> Retained<Self> {
        Retained::new(Self(()))
    }
}

/// Buffers that are kept resident.
#[allow(missing_docs, reason = "Apple's names")]
pub trait MTLResidencySet {
    fn addAllocation(&self, allocation: &ProtocolObject<dyn MTLAllocation>);
    fn removeAllocation(&self, allocation: &ProtocolObject<dyn MTLAllocation>);
    fn commit(&self);
    fn requestResidency(&self);
    fn allocationCount(&self) -> usize;
}
impl ProtocolObject<dyn MTLResidencySet> {
    fn residents(&self) -> std::sync::MutexGuard<'_, Residents> {
        let Object::Residents(residents) = &self.0 else { other_protocol() };
        locked(residents)
    }
}
fn memory(allocation: &ProtocolObject<dyn MTLAllocation>) -> &Arc<Memory> {
    let Object::Buffer(memory) = &allocation.0 else { other_protocol() };
    memory
}
impl MTLResidencySet for ProtocolObject<dyn MTLResidencySet> {
    fn addAllocation(&self, allocation: &ProtocolObject<dyn MTLAllocation>) {
        self.residents().buffers.push(Arc::clone(memory(allocation)));
    }
    fn removeAllocation(&self, allocation: &ProtocolObject<dyn MTLAllocation>) {
        let gone = memory(allocation);
        self.residents().buffers.retain(|memory| !Arc::ptr_eq(memory, gone));
    }
    fn commit(&self) {
        let mut residents = self.residents();
        residents.committed = residents.buffers.len();
    }
    fn requestResidency(&self) {}
    fn allocationCount(&self) -> usize {
        self.residents().committed
    }
}

/// Kernels of an archive, by name and constants.
pub type Archive = Arc<Mutex<Vec<String>>>;

/// What an archive's file begins with.
const HEAD: &str = "kernels of a Metal device in software";

fn name_of(pipeline: &Pipeline) -> String {
    format!("{} {:?}", pipeline.kernel, pipeline.constants)
}

/// Where an archive comes from.
pub struct MTLBinaryArchiveDescriptor(Mutex<Option<PathBuf>>);
impl MTLBinaryArchiveDescriptor {
    /// From nowhere.
    pub fn new() -> Retained<Self> {
        Retained::new(Self(Mutex::default()))
    }
    /// From a file.
    pub fn setUrl(&self, url: Option<&NSURL>) {
        *locked(&self.0) = url.map(|url| url.0.clone());
    }
    /// The archive.
    pub(super) fn open(&self) -> Result<Archive, String> {
        let Some(path) = locked(&self.0).clone() else { return Ok(Archive::default()) };
        let text = std::fs::read_to_string(path).map_err(|e| e.to_string())?;
        match text.strip_prefix(HEAD) {
            Some(names) => Ok(Arc::new(Mutex::new(names.trim_start().lines().map(str::to_owned).collect()))),
            None => Err("the file is no archive".into()),
        }
    }
}

/// Compiled kernels in a file.
#[allow(missing_docs, reason = "Apple's names")]
pub trait MTLBinaryArchive {
    fn addComputePipelineFunctionsWithDescriptor_error(
        &self,
        descriptor: &MTLComputePipelineDescriptor,
    ) -> Result<(), Retained<NSError>>;
    fn serializeToURL_error(&self, url: &NSURL) -> Result<(), Retained<NSError>>;
}
impl ProtocolObject<dyn MTLBinaryArchive> {
    fn names(&self) -> std::sync::MutexGuard<'_, Vec<String>> {
        let Object::Archive(archive) = &self.0 else { other_protocol() };
        locked(archive)
    }
}
impl MTLBinaryArchive for ProtocolObject<dyn MTLBinaryArchive> {
    fn addComputePipelineFunctionsWithDescriptor_error(
        &self,
        descriptor: &MTLComputePipelineDescriptor,
    ) -> Result<(), Retained<NSError>> {
        let pipeline = descriptor.pipeline().ok_or_else(|| Retained::new(NSError("no function".into())))?;
        self.names().push(name_of(&pipeline));
        Ok(())
    }
    fn serializeToURL_error(&self, url: &NSURL) -> Result<(), Retained<NSError>> {
        let text = format!("{HEAD}\n{}\n", self.names().join("\n"));
        std::fs::write(&url.0, text).map_err(|e| Retained::new(NSError(e.to_string())))
    }
}

/// How a pipeline is made.
#[derive(Default)]
pub struct MTLComputePipelineDescriptor {
    function: Mutex<Option<Pipeline>>,
    archives: Mutex<Vec<Object1<dyn MTLBinaryArchive>>>,
}
impl MTLComputePipelineDescriptor {
    /// Of nothing.
    pub fn new() -> Retained<Self> {
        Retained::new(Self::default())
    }
    /// Of a function.
    pub fn setComputeFunction(&self, function: Option<&ProtocolObject<dyn MTLFunction>>) {
        *locked(&self.function) = function.map(|function| {
            let Object::Function(pipeline) = &function.0 else { other_protocol() };
            pipeline.clone()
        });
    }
    /// Looked up in these.
    pub fn setBinaryArchives(&self, archives: Option<&NSArray<ProtocolObject<dyn MTLBinaryArchive>>>) {
        *locked(&self.archives) = archives.map(|archives| archives.0.clone()).unwrap_or_default();
    }
    pub(super) fn pipeline(&self) -> Option<Pipeline> {
        locked(&self.function).clone()
    }
    /// Whether an archive has it.
    pub(super) fn is_archived(&self) -> bool {
        let Some(pipeline) = self.pipeline() else { return false };
        locked(&self.archives).iter().any(|archive| archive.names().contains(&name_of(&pipeline)))
    }
}

/// A buffer over the host's memory.
pub(super) fn of_host(memory: Memory) -> Object1<dyn MTLBuffer> {
    object(Object::Buffer(Arc::new(memory)))
}
