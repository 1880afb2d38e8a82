//! `lily pull`: a repository of the Hugging Face Hub into its cache. This file is the order of events: list, choose,
//! fetch what describes the model and judge it, check the disk, fetch the rest, link, name. Every state on the way is one that the next pull continues from, so nothing has
//! to be cleaned up: a signal, a crash and a power cut are all the same to it.

mod blob;
mod describe;
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

use anyhow::{Context, anyhow, bail};
use lily_engine::checkpoint::{Checkpoint, ModelSource, cached_model};

use crate::flags::{self, HubSettings, PullFlags};
use crate::interrupt;
use crate::terminal::progress::{Progress, Report, human_bytes, leave_bar};
use crate::terminal::{note, write_stdout};
use hub::{Hub, RemoteFile};
use layout::Layout;
use patience::Limits;
use select::Choice;

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
        any: flags.any,
        limits: &limits,
        disk: &disk,
        report: &progress,
    };
    let folder = task.run()?;
    // A whole repository may still hold files that contradict each other.
    match Checkpoint::open(&ModelSource::Folder(folder.clone())) {
        Err(error) if flags.any => note(format_args!("warning: {error}")),
        Err(error) => bail!("{} is here as the Hub has it, and Lily cannot open it: {error}", flags.repo),
        Ok(_) if cached_model(&settings.cache, &flags.repo).as_ref() == Some(&folder) => {
            note(format_args!("`lily chat --model {}` talks with it", flags.repo));
        }
        Ok(_) => note(format_args!("`lily chat --model {}` talks with it", folder.display())),
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
    /// Fetch it also if the engine would not run it.
    any: bool,
    limits: &'a Limits,
    /// The disk of an existing folder.
    disk: &'a dyn Fn(&Path) -> io::Result<Disk>,
    report: &'a dyn Report,
}

/// What a disk takes.
struct Disk {
    /// Bytes that may still be written.
    free: u64,
    /// Bytes of the name of a file.
    longest_name: u64,
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
        let commit = &listing.commit;
        let layout = Layout::create(&self.settings.cache, self.repo)?;
        self.check_names(&layout, &choice, commit)?;
        let (first, rest): (Vec<_>, Vec<_>) =
            self.missing(&layout, &choice.files)?.into_iter().partition(|(file, _)| describe::describes(file));
        let missing = || first.iter().chain(&rest);
        let here = missing().map(|(_, here)| here).sum();
        let total: u64 = missing().map(|(file, _)| file.size).sum();
        if missing().next().is_none() {
            self.judge(&layout, &choice, false)?;
            let line = format!("{} ({commit}) is here already, {}; nothing to transfer", self.repo, choice.total());
            self.report.note(&line);
        } else {
            let (count, all) = (missing().count(), choice.files.len());
            let line = format!("{} ({commit}): {count} of {all} files, {}", self.repo, human_bytes(total - here));
            self.report.note(&line);
            self.report.start(here, total);
            let fetch = |&file: &(&RemoteFile, u64)| blob::fetch(&hub, &layout, commit, file, self.report);
            first.iter().try_for_each(fetch)?;
            self.judge(&layout, &choice, !rest.is_empty())?;
            self.check_room(&layout, rest.iter().map(|(file, here)| file.size - here).sum())?;
            rest.iter().try_for_each(fetch)?;
            self.report.end();
        }
        for file in &choice.files {
            layout.link(commit, &file.name, file.checksum.name())?;
        }
        // Last, so that the name leads to the old, complete snapshot as long as the new one is not.
        layout.write_ref(self.revision, commit)?;
        Ok(layout.snapshot(commit))
    }

    /// Before a byte comes that would get no name in the end.
    fn check_names(&self, layout: &Layout, choice: &Choice, commit: &str) -> anyhow::Result<()> {
        let place = layout.repository();
        let longest = (self.disk)(place).with_context(|| place.display().to_string())?.longest_name;
        choice.check_names(longest).with_context(|| self.repo.to_owned())?;
        if let Some(part) = self.revision.split('/').find(|part| part.len() as u64 > longest) {
            bail!("--revision: a part of it has {} bytes, and the disk takes {longest}", part.len());
        }
        layout.check_ref(self.revision, commit)
    }

    /// Before gigabytes come for nothing, if there are files `to_come`.
    fn judge(&self, layout: &Layout, choice: &Choice, to_come: bool) -> anyhow::Result<()> {
        match describe::check(layout, &choice.files) {
            Err(problem) if self.any => self.report.note(&format!("warning: Lily cannot run it: {problem:#}")),
            Err(problem) => {
                let rest = if to_come { "; the rest was not fetched (`--any` fetches it all the same)" } else { "" };
                return Err(anyhow!("{} holds no model that Lily runs: {problem:#}{rest}", self.repo));
            }
            Ok(()) => {}
        }
        Ok(())
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
        let free = (self.disk)(place).with_context(|| place.display().to_string())?.free;
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

fn disk(folder: &Path) -> io::Result<Disk> {
    let found = rustix::fs::statvfs(folder)?;
    // Some file systems tell no length; then it is what nearly all have.
    let longest_name = if found.f_namemax == 0 { 255 } else { found.f_namemax };
    Ok(Disk { free: found.f_bavail.saturating_mul(found.f_frsize), longest_name })
}
