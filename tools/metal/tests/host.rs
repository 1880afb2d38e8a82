//! The device in software refuses what Metal forbids: each fault of a host is an error of its command buffer.
#![allow(clippy::unwrap_used, reason = "all of this is test code")]

use std::ffi::c_void;
use std::ptr::NonNull;

use software_metal::metal::*;
use software_metal::{Mode, set_mode};

const SOURCE: &str = "
#include <metal_stdlib>
using namespace metal;
constant uint FACTOR [[function_constant(0)]];
kernel void scale(device const uint* x [[buffer(0)]], device uint* out [[buffer(1)]], constant uint& plus [[buffer(2)]],
    uint i [[thread_position_in_grid]]) {
    out[i] = FACTOR * x[i] + plus;
}
kernel void dynamic(device uint* out [[buffer(0)]], threadgroup uint* shared [[threadgroup(0)]],
    uint i [[thread_index_in_threadgroup]]) {
    shared[i] = i;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    out[i] = shared[63 - i];
}
";

type Encoder = ProtocolObject<dyn MTLComputeCommandEncoder>;
type Buffer = Retained<ProtocolObject<dyn MTLBuffer>>;
type Pipeline = Retained<ProtocolObject<dyn MTLComputePipelineState>>;

struct Host {
    scale: Pipeline,
    dynamic: Pipeline,
    /// Three of 64 words.
    buffers: [Buffer; 3],
    queue: Retained<ProtocolObject<dyn MTLCommandQueue>>,
}

impl Host {
    fn new() -> Self {
        set_mode(Mode::Checked { seed: 1 });
        let device = MTLCreateSystemDefaultDevice().unwrap();
        let library = device.newLibraryWithSource_options_error(&NSString::from_str(SOURCE), None).ok().unwrap();
        let values = MTLFunctionConstantValues::new();
        // SAFETY: points to a u32.
        unsafe { values.setConstantValue_type_atIndex(NonNull::from(&3u32).cast::<c_void>(), MTLDataType::UInt, 0) };
        let pipeline = |name: &str| {
            let function = library.newFunctionWithName_constantValues_error(&NSString::from_str(name), &values);
            device.newComputePipelineStateWithFunction_error(&function.ok().unwrap()).ok().unwrap()
        };
        let buffer = |_| device.newBufferWithLength_options(256, MTLResourceOptions::StorageModeShared).unwrap();
        Self {
            scale: pipeline("scale"),
            dynamic: pipeline("dynamic"),
            buffers: [0, 1, 2].map(buffer),
            queue: device.newCommandQueue().unwrap(),
        }
    }

    /// What a command buffer says after its run.
    fn run(&self, encode: impl Fn(&Encoder)) -> Option<String> {
        let commands = self.queue.commandBuffer().unwrap();
        let encoder = commands.computeCommandEncoderWithDispatchType(MTLDispatchType::Concurrent).unwrap();
        encode(&encoder);
        encoder.endEncoding();
        commands.commit();
        commands.waitUntilCompleted();
        commands.error().map(|e| e.localizedDescription().to_string())
    }

    /// One dispatch of `scale` from one buffer to another.
    fn scale(&self, encoder: &Encoder, from: usize, to: usize) {
        encoder.setComputePipelineState(&self.scale);
        self.bind(encoder, &self.buffers[from], 0, 0);
        self.bind(encoder, &self.buffers[to], 0, 1);
        // SAFETY: points to a u32.
        unsafe { encoder.setBytes_length_atIndex(NonNull::from(&5u32).cast::<c_void>(), 4, 2) };
        encoder.dispatchThreadgroups_threadsPerThreadgroup(size(1), size(64));
    }

    fn bind(&self, encoder: &Encoder, buffer: &ProtocolObject<dyn MTLBuffer>, offset: usize, index: usize) {
        // SAFETY: a wrong binding is what these tests are about, and the device in software tells.
        unsafe { encoder.setBuffer_offset_atIndex(Some(buffer), offset, index) };
    }
}

const fn size(width: usize) -> MTLSize {
    MTLSize { width, height: 1, depth: 1 }
}

#[test]
fn dispatches_in_order_give_what_they_should() {
    let host = Host::new();
    let error = host.run(|encoder| {
        host.scale(encoder, 0, 1);
        encoder.memoryBarrierWithScope(MTLBarrierScope::Buffers);
        host.scale(encoder, 1, 2);
    });
    assert_eq!(error, None);
    // SAFETY: 64 words, and nothing runs.
    let words = unsafe { std::slice::from_raw_parts(host.buffers[2].contents().cast::<u32>().as_ptr(), 64) };
    assert_eq!(words, [3 * 5 + 5; 64]);
}

#[test]
fn each_fault_of_a_host_is_an_error() {
    let host = Host::new();
    let fault = |encode: &dyn Fn(&Encoder)| host.run(encode).unwrap_or_default();
    let no_barrier = fault(&|encoder| {
        host.scale(encoder, 0, 1);
        host.scale(encoder, 1, 2);
    });
    assert!(no_barrier.starts_with("no barrier between scale and scale"), "{no_barrier}");
    let write_after_read = fault(&|encoder| {
        host.scale(encoder, 1, 2);
        host.scale(encoder, 0, 1);
    });
    assert!(write_after_read.starts_with("no barrier between scale and scale"), "{write_after_read}");
    let missing = fault(&|encoder| {
        encoder.setComputePipelineState(&host.scale);
        host.bind(encoder, &host.buffers[0], 0, 0);
        encoder.dispatchThreadgroups_threadsPerThreadgroup(size(1), size(64));
    });
    assert_eq!(missing, "scale: buffer 1 is not bound");
    let misaligned = fault(&|encoder| host.bind(encoder, &host.buffers[0], 2, 0));
    assert!(misaligned.contains("no multiple of 4"), "{misaligned}");
    let past = fault(&|encoder| host.bind(encoder, &host.buffers[0], 256, 0));
    assert!(past.contains("past the end"), "{past}");
    let short = fault(&|encoder| {
        host.scale(encoder, 0, 1);
        host.bind(encoder, &host.buffers[0], 4, 0);
        host.bind(encoder, &host.buffers[2], 0, 1);
        encoder.dispatchThreadgroups_threadsPerThreadgroup(size(1), size(64));
    });
    assert!(short.contains("out of bounds"), "{short}");
    let no_length = fault(&|encoder| {
        encoder.setComputePipelineState(&host.dynamic);
        host.bind(encoder, &host.buffers[0], 0, 0);
        encoder.dispatchThreadgroups_threadsPerThreadgroup(size(1), size(64));
    });
    assert_eq!(no_length, "dynamic: threadgroup memory 0 has no length");
    for (length, sentence) in [(33 << 10, "at most 32 KiB"), (250, "a multiple of 16")] {
        // SAFETY: as in `bind`.
        let error = fault(&|encoder| unsafe { encoder.setThreadgroupMemoryLength_atIndex(length, 0) });
        assert!(error.contains(sentence), "{error}");
    }
    let too_many = fault(&|encoder| {
        host.scale(encoder, 0, 1);
        encoder.dispatchThreadgroups_threadsPerThreadgroup(size(1), size(1025));
    });
    assert!(too_many.contains("[1025, 1, 1] threads"), "{too_many}");
    let no_pipeline = fault(&|encoder| encoder.dispatchThreadgroups_threadsPerThreadgroup(size(1), size(64)));
    assert_eq!(no_pipeline, "a dispatch without a pipeline");
}

#[test]
fn what_is_bound_in_the_wrong_place_or_too_long_or_freed_is_an_error() {
    let host = Host::new();
    let fault = |encode: &dyn Fn(&Encoder)| host.run(encode).unwrap_or_default();
    let long = fault(&|encoder| {
        let bytes = [0u8; 4097];
        // SAFETY: points to so many bytes.
        unsafe { encoder.setBytes_length_atIndex(NonNull::from(&bytes).cast::<c_void>(), bytes.len(), 2) };
    });
    assert!(long.contains("4097 bytes: 1 to 4,096 are allowed"), "{long}");
    let wrong = fault(&|encoder| {
        host.scale(encoder, 0, 1);
        let bytes = [0u8; 256];
        // SAFETY: points to so many bytes.
        unsafe { encoder.setBytes_length_atIndex(NonNull::from(&bytes).cast::<c_void>(), bytes.len(), 1) };
        encoder.memoryBarrierWithScope(MTLBarrierScope::Buffers);
        encoder.dispatchThreadgroups_threadsPerThreadgroup(size(1), size(64));
    });
    assert!(wrong.starts_with("scale: write to constant memory"), "{wrong}");
    let freed = fault(&|encoder| {
        host.scale(encoder, 0, 1);
        let device = MTLCreateSystemDefaultDevice().unwrap();
        let gone = device.newBufferWithLength_options(256, MTLResourceOptions::StorageModeShared).unwrap();
        host.bind(encoder, &gone, 0, 1);
        encoder.memoryBarrierWithScope(MTLBarrierScope::Buffers);
        encoder.dispatchThreadgroups_threadsPerThreadgroup(size(1), size(64));
    });
    assert_eq!(freed, "scale: buffer 1 was freed while in use");
}

#[test]
fn what_a_pipeline_lacks_is_told_when_it_is_made() {
    set_mode(Mode::Checked { seed: 1 });
    let device = MTLCreateSystemDefaultDevice().unwrap();
    let library = device.newLibraryWithSource_options_error(&NSString::from_str(SOURCE), None).ok().unwrap();
    let none = MTLFunctionConstantValues::new();
    let function = library.newFunctionWithName_constantValues_error(&NSString::from_str("scale"), &none).ok().unwrap();
    let error = device.newComputePipelineStateWithFunction_error(&function).err().unwrap();
    assert_eq!(error.localizedDescription().to_string(), "function constant 0 has no value");
    let error = library.newFunctionWithName_constantValues_error(&NSString::from_str("no"), &none).err().unwrap();
    assert_eq!(error.localizedDescription().to_string(), "the library has no kernel no");
    let wrong = NSString::from_str("#include <metal_stdlib>\nusing namespace metal;\nkernel void f() { return 1; }\n");
    assert!(device.newLibraryWithSource_options_error(&wrong, None).is_err());
}

/// A bfloat is made from a float by a cast only, and never from a half.
#[test]
fn conversions_that_metal_refuses_do_not_compile() {
    let device = MTLCreateSystemDefaultDevice().unwrap();
    let compiles = |line: &str| {
        let source = format!(
            "#include <metal_stdlib>\nusing namespace metal;\ninline void f(float x, half h, bfloat b) {{ {line} }}\n"
        );
        device.newLibraryWithSource_options_error(&NSString::from_str(&source), None).is_ok()
    };
    for line in [
        "float y = b; (void)y;",
        "bfloat y = static_cast<bfloat>(x); (void)y;",
        "half y = static_cast<half>(x); (void)y;",
    ] {
        assert!(compiles(line), "{line}");
    }
    for line in ["bfloat y = x; (void)y;", "bfloat y = h; (void)y;", "bfloat4 y = float4(x); (void)y;"] {
        assert!(!compiles(line), "{line}");
    }
}
