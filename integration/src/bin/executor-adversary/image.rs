//! Attacks by the author of an image.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use executor_core::protocol::LauncherAnswer;
use integration::daemon::Daemon;
use integration::launcher::Launcher;
use integration::layers::{Blob, TAR};
use integration::request::{RequestBuilder as _, program};
use integration::rootfs::Rootfs;

use crate::attack::{Attack, Outcome, Position, Scale};

pub(crate) const ALL: &[Attack] = &[
    Attack {
        name: "layers: a file of a terabyte of holes",
        position: Position::Image,
        claim: "the size of holes in a layer's files is checked before the holes are read",
        attack: holes,
        control: holes_control,
    },
    Attack {
        name: "layers: a blob that is a hole",
        position: Position::Image,
        claim: "the size of holes in a blob is checked before the holes are read, whatever the media type of the blob",
        attack: hollow,
        control: hollow_control,
    },
    Attack {
        name: "layers: bits that flip",
        position: Position::Image,
        claim: "a blob with a flipped bit is not unpacked, and a damaged layer is repaired by unpacking it again",
        attack: flips,
        control: flips_control,
    },
    Attack {
        name: "root: links for the kernel's directories",
        position: Position::Image,
        claim: "an image whose /dev, /proc or /sys is a link is refused, and the link target is unchanged",
        attack: links,
        control: links_control,
    },
];

/// Timeout for unpacking or refusing a layer of one file.
const UNPACK_TIMEOUT: Duration = Duration::from_secs(5);

/// Encodes a number that is too large for octal digits as GNU tar does: 12 bytes with the first bit set.
fn number(value: u64) -> [u8; 12] {
    let mut bytes = [0; 12];
    bytes[0] = 0x80;
    bytes[4..].copy_from_slice(&value.to_be_bytes());
    bytes
}

/// Builds an archive in GNU tar's old sparse format with one file of `size` bytes, of which only the last 512 are data.
fn sparse(size: u64) -> Vec<u8> {
    const DATA: u64 = 512;
    let mut header = [0_u8; 512];
    header[..6].copy_from_slice(b"sparse");
    header[100..108].copy_from_slice(b"0000644\0");
    header[108..116].copy_from_slice(b"0000000\0");
    header[116..124].copy_from_slice(b"0000000\0");
    header[124..136].copy_from_slice(format!("{DATA:011o}\0").as_bytes());
    header[136..148].copy_from_slice(b"00000000000\0");
    header[156] = b'S';
    header[257..265].copy_from_slice(b"ustar  \0");
    header[386..398].copy_from_slice(&number(size - DATA));
    header[398..410].copy_from_slice(&number(DATA));
    header[483..495].copy_from_slice(&number(size));
    header[148..156].copy_from_slice(b"        ");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    let mut archive = header.to_vec();
    archive.extend([b'x'; DATA as usize]);
    archive.extend([0; 1024]);
    archive
}

fn holes(scale: Scale) -> anyhow::Result<Outcome> {
    let launcher = Launcher::start(&[]);
    let mut reported = Vec::new();
    for size in scale.pick(&[1_u64 << 40][..], &[1 << 33, 1 << 36, 1 << 40, 1 << 50, 1 << 62]) {
        let blob = Blob::from_archive(&sparse(*size));
        let begun = Instant::now();
        let answer = launcher.unpack(&blob, &[]);
        let took = begun.elapsed();
        let outcome = match answer {
            LauncherAnswer::Done(_) => "unpacked",
            _ => "refused",
        };
        reported.push(format!("2^{} bytes {outcome} in {:.2} s", size.ilog2(), took.as_secs_f64()));
        if took > UNPACK_TIMEOUT {
            return Ok(Outcome::Through(reported.join(", ")));
        }
    }
    Ok(Outcome::Held(reported.join(", ")))
}

/// Creates a sparse blob without data. The blob's length alone does not cause a refusal.
fn hole(media_type: &str, length: u64) -> anyhow::Result<Blob> {
    /// A skippable zstd frame: magic number and length.
    const SKIPPED: [u8; 8] = [0x50, 0x2a, 0x4d, 0x18, 0xff, 0xff, 0xff, 0xff];
    let mut blob = Blob::from_archive(b"");
    if media_type.ends_with("zstd") {
        let step = SKIPPED.len() as u64 + u64::from(u32::MAX);
        for at in (0..length).step_by(usize::try_from(step)?) {
            blob.file.write_all_at(&SKIPPED, at)?;
        }
    }
    blob.file.set_len(length)?;
    media_type.clone_into(&mut blob.media_type);
    Ok(blob)
}

fn hollow(scale: Scale) -> anyhow::Result<Outcome> {
    let launcher = Launcher::start(&[]);
    let mut reported = Vec::new();
    for length in scale.pick(&[1_u64 << 35][..], &[1 << 34, 1 << 36, 1 << 40, 1 << 43]) {
        for kind in ["", "+gzip", "+zstd"] {
            let blob = hole(&format!("{TAR}{kind}"), *length)?;
            let begun = Instant::now();
            let answer = launcher.unpack(&blob, &[]);
            let took = begun.elapsed();
            ensure!(!matches!(answer, LauncherAnswer::Done(_)), "an archive with a hole is unpacked: {answer:?}");
            reported.push(format!("2^{} bytes{kind} refused in {:.2} s", length.ilog2(), took.as_secs_f64()));
            if took > UNPACK_TIMEOUT {
                return Ok(Outcome::Through(reported.join(", ")));
            }
        }
    }
    Ok(Outcome::Held(reported.join(", ")))
}

/// Control: an archive that is followed by a hole of 1 MiB is unpacked.
fn hollow_control(_: Scale) -> anyhow::Result<String> {
    let launcher = Launcher::start(&[]);
    let mut archive = sparse(1 << 20);
    archive.resize(archive.len() + (1 << 20), 0);
    let blob = Blob::from_archive(&archive);
    blob.file.set_len(0)?;
    blob.file.write_all_at(&sparse(1 << 20), 0)?;
    blob.file.set_len(archive.len() as u64)?;
    let answer = launcher.unpack(&blob, &[]);
    ensure!(matches!(answer, LauncherAnswer::Done(_)), "{answer:?}");
    Ok("an archive followed by a hole of a megabyte is unpacked".into())
}

/// Control: a small sparse file in the same format is unpacked with its full size.
fn holes_control(_: Scale) -> anyhow::Result<String> {
    let launcher = Launcher::start(&[]);
    let answer = launcher.unpack(&Blob::from_archive(&sparse(1 << 20)), &[]);
    ensure!(matches!(answer, LauncherAnswer::Done(_)), "{answer:?}");
    let layer = launcher.stored("sha256").pop().context("there is no stored layer")?;
    let mut found = Vec::new();
    files(&layer, &mut found)?;
    let sizes: Vec<u64> = found.iter().filter(|(name, _)| name == "sparse").map(|(_, size)| *size).collect();
    ensure!(sizes == [1 << 20], "{found:?}");
    Ok("a sparse file of a megabyte is unpacked".into())
}

/// Returns a blob of one file that contains zeros, and the positions of the bits to flip.
fn flippable(scale: Scale) -> (Vec<u8>, impl Iterator<Item = usize>) {
    let archive = sparse(1 << 12);
    let bits = archive.len() * 8;
    (archive, (0..bits).step_by(scale.pick(401, 13)))
}

fn flips(scale: Scale) -> anyhow::Result<Outcome> {
    let launcher = Launcher::start(&[]);
    let (archive, bits) = flippable(scale);
    let blob = Blob::from_archive(&archive);
    let (mut faults, mut refused) = (Vec::new(), 0);
    for bit in bits {
        let (at, mask) = (bit / 8, 1 << (bit % 8));
        blob.file.write_all_at(&[archive[at] ^ mask], at as u64)?;
        match launcher.unpack(&blob, &[]) {
            LauncherAnswer::Done(_) => faults.push(format!("the flipped bit {bit} is not detected")),
            _ => refused += 1,
        }
        blob.file.write_all_at(&archive[at..=at], at as u64)?;
    }
    if !launcher.stored("sha256").is_empty() || !launcher.stored("ingest").is_empty() {
        faults.push("a refused blob left files in the store".to_owned());
    }
    Ok(Outcome::new((!faults.is_empty()).then(|| faults.join("; ")), format!("{refused} damaged blobs refused")))
}

/// Control: the intact blob is unpacked, and a flipped bit of the unpacked layer stays until the layer is removed and
/// unpacked again.
fn flips_control(_: Scale) -> anyhow::Result<String> {
    let launcher = Launcher::start(&[]);
    let blob = Blob::from_archive(&sparse(1 << 12));
    ensure!(matches!(launcher.unpack(&blob, &[]), LauncherAnswer::Done(_)), "the launcher refuses an intact blob");
    let file =
        || launcher.stored("sha256").pop().map(|layer| layer.join("fs/sparse")).context("there is no stored layer");
    let whole = fs::read(file()?)?;
    fs::OpenOptions::new().write(true).open(file()?)?.write_all_at(&[1], 0)?;
    ensure!(
        matches!(launcher.unpack(&blob, &[]), LauncherAnswer::Done(_)) && fs::read(file()?)? != whole,
        "a damaged layer was repaired without a removal"
    );
    ensure!(matches!(launcher.remove_layer(&blob), LauncherAnswer::Done(_)), "the launcher did not remove the layer");
    ensure!(
        matches!(launcher.unpack(&blob, &[]), LauncherAnswer::Done(_)) && fs::read(file()?)? == whole,
        "the layer is not repaired"
    );
    Ok("the intact blob is unpacked; a flipped bit in the layer stays until the layer is unpacked again".into())
}

fn files(dir: &std::path::Path, found: &mut Vec<(String, u64)>) -> std::io::Result<()> {
    for entry in fs::read_dir(dir)?.flatten() {
        let meta = entry.path().symlink_metadata()?;
        match meta.is_dir() {
            true => files(&entry.path(), found)?,
            false => found.push((entry.file_name().to_string_lossy().into_owned(), meta.len())),
        }
    }
    Ok(())
}

fn links(scale: Scale) -> anyhow::Result<Outcome> {
    let daemon = Daemon::start();
    let (mut faults, mut refused) = (Vec::new(), 0);
    for name in scale.pick(&["dev"][..], &["dev", "proc", "sys"]) {
        let (rootfs, victim) = (Rootfs::busybox(), tempfile::tempdir()?);
        fs::write(victim.path().join("ptmx"), "precious")?;
        rootfs.replace_by_link(name, victim.path().to_str().context("the path is not UTF-8")?);
        let request = program("/bin/true", &[]).id(&format!("c-{name}")).rootfs(&rootfs.reference());
        match daemon.api.run(request) {
            Err(_) => refused += 1,
            Ok(_) => faults.push(format!("an image with a link for {name} runs")),
        }
        let left = fs::read_dir(victim.path())?.count();
        if left != 1 || fs::read_to_string(victim.path().join("ptmx"))? != "precious" {
            faults.push(format!("the link target of {name} has {left} entries"));
        }
    }
    Ok(Outcome::new((!faults.is_empty()).then(|| faults.join("; ")), format!("{refused} refused")))
}

/// Control: the same image with directories instead of links runs.
fn links_control(_: Scale) -> anyhow::Result<String> {
    let daemon = Daemon::start();
    let rootfs = Rootfs::busybox();
    let container = daemon.api.run_to_end(program("/bin/true", &[]).rootfs(&rootfs.reference()));
    ensure!(integration::api::exit(&container) == Ok(0), "{container:?}");
    Ok("the image runs with directories instead of links".into())
}
