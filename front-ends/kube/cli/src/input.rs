//! Reads files with size limits into memory that is zeroed on drop, and lowers their objects.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use executor_cli_kit::network::Chosen;
use executor_client::v1::InfoResponse;
use executor_kube::config::Config;
use executor_kube::lower::lower;
use executor_kube::object::{self, INPUT_MAX, Objects};
use executor_kube::options::{HostVolume, Options, PodNetwork};
use executor_kube::plan::Plan;
use executor_kube::report::{Report, Strictness, Violation};
use zeroize::Zeroizing;

use crate::args::{FilesArgs, ValidateArg, play_name};
use crate::conventions;
use crate::error::KubeError;

/// Maximum number of files of a directory.
const FILES_MAX: usize = 10_000;

/// The input files and their options.
pub(crate) struct Input {
    pub(crate) play: String,
    files: Vec<(String, Zeroizing<String>)>,
    args: FilesArgs,
}

impl Input {
    pub(crate) fn read(args: &FilesArgs) -> Result<Self, KubeError> {
        let play = match &args.name {
            Some(name) => name.clone(),
            None => name_of(args.files.first().map_or(Path::new("-"), PathBuf::as_path))?,
        };
        let mut files = Vec::new();
        let mut total = 0;
        for path in &args.files {
            for path in expand(path)? {
                let text = read(&path, INPUT_MAX - total)?;
                total += text.len();
                files.push((path.display().to_string(), text));
            }
        }
        Ok(Self { play, files, args: args.clone() })
    }

    /// Validates and lowers the objects, without conventions.
    pub(crate) fn plan(&self, info: Option<&InfoResponse>) -> Result<(Plan, Vec<Violation>), KubeError> {
        let (objects, report) = self.objects();
        lower(&objects, &self.options(info), report).map_err(KubeError::Wrong)
    }

    /// Validates the objects, decorates them with conventions and lowers them.
    ///
    /// # Errors
    /// Returns [`KubeError::Empty`] if the files contain no object. Without this error, an empty file, such as a failed
    /// template rendering, would remove the whole play.
    pub(crate) async fn decorated_plan(
        &self,
        info: &InfoResponse,
    ) -> Result<(Plan, Vec<Violation>, Vec<Config>), KubeError> {
        let (mut objects, mut report) = self.objects();
        if report.violations().is_empty() && objects.is_empty() {
            return Err(KubeError::Empty(self.named()));
        }
        // Do not send invalid objects to conventions.
        if report.violations().is_empty() {
            conventions::decorate(&self.args, &mut objects, &mut report).await?;
        }
        let (plan, warnings) = lower(&objects, &self.options(Some(info)), report).map_err(KubeError::Wrong)?;
        Ok((plan, warnings, objects.config_maps.into_values().chain(objects.secrets.into_values()).collect()))
    }

    fn objects(&self) -> (Objects, Report) {
        let strictness = match self.args.validate {
            ValidateArg::Strict => Strictness::Strict,
            ValidateArg::Warn => Strictness::Warn,
            ValidateArg::Ignore => Strictness::Ignore,
        };
        let mut report = object::report(strictness);
        let files = self.files.iter().map(|(name, text)| (name.as_str(), text.as_str()));
        let objects = object::read(files, &mut report);
        (objects, report)
    }

    /// Returns the names of the files as the user gave them, for error messages.
    fn named(&self) -> String {
        self.args.files.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
    }

    fn options(&self, info: Option<&InfoResponse>) -> Options {
        let capacity = info.and_then(|info| info.total);
        let processors = std::thread::available_parallelism().map_or(1, |count| count.get() as u64);
        let volume = |volume: &executor_client::v1::HostVolume| HostVolume {
            name: volume.name.clone(),
            path: volume.path.clone(),
            read_only: volume.read_only,
        };
        Options {
            play: self.play.clone(),
            network: match &self.args.network {
                Chosen::Host => PodNetwork::Host,
                Chosen::Cni(name) => PodNetwork::Cni(name.clone()),
                Chosen::None | Chosen::Path(_) => PodNetwork::None,
            },
            egress: self.args.egress,
            images: self.args.images.iter().cloned().collect(),
            node_name: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            memory_bytes: capacity.map_or(0, |capacity| capacity.memory_bytes),
            cpu_millis: processors * 1000,
            host_volumes: info.map(|info| info.volumes.iter().map(volume).collect()),
            host_paths: info.map(|info| info.host_paths.clone()).unwrap_or_default(),
        }
    }
}

/// Derives the name of a play from the name of a file or directory.
pub(crate) fn name_of(path: &Path) -> Result<String, KubeError> {
    if path == Path::new("-") {
        return Ok("stdin".into());
    }
    let whole = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let name = whole.file_stem().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    play_name(&name).map_err(|message| KubeError::Input {
        path: path.to_owned(),
        message: format!("the file name is not a valid play name, which {message}: choose a name with --name"),
    })
}

/// Returns the files of a directory, sorted by name; for a file, the file itself.
fn expand(path: &Path) -> Result<Vec<PathBuf>, KubeError> {
    if path == Path::new("-") || !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let failed = |source| KubeError::Read { path: path.to_owned(), source };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(path).map_err(failed)? {
        let file = entry.map_err(failed)?.path();
        let ends = file.extension().is_some_and(|end| end == "yaml" || end == "yml" || end == "json");
        if ends && file.is_file() {
            files.push(file);
        }
        if files.len() > FILES_MAX {
            let message = format!("the directory has more than {FILES_MAX} files");
            return Err(KubeError::Input { path: path.to_owned(), message });
        }
    }
    files.sort();
    match files.is_empty() {
        true => {
            let message = "the directory has no .yaml, .yml or .json file".into();
            Err(KubeError::Input { path: path.to_owned(), message })
        }
        false => Ok(files),
    }
}

fn read(path: &Path, room: usize) -> Result<Zeroizing<String>, KubeError> {
    let failed = |source| KubeError::Read { path: path.to_owned(), source };
    let too_large = || KubeError::Input {
        path: path.to_owned(),
        message: format!("the files are larger than {INPUT_MAX} bytes together"),
    };
    let mut bytes = Zeroizing::new(Vec::new());
    if path == Path::new("-") {
        fill(&mut io::stdin().lock(), room, &mut bytes).map_err(failed)?;
    } else {
        let mut file = File::open(path).map_err(failed)?;
        // Allocate once: reallocation would leave copies in memory.
        let size = file.metadata().map_err(failed)?.len();
        bytes.reserve(usize::try_from(size).unwrap_or(0).min(room) + 1);
        fill(&mut file, room, &mut bytes).map_err(failed)?;
    }
    if bytes.len() > room {
        return Err(too_large());
    }
    match std::str::from_utf8(&bytes) {
        Ok(text) => Ok(Zeroizing::new(text.to_owned())),
        Err(error) => {
            let message = format!("the text is not UTF-8 at byte {}", error.valid_up_to());
            Err(KubeError::Input { path: path.to_owned(), message })
        }
    }
}

/// Reads until the end of the file or until `bytes` is longer than `room`. If the buffer must grow, the old buffer is
/// zeroed before it is freed.
fn fill(from: &mut dyn Read, room: usize, bytes: &mut Zeroizing<Vec<u8>>) -> io::Result<()> {
    let mut chunk = Zeroizing::new([0u8; 16 << 10]);
    while bytes.len() <= room {
        let count = match from.read(&mut *chunk) {
            Ok(0) => return Ok(()),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        if bytes.capacity() - bytes.len() < count {
            let mut larger = Zeroizing::new(Vec::with_capacity((bytes.capacity() * 2).max(64 << 10) + count));
            larger.extend_from_slice(bytes);
            std::mem::swap(bytes, &mut larger);
        }
        bytes.extend_from_slice(&chunk[..count]);
    }
    Ok(())
}
