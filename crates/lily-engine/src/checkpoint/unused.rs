//! Tensors that the model does not take. Most do no harm and are told of in a warning. One that changes what its module
//! computes is refused: a model that is run without it answers, and wrongly.

use super::header::Entry;
use super::{Checkpoint, CheckpointError};

/// Of two matrices that should be the same, so many bytes are compared: unequal ones differ at once.
const COMPARED_BYTES: usize = 1 << 20;

const LORA: &str = "is part of a LoRA adapter; Lily runs models that it is merged into";
const FLOAT_SCALES: &str =
    "belongs to a quantization that Lily does not read, fp8 or another; it reads MLX's affine quantization";
const GPTQ: &str = "belongs to a GPTQ or AWQ quantization; Lily reads MLX's affine quantization";
const COMPRESSED: &str = "belongs to a compressed-tensors quantization; Lily reads MLX's affine quantization";
const BITSANDBYTES: &str = "belongs to a bitsandbytes quantization; Lily reads MLX's affine quantization";

/// Parts of names, between dots, that say how a module has to be read.
const FOREIGN: [(&str, &str); 24] = [
    ("lora_A", LORA),
    ("lora_B", LORA),
    ("lora_a", LORA),
    ("lora_b", LORA),
    ("lora_embedding_A", LORA),
    ("lora_embedding_B", LORA),
    ("lora_magnitude_vector", LORA),
    ("weight_scale_inv", FLOAT_SCALES),
    ("weight_scale", FLOAT_SCALES),
    ("weight_scale_2", FLOAT_SCALES),
    ("input_scale", FLOAT_SCALES),
    ("activation_scale", FLOAT_SCALES),
    ("qweight", GPTQ),
    ("qzeros", GPTQ),
    ("g_idx", GPTQ),
    ("weight_packed", COMPRESSED),
    ("weight_shape", COMPRESSED),
    ("weight_zero_point", COMPRESSED),
    ("weight_g_idx", COMPRESSED),
    ("absmax", BITSANDBYTES),
    ("nested_absmax", BITSANDBYTES),
    ("quant_map", BITSANDBYTES),
    ("nested_quant_map", BITSANDBYTES),
    ("SCB", BITSANDBYTES),
];

impl Checkpoint {
    /// Refuses tensors that name a way of storing or changing weights that Lily does not know. Before the model asks for
    /// its own: it would only find that one is missing.
    pub(super) fn check_names(&self) -> Result<(), CheckpointError> {
        for entry in self.shards.tensors.values() {
            let foreign = FOREIGN.iter().find(|(part, _)| entry.name.split('.').any(|other| other == *part));
            if let Some((_, problem)) = foreign {
                return Err(self.refuse(entry, *problem));
            }
        }
        Ok(())
    }

    /// Refuses what the model has left over and should not have; to be asked when it has taken its own. The rest is in
    /// `warnings`.
    ///
    /// # Errors
    /// A tensor belongs to a module that the model uses, to a layer beyond the config's, or to a head that should be the
    /// embedding and is not.
    pub fn check_unused(&self) -> Result<(), CheckpointError> {
        for entry in self.unknown().into_iter().filter_map(|name| self.shards.tensors.get(name)) {
            if let Some(module) = self.used_part(&entry.name) {
                let problem = format!("belongs to {module}, which Lily computes without it");
                return Err(self.refuse(entry, problem));
            }
            let layers = self.config.num_hidden_layers;
            if let Some(layer) = self.layout.layer(&entry.name).filter(|layer| *layer >= layers) {
                let problem = format!("belongs to layer {layer}, but config.json has `num_hidden_layers` = {layers}");
                return Err(self.refuse(entry, problem));
            }
            if let Some(embedding) = self.layout.tied(&entry.name).filter(|other| !self.are_same(entry, other)) {
                let problem = format!("is not {embedding}, but config.json has `tie_word_embeddings` = true");
                return Err(self.refuse(entry, problem));
            }
        }
        Ok(())
    }

    fn refuse(&self, entry: &Entry, problem: impl Into<String>) -> CheckpointError {
        CheckpointError::tensor(self.shards.files[entry.slice.file as usize].name(), &entry.name, problem)
    }

    /// The module, or the tensor that stands for one, whose part this is and of which the model took something.
    fn used_part<'a>(&self, name: &'a str) -> Option<&'a str> {
        let cuts = |mark: char| name.match_indices(mark).map(|(at, _)| &name[..at]);
        let module = cuts('.').find(|module| self.taken.contains(&format!("{module}.weight")));
        module.or_else(|| cuts('_').find(|tensor| self.taken.contains(*tensor)))
    }

    fn are_same(&self, entry: &Entry, other: &str) -> bool {
        let Some(other) = self.shards.tensors.get(other) else { return false };
        let start = |entry: &Entry| {
            let bytes = self.shards.bytes(entry.slice);
            &bytes[..bytes.len().min(COMPARED_BYTES)]
        };
        (entry.dtype, &entry.shape) == (other.dtype, &other.shape) && start(entry) == start(other)
    }
}
