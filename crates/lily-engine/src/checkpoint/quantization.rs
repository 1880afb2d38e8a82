//! The `quantization` block of `config.json`: which modules are stored as affine codes, and how.
//! States what the config says; whether the tensors agree is checked where they are read.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::Value;

use super::layout;
use crate::model::config::{ConfigError, Fields, parse_object};

/// How a module's codes are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AffineParams {
    /// Bits per code, 1 to 8.
    pub bits: u8,
    /// Inputs that share a scale and a bias.
    pub group: u16,
}

impl fmt::Display for AffineParams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bits in groups of {}", self.bits, self.group)
    }
}

/// What the config says of one module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stated {
    /// Nothing: the config has no quantization block, or one without a default.
    Nothing,
    /// Quantized so, if it is quantized at all.
    Default(AffineParams),
    /// Quantized so: the config names this module.
    Named(AffineParams),
    /// Not quantized: the config names this module.
    Dense,
}

/// The default and the modules that differ from it, by full module path as it stands in the files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Quantization {
    default: Option<AffineParams>,
    modules: BTreeMap<String, Stated>,
    /// `quantization_config` says something else.
    disputed: bool,
}

impl Quantization {
    /// Reads `quantization`, else `quantization_config`, of the text of a `config.json`. Neither is fine too.
    ///
    /// # Errors
    /// A scheme other than affine codes, or senseless numbers.
    pub fn parse(config_json: &str) -> Result<Self, ConfigError> {
        let root = parse_object("config.json", config_json)?;
        let top = Fields { file: "config.json", section: "", object: &root };
        let Some(block) = top.object("quantization")? else {
            return top.object("quantization_config")?.map_or_else(|| Ok(Self::default()), Self::of);
        };
        let mut this = Self::of(block)?;
        if top.get("quantization_config").is_some() {
            // Converters write both. One that was left from before the conversion harms nobody: the shapes of the
            // tensors must agree with the first.
            let other = top.object("quantization_config").and_then(|block| block.map(Self::of).transpose());
            this.disputed = !other.is_ok_and(|other| other.as_ref() == Some(&this));
        }
        Ok(this)
    }

    fn of(block: Fields<'_>) -> Result<Self, ConfigError> {
        if let Some(method) = block.string("quant_method")? {
            return Err(block.unsupported("quant_method", method, "MLX affine quantization"));
        }
        check_mode(block)?;
        let default = match (block.get("bits"), block.get("group_size")) {
            (None, None) => None,
            _ => Some(params(block, None)?),
        };

        let mut modules = BTreeMap::new();
        for (path, value) in block.object {
            if layout::is_skipped(path) {
                continue;
            }
            let stated = match value {
                Value::Bool(false) => Stated::Dense,
                Value::Bool(true) => default.map_or(Stated::Nothing, Stated::Named),
                Value::Object(object) => {
                    let module = Fields { file: block.file, section: path, object };
                    check_mode(module)?;
                    Stated::Named(params(module, default)?)
                }
                // Scalars beside the paths belong to the block itself.
                Value::Null | Value::Number(_) | Value::String(_) | Value::Array(_) => continue,
            };
            modules.insert(path.clone(), stated);
        }
        Ok(Self { default, modules, disputed: false })
    }

    /// What is odd about it, in a sentence.
    pub fn warning(&self) -> Option<&'static str> {
        self.disputed
            .then_some("config.json has `quantization` and `quantization_config`, which differ; the first is used")
    }

    /// What the config says of the module with this path in the files, for example
    /// `language_model.model.layers.0.mlp.gate`.
    pub fn lookup(&self, path: &str) -> Stated {
        match self.modules.get(path) {
            Some(stated) => *stated,
            None => self.default.map_or(Stated::Nothing, Stated::Default),
        }
    }
}

/// Bits and group of one object; a field that is absent is inherited.
fn params(fields: Fields<'_>, inherited: Option<AffineParams>) -> Result<AffineParams, ConfigError> {
    let field = |name: &str, max: usize, inherited: Option<usize>| match (fields.get(name), inherited) {
        (None, Some(value)) => Ok(value),
        _ => fields.size(name, max),
    };
    let bits = field("bits", 8, inherited.map(|params| params.bits.into()))?;
    let group = field("group_size", u16::MAX.into(), inherited.map(|params| params.group.into()))?;
    Ok(AffineParams { bits: bits as u8, group: group as u16 }) // both bounded by `field`
}

fn check_mode(fields: Fields<'_>) -> Result<(), ConfigError> {
    match fields.string("mode")? {
        None | Some("affine") => Ok(()),
        Some(mode) => Err(fields.unsupported("mode", mode, "`affine` only")),
    }
}
