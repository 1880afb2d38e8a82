//! Every ablation switch. A switch removes an optimisation and never changes the mathematics; on the CPU it does not
//! even change a byte. Resolved once, carried in the plan key.

use crate::devices::DeviceKind;

/// One switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Switch {
    /// Name on the command line.
    pub name: &'static str,
    /// The one kind of device that has it; `None` if all have.
    pub device: Option<DeviceKind>,
    /// What it removes when off.
    pub doc: &'static str,
}

impl Switch {
    const fn every(name: &'static str, doc: &'static str) -> Self {
        Self { name, device: None, doc }
    }

    const fn metal(name: &'static str, doc: &'static str) -> Self {
        Self { name, device: Some(DeviceKind::Metal), doc }
    }

    /// Whether a kind of device has it.
    pub fn is_of(&self, device: DeviceKind) -> bool {
        self.device.is_none_or(|only| only == device)
    }
}

/// The table. A new optimisation is a new row.
pub const SWITCHES: &[Switch] = &[
    Switch::every("fuse-expert-in", "gate, up and SwiGLU of the chosen experts in one dispatch"),
    Switch::every("fuse-expert-out", "routing score, shared expert and residual in one dispatch"),
    Switch::every("fuse-qk", "q/k norm, RoPE and cache write in one dispatch"),
    Switch::every("fuse-gdn-norm", "recurrence and gated norm in one dispatch"),
    Switch::every(
        "token-handoff",
        "a token goes to the next step on the device, which has that step before it is read",
    ),
    Switch::metal("fuse-residual", "a projection and the residual it is added to in one dispatch"),
    Switch::metal("fuse-norm-in", "a norm and the projections that read it in one dispatch (few rows)"),
    Switch::metal("fuse-gdn-in", "convolution, gates and recurrence of one token in one dispatch"),
    Switch::metal("fuse-experts", "the shared expert with the chosen ones, which need not be grouped (few rows)"),
    Switch::metal("split-attention", "attention of one token cut along the cache, and gated as the parts are merged"),
    Switch::metal(
        "fused-dequant",
        "weights decoded tile by tile inside a matmul; off: to a bf16 array first (prefill)",
    ),
    Switch::metal("gpu-routing", "pairs grouped by expert on the device; off: by the host, in each layer (prefill)"),
    Switch::metal("gdn-registers", "the recurrent state stays in registers for a whole chunk; off: through memory"),
    Switch::metal("concurrent", "dispatches that share no written byte may overlap; off: one after the other"),
    Switch::metal("expert-tile", "tiles of 32 rows where experts have many; off: of 16 always"),
    Switch::metal("fixed-blocks", "a cache of 32K positions or more cut into whole blocks"),
    Switch::metal("gqa-pack", "query heads that share a key/value head read it together"),
    Switch::metal("kv-coalesced", "neighbouring lanes read neighbouring bytes of the cache"),
];

/// Which switches are on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Switches(u64);

impl Default for Switches {
    fn default() -> Self {
        Self((1 << SWITCHES.len()) - 1)
    }
}

impl Switches {
    /// Index of a switch in the table.
    fn index(name: &str) -> Option<usize> {
        SWITCHES.iter().position(|s| s.name == name)
    }

    /// The same with one switch off; `None` if there is no such switch.
    #[must_use]
    pub fn without(self, name: &str) -> Option<Self> {
        Self::index(name).map(|i| Self(self.0 & !(1 << i)))
    }

    /// Whether a device has a switch, and it is on. Panics on a name that is not in the table.
    pub fn is_on(self, name: &str, device: DeviceKind) -> bool {
        let index = Self::index(name).expect("a switch asked for is in the table");
        SWITCHES[index].is_of(device) && self.0 >> index & 1 == 1
    }

    /// Names that are off, in table order.
    pub fn off(self) -> impl Iterator<Item = &'static str> {
        SWITCHES.iter().enumerate().filter(move |(i, _)| self.0 >> i & 1 == 0).map(|(_, s)| s.name)
    }
}
