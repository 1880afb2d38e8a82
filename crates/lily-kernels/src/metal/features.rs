//! What this machine's Metal can do, found out by trying, and what is done where it cannot. `lily inspect` prints it.

use std::cell::OnceCell;

use super::api::*;
use super::device::{Object, failed};
use crate::backend::{DeviceError, Feature};
use crate::policy::Abilities;

/// Versions of the language, newest first, and the system that each came with.
const LANGUAGES: [(MTLLanguageVersion, &str, (u32, u32)); 3] = [
    (MTLLanguageVersion::Version4_0, "4.0", (26, 0)),
    (MTLLanguageVersion::Version3_2, "3.2", (15, 0)),
    (MTLLanguageVersion::Version3_1, "3.1", (14, 0)),
];

/// The first family with units for tensor operations. Before it, llama.cpp measured them slower or no faster than
/// matrices of simdgroups, and turns them off too.
const UNITS: (MTLGPUFamily, &str, &str) = FAMILIES[3];

/// The system from which on tensors may be of bfloat.
const BFLOAT_TENSORS_SINCE: (u32, u32) = (26, 1);

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
/// As above.
pub const TENSOR_BODIES: &str = "matmuls by tensor operations";
/// As above.
pub const MATRIX_BODIES: &str = "matmuls by simdgroup matrices";

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

/// `T` is what it multiplies; as `linear_tensor` does it.
const TENSORS: &str = "#include <metal_stdlib>
#include <metal_tensor>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
using namespace metal;
kernel void probe(device float* out [[buffer(0)]], uint tid [[thread_index_in_threadgroup]]) {
    threadgroup T left[32 * 32];
    threadgroup T right[64 * 32];
    constexpr auto shape = mpp::tensor_ops::matmul2d_descriptor(
        32, 64, 32, false, true, false, mpp::tensor_ops::matmul2d_descriptor::mode::multiply);
    mpp::tensor_ops::matmul2d<shape, execution_simdgroups<4>> product;
    auto rows = tensor(left, dextents<int, 2>(32, 32));
    auto weights = tensor(right, dextents<int, 2>(32, 64));
    auto sums = product.get_destination_cooperative_tensor<
        remove_addrspace_t<decltype(rows)>, remove_addrspace_t<decltype(weights)>, float>();
    product.run(rows, weights, sums);
    out[tid] = sums[0];
}
";

/// What was found. The rows are found out when somebody asks for one: a probe compiles a kernel.
pub struct Features {
    device: Object<dyn MTLDevice>,
    language: (MTLLanguageVersion, Feature),
    rows: OnceCell<Vec<Feature>>,
    abilities: OnceCell<Abilities>,
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
                    return Ok(Self {
                        device,
                        language: (language, row),
                        rows: OnceCell::new(),
                        abilities: OnceCell::new(),
                    });
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

    /// What decides which kernels run. Tensor operations compile on older GPUs too, which have no units for them.
    pub fn abilities(&self) -> Abilities {
        *self.abilities.get_or_init(|| Abilities {
            matrices: self.tries_matrices().is_ok(),
            tensors: self.device.supportsFamily(UNITS.0) && self.tries_tensors("bfloat", BFLOAT_TENSORS_SINCE).is_ok(),
        })
    }

    fn tries_matrices(&self) -> Result<String, String> {
        tried(&self.device, self.language(), (14, 0), &[HEAD, MATRICES].concat())
    }

    fn tries_tensors(&self, element: &str, since: (u32, u32)) -> Result<String, String> {
        let text = TENSORS.replace("threadgroup T ", &format!("threadgroup {element} "));
        tried(&self.device, MTLLanguageVersion::Version4_0, since, &text)
    }

    /// Which kernels multiply many rows, and why not others.
    fn bodies(&self, tensors: Result<String, String>, matrices: Result<String, String>) -> [Feature; 2] {
        let gpu = self.abilities();
        let tensors = match tensors {
            Ok(_) if gpu.tensors => "linear_tensor, for bulk weights in half precision; not for experts".to_owned(),
            Ok(_) => format!("they compile, but the GPU has no units for them: {} has ({})", UNITS.1, UNITS.2),
            Err(why) => why,
        };
        let matrices = match matrices {
            Ok(_) => "the tiles of linear, experts and attention".to_owned(),
            Err(why) => format!("{why}; so rows one by one: linear_rows, expert_linear_rows, attention_rows"),
        };
        [
            Feature { name: TENSOR_BODIES, available: gpu.tensors, why: tensors },
            Feature { name: MATRIX_BODIES, available: gpu.matrices, why: matrices },
        ]
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
        let (matrices, tensors) = (self.tries_matrices(), self.tries_tensors("bfloat", BFLOAT_TENSORS_SINCE));
        row(SIMDGROUP_MATRICES, matrices.clone());
        row(BFLOAT, tried(&self.device, language, since, &[HEAD, BFLOATS].concat()));
        row(TENSORS_HALF, self.tries_tensors("half", (26, 0)));
        row(TENSORS_BFLOAT, tensors.clone());
        let (major, minor) = system_version();
        let sets = if Self::has_residency_sets() { Ok("from macOS 15 on".into()) } else { Err(needs((15, 0))) };
        row(RESIDENCY_SETS, sets);
        row(BINARY_ARCHIVES, Ok(format!("from macOS 11 on; this is {major}.{minor}")));
        rows.extend(self.bodies(tensors, matrices));
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
