//! `lily pull`: a repository of the Hugging Face Hub into its cache. This file is the order of events: list, choose,
//! check the disk, fetch, link, name. Every state on the way is one that the next pull continues from, so nothing has
//! to be cleaned up: a signal, a crash and a power cut are all the same to it.

mod blob;
mod hub;
mod layout;
mod patience;
mod select;
#[cfg(test)]
mod tests;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};

use crate::flags::{self, HubSettings, PullFlags};
use crate::interrupt;
use crate::terminal::progress::{Progress, Report, human_bytes, leave_bar};
use crate::terminal::{note, write_stdout};
use hub::{Hub, RemoteFile};
use layout::Layout;
use patience::Limits;

/// Runs the command; the folder of the model is all that goes to stdout.
///
/// # Errors
/// One sentence: no such repository, no access, no room, no network, wrong bytes, a closed stdout.
pub fn pull(flags: &PullFlags) -> anyhow::Result<ExitCode> {
    let settings = flags::hub_settings(&flags::process_env, flags::proxy())?;
    interrupt::exit_on_signals(|| {
        leave_bar();
        note("stopped; the same command goes on where it was");
    })?;
    let limits = Limits::default();
    let progress = Progress::new();
    let task = Task {
        settings: &settings,
        repo: &flags.repo,
        revision: &flags.revision,
        verify: flags.verify,
        limits: &limits,
        free_bytes: &free_bytes,
        report: &progress,
    };
    let folder = task.run()?;
    if lily_engine::checkpoint::cached_model(&settings.cache, &flags.repo).as_ref() == Some(&folder) {
        note(format_args!("`lily chat --model {}` talks with it", flags.repo));
    }
    write_stdout(&format!("{}\n", folder.display()))?;
    Ok(ExitCode::SUCCESS)
}

/// One pull, with everything that a test replaces.
struct Task<'a> {
    settings: &'a HubSettings,
    repo: &'a str,
    revision: &'a str,
    verify: bool,
    limits: &'a Limits,
    /// Bytes that may still be written below an existing folder.
    free_bytes: &'a dyn Fn(&Path) -> io::Result<u64>,
    report: &'a dyn Report,
}

impl Task<'_> {
    /// Folder of the complete snapshot.
    fn run(&self) -> anyhow::Result<PathBuf> {
        let hub = Hub::new(self.settings, self.repo, self.revision, self.limits);
        let listing = hub.listing(self.report)?;
        let choice = select::choose(listing.files, self.repo)?;
        if let Some(line) = choice.skipped_line() {
            self.report.note(&line);
        }
        let layout = Layout::create(&self.settings.cache, self.repo)?;
        let missing = self.missing(&layout, &choice.files)?;
        let here = missing.iter().map(|(_, here)| here).sum();
        let total: u64 = missing.iter().map(|(file, _)| file.size).sum();
        let commit = &listing.commit;
        if missing.is_empty() {
            let line = format!("{} ({commit}) is here already, {}; nothing to transfer", self.repo, choice.total());
            self.report.note(&line);
        } else {
            let to_come = total - here;
            self.check_room(&layout, to_come)?;
            let (count, all) = (missing.len(), choice.files.len());
            let line = format!("{} ({commit}): {count} of {all} files, {}", self.repo, human_bytes(to_come));
            self.report.note(&line);
            self.report.start(here, total);
            for (file, here) in &missing {
                blob::fetch(&hub, &layout, commit, (file, *here), self.report)?;
            }
            self.report.end();
        }
        for file in &choice.files {
            layout.link(commit, &file.name, file.checksum.name())?;
        }
        // Last, so that the name leads to the old, complete snapshot as long as the new one is not.
        layout.write_ref(self.revision, commit)?;
        Ok(layout.snapshot(commit))
    }

    /// Files whose bytes are not all here, with how many are.
    fn missing<'f>(&self, layout: &Layout, files: &'f [RemoteFile]) -> anyhow::Result<Vec<(&'f RemoteFile, u64)>> {
        let mut missing = Vec::new();
        for file in files {
            let path = layout.blob(file.checksum.name());
            if self.verify && path.is_file() && !blob::is_intact(&path, file)? {
                self.report
                    .note(&format!("{}: its bytes changed since they were downloaded; fetching it again", file.name));
                fs::remove_file(&path).with_context(|| path.display().to_string())?;
            }
            if !blob::is_here(&path, file.size) {
                let part = fs::metadata(layout.incomplete(file.checksum.name())).map_or(0, |found| found.len());
                missing.push((file, part.min(file.size)));
            }
        }
        Ok(missing)
    }

    fn check_room(&self, layout: &Layout, needed: u64) -> anyhow::Result<()> {
        let place = layout.repository();
        let free = (self.free_bytes)(place).with_context(|| place.display().to_string())?;
        if free < needed {
            bail!(
                "{} are still to be downloaded, and {} has {} free: make room, or set HF_HOME to a folder on a larger disk",
                human_bytes(needed),
                place.display(),
                human_bytes(free)
            );
        }
        Ok(())
    }
}

fn free_bytes(folder: &Path) -> io::Result<u64> {
    let found = rustix::fs::statvfs(folder)?;
    Ok(found.f_bavail.saturating_mul(found.f_frsize))
}
