//! `lily inspect`: what a model's files hold and what it would take to run them, or what a device has; nothing is run.

use std::num::NonZeroUsize;
use std::process::ExitCode;

use lily_engine::report::{self, InspectQuery};

use crate::flags::{self, InspectFlags};
use crate::terminal;

/// Runs the command.
///
/// # Errors
/// One sentence: a file is damaged or of a model that Lily does not run; a closed stdout.
pub fn inspect(flags: &InspectFlags) -> anyhow::Result<ExitCode> {
    if let Some(device) = &flags.device {
        terminal::write_stdout(&report::device(device)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let path = flags.path.as_deref().or(flags.model.as_deref());
    let (source, why) = flags::pick_model(path, &flags::process_env)?;
    if let Some(why) = why {
        terminal::note(why);
    }
    let query = InspectQuery {
        precision: flags.precision.into(),
        context: flags.context.map(NonZeroUsize::get),
        prefill_chunk: flags.prefill_chunk.get(),
    };
    terminal::write_stdout(&report::inspect(&source, query)?)?;
    Ok(ExitCode::SUCCESS)
}
