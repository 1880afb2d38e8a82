//! Which device: the value of `--device`, and the flags of `lily selftest`.

use std::path::{Path, PathBuf};

use clap::Args;
use lily_engine::engine::{DEVICES, DeviceKind};

/// Flags of `lily selftest`.
#[derive(Debug, Args)]
pub struct SelftestFlags {
    #[arg(long, value_name = "DEVICE", default_value = DEVICES[0], value_parser = parse_device, help = help())]
    #[allow(missing_docs, reason = "its help says it")]
    pub device: String,
}

/// Where a device may keep what it compiled; `None` where there is no such place.
pub fn kernel_cache(env: super::Env) -> Option<PathBuf> {
    let below_home = if cfg!(target_vendor = "apple") { "Library/Caches" } else { ".cache" };
    let home = || env("HOME").map(|home| Path::new(&home).join(below_home));
    super::hub::env_path(env, "XDG_CACHE_HOME").or_else(home).map(|cache| cache.join("lily"))
}

/// What `--device` is for.
pub fn help() -> String {
    format!("Where to run; this build has {}", DEVICES.join(", "))
}

/// A device of this build.
pub fn parse_device(name: &str) -> Result<String, String> {
    let names = DEVICES.join(", ");
    match name {
        _ if DEVICES.contains(&name) => Ok(name.to_owned()),
        "metal" | "cuda" => Err(format!("this build has no {name} device; it runs on {names}")),
        _ => Err(format!("no such device; this build runs on {names}")),
    }
}

/// A kind of device that a plan can be described for.
pub fn parse_kind(name: &str) -> Result<DeviceKind, String> {
    let names = || DeviceKind::ALL.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
    DeviceKind::named(name).ok_or_else(|| format!("no such device; there are plans for {}", names()))
}

#[cfg(test)]
mod tests {
    use super::parse_device;

    #[test]
    fn other_devices_are_refused_by_name() {
        let error = parse_device("cuda").unwrap_err();
        assert!(error.starts_with("this build has no cuda device; it runs on cpu"), "{error}");
        assert!(parse_device("").unwrap_err().starts_with("no such device; this build runs on cpu"));
        assert_eq!(parse_device("cpu").as_deref(), Ok("cpu"));
    }
}
