//! Lists processes, and searches their contents.

use std::fmt;
use std::fs;
use std::io;

use crate::{Place, Search};

/// A process as shown in /proc.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Pid on the host.
    pub pid: u32,
    pub parent: u32,
    /// Name of the process, at most 15 bytes.
    pub name: String,
    /// True if the process is in another pid namespace than the searching process.
    pub contained: bool,
}

impl Process {
    /// Reads a process. Returns `None` if it has exited or is a zombie.
    pub fn from_pid(pid: u32) -> Option<Self> {
        let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
        let stat = String::from_utf8_lossy(&stat);
        // The name is in parentheses and may contain any character.
        let (name, rest) = stat.split_once('(')?.1.rsplit_once(')')?;
        let mut fields = rest.split_ascii_whitespace();
        if fields.next() == Some("Z") {
            return None;
        }
        let status = fs::read(format!("/proc/{pid}/status")).ok()?;
        let status = String::from_utf8_lossy(&status);
        let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
        Some(Self {
            pid,
            parent: fields.next()?.parse().ok()?,
            name: name.to_owned(),
            contained: numbers.is_some_and(|numbers| numbers.split_ascii_whitespace().count() > 1),
        })
    }

    /// Lists every process, ordered by pid.
    pub fn all() -> Vec<Self> {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let mut pids: Vec<u32> = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
        pids.sort_unstable();
        pids.into_iter().filter_map(Self::from_pid).collect()
    }

    /// Returns the descendants of `ancestor` in `all`, without `ancestor` itself.
    pub fn descendants(all: &[Self], ancestor: u32) -> Vec<Self> {
        let mut found: Vec<Self> = Vec::new();
        let mut wanted = vec![ancestor];
        while let Some(parent) = wanted.pop() {
            for child in all.iter().filter(|process| process.parent == parent && process.pid != ancestor) {
                if !found.contains(child) {
                    wanted.push(child.pid);
                    found.push(child.clone());
                }
            }
        }
        found
    }
}

impl fmt::Display for Process {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} {}", self.name, self.pid)
    }
}

impl Search<'_> {
    /// Searches a process: its memory, files that are accessible only through its descriptors, its command line,
    /// environment and mount table. Skips the searching process itself. Ignores processes that exit during the search.
    pub fn process(&mut self, process: &Process) {
        if process.pid == std::process::id() {
            return;
        }
        self.report.processes += 1;
        self.memory(process);
        self.descriptors(process);
        let (pid, name) = (process.pid, process.name.clone());
        self.proc_file(process, "environ", &Place::Environment { pid, name: name.clone() });
        self.proc_file(process, "cmdline", &Place::CommandLine { pid, name: name.clone() });
        self.proc_file(process, "mountinfo", &Place::MountTable { pid, name });
    }

    fn proc_file(&mut self, process: &Process, file: &str, place: &Place) {
        match fs::read(format!("/proc/{}/{file}", process.pid)) {
            Ok(bytes) => {
                self.report.bytes += bytes.len() as u64;
                self.bytes(&bytes, place);
                drop(zeroize::Zeroizing::new(bytes));
            }
            // Reading the mount table of a zombie fails with EINVAL.
            Err(error) if gone(&error) || Process::from_pid(process.pid).is_none() => {}
            Err(error) => self.report.unsearched(format!("{file} of {process}"), error.to_string()),
        }
    }
}

/// Returns true if an error means that the process has exited.
pub(crate) fn gone(error: &io::Error) -> bool {
    use rustix::io::Errno;
    error.kind() == io::ErrorKind::NotFound || Errno::from_io_error(error) == Some(Errno::SRCH)
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::process::{Command, Stdio};

    use super::*;
    use crate::{Canary, Needles};

    /// If a process has a canary in its memory, environment, arguments or a deleted file, the canary is found there.
    #[test]
    fn process_is_searched_in_every_place() {
        let canaries = ["variable", "argument", "file", "memory"].map(|label| (label, Canary::random(64).unwrap()));
        let mut needles = Needles::new().unwrap();
        for (label, canary) in &canaries {
            needles.add(label, &canary.as_bytes()[..32]);
        }
        let script = "rm \"$2\"; read -r line; echo read; read -r end";
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(canaries[2].1.as_bytes()).unwrap();
        let mut child = Command::new("/bin/sh")
            .args(["-c", &format!("exec 3<\"$2\"; {script}"), "sh", canaries[1].1.as_str()])
            .arg(file.path())
            .env("VARIABLE", canaries[0].1.as_str())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        writeln!(stdin, "{}", canaries[3].1.as_str()).unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0; 5]).unwrap();
        let process = Process::from_pid(child.id()).unwrap();
        let mut search = Search::new(&needles);
        search.process(&process);
        search.process(&Process::from_pid(std::process::id()).unwrap());
        let report = search.report();
        let place = |label: &str| -> Vec<&Place> {
            report.hits.iter().filter(|hit| hit.label == label).map(|hit| &hit.place).collect()
        };
        assert!(place("variable").iter().any(|place| matches!(place, Place::Environment { .. })), "{report}");
        assert!(place("argument").iter().any(|place| matches!(place, Place::CommandLine { .. })), "{report}");
        assert!(place("file").iter().any(|place| matches!(place, Place::Descriptor { .. })), "{report}");
        assert!(place("memory").iter().all(|place| matches!(place, Place::Memory { .. })), "{report}");
        assert!(!place("memory").is_empty(), "{report}");
        assert_eq!(report.processes, 1, "the process itself is not included");
        drop(stdin);
        child.wait().unwrap();
        let mut search = Search::new(&needles);
        search.process(&process);
        assert!(!search.report().found(), "a search of a process that has exited found something");
    }

    #[test]
    fn descendants_are_found_by_their_parents() {
        let mut child =
            Command::new("/bin/sh").args(["-c", "sleep 1000 & read x"]).stdin(Stdio::piped()).spawn().unwrap();
        let below = loop {
            let below = Process::descendants(&Process::all(), child.id());
            if below.iter().any(|process| process.name == "sleep") {
                break below;
            }
        };
        assert_eq!(below.len(), 1);
        assert!(Process::descendants(&Process::all(), std::process::id()).iter().any(|one| one.pid == below[0].pid));
        let sleep = rustix::process::Pid::from_raw(below[0].pid.cast_signed()).unwrap();
        rustix::process::kill_process(sleep, rustix::process::Signal::KILL).unwrap();
        drop(child.stdin.take());
        child.wait().unwrap();
    }
}
