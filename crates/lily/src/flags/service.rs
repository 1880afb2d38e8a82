//! The service manager that started this process, if one did: systemd names a socket in the environment. Elsewhere
//! nobody is told, and nothing fails.

use sd_notify::{NotifyState, notify};

/// The server takes requests.
pub fn tell_ready() {
    // Who started us may have gone; the server serves all the same.
    let _ = notify(&[NotifyState::Ready]);
}

/// The server lets running answers end.
pub fn tell_stopping() {
    let _ = notify(&[NotifyState::Stopping]);
}
