//! Static scratch memory: each temporary gets a range of one arena. Two temporaries share bytes only if one is dead
//! at least one stage before the other is born, so no two dispatches of a stage can meet in reused bytes.

use crate::op::Op;
use crate::tensor::{DType, Space, Tensor};

/// Ranges start on cache lines, which are also the widest vector.
const ALIGN: usize = 64;

/// Temporaries of a plan under construction: bytes each.
#[derive(Debug, Default)]
pub struct Temps(pub Vec<usize>);

impl Temps {
    /// One more.
    pub fn tensor(&mut self, rows: usize, cols: usize, dtype: DType) -> Tensor {
        let id = u32::try_from(self.0.len()).expect("a plan has far fewer than 2^32 temporaries");
        let t = Tensor { space: Space::Temp(id), offset: 0, rows, cols, dtype };
        self.0.push(t.bytes());
        t
    }
}

/// First and last stage in which a temporary is touched.
#[derive(Clone, Copy)]
struct Life {
    first: usize,
    last: usize,
}

impl Life {
    const fn meets(&self, other: &Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

/// Places the temporaries (bytes each) of ops with known stages; returns each one's offset and the arena's size.
pub fn place(ops: &[(Op, usize)], temps: &[usize]) -> (Vec<usize>, usize) {
    let mut lives: Vec<Option<Life>> = vec![None; temps.len()];
    for (op, stage) in ops {
        let contract = op.contract();
        for access in contract.reads().iter().chain(&contract.writes()) {
            if let Space::Temp(id) = access.space {
                let life = lives[id as usize].get_or_insert(Life { first: *stage, last: *stage });
                life.first = life.first.min(*stage);
                life.last = life.last.max(*stage);
            }
        }
    }
    // Largest first leaves the fewest holes.
    let mut order: Vec<usize> = (0..temps.len()).filter(|&t| lives[t].is_some()).collect();
    order.sort_by_key(|&t| (std::cmp::Reverse(temps[t]), t));
    let mut offsets = vec![0; temps.len()];
    let mut placed: Vec<usize> = Vec::new();
    let mut total = 0;
    for t in order {
        let life = lives[t].expect("only live temporaries are ordered");
        let mut taken: Vec<(usize, usize)> = placed
            .iter()
            .filter(|&&p| lives[p].is_some_and(|l| l.meets(&life)))
            .map(|&p| (offsets[p], offsets[p] + temps[p]))
            .collect();
        taken.sort_unstable();
        let mut at = 0;
        for (start, end) in taken {
            if at + temps[t] <= start {
                break;
            }
            at = at.max(end.next_multiple_of(ALIGN));
        }
        offsets[t] = at;
        total = total.max((at + temps[t]).next_multiple_of(ALIGN));
        placed.push(t);
    }
    (offsets, total)
}
