//! What `lily pull` takes from the command line and the environment. The Hub, its cache and its token are found the way
//! `huggingface_hub` finds them, so that one set-up serves both.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use clap::Args;
use ureq::tls::{PemItem, RootCerts, parse_pem};

use super::{CACHED_REPO, Env};

/// The only address that the program knows by itself.
const DEFAULT_ENDPOINT: &str = "https://huggingface.co";

/// Flags of `lily pull`.
#[derive(Debug, Args)]
pub struct PullFlags {
    /// The repository
    #[arg(value_name = "OWNER/NAME", default_value = CACHED_REPO, value_parser = parse_repo)]
    pub repo: String,
    /// Branch, tag or commit
    #[arg(long, value_name = "REV", default_value = "main", value_parser = parse_revision)]
    pub revision: String,
    /// Compare the checksums of files that are already there, and fetch again what differs
    #[arg(long)]
    pub verify: bool,
    /// Fetch it even if Lily cannot run it: without this, config.json is read before any weight is fetched
    #[arg(long)]
    pub any: bool,
}

/// Where the Hub is, where its files go, and who asks. Not `Debug`: the token belongs in no message.
pub struct HubSettings {
    /// Scheme and authority, without a slash at the end.
    pub endpoint: String,
    /// Sent to the endpoint, and to no other host.
    pub token: Option<String>,
    /// The hub cache: `models--{owner}--{name}` lie in it.
    pub cache: PathBuf,
    /// Proxy of this process's environment.
    pub proxy: Option<ureq::Proxy>,
    /// Certificate authorities to trust instead of the built-in list.
    pub authorities: Option<RootCerts>,
}

/// The settings of `HF_ENDPOINT`, `HF_TOKEN` (or the token file), `HF_HUB_CACHE`, `HF_HOME` and `SSL_CERT_FILE`.
///
/// # Errors
/// One sentence: no cache folder can be named, a file cannot be read, a value is malformed.
pub fn hub_settings(env: Env, proxy: Option<ureq::Proxy>) -> anyhow::Result<HubSettings> {
    let text = |name: &str| env(name).map(|value| value.into_string()).transpose();
    let endpoint = text("HF_ENDPOINT").ok().context("HF_ENDPOINT is not UTF-8 text")?;
    let endpoint = endpoint.as_deref().unwrap_or(DEFAULT_ENDPOINT).trim_end_matches('/').to_owned();
    let known =
        ["https://", "http://"].iter().any(|scheme| endpoint.len() > scheme.len() && endpoint.starts_with(scheme));
    ensure!(known, "HF_ENDPOINT is {endpoint:?}; it must begin with https:// or http://");
    let token = match text("HF_TOKEN").ok().context("HF_TOKEN is not UTF-8 text")? {
        Some(token) => Some(token),
        None => stored_token(env)?,
    };
    let token = token.map(|token| token.trim().to_owned()).filter(|token| !token.is_empty());
    let sendable = token.as_deref().is_none_or(|token| token.bytes().all(|byte| byte.is_ascii_graphic()));
    ensure!(sendable, "the Hugging Face token holds characters that no token has");
    let cache = hub_dir(env).context("none of HF_HUB_CACHE, HF_HOME, XDG_CACHE_HOME and HOME is set")?;
    let authorities = env_path(env, "SSL_CERT_FILE").map(|path| authorities(&path)).transpose()?;
    Ok(HubSettings { endpoint, token, cache, proxy, authorities })
}

/// The certificates of a PEM file.
fn authorities(path: &Path) -> anyhow::Result<RootCerts> {
    let named = || format!("SSL_CERT_FILE {}", path.display());
    let text = fs::read(path).with_context(named)?;
    let mut certificates = Vec::new();
    for item in parse_pem(&text) {
        if let PemItem::Certificate(certificate) = item.with_context(named)? {
            certificates.push(certificate);
        }
    }
    ensure!(!certificates.is_empty(), "{}: there is no certificate in it", named());
    Ok(certificates.into())
}

/// The proxy of `ALL_PROXY`, `HTTPS_PROXY` or `HTTP_PROXY`, except for the hosts of `NO_PROXY`.
pub fn proxy() -> Option<ureq::Proxy> {
    ureq::Proxy::try_from_env()
}

/// A path from the environment. No shell expands what stands in quotes or in a file of variables, and `huggingface_hub`
/// does; so a `~` in front is the home folder.
pub(super) fn env_path(env: Env, name: &str) -> Option<PathBuf> {
    let path = PathBuf::from(env(name)?);
    match (path.strip_prefix("~"), env("HOME")) {
        (Ok(rest), Some(home)) => Some(Path::new(&home).join(rest)),
        _ => Some(path),
    }
}

/// What `hf auth login` left.
fn stored_token(env: Env) -> anyhow::Result<Option<String>> {
    let path = env_path(env, "HF_TOKEN_PATH").or_else(|| home(env).map(|home| home.join("token")));
    let Some(path) = path else { return Ok(None) };
    match fs::read_to_string(&path) {
        Ok(token) => Ok(Some(token)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| path.display().to_string()),
    }
}

/// The hub cache.
pub(super) fn hub_dir(env: Env) -> Option<PathBuf> {
    env_path(env, "HF_HUB_CACHE").or_else(|| home(env).map(|home| home.join("hub")))
}

/// The folder of everything that belongs to Hugging Face.
fn home(env: Env) -> Option<PathBuf> {
    let cache = || env_path(env, "XDG_CACHE_HOME").or_else(|| env("HOME").map(|home| Path::new(&home).join(".cache")));
    env_path(env, "HF_HOME").or_else(|| cache().map(|cache| cache.join("huggingface")))
}

/// `owner/name`, both plain: the parts become folder names and parts of addresses.
pub(super) fn parse_repo(text: &str) -> Result<String, String> {
    let plain = |part: &str| !part.is_empty() && !part.starts_with('.') && part.chars().all(is_plain);
    match text.split_once('/') {
        Some((owner, name)) if plain(owner) && plain(name) => Ok(text.to_owned()),
        _ => Err("a repository is named OWNER/NAME, in letters, digits, '-', '_' and '.'".to_owned()),
    }
}

fn parse_revision(text: &str) -> Result<String, String> {
    let plain = |part: &str| !part.is_empty() && !part.starts_with('.') && part.chars().all(is_plain);
    if text.split('/').all(plain) {
        return Ok(text.to_owned());
    }
    Err("a revision is a branch, a tag or a commit, in letters, digits, '-', '_', '.' and '/'".to_owned())
}

fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.')
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsString;

    fn env<'a>(pairs: &'a [(&'a str, &'a str)]) -> impl Fn(&str) -> Option<OsString> + 'a {
        move |name| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into())
    }

    #[test]
    fn the_hub_is_found_like_huggingface_hub_does() {
        let all = [("HF_HUB_CACHE", "/a"), ("HF_HOME", "/b"), ("XDG_CACHE_HOME", "/c"), ("HOME", "/d")];
        let want = ["/a", "/b/hub", "/c/huggingface/hub", "/d/.cache/huggingface/hub"];
        for (skip, want) in want.iter().enumerate() {
            assert_eq!(hub_dir(&env(&all[skip..])), Some(want.into()));
        }
        assert_eq!(hub_dir(&env(&[])), None);
        assert!(hub_settings(&env(&[]), None).is_err());
    }

    #[test]
    fn a_tilde_is_the_home_folder() {
        for (value, want) in [
            ("~/x y", "/d/x y"),
            ("~", "/d"),
            ("~//x/", "/d/x"),
            ("~x/y", "~x/y"),
            ("/a/~/b", "/a/~/b"),
            ("x/~", "x/~"),
        ] {
            assert_eq!(env_path(&env(&[("P", value), ("HOME", "/d")]), "P"), Some(want.into()));
        }
        assert_eq!(env_path(&env(&[("P", "~/x")]), "P"), Some("~/x".into()));
        for (name, want) in
            [("HF_HUB_CACHE", "/d/x"), ("HF_HOME", "/d/x/hub"), ("XDG_CACHE_HOME", "/d/x/huggingface/hub")]
        {
            assert_eq!(hub_dir(&env(&[(name, "~/x"), ("HOME", "/d")])), Some(want.into()));
        }
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("t"), "hf_tilde").unwrap();
        let pairs = [("HF_TOKEN_PATH", "~/t"), ("HOME", folder.path().to_str().unwrap())];
        assert_eq!(hub_settings(&env(&pairs), None).unwrap().token.as_deref(), Some("hf_tilde"));
        let pairs = [("SSL_CERT_FILE", "~/t"), ("HOME", folder.path().to_str().unwrap())];
        assert!(hub_settings(&env(&pairs), None).err().unwrap().to_string().ends_with("there is no certificate in it"));
    }

    #[test]
    fn the_token_comes_from_the_environment_or_from_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path().to_str().unwrap();
        let token = |pairs: &[(&str, &str)]| hub_settings(&env(pairs), None).unwrap().token;
        assert_eq!(token(&[("HF_HOME", home)]), None);
        fs::write(folder.path().join("token"), "hf_file\n").unwrap();
        assert_eq!(token(&[("HF_HOME", home)]).as_deref(), Some("hf_file"));
        assert_eq!(token(&[("HF_HOME", home), ("HF_TOKEN", "hf_env")]).as_deref(), Some("hf_env"));
        let other = folder.path().join("other");
        fs::write(&other, "hf_other").unwrap();
        assert_eq!(
            token(&[("HF_HOME", home), ("HF_TOKEN_PATH", other.to_str().unwrap())]).as_deref(),
            Some("hf_other")
        );
        assert!(hub_settings(&env(&[("HF_HOME", home), ("HF_TOKEN", "a\nb")]), None).is_err());
    }

    #[test]
    fn an_endpoint_is_an_address() {
        let endpoint =
            |value| hub_settings(&env(&[("HF_HOME", "/h"), ("HF_ENDPOINT", value)]), None).map(|s| s.endpoint);
        assert_eq!(endpoint("http://127.0.0.1:9/").unwrap(), "http://127.0.0.1:9");
        assert!(endpoint("hub.example").is_err() && endpoint("https://").is_err() && endpoint("file:///etc").is_err());
        assert_eq!(hub_settings(&env(&[("HF_HOME", "/h")]), None).unwrap().endpoint, DEFAULT_ENDPOINT);
    }

    #[test]
    fn certificates_come_from_a_file_that_must_hold_some() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ca.pem");
        let name = path.to_str().unwrap();
        let pairs = [("HF_HOME", "/h"), ("SSL_CERT_FILE", name)];
        let settings = || hub_settings(&env(&pairs), None).map(|settings| settings.authorities.is_some());
        assert!(settings().is_err());
        fs::write(&path, "no certificate\n").unwrap();
        assert!(settings().unwrap_err().to_string().ends_with("there is no certificate in it"));
        fs::write(&path, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").unwrap();
        assert!(settings().unwrap());
    }

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        for good in ["a/b", "mlx-community/Qwen3.6-35B-A3B-4bit", "A_1/b.c"] {
            assert!(parse_repo(good).is_ok(), "{good}");
        }
        for bad in ["", "a", "a/", "/b", "a/b/c", "../b", "a/..", "a/.b", "a b/c", "a/b?c", "é/b"] {
            assert!(parse_repo(bad).is_err(), "{bad}");
        }
        assert!(parse_revision("refs/pr/1").is_ok() && parse_revision("v1.0").is_ok());
        for bad in ["", "/", "a/", "../a", "a/../b", "a b", "a#b"] {
            assert!(parse_revision(bad).is_err(), "{bad}");
        }
    }
}
