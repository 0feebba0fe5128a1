//! Reads the configuration file again if a daemon connects with a different configuration.
//!
//! The daemon has no privilege: a daemon's digests only determine when the file is read. The launcher reads
//! the path from its command line, and adopts either the whole file or nothing. Running containers keep their settings.

use executor_core::protocol::{ConfigurationDigests, Hello};
use executor_core::settings::differing_sections;

use super::Server;
use crate::cli;
use crate::log::{self, Level};

impl Server {
    /// Compares the configuration with a daemon's, and reads the file again if they differ. Returns an error message if
    /// the file was not adopted, else an empty string.
    pub(super) fn compare_configuration(&mut self, hello: &Hello) -> String {
        let Some(theirs) = &hello.configuration else { return String::new() };
        if theirs.sections == self.host.configuration {
            return String::new();
        }
        self.read_configuration().err().inspect(|why| log::line(Level::Error, "", why)).unwrap_or_default()
    }

    /// Returns the digests of the current configuration.
    pub(super) fn configuration(&self) -> ConfigurationDigests {
        ConfigurationDigests { sections: self.host.configuration.clone() }
    }

    fn read_configuration(&mut self) -> Result<(), String> {
        let config = cli::config_again(&self.args)
            .map_err(|error| format!("the old configuration stays in force: {}", log::chain(&error)))?;
        let changed = differing_sections(&self.host.configuration, &config.digests);
        if changed.is_empty() {
            return Ok(());
        }
        let has_other_identity = self.host.identity != config.identity;
        self.host.reconfigure(config).map_err(|keys| {
            format!("the old configuration stays in force: {} changed; restart executor-launcher", keys.join(", "))
        })?;
        log::line(Level::Info, "", format_args!("the configuration was read again; changed: {}", changed.join(", ")));
        // Warm containers and signing processes were started with the old configuration.
        while self.stop_one_warm() {}
        if has_other_identity {
            self.kill_signers();
        }
        Ok(())
    }
}
