//! Reapplies the rules of the configuration file when the file changes, and on SIGHUP: `[[callers]]`, and `allow` of
//! each secret provider.
//!
//! The file is read as the user that the daemon runs as. The file's text is applied after two identical reads, so that
//! a file that is still being written is not applied. The whole file must be valid; otherwise the rules in force stay.
//! Changed keys that need a restart are logged.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::Signal;
use tokio::time::sleep;
use toml::{Table, Value};

use crate::background::renewal;
use crate::config::{Config, ConfigError};
use crate::node::Node;

/// Pause between a change and the first read of the file, and between two reads.
const READ_DELAY: Duration = Duration::from_millis(100);
/// Poll interval in the absence of notifications.
const POLL_INTERVAL: Duration = Duration::from_secs(60);
/// Provider key whose changes take effect immediately.
const ALLOW: &str = "allow";
/// Table whose changes take effect immediately.
const CALLERS: &str = "callers";
/// Table of the secret providers.
const PROVIDERS: &str = "secret_providers";

/// Keeps the rules current until the daemon stops.
pub(crate) async fn run_reloads(node: Arc<Node>, mut hangup: Signal) {
    let mut reload = Reload::new(&node.config);
    loop {
        let path = node.config.watched_file();
        let mut changes = renewal::watch(&node, [path], "the configuration file");
        // Changes after this point complete a task of `changes`.
        let config = Arc::clone(&node.config);
        let read = tokio::task::spawn_blocking(move || config.read_again()).await;
        let is_half_read = read.is_ok_and(|read| reload.take(&node, read));
        let pause = if is_half_read { READ_DELAY } else { POLL_INTERVAL };
        tokio::select! {
            Some(_) = changes.join_next() => sleep(READ_DELAY).await, // a writer may be halfway through the file
            _ = hangup.recv() => {
                tracing::info!("SIGHUP: reading the configuration file again");
                reload.reset();
            }
            () = sleep(pause) => {}
            () = node.until_stopping() => return,
        }
    }
}

/// State of the reload task.
struct Reload {
    /// Text that was last applied or rejected; unset if the text must be applied again.
    done: Option<String>,
    /// Text of the last read, if it differs from `done`.
    candidate: Option<String>,
    /// Last logged error, so that a repeated error is logged once.
    error: String,
    /// Changed keys that were logged and take effect at the next start.
    pending: BTreeSet<String>,
}

impl Reload {
    fn new(config: &Config) -> Self {
        Self { done: Some(config.text.clone()), candidate: None, error: String::new(), pending: BTreeSet::new() }
    }

    /// Clears the state of earlier reads, so that unchanged text is applied and its errors and keys are logged again.
    fn reset(&mut self) {
        self.error.clear();
        self.pending.clear();
        self.done = None;
    }

    /// Handles the result of a read. Returns true if the file must be read again before its text is applied.
    fn take(&mut self, node: &Node, read: Result<String, ConfigError>) -> bool {
        let text = match read {
            Ok(text) => text,
            Err(error) => {
                self.report(&error);
                return false;
            }
        };
        if self.done.as_ref() == Some(&text) {
            self.candidate = None;
            self.error.clear();
            return false;
        }
        if self.candidate.as_ref() != Some(&text) {
            self.candidate = Some(text);
            return true;
        }
        self.candidate = None;
        let made = node.config.with_text(&text);
        self.done = Some(text);
        match made {
            Ok(config) => {
                self.error.clear();
                self.apply(node, &config);
            }
            Err(error) => self.report(&error),
        }
        false
    }

    fn apply(&mut self, node: &Node, config: &Config) {
        let rules = config.rules();
        let callers = rules.callers.0.len();
        if node.rules.replace(rules) {
            tracing::info!(callers, "{}: [[callers]] and secret_providers.allow were reloaded", path(config));
        }
        let pending = changed_keys(&node.config.text, &config.text);
        if !pending.is_empty() && pending != self.pending {
            let keys = pending.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
            tracing::warn!(keys, "{}: changed keys take effect at the next start", path(config));
        }
        self.pending = pending;
    }

    fn report(&mut self, error: &ConfigError) {
        let error = executor_core::errors::chain(error);
        if error != self.error {
            tracing::error!("[[callers]] and secret_providers.allow stay as they were: {error}");
            self.error = error;
        }
    }
}

fn path(config: &Config) -> std::path::Display<'_> {
    config.watched_file().display()
}

/// Returns the keys that differ between two texts and do not take effect immediately.
fn changed_keys(before: &str, after: &str) -> BTreeSet<String> {
    let (before, after) = (keys(before), keys(after));
    let differ = |key: &&String| before.get(*key) != after.get(*key);
    before.keys().chain(after.keys()).filter(differ).cloned().collect()
}

/// Returns the keys of a configuration file with their values, except for those that take effect immediately.
fn keys(text: &str) -> BTreeMap<String, Value> {
    let mut found = BTreeMap::new();
    let mut tables = vec![(String::new(), text.parse::<Table>().unwrap_or_default())];
    while let Some((prefix, table)) = tables.pop() {
        for (key, mut value) in table {
            let key = format!("{prefix}{key}");
            if key == CALLERS {
                continue;
            }
            if let (PROVIDERS, Value::Array(providers)) = (&*key, &mut value) {
                providers.iter_mut().filter_map(Value::as_table_mut).for_each(|one| drop(one.remove(ALLOW)));
            }
            match value {
                Value::Table(table) => tables.push((format!("{key}."), table)),
                value => drop(found.insert(key, value)),
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_keys_leave_out_live_rules() {
        let provider = |allow: &str, poll: u32| {
            format!(
                "[[secret_providers]]\nname = 'a'\ntype = 'directory'\npath = '/a'\npoll_seconds = {poll}\nallow = [{allow}]\n"
            )
        };
        let before = format!("user = 'a'\n[policy]\ndefault_pids = 5\n{}", provider("", 1));
        let rules = format!(
            "user = 'a'\n[policy]\ndefault_pids = 5\n{}[[callers]]\ncn = 'a'\nmethods = ['read']\n",
            provider("{ uid = 0, paths = ['/'] }", 1)
        );
        assert_eq!(changed_keys(&before, &rules), BTreeSet::new());
        let other = format!("[policy]\ndefault_pids = 6\n{}[listen.tcp]\nhandshakes = 5\n", provider("", 2));
        let expected = ["listen.tcp.handshakes", "policy.default_pids", "secret_providers", "user"];
        assert_eq!(changed_keys(&before, &other), expected.map(str::to_owned).into());
    }
}
