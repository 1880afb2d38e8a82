//! The GPU itself: buffers, kernels compiled from their sources, and command buffers, of which two may be in flight.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::ptr::NonNull;

use super::api::*;
use super::features::Features;
use super::pipelines::Pipelines;
use crate::backend::{DeviceError, Feature};

/// One of Metal's objects.
pub type Object<P> = Retained<ProtocolObject<P>>;

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

// SAFETY: Metal allows buffers on any thread; their bytes are reached through the methods below, while no GPU work uses
// them.
unsafe impl Send for Buffer {}

impl Buffer {
    /// Its length.
    pub fn len(&self) -> usize {
        self.0.length()
    }

    /// Copies bytes out. The GPU must not be writing them.
    pub fn read(&self, offset: usize, out: &mut [u8]) {
        assert!(offset + out.len() <= self.len(), "read past the end of a buffer");
        // SAFETY: in bounds of shared memory, and the caller's word on the GPU, which the device in software looks after.
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

/// Shared with the host, and ordered by the host's own barriers and events.
const OPTIONS: MTLResourceOptions =
    MTLResourceOptions(MTLResourceOptions::StorageModeShared.0 | MTLResourceOptions::HazardTrackingModeUntracked.0);

/// Steps that were submitted and not waited for, at most.
const IN_FLIGHT: usize = 2;

/// A step that the GPU has been given.
struct Flight {
    number: u64,
    commands: Object<dyn MTLCommandBuffer>,
}

/// Buffers that stay in memory.
struct Resident(Object<dyn MTLResidencySet>);

// SAFETY: Metal asks only that one thread at a time changes a set, and `Gpu` is not `Sync`.
unsafe impl Send for Resident {}

// SAFETY: a command buffer that was committed is only waited for and asked, by one thread at a time: `Gpu` is not `Sync`.
unsafe impl Send for Flight {}

/// A device.
pub struct Gpu {
    device: Object<dyn MTLDevice>,
    queue: Object<dyn MTLCommandQueue>,
    /// The number of the last step that is done. Buffers are not tracked, so each step waits for the one before.
    done: Object<dyn MTLSharedEvent>,
    submitted: u64,
    flights: VecDeque<Flight>,
    /// A step that failed, and nobody was told of it yet.
    failed: Option<(u64, String)>,
    /// How long the last steps took.
    seconds: VecDeque<(u64, f64)>,
    /// Kernels.
    pub pipelines: Pipelines,
    /// What the machine can do.
    pub features: Features,
    /// Everything that steps use, kept in memory between them; `None` where the system has no such sets.
    resident: Option<Resident>,
    /// Something came or went since the set was committed.
    resident_changed: bool,
}

/// The device failed.
pub fn failed(reason: impl Into<String>) -> DeviceError {
    DeviceError::Failed { device: "metal", reason: reason.into() }
}

impl Gpu {
    /// The system's GPU.
    ///
    /// # Errors
    /// There is none.
    pub fn open() -> Result<Self, DeviceError> {
        #[cfg(not(target_vendor = "apple"))]
        software_metal::library::ready(software_metal::mode()).map_err(|e| failed(e.to_string()))?;
        let device = MTLCreateSystemDefaultDevice().ok_or_else(|| failed("this machine has no Metal device"))?;
        let queue = device.newCommandQueue().ok_or_else(|| failed("it has no command queue"))?;
        let features = Features::of(device.clone())?;
        let pipelines = Pipelines::new(device.clone(), features.language());
        let resident = residency_set(&device).inspect(|set| queue.addResidencySet(&set.0));
        let done = device.newSharedEvent().ok_or_else(|| failed("it has no shared event"))?;
        Ok(Self {
            device,
            queue,
            done,
            submitted: 0,
            flights: VecDeque::with_capacity(IN_FLIGHT),
            failed: None,
            seconds: VecDeque::with_capacity(2 * IN_FLIGHT),
            pipelines,
            features,
            resident,
            resident_changed: false,
        })
    }

    /// Its name.
    pub fn name(&self) -> String {
        self.device.name().to_string()
    }

    /// Names of the kernels that were compiled, some twice.
    pub fn kernels(&self) -> impl Iterator<Item = &'static str> {
        self.pipelines.kernels()
    }

    /// Bytes that it may still take.
    pub fn available(&self) -> u64 {
        self.device.recommendedMaxWorkingSetSize().saturating_sub(self.device.currentAllocatedSize() as u64)
    }

    /// Bytes of the longest buffer.
    pub fn longest(&self) -> usize {
        self.device.maxBufferLength()
    }

    /// A zeroed buffer of at least one byte. Tools show it by the name of what it holds.
    ///
    /// # Errors
    /// Memory ran out.
    pub fn buffer(&mut self, what: &'static str, bytes: usize) -> Result<Buffer, DeviceError> {
        let buffer = self.device.newBufferWithLength_options(bytes.max(16), OPTIONS);
        let buffer = buffer.ok_or(DeviceError::OutOfMemory { what, bytes })?;
        buffer.setLabel(Some(&NSString::from_str(what)));
        Ok(self.keep(buffer))
    }

    /// A file's bytes where they are mapped; `None` if Metal does not take them there.
    ///
    /// # Safety
    /// The bytes, and what follows them to the end of their last page, stay mapped for as long as the buffer is.
    pub unsafe fn in_place(&mut self, bytes: &[u8]) -> Option<Buffer> {
        if !bytes.as_ptr().addr().is_multiple_of(PAGE) || bytes.is_empty() {
            return None;
        }
        let start = NonNull::from(bytes).cast::<c_void>();
        let length = bytes.len().next_multiple_of(PAGE);
        // SAFETY: whole pages, which the caller keeps mapped. Kernels do not write what they take as weights.
        let buffer =
            unsafe { self.device.newBufferWithBytesNoCopy_length_options_deallocator(start, length, OPTIONS, None) };
        let buffer = buffer?;
        buffer.setLabel(Some(&NSString::from_str("a weight file")));
        Some(self.keep(buffer))
    }

    fn keep(&mut self, buffer: Object<dyn MTLBuffer>) -> Buffer {
        if let Some(set) = &self.resident {
            set.0.addAllocation(ProtocolObject::from_ref(&*buffer));
            self.resident_changed = true;
        }
        Buffer(buffer)
    }

    /// Gives a buffer back, when the steps in flight are done with it.
    pub fn release(&mut self, buffer: &Buffer) {
        if let Some(set) = &self.resident {
            set.0.removeAllocation(ProtocolObject::from_ref(&*buffer.0));
            self.resident_changed = true;
        }
    }

    /// A step's buffers are those of the set as it was at the commit.
    fn settle_residency(&mut self) {
        if std::mem::take(&mut self.resident_changed)
            && let Some(set) = &self.resident
        {
            set.0.commit();
            set.0.requestResidency();
        }
    }

    /// Whether buffers are kept resident, for people.
    pub fn residency_row(&self) -> Feature {
        let why = match &self.resident {
            Some(set) => format!("{} buffers in one set", set.0.allocationCount()),
            None => "no set: Metal sees to each step's buffers".to_owned(),
        };
        Feature { name: "buffers kept resident", available: self.resident.is_some(), why }
    }

    /// Hands over a step: the stages run one after the other, the launches of a stage in any order, and all of it after
    /// the step before. Returns its number when at most two steps are in flight.
    ///
    /// # Errors
    /// A kernel does not compile, or an earlier step failed.
    pub fn submit(&mut self, stages: &[Vec<Launch>]) -> Result<u64, DeviceError> {
        autoreleasepool(|_| {
            let commands = self.queue.commandBuffer().ok_or_else(|| failed("no command buffer"))?;
            let number = self.submitted + 1;
            commands.encodeWaitForEvent_value(ProtocolObject::from_ref(&*self.done), self.submitted);
            let encoder = commands.computeCommandEncoderWithDispatchType(MTLDispatchType::Concurrent);
            let encoder = encoder.ok_or_else(|| failed("no encoder"))?;
            let encoded = self.encode_all(&encoder, stages);
            encoder.endEncoding();
            encoded?;
            commands.encodeSignalEvent_value(ProtocolObject::from_ref(&*self.done), number);
            // Only now, so that encoding goes on while the GPU works.
            while self.flights.len() >= IN_FLIGHT {
                self.finish();
            }
            self.tell(self.submitted)?;
            self.settle_residency();
            commands.commit();
            self.submitted = number;
            self.flights.push_back(Flight { number, commands });
            Ok(number)
        })
    }

    fn encode_all(
        &mut self,
        encoder: &ProtocolObject<dyn MTLComputeCommandEncoder>,
        stages: &[Vec<Launch>],
    ) -> Result<(), DeviceError> {
        for (number, stage) in stages.iter().enumerate() {
            if number > 0 {
                encoder.memoryBarrierWithScope(MTLBarrierScope::Buffers);
            }
            for launch in stage {
                self.encode(encoder, launch)?;
            }
        }
        Ok(())
    }

    /// Number of the step that is submitted next.
    pub const fn next(&self) -> u64 {
        self.submitted + 1
    }

    /// Waits until a step and all before it are done.
    ///
    /// # Errors
    /// The GPU reports an error in one of them; each is told once.
    pub fn wait(&mut self, number: u64) -> Result<(), DeviceError> {
        self.reach(number);
        self.tell(number)
    }

    /// The same; an error is told at the next call that can.
    pub fn reach(&mut self, number: u64) {
        while self.flights.front().is_some_and(|flight| flight.number <= number) {
            self.finish();
        }
    }

    /// Waits until the GPU does nothing, so that the host may use any buffer.
    pub fn idle(&mut self) {
        self.reach(self.submitted);
    }

    fn tell(&mut self, up_to: u64) -> Result<(), DeviceError> {
        match self.failed.take_if(|(number, _)| *number <= up_to) {
            Some((_, reason)) => Err(failed(reason)),
            None => Ok(()),
        }
    }

    /// Waits for the oldest step.
    fn finish(&mut self) {
        let Some(Flight { number, commands }) = self.flights.pop_front() else { return };
        autoreleasepool(|_| {
            commands.waitUntilCompleted();
            if let Some(e) = commands.error() {
                self.failed.get_or_insert((number, e.localizedDescription().to_string()));
                // A step that fails does not tell the next one, which would wait for ever.
                self.done.setSignaledValue(number);
            }
            if self.seconds.len() == self.seconds.capacity() {
                self.seconds.pop_front();
            }
            self.seconds.push_back((number, commands.GPUEndTime() - commands.GPUStartTime()));
        });
    }

    /// Seconds that the GPU worked on one of the last steps that were waited for.
    pub fn seconds(&self, number: u64) -> Option<f64> {
        self.seconds.iter().find(|(of, _)| *of == number).map(|(_, seconds)| *seconds)
    }

    fn encode(
        &mut self,
        encoder: &ProtocolObject<dyn MTLComputeCommandEncoder>,
        launch: &Launch,
    ) -> Result<(), DeviceError> {
        let pipeline = self.pipelines.get(launch)?;
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

/// A set for the queue, if the system has such.
fn residency_set(device: &ProtocolObject<dyn MTLDevice>) -> Option<Resident> {
    if !Features::has_residency_sets() {
        return None;
    }
    device.newResidencySetWithDescriptor_error(&MTLResidencySetDescriptor::new()).ok().map(Resident)
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // The host may free what the GPU uses only when it is done with it.
        self.idle();
        self.pipelines.save();
    }
}
