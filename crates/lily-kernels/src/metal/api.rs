//! Apple's names. On Linux they are those of the device in software, so that one host serves both.

#[cfg(target_vendor = "apple")]
pub use {
    objc2::rc::{Retained, autoreleasepool},
    objc2::runtime::ProtocolObject,
    objc2_foundation::{NSError, NSString},
    objc2_metal::{
        MTLBarrierScope, MTLBuffer, MTLCommandBuffer, MTLCommandEncoder, MTLCommandQueue, MTLCompileOptions,
        MTLComputeCommandEncoder, MTLComputePipelineState, MTLCreateSystemDefaultDevice, MTLDataType, MTLDevice,
        MTLDispatchType, MTLFunctionConstantValues, MTLLanguageVersion, MTLLibrary, MTLMathMode, MTLResource,
        MTLResourceOptions, MTLSize,
    },
};

#[cfg(not(target_vendor = "apple"))]
pub use software_metal::metal::*;
