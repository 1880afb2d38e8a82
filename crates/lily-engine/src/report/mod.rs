//! What a model is and what it would do, as text for people, without running it.

mod inspect;
mod plan;

pub use inspect::{InspectQuery, inspect};
pub use plan::{PlanQuery, plan};
