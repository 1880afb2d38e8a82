//! The GPU itself: buffers, kernels compiled from their sources, and command buffers that are run to their end.

use std::collections::HashMap;
use std::ffi::c_void;
use std::ptr::NonNull;

use super::api::*;
use crate::backend::DeviceError;
use crate::policy::SIMD;

type Object<P> = Retained<ProtocolObject<P>>;

/// What every kernel file begins with.
const PRELUDE: &str = include_str!("prelude.metal");

/// What comes before it where tensor operations are used.
const TENSOR_INCLUDES: &str = "#include <metal_stdlib>\n#include <metal_tensor>\n\
    #include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>\n";

/// The text of a library: files after the prelude, without includes of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Source(
    /// Name and Metal of each.
    pub &'static [(&'static str, &'static str)],
);

impl Source {
    /// Whether it uses tensor operations, which Metal has from language 4.0 on.
    pub fn has_tensors(self) -> bool {
        self.0.iter().any(|(_, text)| text.contains("tensor_ops"))
    }

    /// The oldest language that has all of it.
    fn language(self) -> MTLLanguageVersion {
        if self.has_tensors() { MTLLanguageVersion::Version4_0 } else { MTLLanguageVersion::Version3_1 }
    }

    /// The whole text.
    pub fn text(self) -> String {
        let includes = if self.has_tensors() { [("metal/tensor.metal", TENSOR_INCLUDES)].as_slice() } else { &[] };
        let prelude = ("metal/prelude.metal", PRELUDE);
        let files = includes.iter().copied().chain([prelude]).chain(self.0.iter().copied());
        files.map(|(name, text)| format!("#line 1 \"{name}\"\n{text}\n")).collect()
    }
}

/// Bytes that host and GPU share.
pub struct Buffer(Object<dyn MTLBuffer>);

// SAFETY: Metal allows buffers on any thread; their bytes are reached through the methods below, while no GPU work runs.
unsafe impl Send for Buffer {}

impl Buffer {
    /// Its length.
    pub fn len(&self) -> usize {
        self.0.length()
    }

    /// Copies bytes out. The GPU must not be writing them.
    pub fn read(&self, offset: usize, out: &mut [u8]) {
        assert!(offset + out.len() <= self.len(), "read past the end of a buffer");
        // SAFETY: in bounds of shared memory; `Gpu::run` returns when the GPU is done, and there is no other way to start it.
        unsafe {
            let from = self.0.contents().cast::<u8>().as_ptr().add(offset);
            std::ptr::copy_nonoverlapping(from, out.as_mut_ptr(), out.len());
        }
    }

    /// Copies bytes in. The GPU must not be using them.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.len(), "write past the end of a buffer");
        // SAFETY: as in `read`.
        unsafe {
            let to = self.0.contents().cast::<u8>().as_ptr().add(offset);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
    }

    /// Copies between buffers; the ranges of one buffer may overlap.
    pub fn copy(&self, offset: usize, from: &Self, from_offset: usize, bytes: usize) {
        assert!(offset + bytes <= self.len() && from_offset + bytes <= from.len(), "copy past the end of a buffer");
        // SAFETY: as in `read`, of both.
        unsafe {
            let source = from.0.contents().cast::<u8>().as_ptr().add(from_offset);
            let target = self.0.contents().cast::<u8>().as_ptr().add(offset);
            std::ptr::copy(source, target, bytes);
        }
    }
}

/// A range of a buffer, from its first byte on.
#[derive(Clone, Copy)]
pub struct Place<'a> {
    /// The buffer.
    pub buffer: &'a Buffer,
    /// First byte, a multiple of 4.
    pub offset: usize,
}

/// One kernel with everything it takes.
pub struct Launch<'a> {
    /// Where the kernel is from.
    pub source: Source,
    /// Its name.
    pub kernel: &'static str,
    /// Function constants 0, 1, …
    pub constants: &'a [u32],
    /// Buffers 0, 1, …
    pub buffers: &'a [Place<'a>],
    /// The structs that the kernel takes after them.
    pub arguments: &'a [Vec<u8>],
    /// Threadgroups.
    pub groups: [usize; 2],
    /// Threads of each.
    pub threads: usize,
}

/// A device.
pub struct Gpu {
    device: Object<dyn MTLDevice>,
    queue: Object<dyn MTLCommandQueue>,
    libraries: HashMap<Source, Object<dyn MTLLibrary>>,
    pipelines: HashMap<(Source, &'static str, Vec<u32>), Object<dyn MTLComputePipelineState>>,
}

/// The device failed.
fn failed(reason: impl Into<String>) -> DeviceError {
    DeviceError::Failed { device: "metal", reason: reason.into() }
}

impl Gpu {
    /// The system's GPU.
    ///
    /// # Errors
    /// There is none.
    pub fn open() -> Result<Self, DeviceError> {
        #[cfg(not(target_vendor = "apple"))]
        software_metal::library::ready().map_err(|e| failed(e.to_string()))?;
        let device = MTLCreateSystemDefaultDevice().ok_or_else(|| failed("this machine has no Metal device"))?;
        let queue = device.newCommandQueue().ok_or_else(|| failed("it has no command queue"))?;
        Ok(Self { device, queue, libraries: HashMap::new(), pipelines: HashMap::new() })
    }

    /// Its name.
    pub fn name(&self) -> String {
        self.device.name().to_string()
    }

    /// Bytes that it should have at once.
    pub fn working_set(&self) -> u64 {
        self.device.recommendedMaxWorkingSetSize()
    }

    /// A zeroed buffer of at least one byte. Tools show it by the name of what it holds.
    ///
    /// # Errors
    /// Memory ran out.
    pub fn buffer(&self, what: &'static str, bytes: usize) -> Result<Buffer, DeviceError> {
        let options = MTLResourceOptions::StorageModeShared | MTLResourceOptions::HazardTrackingModeUntracked;
        let buffer = self.device.newBufferWithLength_options(bytes.max(16), options);
        let buffer = buffer.ok_or(DeviceError::OutOfMemory { what, bytes })?;
        buffer.setLabel(Some(&NSString::from_str(what)));
        Ok(Buffer(buffer))
    }

    /// Compiles a kernel, once for each set of constants.
    ///
    /// # Errors
    /// Metal refuses it.
    fn pipeline(&mut self, launch: &Launch) -> Result<Object<dyn MTLComputePipelineState>, DeviceError> {
        let key = (launch.source, launch.kernel, launch.constants.to_vec());
        if let Some(known) = self.pipelines.get(&key) {
            return Ok(known.clone());
        }
        let refused = |e: Retained<NSError>| failed(format!("{}: {}", launch.kernel, e.localizedDescription()));
        if !self.libraries.contains_key(&launch.source) {
            let options = MTLCompileOptions::new();
            options.setLanguageVersion(launch.source.language());
            options.setMathMode(MTLMathMode::Safe);
            let text = NSString::from_str(&launch.source.text());
            let library = self.device.newLibraryWithSource_options_error(&text, Some(&options)).map_err(refused)?;
            self.libraries.insert(launch.source, library);
        }
        let values = MTLFunctionConstantValues::new();
        for (index, value) in launch.constants.iter().enumerate() {
            // SAFETY: points to a u32, which the type says.
            unsafe {
                values.setConstantValue_type_atIndex(NonNull::from(value).cast::<c_void>(), MTLDataType::UInt, index);
            }
        }
        let library = &self.libraries[&launch.source];
        let name = NSString::from_str(launch.kernel);
        let function = library.newFunctionWithName_constantValues_error(&name, &values).map_err(refused)?;
        let pipeline = self.device.newComputePipelineStateWithFunction_error(&function).map_err(refused)?;
        if pipeline.threadExecutionWidth() != SIMD {
            return Err(failed(format!("simdgroups of {} threads", pipeline.threadExecutionWidth())));
        }
        self.pipelines.insert(key, pipeline.clone());
        Ok(pipeline)
    }

    /// Runs the stages one after the other, the launches of a stage in any order; returns when all are done.
    ///
    /// # Errors
    /// A kernel does not compile, or the GPU reports an error.
    pub fn run(&mut self, stages: &[Vec<Launch>]) -> Result<(), DeviceError> {
        autoreleasepool(|_| {
            let commands = self.queue.commandBuffer().ok_or_else(|| failed("no command buffer"))?;
            let encoder = commands.computeCommandEncoderWithDispatchType(MTLDispatchType::Concurrent);
            let encoder = encoder.ok_or_else(|| failed("no encoder"))?;
            for (number, stage) in stages.iter().enumerate() {
                if number > 0 {
                    encoder.memoryBarrierWithScope(MTLBarrierScope::Buffers);
                }
                for launch in stage {
                    self.encode(&encoder, launch)?;
                }
            }
            encoder.endEncoding();
            commands.commit();
            commands.waitUntilCompleted();
            match commands.error() {
                Some(e) => Err(failed(e.localizedDescription().to_string())),
                None => Ok(()),
            }
        })
    }

    fn encode(
        &mut self,
        encoder: &ProtocolObject<dyn MTLComputeCommandEncoder>,
        launch: &Launch,
    ) -> Result<(), DeviceError> {
        let pipeline = self.pipeline(launch)?;
        if launch.threads > pipeline.maxTotalThreadsPerThreadgroup() {
            return Err(failed(format!(
                "{} takes threadgroups of fewer than {} threads",
                launch.kernel, launch.threads
            )));
        }
        encoder.setComputePipelineState(&pipeline);
        for (index, place) in launch.buffers.iter().enumerate() {
            // SAFETY: the kernel's buffer of this index; kernels stay inside what their op declares, which the check of
            // every case shows.
            unsafe { encoder.setBuffer_offset_atIndex(Some(&place.buffer.0), place.offset, index) };
        }
        for (bytes, index) in launch.arguments.iter().zip(launch.buffers.len()..) {
            let at = NonNull::from(&bytes[..]).cast::<c_void>();
            // SAFETY: points to so many bytes, which Metal copies.
            unsafe { encoder.setBytes_length_atIndex(at, bytes.len(), index) };
        }
        let size = |width, height| MTLSize { width, height, depth: 1 };
        let [width, height] = launch.groups;
        encoder.dispatchThreadgroups_threadsPerThreadgroup(size(width, height), size(launch.threads, 1));
        Ok(())
    }
}
