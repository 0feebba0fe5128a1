//! Evaluates the searches of an audit.
//!
//! A finding has a canary and a place, and records whether the canary was found while the container ran, whether the
//! place was expected, and whether the canary was found after the exit.

use executor_residue::{Hit, Place, Report, Unsearched};

use super::inputs::Kind;
use super::scene::{Role, SearchHits, SearchScope};

/// Location of a canary; one row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Row {
    Container,
    Executord,
    Launcher,
    Shim,
    RunDir,
    StateDir,
    Logs,
    Environ,
    CommandLine,
    MountTable,
    Journal,
    Kernel,
}

impl Row {
    pub(crate) const ALL: [Self; 12] = [
        Self::Container,
        Self::Executord,
        Self::Launcher,
        Self::Shim,
        Self::RunDir,
        Self::StateDir,
        Self::Logs,
        Self::Environ,
        Self::CommandLine,
        Self::MountTable,
        Self::Journal,
        Self::Kernel,
    ];

    /// Returns the row's name in JSON.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Container => "container",
            Self::Executord => "executord_memory",
            Self::Launcher => "launcher_memory",
            Self::Shim => "shim_memory",
            Self::RunDir => "run_directory",
            Self::StateDir => "state_directory",
            Self::Logs => "logs",
            Self::Environ => "environ",
            Self::CommandLine => "cmdline",
            Self::MountTable => "mountinfo",
            Self::Journal => "journal",
            Self::Kernel => "kernel_memory",
        }
    }

    fn new(hit: &Hit, scene: &SearchScope, sight: &SearchHits) -> Self {
        match &hit.place {
            Place::Memory { pid, .. }
            | Place::Descriptor { pid, .. }
            | Place::Environment { pid, .. }
            | Place::CommandLine { pid, .. }
            | Place::MountTable { pid, .. } => match (&hit.place, sight.roles.get(pid)) {
                (_, Some(Role::Container)) => Self::Container,
                (Place::Environment { .. }, _) => Self::Environ,
                (Place::CommandLine { .. }, _) => Self::CommandLine,
                (Place::MountTable { .. }, _) => Self::MountTable,
                (_, Some(Role::Launcher)) => Self::Launcher,
                (_, Some(Role::Shim)) => Self::Shim,
                (_, Some(Role::Executord) | None) => Self::Executord,
            },
            // The state directory may be inside the run directory.
            Place::File(path) if path.starts_with(&scene.state_dir) => {
                let is_log = path.file_stem().is_some_and(|stem| stem == "log");
                if is_log { Self::Logs } else { Self::StateDir }
            }
            Place::File(path) if path.starts_with(&scene.run_dir) => Self::RunDir,
            Place::File(_) => Self::Container,
            Place::Journal => Self::Journal,
            Place::Kernel { .. } => Self::Kernel,
        }
    }

    /// Returns true if a canary is expected at the place while the container runs.
    fn is_expected(self, kind: Kind, place: &Place) -> bool {
        let memory_file = matches!(place, Place::Descriptor { target, .. } if target.starts_with("/memfd:"));
        let volume = matches!(place, Place::Descriptor { .. }) && !memory_file;
        match self {
            Self::Container => true,
            // The shim masks these canaries in the log. The shim also holds the writable side of the secret tmpfs. The
            // tmpfs has no old files.
            Self::Shim => kind.is_masked() && !(volume && kind == Kind::OldFile),
            // The launcher holds the second handle on the secret tmpfs.
            Self::Launcher => volume && kind.is_masked() && kind != Kind::OldFile,
            _ => false,
        }
    }
}

/// Times at which a canary was found at a place, and whether this was expected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    /// True if the canary was found while the container ran.
    pub(crate) while_running: bool,
    /// True if the canary was found at an unexpected place while the container ran.
    pub(crate) astray: bool,
    /// True if the canary was found one second after the container's exit.
    pub(crate) after: bool,
}

/// The result of an audit: the locations of canaries, and the scope of the search.
#[derive(Debug)]
pub(crate) struct Findings {
    /// Kinds of inputs that this executord supports.
    pub(crate) kinds: Vec<Kind>,
    cells: Vec<(Kind, Row, Seen)>,
    /// Hits at unexpected places while the container ran.
    pub(crate) astray: Vec<Hit>,
    /// Hits that were found after the container exited.
    pub(crate) left: Vec<Hit>,
    /// Kinds that were not found in the container itself, so that the search proves nothing for them.
    pub(crate) unproven: Vec<Kind>,
    /// Amount that was searched after the container's exit.
    pub(crate) searched: Searched,
    /// Places that were not searched after the container's exit.
    pub(crate) unsearched: Vec<Unsearched>,
    /// True if a place that must be searched in every audit was not searched.
    pub(crate) incomplete: bool,
    journal: bool,
    kernel: bool,
}

/// Amount that a search covered: processes, files and bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Searched {
    pub(crate) processes: u64,
    pub(crate) files: u64,
    pub(crate) bytes: u64,
    pub(crate) kernel_bytes: u64,
}

impl Findings {
    /// Evaluates the searches. `old_file` is true if the old file was found in the container before its rotation.
    pub(crate) fn new(
        scene: &SearchScope,
        kinds: Vec<Kind>,
        old_file: bool,
        during: &SearchHits,
        after: SearchHits,
        kernel: Option<Report>,
    ) -> Self {
        let mut cells: Vec<(Kind, Row, Seen)> = Vec::new();
        let mut cell = |hit: &Hit, row: Row, note: &dyn Fn(&mut Seen)| {
            let Some(kind) = Kind::from_name(&hit.label) else { return };
            let at = cells.iter().position(|(one, place, _)| (*one, *place) == (kind, row)).unwrap_or_else(|| {
                cells.push((kind, row, Seen::default()));
                cells.len() - 1
            });
            note(&mut cells[at].2);
        };
        // Hits of kinds that the daemon does not support are ignored.
        let offered = |hit: &&Hit| Kind::from_name(&hit.label).is_some_and(|kind| kinds.contains(&kind));
        let mut astray = Vec::new();
        for hit in during.report.hits.iter().filter(offered) {
            let row = Row::new(hit, scene, during);
            let fits = Kind::from_name(&hit.label).is_some_and(|kind| row.is_expected(kind, &hit.place));
            cell(hit, row, &|seen| {
                seen.while_running = true;
                seen.astray |= !fits;
            });
            if !fits {
                astray.push(hit.clone());
            }
        }
        let kernel_bytes = kernel.as_ref().map_or(0, |kernel| kernel.bytes);
        let (searched_kernel, kernel) = (kernel_bytes > 0, kernel.unwrap_or_default());
        let mut left = Vec::new();
        for hit in after.report.hits.iter().chain(&kernel.hits).filter(offered) {
            cell(hit, Row::new(hit, scene, &after), &|seen| seen.after = true);
            left.push(hit.clone());
        }
        let proven = |kind: &Kind| {
            let in_container =
                cells.iter().any(|(one, row, seen)| (*one, *row) == (*kind, Row::Container) && seen.while_running);
            in_container || (*kind == Kind::OldFile && old_file)
        };
        let unproven = kinds.iter().copied().filter(|kind| !proven(kind)).collect();
        let report = after.report;
        let journal_unread = report.unsearched.iter().any(|one| one.what == "the journal");
        Self {
            unproven,
            kinds,
            cells,
            astray,
            left,
            searched: Searched { processes: report.processes, files: report.files, bytes: report.bytes, kernel_bytes },
            incomplete: report.unsearched.iter().any(|one| one.what != "the journal"),
            journal: scene.journal && !journal_unread,
            kernel: searched_kernel,
            unsearched: report.unsearched.into_iter().chain(kernel.unsearched).collect(),
        }
    }

    /// Returns the times at which a kind of input was found at a place; `None` if the place was not searched or the
    /// kind is not supported.
    pub(crate) fn seen(&self, kind: Kind, row: Row) -> Option<Seen> {
        let searched = match row {
            Row::Journal => self.journal,
            Row::Kernel => self.kernel,
            _ => true,
        };
        let found = self.cells.iter().find(|(one, place, _)| (*one, *place) == (kind, row));
        (searched && self.kinds.contains(&kind)).then(|| found.map_or_else(Seen::default, |(_, _, seen)| *seen))
    }

    /// Returns true if no canary remained, none was at an unexpected place, and the search is proven to work.
    pub(crate) fn is_clean(&self) -> bool {
        self.left.is_empty() && self.astray.is_empty() && self.unproven.is_empty() && !self.incomplete
    }
}

#[cfg(test)]
mod tests {
    use executor_client::v1::InfoResponse;

    use super::*;

    const PID: u32 = 10;

    fn scene() -> SearchScope {
        let info = InfoResponse { run_dir: "/run/e".into(), state_dir: "/run/e/state".into(), ..Default::default() };
        SearchScope::new("/run/e/executor.sock".as_ref(), &info, true)
    }

    fn sight(role: Role, hits: &[(Kind, Place)]) -> SearchHits {
        let mut report = Report::default();
        for (kind, place) in hits {
            report.hits.push(Hit { label: kind.name().into(), place: place.clone(), windows: 1, at: 0 });
        }
        SearchHits { report, roles: [(PID, role)].into() }
    }

    fn memory() -> Place {
        Place::Memory { pid: PID, name: "x".into(), mapping: String::new() }
    }

    fn descriptor(target: &str) -> Place {
        Place::Descriptor { pid: PID, name: "x".into(), target: target.into() }
    }

    #[test]
    fn secrets_in_unexpected_places_are_astray() {
        let environment = Place::Environment { pid: PID, name: "x".into() };
        let table = [
            (Role::Container, Kind::Argument, memory(), Row::Container, true),
            (Role::Container, Kind::SecretVariable, environment.clone(), Row::Container, true),
            (Role::Shim, Kind::SecretVariable, memory(), Row::Shim, true),
            (Role::Shim, Kind::Variable, memory(), Row::Shim, false),
            (Role::Shim, Kind::SecretVariable, environment, Row::Environ, false),
            (Role::Shim, Kind::File, descriptor("/ 0/..gen1/file"), Row::Shim, true),
            (Role::Shim, Kind::OldFile, descriptor("/ 0/..gen1/file"), Row::Shim, false),
            (Role::Shim, Kind::OldFile, descriptor("/memfd:x (deleted)"), Row::Shim, true),
            (Role::Launcher, Kind::NewFile, descriptor("/ 0/..gen2/file"), Row::Launcher, true),
            (Role::Launcher, Kind::NewFile, descriptor("/memfd:files (deleted)"), Row::Launcher, false),
            (Role::Launcher, Kind::OldFile, descriptor("/ 0/..gen1/file"), Row::Launcher, false),
            (Role::Launcher, Kind::SecretArgument, descriptor("/ inputs"), Row::Launcher, true),
            (Role::Launcher, Kind::Argument, descriptor("/ inputs"), Row::Launcher, false),
            (Role::Launcher, Kind::File, memory(), Row::Launcher, false),
            (Role::Executord, Kind::Token, memory(), Row::Executord, false),
            (Role::Executord, Kind::File, Place::File("/run/e/state/containers/a/log.1".into()), Row::Logs, false),
            (Role::Executord, Kind::File, Place::File("/run/e/state/ledger/x".into()), Row::StateDir, false),
            (Role::Executord, Kind::File, Place::File("/run/e/containers/a/x".into()), Row::RunDir, false),
            (Role::Executord, Kind::File, Place::File("/proc/10/root/etc/f".into()), Row::Container, true),
            (Role::Executord, Kind::File, Place::Journal, Row::Journal, false),
        ];
        for (role, kind, place, row, fits) in table {
            let found = Findings::new(
                &scene(),
                vec![kind],
                false,
                &sight(role, &[(kind, place.clone())]),
                sight(role, &[(kind, place.clone())]),
                None,
            );
            let seen = found.seen(kind, row).unwrap();
            assert_eq!(seen, Seen { while_running: true, astray: !fits, after: true }, "{kind:?} {place}");
            assert_eq!((found.astray.is_empty(), found.left.len()), (fits, 1), "{kind:?} {place}");
        }
    }

    #[test]
    fn clean_audit_proves_presence_then_absence() {
        let kinds = vec![Kind::File, Kind::OldFile];
        let there = || sight(Role::Container, &[(Kind::File, memory())]);
        let nothing = || sight(Role::Container, &[]);
        let findings =
            |during: SearchHits, after, old| Findings::new(&scene(), kinds.clone(), old, &during, after, None);
        let clean = findings(there(), nothing(), true);
        assert!(clean.is_clean());
        assert_eq!(clean.seen(Kind::Token, Row::Container), None, "not offered");
        assert_eq!(clean.seen(Kind::File, Row::Kernel), None, "not searched");
        assert_eq!(findings(there(), nothing(), false).unproven, [Kind::OldFile]);
        assert_eq!(findings(nothing(), nothing(), true).unproven, [Kind::File]);
        assert!(!findings(there(), there(), true).is_clean());
        let mut blind = nothing();
        blind.report.unsearched.push(Unsearched { what: "memory of x".into(), why: "y".into() });
        assert!(!findings(there(), blind, true).is_clean());
        let mut quiet = nothing();
        quiet.report.unsearched.push(Unsearched { what: "the journal".into(), why: "y".into() });
        let quiet = findings(there(), quiet, true);
        assert!(quiet.is_clean() && quiet.seen(Kind::File, Row::Journal).is_none());
        let kernel = Report { bytes: 1, ..Report::default() };
        let with = Findings::new(&scene(), kinds.clone(), true, &there(), nothing(), Some(kernel));
        assert_eq!(with.seen(Kind::File, Row::Kernel), Some(Seen::default()));
    }
}
