//! Where MLX's checkpoints keep what the model asks for by Hugging Face's names.

/// Left out by name: the vision tower, and the head that drafts further tokens.
const SKIPPED: [&str; 3] = ["vision_tower.", "model.visual.", "mtp."];

/// The model does not use tensors or modules of this name.
pub(super) fn is_skipped(name: &str) -> bool {
    SKIPPED.iter().any(|prefix| name.starts_with(prefix))
}

/// Name in the files of a module: `layers.0.mlp.experts.up_proj` is
/// `language_model.model.layers.0.mlp.switch_mlp.up_proj`. A tied head is the embedding.
pub(super) fn stored_module(path: &str, tied: bool) -> String {
    match path {
        "lm_head" if tied => stored_tensor("embed_tokens"),
        "lm_head" => "language_model.lm_head".to_owned(),
        path => stored_tensor(&path.replace(".mlp.experts.", ".mlp.switch_mlp.")),
    }
}

/// Name in the files of a tensor that is no module's.
pub(super) fn stored_tensor(path: &str) -> String {
    format!("language_model.model.{path}")
}

/// Dimensions that the file adds to those of a vector: the convolution's taps are stored as `[channels, taps, 1]`.
pub(super) fn stored_shape(path: &str, shape: &[usize]) -> Vec<usize> {
    let mut stored = shape.to_vec();
    if is_conv(path) {
        stored.push(1);
    }
    stored
}

/// The tensor marks its file as Hugging Face's own layout, which keeps the taps last, the norm weights less 1, and gate
/// and up of the experts in one tensor.
pub(super) fn is_hugging_face(name: &str, shape: &[usize]) -> bool {
    is_conv(name) && shape.len() == 3 && shape[2] != 1
}

fn is_conv(name: &str) -> bool {
    name.ends_with("linear_attn.conv1d.weight")
}
