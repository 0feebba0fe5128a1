//! Image layers that a test creates and passes to a launcher.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use executor_core::plan::PlannedImage;
use executor_core::protocol::{LauncherAnswer, LauncherCall, RemoveLayer, UnpackLayer};
use sha2::{Digest, Sha256};

use crate::launcher::Launcher;

/// Media type of an uncompressed archive.
pub const TAR: &str = "application/vnd.oci.image.layer.v1.tar";

/// A layer as a blob.
pub struct Blob {
    /// Digest of the uncompressed archive.
    pub diff_id: String,
    /// Media type, which determines the compression.
    pub media_type: String,
    /// File of the blob, as a launcher receives it.
    pub file: File,
}

impl Blob {
    /// Makes a blob from an archive.
    pub fn from_archive(archive: &[u8]) -> Self {
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(archive).expect("write");
        let diff_id = format!("sha256:{}", hex::encode(Sha256::digest(archive)));
        Self { diff_id, media_type: TAR.into(), file }
    }

    /// Makes a blob from a directory, packed by GNU tar with extended attributes.
    pub fn from_directory(dir: &Path) -> Self {
        let mut tar = std::process::Command::new("tar");
        tar.args(["--numeric-owner", "--xattrs", "--xattrs-include=*", "--format=posix", "-C"]).arg(dir);
        let output = tar.args(["-c", "."]).output().expect("tar");
        assert!(output.status.success(), "{output:?}");
        Self::from_archive(&output.stdout)
    }

    /// Makes a blob with many small files, which takes a while to unpack.
    pub fn from_many_files(count: u32, content: &str) -> Self {
        let mut builder = tar::Builder::new(Vec::new());
        for index in 0..count {
            let mut header = tar::Header::new_ustar();
            header.set_size(content.len() as u64);
            header.set_mode(0o644);
            header.set_path(format!("d{}/f{index}", index / 1000)).expect("a path");
            header.set_cksum();
            builder.append(&header, content.as_bytes()).expect("append");
        }
        Self::from_archive(&builder.into_inner().expect("an archive"))
    }

    /// Returns the message that asks a launcher to unpack the blob.
    pub fn request(&self, parents: &[&Self]) -> LauncherCall {
        let digest = |blob: &&Self| hex::decode(&blob.diff_id[7..]).expect("digits");
        LauncherCall::UnpackLayer(UnpackLayer {
            diff_id: self.diff_id.clone(),
            media_type: self.media_type.clone(),
            bytes_max: 0,
            parents: parents.iter().map(digest).collect(),
        })
    }
}

impl Launcher {
    pub fn unpack(&self, blob: &Blob, parents: &[&Blob]) -> LauncherAnswer {
        self.call(blob.request(parents), &[blob.file.as_fd()])
    }

    /// Unpacks all layers of an image and returns the image as part of a plan.
    pub fn unpack_image(&self, blobs: &[Blob]) -> PlannedImage {
        let blobs: Vec<&Blob> = blobs.iter().collect();
        for (index, blob) in blobs.iter().enumerate() {
            let answer = self.unpack(blob, &blobs[..index]);
            assert!(matches!(answer, LauncherAnswer::Done(_)), "{answer:?}");
        }
        PlannedImage {
            reference: "oci:/image".into(),
            digest: format!("sha256:{}", "0".repeat(64)),
            layers: blobs.iter().map(|blob| blob.diff_id.clone()).collect(),
            volumes: Vec::new(),
            labels: Default::default(),
        }
    }

    pub fn remove_layer(&self, blob: &Blob) -> LauncherAnswer {
        self.call(LauncherCall::RemoveLayer(RemoveLayer { diff_id: blob.diff_id.clone() }), &[])
    }

    /// Returns the entries in a directory of the launcher's layer store.
    pub fn stored(&self, name: &str) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.state_dir().join("layers").join(name)).expect("a store");
        entries.map(|entry| entry.expect("an entry").path()).collect()
    }

    /// Returns the pid of a worker that the launcher forked to unpack or remove layers.
    pub fn layer_worker(&self) -> Option<i32> {
        let entries = std::fs::read_dir("/proc").expect("/proc").flatten();
        entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok()).find(|pid| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let parent = stat.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(1)?.parse::<u32>().ok());
            stat.contains("(executor-layer)") && !stat.contains(") Z ") && parent == Some(self.child.id())
        })
    }
}
