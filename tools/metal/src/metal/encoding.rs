//! Command buffers and encoders.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use super::{
    MTLBarrierScope, MTLBuffer, MTLComputePipelineState, MTLDispatchType, MTLEvent, MTLSize, NSError, Object, Object1,
    ProtocolObject, Retained, object, other_protocol,
};
use crate::commands::{Bound, Command, Commands};
use crate::queue::{Queue, locked};

/// A command buffer.
#[allow(missing_docs, reason = "Apple's names")]
pub trait MTLCommandBuffer {
    fn computeCommandEncoderWithDispatchType(
        &self,
        how: MTLDispatchType,
    ) -> Option<Object1<dyn MTLComputeCommandEncoder>>;
    fn encodeWaitForEvent_value(&self, event: &ProtocolObject<dyn MTLEvent>, value: u64);
    fn encodeSignalEvent_value(&self, event: &ProtocolObject<dyn MTLEvent>, value: u64);
    fn commit(&self);
    fn waitUntilCompleted(&self);
    fn GPUStartTime(&self) -> f64;
    fn GPUEndTime(&self) -> f64;
    fn error(&self) -> Option<Retained<NSError>>;
}
impl ProtocolObject<dyn MTLCommandBuffer> {
    fn parts(&self) -> (&Arc<Mutex<Commands>>, &Queue) {
        let Object::Commands(commands, queue) = &self.0 else { other_protocol() };
        (commands, queue)
    }
    fn commands(&self) -> std::sync::MutexGuard<'_, Commands> {
        locked(self.parts().0)
    }
}
impl MTLCommandBuffer for ProtocolObject<dyn MTLCommandBuffer> {
    fn computeCommandEncoderWithDispatchType(
        &self,
        how: MTLDispatchType,
    ) -> Option<Object1<dyn MTLComputeCommandEncoder>> {
        self.commands().begin(how == MTLDispatchType::Concurrent);
        Some(object(Object::Encoder(Arc::clone(self.parts().0), Mutex::default())))
    }
    fn encodeWaitForEvent_value(&self, event: &ProtocolObject<dyn MTLEvent>, value: u64) {
        self.commands().wait_for(event.event(), value);
    }
    fn encodeSignalEvent_value(&self, event: &ProtocolObject<dyn MTLEvent>, value: u64) {
        self.commands().signal(event.event(), value);
    }
    fn commit(&self) {
        let (commands, queue) = self.parts();
        queue.commit(commands);
    }
    fn waitUntilCompleted(&self) {
        let (commands, queue) = self.parts();
        queue.wait(commands);
    }
    fn GPUStartTime(&self) -> f64 {
        self.commands().times.0
    }
    fn GPUEndTime(&self) -> f64 {
        self.commands().times.1
    }
    fn error(&self) -> Option<Retained<NSError>> {
        self.commands().error().map(|e| Retained::new(NSError(e)))
    }
}

/// An encoder.
#[allow(missing_docs, reason = "Apple's names")]
pub trait MTLCommandEncoder {
    fn endEncoding(&self);
}

/// An encoder of dispatches.
#[allow(missing_docs, reason = "Apple's names")]
pub trait MTLComputeCommandEncoder: MTLCommandEncoder {
    fn setComputePipelineState(&self, pipeline: &ProtocolObject<dyn MTLComputePipelineState>);
    unsafe fn setBuffer_offset_atIndex(
        &self,
        buffer: Option<&ProtocolObject<dyn MTLBuffer>>,
        offset: usize,
        index: usize,
    );
    unsafe fn setBytes_length_atIndex(&self, bytes: NonNull<c_void>, length: usize, index: usize);
    unsafe fn setThreadgroupMemoryLength_atIndex(&self, length: usize, index: usize);
    fn dispatchThreadgroups_threadsPerThreadgroup(&self, groups: MTLSize, threads: MTLSize);
    fn memoryBarrierWithScope(&self, scope: MTLBarrierScope);
}
impl ProtocolObject<dyn MTLComputeCommandEncoder> {
    fn parts(&self) -> (std::sync::MutexGuard<'_, Commands>, std::sync::MutexGuard<'_, Bound>) {
        let Object::Encoder(commands, bound) = &self.0 else { other_protocol() };
        let mut commands = locked(commands);
        if !commands.encoding() {
            commands.fail("an encoder was used after endEncoding");
        }
        (commands, locked(bound))
    }
}
impl MTLCommandEncoder for ProtocolObject<dyn MTLComputeCommandEncoder> {
    fn endEncoding(&self) {
        self.parts().0.end();
    }
}
impl MTLComputeCommandEncoder for ProtocolObject<dyn MTLComputeCommandEncoder> {
    fn setComputePipelineState(&self, pipeline: &ProtocolObject<dyn MTLComputePipelineState>) {
        let Object::Pipeline(pipeline) = &pipeline.0 else { other_protocol() };
        self.parts().1.pipeline = Some(pipeline.clone());
    }
    unsafe fn setBuffer_offset_atIndex(
        &self,
        buffer: Option<&ProtocolObject<dyn MTLBuffer>>,
        offset: usize,
        index: usize,
    ) {
        let (mut commands, mut bound) = self.parts();
        match buffer.map(|buffer| &buffer.0) {
            Some(Object::Buffer(memory)) => {
                if let Err(problem) = bound.buffer(memory, offset, index) {
                    commands.fail(&problem);
                }
            }
            Some(_) => other_protocol(),
            None => bound.forget(index),
        }
    }
    unsafe fn setBytes_length_atIndex(&self, bytes: NonNull<c_void>, length: usize, index: usize) {
        let (mut commands, mut bound) = self.parts();
        // SAFETY: the caller's.
        let bytes = unsafe { std::slice::from_raw_parts(bytes.cast::<u8>().as_ptr(), length) };
        if let Err(problem) = bound.bytes(bytes, index) {
            commands.fail(&problem);
        }
    }
    unsafe fn setThreadgroupMemoryLength_atIndex(&self, length: usize, index: usize) {
        let (mut commands, mut bound) = self.parts();
        if let Err(problem) = bound.memory(length, index) {
            commands.fail(&problem);
        }
    }
    fn dispatchThreadgroups_threadsPerThreadgroup(&self, groups: MTLSize, threads: MTLSize) {
        let (mut commands, bound) = self.parts();
        let dims = |s: MTLSize| [s.width, s.height, s.depth].map(|n| u32::try_from(n).unwrap_or(u32::MAX));
        match bound.dispatch(dims(groups), dims(threads)) {
            Ok(dispatch) => commands.push(Command::Dispatch(dispatch)),
            Err(problem) => commands.fail(&problem),
        }
    }
    fn memoryBarrierWithScope(&self, _: MTLBarrierScope) {
        self.parts().0.push(Command::Barrier);
    }
}
