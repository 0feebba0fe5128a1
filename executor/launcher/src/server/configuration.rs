//! Reads the configuration file again when a daemon connects whose configuration is another one.
//!
//! The daemon has no privilege: its digests decide when the file is read, and nothing else. The launcher reads its own file, by the path
//! it was started with, and takes it over as a whole or not at all. Containers that run keep what they were made with.

use executor_core::protocol::{ConfigurationDigests, Hello};
use executor_core::settings::differing_sections;

use super::Server;
use crate::cli;
use crate::log::{self, Level};

impl Server {
    /// Compares configurations with a daemon, and reads this one again if they differ. Returns the reason if the file was not taken
    /// over, or an empty text.
    pub(super) fn compare_configuration(&mut self, hello: &Hello) -> String {
        let Some(theirs) = &hello.configuration else { return String::new() };
        if theirs.sections == self.host.configuration {
            return String::new();
        }
        self.read_configuration().err().inspect(|why| log::line(Level::Error, "", why)).unwrap_or_default()
    }

    /// Returns the digests of the configuration in force.
    pub(super) fn configuration(&self) -> ConfigurationDigests {
        ConfigurationDigests { sections: self.host.configuration.clone() }
    }

    fn read_configuration(&mut self) -> Result<(), String> {
        let config = cli::config_again(&self.args)
            .map_err(|error| format!("the launcher keeps its configuration: {}", log::chain(&error)))?;
        let changed = differing_sections(&self.host.configuration, &config.digests);
        if changed.is_empty() {
            return Ok(());
        }
        let has_other_identity = self.host.identity != config.identity;
        self.host.reconfigure(config).map_err(|keys| {
            format!("the launcher keeps its configuration: {} changed; restart executor-launcher", keys.join(", "))
        })?;
        log::line(Level::Info, "", format_args!("the configuration was read again; changed: {}", changed.join(", ")));
        // Shells and processes that sign began with the former configuration.
        while self.stop_one_warm() {}
        if has_other_identity {
            self.end_signers();
        }
        Ok(())
    }
}
