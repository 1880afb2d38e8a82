//! The libraries: which files of `ops/` each is made of, after the prelude.

use crate::metal::device::Source;

macro_rules! sources {
    ($($name:ident = $($file:literal),+;)+) => {
        $(
            pub const $name: Source = Source(&[$((
                concat!("ops/", $file, ".metal"),
                include_str!(concat!("../../ops/", $file, ".metal")),
            )),+]);
        )+

        /// Every library.
        pub const ALL: &[Source] = &[$($name),+];
    };
}

sources! {
    ADD = "add/add";
    ATTENTION = "kv_write/kv", "attention/attention";
    ATTENTION_BLOCKS = "kv_write/kv", "attention_parts/cut", "attention_parts/parts", "attention_parts/attention_blocks";
    ATTENTION_TILE = "kv_write/kv", "attention/attention_tile";
    ATTENTION_MERGE = "attention_parts/cut", "attention_merge/attention_merge";
    ATTENTION_PARTS = "kv_write/kv", "attention_parts/cut", "attention_parts/parts", "attention_parts/attention_parts";
    COMBINE_EXPERTS = "combine_experts/combine_experts";
    CONV1D_SILU = "conv1d_silu/conv1d_silu";
    EMBED = "linear/matmul", "embed/embed";
    EXPAND_WEIGHTS = "linear/matmul", "expand_weights/expand_weights";
    EXPERT_GATE_UP = "linear/matmul", "expert_linear/experts", "expert_gate_up/expert_gate_up";
    EXPERT_GATE_UP_TILE = "linear/matmul", "linear/tile", "expert_linear/experts", "expert_linear/blocks",
        "expert_gate_up/expert_gate_up_tile";
    EXPERT_LINEAR = "linear/matmul", "expert_linear/experts", "expert_linear/expert_linear";
    EXPERT_LINEAR_TILE = "linear/matmul", "linear/tile", "expert_linear/experts", "expert_linear/blocks",
        "expert_linear/expert_linear_tile";
    GATED_DELTA = "gated_delta/gated_delta";
    GATED_DELTA_CHUNKS = "gated_delta/gated_delta_chunks";
    GATED_DELTA_STEP = "gated_delta_step/gated_delta_step";
    GATED_RMS_NORM = "gated_rms_norm/gated_rms_norm";
    GATHER_ROWS = "gather_rows/gather_rows";
    GDN_GATES = "gdn_gates/gdn_gates";
    GROUP_ROWS = "group_rows/group_rows";
    KV_WRITE = "kv_write/kv", "kv_write/kv_write";
    L2_NORM = "l2_norm/l2_norm";
    LINEAR = "linear/matmul", "linear/linear";
    LINEAR_ADD = "linear/matmul", "linear_add/linear_add";
    LINEAR_TENSOR = "linear/matmul", "linear/tile", "linear/linear_tensor";
    LINEAR_TILE = "linear/matmul", "linear/tile", "linear/linear_tile";
    MOE_DOWN = "linear/matmul", "moe_down/moe_down";
    MOE_GATE_UP = "linear/matmul", "moe_gate_up/moe_gate_up";
    MOE_OUTPUT = "moe_output/moe_output";
    NORM_LINEARS = "linear/matmul", "norm_linears/norm_linears";
    QK_NORM_ROPE_WRITE = "kv_write/kv", "qk_norm_rope_write/qk_norm_rope_write";
    RMS_NORM = "rms_norm/rms_norm";
    ROPE = "rope/rope";
    ROUTER_TOP_K = "router_top_k/router_top_k";
    SAMPLE = "sample/sample";
    SHARED_EXPERT_ADD = "shared_expert_add/shared_expert_add";
    SIGMOID_GATE = "sigmoid_gate/sigmoid_gate";
    SPLIT_HEADS = "split_heads/split_heads";
    SWIGLU = "swiglu/swiglu";
}
