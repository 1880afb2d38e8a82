//! Every ablation switch. A switch removes an optimisation and never changes the mathematics; on the CPU it does not
//! even change a byte. Resolved once, carried in the plan key.

/// One switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Switch {
    /// Name on the command line.
    pub name: &'static str,
    /// Whether the optimisation is on unless asked otherwise.
    pub default: bool,
    /// What it removes when off.
    pub doc: &'static str,
}

/// The table. A new optimisation is a new row.
pub const SWITCHES: &[Switch] = &[
    Switch { name: "fuse-expert-in", default: true, doc: "gate, up and SwiGLU of the chosen experts in one dispatch" },
    Switch { name: "fuse-expert-out", default: true, doc: "routing score, shared expert and residual in one dispatch" },
    Switch { name: "fuse-qk", default: true, doc: "q/k norm, RoPE and cache write in one dispatch" },
    Switch { name: "fuse-gdn-norm", default: true, doc: "recurrence and gated norm in one dispatch" },
    Switch {
        name: "token-handoff",
        default: true,
        doc: "a token goes to the next step on the device, which is given that step before the token is read",
    },
];

/// Which switches are on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Switches(u64);

impl Default for Switches {
    fn default() -> Self {
        let on = SWITCHES.iter().enumerate().filter(|(_, s)| s.default);
        Self(on.fold(0, |bits, (i, _)| bits | 1 << i))
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

    /// Whether a switch is on. Panics on a name that is not in the table.
    pub fn is_on(self, name: &str) -> bool {
        let index = Self::index(name).expect("a switch asked for is in the table");
        self.0 >> index & 1 == 1
    }

    /// Names that are off, in table order.
    pub fn off(self) -> impl Iterator<Item = &'static str> {
        SWITCHES.iter().enumerate().filter(move |(i, _)| self.0 >> i & 1 == 0).map(|(_, s)| s.name)
    }
}
