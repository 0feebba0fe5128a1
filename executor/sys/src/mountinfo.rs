//! Parses a process's mount table, /proc/PID/mountinfo (proc_pid_mountinfo(5)).
//!
//! Any process that may mount or rename can choose paths in the table, so paths are bytes. A line whose format differs
//! from the manual page is skipped, so that one mount cannot hide the others.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;

use rustix::fs::makedev;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    pub id: u64,
    /// Id of the mount that contains the mount point.
    pub parent: u64,
    /// True if the mount has peers, to which mounts below it propagate.
    pub shared: bool,
    /// True if mounts propagate to this mount from another mount.
    pub slave: bool,
    /// Device number of the file system, as in stat(2).
    pub device: u64,
    /// Mounted directory within the file system.
    pub root: PathBuf,
    /// Mount point, relative to the root of the process.
    pub point: PathBuf,
    /// Options of the mount, such as `ro` and `nosuid`.
    pub attributes: String,
    /// File system type.
    pub kind: String,
    /// Source, as it was passed to mount(2).
    pub source: OsString,
    /// Options of the file system (super block options).
    pub options: String,
}

impl Mount {
    /// Returns true if the file system has the option.
    pub fn has_option(&self, name: &str) -> bool {
        self.options.split(',').any(|option| option == name)
    }
}

/// Parses a mount table and keeps its order.
pub fn parse(table: &[u8]) -> Vec<Mount> {
    table.split(|byte| *byte == b'\n').filter_map(line).collect()
}

fn line(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|byte| *byte == b' ');
    let id = str::from_utf8(fields.next()?).ok()?.parse().ok()?;
    let parent = str::from_utf8(fields.next()?).ok()?.parse().ok()?;
    let (major, minor) = str::from_utf8(fields.next()?).ok()?.split_once(':')?;
    let device = makedev(major.parse().ok()?, minor.parse().ok()?);
    let root = unescaped(fields.next()?);
    let point = unescaped(fields.next()?);
    let attributes = String::from_utf8_lossy(fields.next()?).into_owned();
    // Optional fields follow the mount options and end with a hyphen.
    let (mut shared, mut slave) = (false, false);
    loop {
        match fields.next()? {
            b"-" => break,
            field => {
                (shared, slave) = (shared || field.starts_with(b"shared:"), slave || field.starts_with(b"master:"));
            }
        }
    }
    let kind = unescaped(fields.next()?).into_string().ok()?;
    let source = unescaped(fields.next()?);
    let options = String::from_utf8_lossy(fields.next()?).into_owned();
    let (root, point) = (root.into(), point.into());
    Some(Mount { id, parent, shared, slave, device, root, point, attributes, kind, source, options })
}

/// Decodes the kernel's escapes of space, tab, newline and backslash: a backslash and three octal digits.
fn unescaped(text: &[u8]) -> OsString {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&first, more)) = rest.split_first() {
        let octal = |digits: &[u8]| u8::from_str_radix(str::from_utf8(digits).ok()?, 8).ok();
        match more.get(..3).filter(|_| first == b'\\').and_then(octal) {
            Some(byte) => {
                bytes.push(byte);
                rest = &more[3..];
            }
            None => {
                bytes.push(first);
                rest = more;
            }
        }
    }
    OsString::from_vec(bytes)
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt as _;
    use std::path::Path;

    use super::*;

    #[test]
    fn mountinfo_is_parsed_in_kernel_format() {
        let table: &[u8] = b"131 90 0:52 /files /root/a\\040b\\134c ro,nosuid - tmpfs executor-secrets rw,size=12k\n\
            29 23 8:1 / / rw shared:1 master:2 - ext4 /dev/sda1 rw\n\
            no mount\n\
            30 29 0 /x /x rw - tmpfs y rw\n\
            31 29 0:9 / /not-\xff-utf8 rw - tmpfs none rw\n\
            32 29 0:9 / /a\\04 rw - - - rw\n";
        let mounts = parse(table);
        let points: Vec<_> = mounts.iter().map(|mount| mount.point.as_os_str().as_bytes()).collect();
        assert_eq!(points, [&b"/root/a b\\c"[..], b"/", b"/not-\xff-utf8", b"/a\\04"]);
        assert_eq!(
            (mounts[0].device, &*mounts[0].kind, &*mounts[0].source),
            (makedev(0, 52), "tmpfs", "executor-secrets".as_ref())
        );
        assert!(mounts[0].has_option("size=12k") && !mounts[0].has_option("size"));
        assert_eq!(
            (mounts[1].device, &*mounts[1].kind, &*mounts[1].source),
            (makedev(8, 1), "ext4", "/dev/sda1".as_ref())
        );
        assert_eq!((&*mounts[3].kind, &*mounts[3].source), ("-", "-".as_ref()));
        let relation = |mount: &Mount| (mount.parent, mount.shared, mount.slave);
        assert_eq!((relation(&mounts[0]), relation(&mounts[1])), ((90, false, false), (23, true, true)));
        assert_eq!(mounts[0].attributes, "ro,nosuid");
    }

    #[test]
    fn this_process_has_a_root() {
        let mounts = parse(&std::fs::read("/proc/self/mountinfo").unwrap());
        assert!(mounts.iter().any(|mount| mount.point == Path::new("/")));
    }
}
