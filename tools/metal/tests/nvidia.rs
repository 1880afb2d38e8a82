//! What the shim for NVIDIA cards offers is what the executor offers: it compiles where there is nvcc, and gives the same
//! numbers where there is a card.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "all of this is test code")]

use std::ffi::c_void;
use std::ptr::NonNull;

use software_metal::metal::*;
use software_metal::{Mode, library, nvidia, set_mode};

const OPERATIONS: &str = include_str!("operations.metal");

/// A kernel, its threadgroups, and the threads of each. It reads buffer 0 and writes the others.
const LAUNCHES: [(&str, usize, usize); 5] =
    [("lanes", 1, 64), ("some_lanes", 1, 43), ("matrices", 1, 32), ("numbers", 1, 64), ("counts", 2, 64)];

type Buffer = Retained<ProtocolObject<dyn MTLBuffer>>;

fn floats(buffer: &Buffer, count: usize) -> Vec<f32> {
    // SAFETY: the buffer has so many bytes, and nothing runs.
    unsafe { std::slice::from_raw_parts(buffer.contents().cast::<f32>().as_ptr(), count) }.to_vec()
}

/// All that a kernel writes.
fn run(kernel: &str, groups: usize, threads: usize) -> Vec<f32> {
    let device = MTLCreateSystemDefaultDevice().unwrap();
    let library = device.newLibraryWithSource_options_error(&NSString::from_str(OPERATIONS), None);
    let library = library.map_err(|e| e.localizedDescription().to_string()).unwrap();
    let values = MTLFunctionConstantValues::new();
    // SAFETY: points to a u32.
    unsafe { values.setConstantValue_type_atIndex(NonNull::from(&3u32).cast::<c_void>(), MTLDataType::UInt, 0) };
    let function = library.newFunctionWithName_constantValues_error(&NSString::from_str(kernel), &values);
    let pipeline = device.newComputePipelineStateWithFunction_error(&function.ok().unwrap()).ok().unwrap();
    let buffer = || device.newBufferWithLength_options(4096, MTLResourceOptions::StorageModeShared).unwrap();
    let buffers = [buffer(), buffer(), buffer()];
    for i in 0..64 {
        // SAFETY: in bounds, and nothing runs.
        unsafe { buffers[0].contents().cast::<f32>().as_ptr().add(i).write((i as f32 * 0.37).sin()) };
    }
    let commands = device.newCommandQueue().unwrap().commandBuffer().unwrap();
    let encoder = commands.computeCommandEncoderWithDispatchType(MTLDispatchType::Concurrent).unwrap();
    encoder.setComputePipelineState(&pipeline);
    let shape = [11u32.to_le_bytes(), 0.75f32.to_le_bytes()].concat();
    // SAFETY: buffers and bytes are as long as the kernels need.
    unsafe {
        for (index, buffer) in buffers.iter().enumerate() {
            encoder.setBuffer_offset_atIndex(Some(buffer), 0, index);
        }
        if kernel == "lanes" {
            encoder.setBytes_length_atIndex(NonNull::from(&shape[..]).cast::<c_void>(), shape.len(), 2);
        }
        encoder.setThreadgroupMemoryLength_atIndex(256, 0);
    }
    let size = |width| MTLSize { width, height: 1, depth: 1 };
    encoder.dispatchThreadgroups_threadsPerThreadgroup(size(groups), size(threads));
    encoder.endEncoding();
    commands.commit();
    commands.waitUntilCompleted();
    assert_eq!(commands.error().map(|e| e.localizedDescription().to_string()), None, "{kernel}");
    // Counts are integers; as floats they are tiny, and equal all the same.
    buffers.iter().flat_map(|buffer| floats(buffer, 1024)).collect()
}

#[test]
fn an_nvidia_card_gives_the_executors_numbers() {
    if nvidia::is_possible() {
        nvidia::compile(SOURCE, OPERATIONS).unwrap();
    } else {
        println!("SKIP the shim for NVIDIA cards: there is no nvcc");
    }
    let on = |mode| {
        set_mode(mode);
        LAUNCHES.map(|(kernel, groups, threads)| run(kernel, groups, threads))
    };
    let executor = on(Mode::Checked { seed: 1 });
    if let Err(e) = library::ready(Mode::Nvidia) {
        println!("SKIP numbers on an NVIDIA card: {e}");
        return;
    }
    for ((kernel, ..), (want, got)) in LAUNCHES.iter().zip(executor.iter().zip(&on(Mode::Nvidia))) {
        let differ = |(i, (want, got)): (usize, (&f32, &f32))| {
            let near = (want - got).abs() <= 2e-6 * want.abs().max(1.0) || want.to_bits() == got.to_bits();
            (!near).then_some((i, *want, *got))
        };
        let wrong: Vec<_> = want.iter().zip(got).enumerate().filter_map(differ).collect();
        assert!(wrong.is_empty(), "{kernel}: {wrong:?}");
    }
}
