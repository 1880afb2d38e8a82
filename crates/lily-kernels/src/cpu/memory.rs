//! How much memory this process may still fill. On Linux, what the machine has available and what its control groups
//! leave; page cache counts as available, because mapped weights live there. On macOS, all that the machine has.

use std::fs;
use std::path::{Path, PathBuf};

/// Bytes; `None` where the system does not tell.
pub fn available() -> Option<u64> {
    if cfg!(target_os = "macos") { installed() } else { left_on_linux() }
}

/// What the machine has. macOS tells how much of it is free too, but gives programs most of what is not: it compresses
/// and drops what others hold.
#[cfg(target_os = "macos")]
fn installed() -> Option<u64> {
    let (mut bytes, mut size) = (0u64, size_of::<u64>());
    // SAFETY: the name ends in a zero; the value is written into `bytes`, whose size is `size`; nothing is set.
    let result = unsafe {
        libc::sysctlbyname(c"hw.memsize".as_ptr(), (&raw mut bytes).cast(), &raw mut size, std::ptr::null_mut(), 0)
    };
    (result == 0 && size == size_of::<u64>() && bytes > 0).then_some(bytes)
}

#[cfg(not(target_os = "macos"))]
const fn installed() -> Option<u64> {
    None
}

fn left_on_linux() -> Option<u64> {
    let machine = field(&fs::read_to_string("/proc/meminfo").ok()?, "MemAvailable:")? * 1024;
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let limits = group_folders(&groups).into_iter().filter_map(|folder| left_in(&folder));
    Some(limits.fold(machine, u64::min))
}

/// The number after a name at the start of a line.
fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// This process's control groups for memory and the groups around them; version 2, then version 1.
fn group_folders(groups: &str) -> Vec<PathBuf> {
    let mut folders = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let root = match controllers {
            "" => Path::new("/sys/fs/cgroup"),
            list if list.split(',').any(|name| name == "memory") => Path::new("/sys/fs/cgroup/memory"),
            _ => continue,
        };
        let path = Path::new(path.trim_start_matches('/'));
        folders.extend(path.ancestors().map(|path| root.join(path)));
    }
    folders
}

/// What a group's limit leaves; `None` without a limit.
fn left_in(folder: &Path) -> Option<u64> {
    let number = |name: &str| fs::read_to_string(folder.join(name)).ok()?.trim().parse::<u64>().ok();
    let (limit, used) = number("memory.max")
        .zip(number("memory.current"))
        .or_else(|| number("memory.limit_in_bytes").zip(number("memory.usage_in_bytes")))?;
    let statistics = fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
    let cached = field(&statistics, "file ").or_else(|| field(&statistics, "total_cache ")).unwrap_or(0);
    Some(limit.saturating_sub(used.saturating_sub(cached)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_follow_their_names() {
        let text = "MemTotal:       100 kB\nMemAvailable:    42 kB\n";
        assert_eq!(field(text, "MemAvailable:"), Some(42));
        assert_eq!(field(text, "SwapTotal:"), None);
        assert_eq!(field("file 7\nfile_mapped 3\n", "file "), Some(7));
    }

    #[test]
    fn groups_of_both_versions_and_all_around_them_count() {
        let folders = group_folders("0::/user.slice/a\n5:cpu,memory:/docker/b\n3:cpuset:/c\nnonsense\n");
        let want = [
            "/sys/fs/cgroup/user.slice/a",
            "/sys/fs/cgroup/user.slice",
            "/sys/fs/cgroup/",
            "/sys/fs/cgroup/memory/docker/b",
            "/sys/fs/cgroup/memory/docker",
            "/sys/fs/cgroup/memory/",
        ];
        assert_eq!(folders, want.map(PathBuf::from));
    }

    #[test]
    fn a_limit_leaves_what_is_not_used_but_for_cache() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        assert_eq!(left_in(folder.path()), None);
        write("memory.max", "max\n");
        write("memory.current", "700\n");
        assert_eq!(left_in(folder.path()), None);
        write("memory.max", "1000\n");
        write("memory.stat", "anon 300\nfile 400\n");
        assert_eq!(left_in(folder.path()), Some(700));
    }

    #[test]
    #[cfg(any(target_os = "linux", target_os = "macos"))]
    fn this_machine_has_some() {
        assert!(available().is_some_and(|bytes| bytes > 1 << 20));
    }
}
