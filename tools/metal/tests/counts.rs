//! The executor counts what kernels move: known kernels, known numbers, in any order of threads.
#![allow(clippy::unwrap_used, reason = "all of this is test code")]

use software_metal::counts::{BindingCounts, DispatchCounts, of};
use software_metal::library::Traffic;
use software_metal::metal::*;
use software_metal::{Mode, count, set_mode, take_counts};

const SOURCE: &str = include_str!("counts.metal");
/// Bytes of each of the two buffers.
const BYTES: usize = 16 << 10;

/// Runs kernels on two buffers, called `x` and `out`, as one command buffer, one threadgroup each.
fn counts(kernels: &[&str], threads: usize) -> Vec<DispatchCounts> {
    let device = MTLCreateSystemDefaultDevice().unwrap();
    let library = device.newLibraryWithSource_options_error(&NSString::from_str(SOURCE), None).ok().unwrap();
    let buffers = ["x", "out"].map(|label| {
        let buffer = device.newBufferWithLength_options(BYTES, MTLResourceOptions::StorageModeShared).unwrap();
        buffer.setLabel(Some(&NSString::from_str(label)));
        buffer
    });
    let queue = device.newCommandQueue().unwrap();
    let commands = queue.commandBuffer().unwrap();
    let encoder = commands.computeCommandEncoderWithDispatchType(MTLDispatchType::Serial).unwrap();
    for kernel in kernels {
        let values = MTLFunctionConstantValues::new();
        let function = library.newFunctionWithName_constantValues_error(&NSString::from_str(kernel), &values);
        let pipeline = device.newComputePipelineStateWithFunction_error(&function.ok().unwrap()).ok().unwrap();
        encoder.setComputePipelineState(&pipeline);
        for (index, buffer) in buffers.iter().enumerate() {
            // SAFETY: every kernel takes these two, and stays inside.
            unsafe { encoder.setBuffer_offset_atIndex(Some(buffer), 0, index) };
        }
        let size = |width| MTLSize { width, height: 1, depth: 1 };
        encoder.dispatchThreadgroups_threadsPerThreadgroup(size(1), size(threads));
    }
    encoder.endEncoding();
    commands.commit();
    commands.waitUntilCompleted();
    assert!(commands.error().is_none());
    take_counts()
}

const fn traffic(simdgroups: u64, lines: u64, bytes: u64) -> Traffic {
    Traffic { simdgroups, lines, bytes }
}

/// Loads and distinct bytes read of `x`; stores and distinct bytes written of `out`.
fn in_and_out(kernel: &str, threads: usize) -> [(Traffic, usize); 2] {
    let counts = counts(&[kernel], threads);
    let [x, out]: [&BindingCounts; 2] = [0, 1].map(|index| counts[0].binding(index));
    assert_eq!((x.label.as_deref(), out.label.as_deref()), (Some("x"), Some("out")));
    assert_eq!((x.stores, x.written_bytes()), (traffic(0, 0, 0), 0), "{kernel}");
    [(x.loads, x.read_bytes()), (out.stores, out.written_bytes())]
}

/// One test, because the order of threads is set for the whole process.
#[test]
fn loads_lines_and_bytes_are_what_the_kernels_say() {
    for seed in 0..3 {
        set_mode(Mode::Checked { seed });
        assert_eq!(counts(&["coalesced"], 32), [], "nobody has asked");
        count(true);
        assert_eq!(in_and_out("coalesced", 64), [(traffic(2, 2, 256), 256), (traffic(2, 2, 256), 256)]);
        assert_eq!(in_and_out("strided", 64), [(traffic(2, 64, 256), 256), (traffic(2, 2, 256), 256)]);
        assert_eq!(in_and_out("vectors", 32), [(traffic(1, 4, 512), 512), (traffic(1, 4, 512), 512)]);
        assert_eq!(in_and_out("broadcast", 64), [(traffic(2, 2, 256), 4), (traffic(2, 2, 256), 256)]);
        let rows = traffic(8, 8, 4 * 48 * 4);
        assert_eq!(in_and_out("uneven", 32), [(rows, 4 * 48 * 4), (traffic(4, 4, 16), 16)]);

        let both = counts(&["increment", "coalesced"], 32);
        assert_eq!(both.len(), 2);
        let [x, sum] = [0, 1].map(|index| both[0].binding(index));
        assert_eq!((x.loads, x.stores), (traffic(1, 1, 128), traffic(1, 1, 128)), "a read before a write counts");
        let first = 0..128;
        assert_eq!((&x.read[..], &x.written[..]), (std::slice::from_ref(&first), std::slice::from_ref(&first)));
        assert_eq!((sum.loads, sum.stores, sum.read_bytes()), (traffic(1, 1, 128), traffic(1, 1, 128), 4));
        assert_eq!(of(&both, "coalesced").count(), 1);
        assert_eq!(take_counts(), [], "taken once");
        count(false);
    }
}
