//! Where a checkpoint keeps what the model asks for. Two conventions exist: Hugging Face's own files ("raw") and MLX's
//! conversions; SPEC §2.2, §3.1, §3.2. Which one a model follows shows in its tensors, never in its name.

use std::collections::BTreeMap;

use super::header::Entry;
use crate::model::config::Config;

/// Left out by name: the vision tower, and the head that drafts further tokens.
const SKIPPED: [&str; 3] = ["vision_tower.", "model.visual.", "mtp."];

/// Names of the text model's root and of its head, MLX's first.
const ROOTS: [(&str, &str); 3] =
    [("language_model.model.", "language_model.lm_head"), ("model.language_model.", "lm_head"), ("model.", "lm_head")];

/// The model does not use tensors or modules of this name.
pub(super) fn is_skipped(name: &str) -> bool {
    SKIPPED.iter().any(|prefix| name.starts_with(prefix))
}

/// How the files of one model name and shape their tensors.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    root: &'static str,
    head: &'static str,
    tied: bool,
    /// Hugging Face's own: the convolution's taps last, the norm weights less 1.
    raw: bool,
}

/// Where a stack of experts lies.
pub(super) enum Stack {
    /// One module, a leading dimension of experts.
    Whole(String),
    /// One tensor `[experts, parts · rows, cols]` without `.weight`; this is part `part` of each expert.
    Part { tensor: String, part: usize, parts: usize },
    /// One module for each expert; this is the first.
    Separate,
}

impl Layout {
    /// What the names and shapes of a model's tensors show.
    pub(super) fn of(tensors: &BTreeMap<String, Entry>, config: &Config) -> Self {
        let has_root = |root: &str| tensors.contains_key(&format!("{root}embed_tokens.weight"));
        let (root, head) = *ROOTS.iter().find(|(root, _)| has_root(root)).unwrap_or(&ROOTS[0]);
        // MLX moves the taps to the middle when it shifts the norms, so one tells of the other. The first decides; another
        // that differs has a wrong shape.
        let conv = tensors.values().find(|entry| is_conv(&entry.name));
        let raw = match conv {
            Some(entry) => entry.shape.len() == 3 && entry.shape[2] != 1,
            // A model of attention alone has none: then only MLX uses its own root, scales and stacks.
            None => root != ROOTS[0].0 && !tensors.keys().any(|name| is_of_mlx(name)),
        };
        Self { root, head, tied: config.tie_word_embeddings, raw }
    }

    /// What MLX would write for a config.
    pub(super) fn of_mlx(config: &Config) -> Self {
        let (root, head) = if config.model_type == "qwen3_next" { ROOTS[2] } else { ROOTS[0] };
        Self { root, head, tied: config.tie_word_embeddings, raw: false }
    }

    /// The convention, for people.
    pub(super) fn name(&self) -> &'static str {
        if self.raw { "Hugging Face's own" } else { "MLX" }
    }

    /// Name in the files of a module that is no stack. A tied head is the embedding.
    pub(super) fn module(&self, path: &str) -> String {
        match path {
            "lm_head" if self.tied => self.tensor("embed_tokens"),
            "lm_head" => self.head.to_owned(),
            path => self.tensor(path),
        }
    }

    /// Name in the files of a tensor that is no module's.
    pub(super) fn tensor(&self, path: &str) -> String {
        format!("{}{path}", self.root)
    }

    /// The layer that a tensor of the files belongs to.
    pub(super) fn layer(&self, name: &str) -> Option<usize> {
        name.strip_prefix(self.root)?.strip_prefix("layers.")?.split('.').next()?.parse().ok()
    }

    /// The part of the embedding that this part of a tied head must be.
    pub(super) fn tied(&self, name: &str) -> Option<String> {
        let part = name.strip_prefix(self.head).filter(|part| self.tied && part.starts_with('.'))?;
        Some(self.tensor(&format!("embed_tokens{part}")))
    }

    /// Shape in the file of a vector.
    pub(super) fn shape(&self, path: &str, shape: &[usize]) -> Vec<usize> {
        match shape {
            [channels, taps] if is_conv(path) && self.raw => vec![*channels, 1, *taps],
            [channels, taps] if is_conv(path) => vec![*channels, *taps, 1],
            shape => shape.to_vec(),
        }
    }

    /// What the file's values lack. The norm inside Gated DeltaNet is plain in both conventions.
    pub(super) fn shift(&self, path: &str) -> f32 {
        let zero_centred = path.ends_with("norm.weight") && !path.ends_with("linear_attn.norm.weight");
        if self.raw && zero_centred { 1.0 } else { 0.0 }
    }

    /// Where `layers.N.mlp.experts.{gate,up,down}_proj` lies, `exists` telling the tensors that there are.
    pub(super) fn stack(&self, path: &str, exists: impl Fn(&str) -> bool) -> Stack {
        let whole = self.tensor(&path.replace(".mlp.experts.", ".mlp.switch_mlp."));
        if exists(&format!("{whole}.weight")) {
            return Stack::Whole(whole);
        }
        if exists(&format!("{}.weight", self.expert(path, 0))) {
            return Stack::Separate;
        }
        let (experts, name) = path.rsplit_once('.').unwrap_or(("", path));
        let (name, part, parts) = match name {
            "gate_proj" => ("gate_up_proj", 0, 2),
            "up_proj" => ("gate_up_proj", 1, 2),
            name => (name, 0, 1),
        };
        let tensor = self.tensor(&format!("{experts}.{name}"));
        if self.raw || exists(&tensor) { Stack::Part { tensor, part, parts } } else { Stack::Whole(whole) }
    }

    /// Name in the files of one expert's module, where each has its own.
    pub(super) fn expert(&self, path: &str, expert: usize) -> String {
        self.tensor(&path.replace(".mlp.experts.", &format!(".mlp.experts.{expert}.")))
    }
}

fn is_of_mlx(name: &str) -> bool {
    name.ends_with(".scales") || name.contains(".switch_mlp.")
}

fn is_conv(name: &str) -> bool {
    name.ends_with("linear_attn.conv1d.weight")
}

#[cfg(test)]
mod tests {
    use lily_kernels::tensor::FileSlice;

    use super::*;

    /// Whether files with these tensors are Hugging Face's own.
    fn is_raw(tensors: &[(&str, &[usize])]) -> bool {
        let json = include_str!("../../../../golden/tiny/config.json");
        let slice = FileSlice { file: 0, offset: 0, bytes: 0 };
        let entry = |(name, shape): &(&str, &[usize])| {
            let (name, shape) = ((*name).to_owned(), shape.to_vec());
            (name.clone(), Entry { name, dtype: safetensors::Dtype::BF16, shape, slice })
        };
        let config = Config::parse(json).expect("a golden");
        Layout::of(&tensors.iter().map(entry).collect(), &config).raw
    }

    #[test]
    fn the_convolution_tells_and_without_one_the_names_do() {
        const CONV: &str = "layers.0.linear_attn.conv1d.weight";
        let embed = |root: &str| format!("{root}embed_tokens.weight");
        for (root, _) in ROOTS {
            let (embed, conv) = (embed(root), format!("{root}{CONV}"));
            assert!(is_raw(&[(&embed, &[8, 4]), (&conv, &[8, 1, 4])]), "{root}");
            assert!(!is_raw(&[(&embed, &[8, 4]), (&conv, &[8, 4, 1])]), "{root}");
            // Attention alone.
            assert_eq!(is_raw(&[(&embed, &[8, 4])]), root != "language_model.model.", "{root}");
            let stack = format!("{root}layers.0.mlp.switch_mlp.up_proj.weight");
            assert!(!is_raw(&[(&embed, &[8, 4]), (&stack, &[2, 8, 4])]), "{root}");
            assert!(!is_raw(&[(&embed, &[8, 4]), (&format!("{root}embed_tokens.scales"), &[8, 1])]), "{root}");
        }
    }
}
