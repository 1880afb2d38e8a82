//! One folder an op: contract (`mod.rs`), reference, cases, CPU kernel; later the Metal and CUDA kernels.

pub mod add;
pub mod attention;
pub mod combine_experts;
pub mod conv1d_silu;
pub mod embed;
pub mod expert_gate_up;
pub mod expert_linear;
pub mod gated_delta;
pub mod gated_delta_norm;
pub mod gated_rms_norm;
pub mod gather_rows;
pub mod gdn_gates;
pub mod group_rows;
pub mod kv_write;
pub mod l2_norm;
pub mod linear;
pub mod moe_output;
pub mod qk_norm_rope_write;
pub mod quantize_rows;
pub mod rms_norm;
pub mod rope;
pub mod router_top_k;
pub mod sample;
pub mod shared_expert_add;
pub mod sigmoid_gate;
pub mod swiglu;
