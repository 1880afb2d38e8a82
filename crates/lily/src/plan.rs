//! `lily plan`: what one step does on the device, from `config.json` alone.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use lily_engine::engine::ModelSource;
use lily_engine::report::{self, PlanQuery};

use crate::flags::{self, PlanFlags};
use crate::terminal;

/// Runs the command.
///
/// # Errors
/// One sentence: the file, the model or the switch is not known; a closed stdout.
pub fn plan(flags: &PlanFlags) -> anyhow::Result<ExitCode> {
    let path = flags.path.as_deref().or(flags.model.as_deref());
    let (source, why) = flags::pick_model(path, &flags::process_env)?;
    if let Some(why) = why {
        terminal::note(why);
    }
    let query = PlanQuery {
        tokens: flags.tokens.map_or(1, std::num::NonZeroUsize::get),
        decode: flags.tokens.is_none(),
        context: flags.context,
        device: flags.device,
        precision: flags.precision.into(),
        without: flags.without.clone(),
        dispatches: flags.dispatches,
    };
    let mut report = report::plan(&config_json(&source)?, &query)?;
    if !report.ends_with('\n') {
        report.push('\n');
    }
    terminal::write_stdout(&report)?;
    Ok(ExitCode::SUCCESS)
}

fn config_json(source: &ModelSource) -> anyhow::Result<String> {
    match source {
        ModelSource::Folder(path) => read_config(path),
        ModelSource::Embedded(model) => {
            let bytes = model.files.iter().find(|(name, _)| *name == "config.json").map(|(_, bytes)| *bytes);
            let bytes = bytes.with_context(|| format!("{} has no config.json", model.name))?;
            Ok(std::str::from_utf8(bytes).with_context(|| format!("{}: config.json", model.name))?.to_owned())
        }
    }
}

fn read_config(path: &Path) -> anyhow::Result<String> {
    let file = if path.is_dir() { path.join("config.json") } else { path.to_owned() };
    std::fs::read_to_string(&file).with_context(|| file.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_a_file_and_the_built_in_model_have_a_config() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/lily-demo");
        let from_folder = read_config(&folder).unwrap();
        assert_eq!(from_folder, read_config(&folder.join("config.json")).unwrap());
        assert_eq!(from_folder, config_json(&ModelSource::Embedded(flags::DEMO)).unwrap());
        let error = format!("{:#}", read_config(Path::new("/no/such")).unwrap_err());
        assert!(error.starts_with("/no/such: "), "{error}");
    }
}
