//! What this machine's Metal can do, found out by trying, and what is done where it cannot. `lily inspect` prints it.

use std::cell::OnceCell;

use super::api::*;
use super::device::{Object, failed};
use crate::backend::{DeviceError, Feature};

/// Versions of the language, newest first, and the system that each came with.
const LANGUAGES: [(MTLLanguageVersion, &str, (u32, u32)); 3] = [
    (MTLLanguageVersion::Version4_0, "4.0", (26, 0)),
    (MTLLanguageVersion::Version3_2, "3.2", (15, 0)),
    (MTLLanguageVersion::Version3_1, "3.1", (14, 0)),
];

/// Families of GPUs, and which have them first.
const FAMILIES: [(MTLGPUFamily, &str, &str); 5] = [
    (MTLGPUFamily::Apple7, "GPU family Apple7", "M1 and later"),
    (MTLGPUFamily::Apple8, "GPU family Apple8", "M2 and later"),
    (MTLGPUFamily::Apple9, "GPU family Apple9", "M3 and later"),
    (MTLGPUFamily::Apple10, "GPU family Apple10", "M5 and later"),
    (MTLGPUFamily::Metal4, "GPU family Metal4", "M1 and later, from macOS 26 on"),
];

/// Names of rows that the host asks for.
pub const RESIDENCY_SETS: &str = "residency sets";
/// As above.
pub const BINARY_ARCHIVES: &str = "binary archives";
/// As above.
pub const SIMDGROUP_MATRICES: &str = "simdgroup matrices";
/// As above.
pub const BFLOAT: &str = "bfloat";
/// As above.
pub const TENSORS_HALF: &str = "tensor operations on half";
/// As above.
pub const TENSORS_BFLOAT: &str = "tensor operations on bfloat";

const HEAD: &str = "#include <metal_stdlib>\n#include <metal_simdgroup_matrix>\nusing namespace metal;\n";

const PLAIN: &str = "kernel void probe(device uint* out [[buffer(0)]]) { out[0] = 1; }\n";

const MATRICES: &str = "kernel void probe(device float* out [[buffer(0)]]) {
    simdgroup_float8x8 m = make_filled_simdgroup_matrix<float, 8, 8>(1.0f);
    simdgroup_multiply_accumulate(m, m, m, m);
    simdgroup_store(m, out, 8);
}
";

const BFLOATS: &str = "kernel void probe(device bfloat* out [[buffer(0)]], device float* x [[buffer(1)]]) {
    const float sum = static_cast<float>(out[0]) + x[0];
    out[0] = static_cast<bfloat>(sum);
}
";

/// `T` is what it multiplies.
const TENSORS: &str = "#include <metal_stdlib>
#include <metal_tensor>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
using namespace metal;
using namespace mpp::tensor_ops;
kernel void probe(device T* a [[buffer(0)]], device T* b [[buffer(1)]], device float* c [[buffer(2)]]) {
    auto left = tensor(a, dextents<int32_t, 2>(32, 16), array<int, 2>({1, 32}));
    auto right = tensor(b, dextents<int32_t, 2>(32, 32), array<int, 2>({1, 32}));
    auto out = tensor(c, dextents<int32_t, 2>(32, 16), array<int, 2>({1, 32}));
    constexpr auto shape = matmul2d_descriptor(16, 32, 32, false, true, false, matmul2d_descriptor::mode::multiply);
    matmul2d<shape, execution_simdgroup> op;
    auto sum = op.get_destination_cooperative_tensor<decltype(left), decltype(right), float>();
    op.run(left, right, sum);
    sum.store(out);
}
";

/// What was found. The rows are found out when somebody asks for one: a probe compiles a kernel.
pub struct Features {
    device: Object<dyn MTLDevice>,
    language: (MTLLanguageVersion, Feature),
    rows: OnceCell<Vec<Feature>>,
}

impl Features {
    /// The newest language that compiles.
    ///
    /// # Errors
    /// None does, or the GPU is not one of Apple's.
    pub fn of(device: Object<dyn MTLDevice>) -> Result<Self, DeviceError> {
        // A virtual Mac's GPU is of an old family, and may do; AMD's and Intel's keep to barriers less strictly.
        if !device.supportsFamily(MTLGPUFamily::Apple1) {
            return Err(failed(format!("its kernels are for Apple's GPUs; this is {}", device.name())));
        }
        let mut reasons = String::new();
        for (language, name, since) in LANGUAGES {
            match tried(&device, language, since, &[HEAD, PLAIN].concat()) {
                Ok(why) => {
                    let why = format!("{name}: {why}{reasons}");
                    let row = Feature { name: "Metal Shading Language", available: true, why };
                    return Ok(Self { device, language: (language, row), rows: OnceCell::new() });
                }
                Err(why) => reasons.push_str(&format!("; not {name}: {why}")),
            }
        }
        Err(failed(format!("it compiles no version of the language from 3.1 on{reasons}")))
    }

    /// The language to compile with.
    pub const fn language(&self) -> MTLLanguageVersion {
        self.language.0
    }

    /// Every row.
    pub fn rows(&self) -> &[Feature] {
        self.rows.get_or_init(|| self.probe())
    }

    /// Whether the system is new enough for residency sets; asked at the start, so it compiles nothing.
    pub fn has_residency_sets() -> bool {
        system_version() >= (15, 0)
    }

    fn probe(&self) -> Vec<Feature> {
        let mut rows = vec![self.language.1.clone()];
        for (family, name, which) in FAMILIES {
            rows.push(Feature { name, available: self.device.supportsFamily(family), why: which.to_owned() });
        }
        let (language, since) = (self.language(), (14, 0));
        let mut row = |name, found: Result<String, String>| {
            let available = found.is_ok();
            rows.push(Feature { name, available, why: found.unwrap_or_else(|why| why) });
        };
        row(SIMDGROUP_MATRICES, tried(&self.device, language, since, &[HEAD, MATRICES].concat()));
        row(BFLOAT, tried(&self.device, language, since, &[HEAD, BFLOATS].concat()));
        for (name, element, since) in [(TENSORS_HALF, "half", (26, 0)), (TENSORS_BFLOAT, "bfloat", (26, 1))] {
            let text = TENSORS.replace("device T*", &format!("device {element}*"));
            row(name, tried(&self.device, MTLLanguageVersion::Version4_0, since, &text));
        }
        let (major, minor) = system_version();
        let sets = if Self::has_residency_sets() { Ok("from macOS 15 on".into()) } else { Err(needs((15, 0))) };
        row(RESIDENCY_SETS, sets);
        row(BINARY_ARCHIVES, Ok(format!("from macOS 11 on; this is {major}.{minor}")));
        rows
    }
}

fn needs((major, minor): (u32, u32)) -> String {
    let (is_major, is_minor) = system_version();
    format!("needs macOS {major}.{minor}, this is {is_major}.{is_minor}")
}

/// Compiles a kernel of the name `probe` to a pipeline: some refusals come no earlier.
fn tried(
    device: &ProtocolObject<dyn MTLDevice>,
    language: MTLLanguageVersion,
    since: (u32, u32),
    text: &str,
) -> Result<String, String> {
    // An older system may not survive a version that it does not know.
    if system_version() < since {
        return Err(needs(since));
    }
    autoreleasepool(|_| {
        let said = |e: Retained<NSError>| {
            let text = e.localizedDescription().to_string();
            text.lines().find(|line| line.contains("error:")).or(text.lines().next()).unwrap_or("no reason").to_owned()
        };
        let options = MTLCompileOptions::new();
        options.setLanguageVersion(language);
        options.setMathMode(MTLMathMode::Safe);
        let text = NSString::from_str(text);
        let library = device.newLibraryWithSource_options_error(&text, Some(&options)).map_err(said)?;
        let none = MTLFunctionConstantValues::new();
        let name = NSString::from_str("probe");
        let function = library.newFunctionWithName_constantValues_error(&name, &none).map_err(said)?;
        device.newComputePipelineStateWithFunction_error(&function).map_err(said)?;
        Ok("a probe compiles".to_owned())
    })
}
