//! Processes of the host, read from /proc.

use std::fs;

/// Returns the pids of all descendants of `ancestor`.
pub fn descendants(ancestor: i32) -> Vec<i32> {
    let parents: Vec<(i32, i32)> = processes().into_iter().filter_map(|pid| Some((pid, parent(pid)?))).collect();
    let mut found = vec![ancestor];
    loop {
        let more: Vec<i32> = parents
            .iter()
            .filter(|(pid, parent)| found.contains(parent) && !found.contains(pid))
            .map(|(pid, _)| *pid)
            .collect();
        if more.is_empty() {
            found.remove(0);
            return found;
        }
        found.extend(more);
    }
}

/// Returns the pids of all processes.
pub fn processes() -> Vec<i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Returns the pid of a process's parent.
pub fn parent(pid: i32) -> Option<i32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(')').next()?.split_whitespace().nth(1)?.parse().ok()
}

/// Returns the value of a field in /proc/PID/status.
pub fn status(pid: i32, name: &str) -> Option<String> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim().to_owned()))
}

/// Returns the targets of the open descriptors of a process, sorted: paths, or kinds such as `socket`, without the
/// kernel's numbers.
pub fn descriptor_kinds(pid: i32) -> Vec<String> {
    let fds = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let links = fds.filter_map(|fd| fs::read_link(fd.path()).ok());
    let mut kinds: Vec<String> =
        links.map(|link| link.to_string_lossy().split(":[").next().unwrap_or_default().to_owned()).collect();
    kinds.sort_unstable();
    kinds
}

/// Returns the number of open descriptors of a process.
pub fn descriptors(pid: i32) -> usize {
    descriptor_kinds(pid).len()
}
