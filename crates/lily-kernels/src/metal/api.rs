//! Apple's names. On Linux they are those of the device in software, so that one host serves both.

#[cfg(target_vendor = "apple")]
pub use {
    objc2::rc::{Retained, autoreleasepool},
    objc2::runtime::ProtocolObject,
    objc2_foundation::{NSArray, NSError, NSString, NSURL},
    objc2_metal::{
        MTLBarrierScope, MTLBinaryArchive, MTLBinaryArchiveDescriptor, MTLBuffer, MTLCommandBuffer, MTLCommandEncoder,
        MTLCommandQueue, MTLCompileOptions, MTLComputeCommandEncoder, MTLComputePipelineDescriptor,
        MTLComputePipelineState, MTLCreateSystemDefaultDevice, MTLDataType, MTLDevice, MTLDispatchType, MTLFunction,
        MTLFunctionConstantValues, MTLGPUFamily, MTLLanguageVersion, MTLLibrary, MTLMathMode, MTLPipelineOption,
        MTLResidencySet, MTLResidencySetDescriptor, MTLResource, MTLResourceOptions, MTLSharedEvent, MTLSize,
    },
};

/// Bytes of a page on Apple's processors.
#[cfg(target_vendor = "apple")]
pub const PAGE: usize = 16 << 10;

/// The system's version, as far as anything here depends on it.
#[cfg(target_vendor = "apple")]
pub fn system_version() -> (u32, u32) {
    macro_rules! newest {
        ($(($major:literal, $minor:literal, $version:literal)),+) => {
            $(if objc2::available!(macos = $version) { return ($major, $minor); })+
        };
    }
    newest!((26, 4, 26.4), (26, 3, 26.3), (26, 1, 26.1), (26, 0, 26.0), (15, 0, 15.0), (14, 0, 14.0));
    (13, 0)
}

#[cfg(not(target_vendor = "apple"))]
pub use software_metal::metal::*;
