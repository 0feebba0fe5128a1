//! Evaluates a run: no figure may be higher after the last tenth than after the second tenth, except for a fixed slack.

/// Number of parts of a run. The figures are measured after each part.
pub(crate) const TENTHS: usize = 10;

/// Memory of a process in KiB: shared pages are counted proportionally (PSS), or fully (RSS).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Memory {
    pub(crate) pss_kib: u64,
    pub(crate) rss_kib: u64,
    /// Anonymous memory in PSS and RSS: pages that do not belong to files.
    pub(crate) anonymous_pss_kib: u64,
    pub(crate) anonymous_rss_kib: u64,
}

/// Resource usage of a daemon and its host.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Figures {
    pub(crate) executord: Memory,
    pub(crate) launcher: Memory,
    pub(crate) executord_descriptors: u64,
    pub(crate) launcher_descriptors: u64,
    /// Mounts that exist in the launcher's mount namespace but not in the host's.
    pub(crate) launcher_mounts: u64,
    /// The host's mounts below the daemon's directories.
    pub(crate) host_mounts: u64,
    pub(crate) cgroups: u64,
    /// Number of files and directories below the run and state directories, without the ledger's files.
    pub(crate) files: u64,
    pub(crate) ledger_kib: u64,
    pub(crate) processes: u64,
    /// Number of the host's network interfaces.
    pub(crate) interfaces: u64,
    /// Number of lines and elements of the host's nf_tables rules.
    pub(crate) rules: u64,
}

/// Name, value and permitted growth of a figure. If the growth is `None`, the figure is reported and not evaluated.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) value: u64,
    pub(crate) slack: Option<u64>,
}

impl Figures {
    /// Returns all figures. Exact counts have no slack. Files have the slack of one more file for every second kept
    /// result, because the oldest results may be in removal. Descriptors have the slack of one client connection.
    /// Anonymous memory has slack because an allocator frees memory in pieces and late: for executord, 130 bytes for
    /// each of 24,000 containers. The ledger has slack because its file grows in steps. Total memory is not evaluated,
    /// because file pages vary with the machine's memory and with other processes of the same program.
    pub(crate) fn rows(&self) -> [Row; 18] {
        let judged = |name, value, slack| Row { name, value, slack: Some(slack) };
        let reported = |name, value| Row { name, value, slack: None };
        [
            reported("executord_pss_kib", self.executord.pss_kib),
            reported("executord_rss_kib", self.executord.rss_kib),
            judged("executord_anonymous_pss_kib", self.executord.anonymous_pss_kib, 3072),
            judged("executord_anonymous_rss_kib", self.executord.anonymous_rss_kib, 3072),
            reported("launcher_pss_kib", self.launcher.pss_kib),
            reported("launcher_rss_kib", self.launcher.rss_kib),
            judged("launcher_anonymous_pss_kib", self.launcher.anonymous_pss_kib, 512),
            judged("launcher_anonymous_rss_kib", self.launcher.anonymous_rss_kib, 512),
            judged("executord_descriptors", self.executord_descriptors, 2),
            judged("launcher_descriptors", self.launcher_descriptors, 2),
            judged("launcher_mounts", self.launcher_mounts, 0),
            judged("host_mounts", self.host_mounts, 0),
            judged("cgroups", self.cgroups, 0),
            judged("files", self.files, 10),
            judged("ledger_kib", self.ledger_kib, 2048),
            judged("processes", self.processes, 0),
            judged("interfaces", self.interfaces, 0),
            judged("rules", self.rules, 0),
        ]
    }
}

/// Returns a line for each figure that has grown from the second tenth to the last.
pub(crate) fn grown(figures: &[Figures]) -> Vec<String> {
    let ([_, second, ..], Some(last)) = (figures, figures.last()) else { return Vec::new() };
    let line = |(before, after): (Row, Row)| {
        let Row { name, value, slack } = before;
        let (slack, end) = (slack?, after.value);
        let text =
            format!("{name} grew from {value} after the second tenth to {end} at the end; {slack} more are allowed");
        (end > value + slack).then_some(text)
    };
    second.rows().into_iter().zip(last.rows()).filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns figures of which only the figure at `index` of [`Figures::rows`] is set.
    fn with(index: usize, value: u64) -> Figures {
        let mut all = Figures::default();
        *[
            &mut all.executord.pss_kib,
            &mut all.executord.rss_kib,
            &mut all.executord.anonymous_pss_kib,
            &mut all.executord.anonymous_rss_kib,
            &mut all.launcher.pss_kib,
            &mut all.launcher.rss_kib,
            &mut all.launcher.anonymous_pss_kib,
            &mut all.launcher.anonymous_rss_kib,
            &mut all.executord_descriptors,
            &mut all.launcher_descriptors,
            &mut all.launcher_mounts,
            &mut all.host_mounts,
            &mut all.cgroups,
            &mut all.files,
            &mut all.ledger_kib,
            &mut all.processes,
            &mut all.interfaces,
            &mut all.rules,
        ][index] = value;
        all
    }

    fn run(index: usize, value: impl Fn(u64) -> u64) -> Vec<Figures> {
        (0..TENTHS as u64).map(|tenth| with(index, value(tenth))).collect()
    }

    #[test]
    fn every_figure_beyond_slack_fails() {
        for (index, Row { name, slack, .. }) in Figures::default().rows().iter().enumerate() {
            let Some(slack) = slack else { continue };
            // From the second tenth to the last there are eight steps.
            let step = slack / 8 + 1;
            let found = grown(&run(index, |tenth| 1000 + tenth * step));
            assert_eq!(found.len(), 1, "{name}: {found:?}");
            assert!(found[0].starts_with(&format!("{name} grew from {} ", 1000 + step)), "{found:?}");
        }
    }

    #[test]
    fn figures_within_their_slack_pass() {
        for (index, Row { name, slack, .. }) in Figures::default().rows().iter().enumerate() {
            let slack = slack.unwrap_or(1 << 20);
            let at_most = |tenth| if tenth == TENTHS as u64 - 1 { 1000 + slack } else { 1000 };
            assert_eq!(grown(&run(index, at_most)), Vec::<String>::new(), "{name}");
            // Growth in the first tenth is ignored, because kept results accumulate. A figure that is lower at the end
            // has not grown.
            assert_eq!(grown(&run(index, |tenth| if tenth == 0 { 0 } else { 5000 })), Vec::<String>::new(), "{name}");
            assert_eq!(grown(&run(index, |tenth| 9000 - tenth)), Vec::<String>::new(), "{name}");
        }
    }
}
