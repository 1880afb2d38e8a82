//! Log lines on stderr, as the flags ask.

use tracing::level_filters::LevelFilter;

use crate::flags::{LogFormat, LogLevel};

/// From here on.
pub fn start(format: LogFormat, level: LogLevel) {
    let level = match level {
        LogLevel::Off => LevelFilter::OFF,
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
    };
    let lines = tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_target(false)
        .with_max_level(level)
        // It would speak of a closed stderr on stderr, and panic.
        .log_internal_errors(false);
    // A second start in one process, as tests may do, changes nothing.
    let _ = match format {
        LogFormat::Text => lines.with_ansi(false).try_init(),
        LogFormat::Json => lines.json().flatten_event(true).try_init(),
    };
}
