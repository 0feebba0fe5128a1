//! Reads the whole stream of GetOutputs, as a client does.

use std::collections::BTreeMap;

use executor_proto::v1::get_outputs_response::Part;
use executor_proto::v1::{GetOutputsRequest, Outputs};
use tonic::Status;

use crate::api::Api;

/// Content of a GetOutputs stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fetched {
    /// File content and permission bits by path.
    pub files: BTreeMap<String, (Vec<u8>, u32)>,
    /// Path and reason of each skipped entry, in order.
    pub skipped: Vec<(String, String)>,
}

impl Fetched {
    /// Returns the paths of the fetched files.
    pub fn paths(&self) -> Vec<&str> {
        self.files.keys().map(String::as_str).collect()
    }

    /// Returns the content of a file as text.
    ///
    /// # Panics
    /// Panics if the stream has no such file.
    pub fn text(&self, path: &str) -> String {
        let (content, _) = self.files.get(path).unwrap_or_else(|| panic!("the outputs have no file {path}: {self:?}"));
        String::from_utf8_lossy(content).into_owned()
    }

    /// Returns the reason why a path was skipped.
    ///
    /// # Panics
    /// Panics if the path was not skipped.
    pub fn reason(&self, path: &str) -> &str {
        let found = self.skipped.iter().find(|(skipped, _)| skipped == path);
        &found.unwrap_or_else(|| panic!("{path} was not skipped: {self:?}")).1
    }
}

/// Fetches all outputs, one file, or all files below a directory.
///
/// # Errors
/// Returns the daemon's status if the call fails.
///
/// # Panics
/// Panics if the stream violates the interface.
pub fn fetch(api: &Api, id: &str, path: &str) -> Result<Fetched, Status> {
    api.block_on(async {
        let request = GetOutputsRequest { id: id.into(), path: path.into() };
        let mut stream = api.rpc().get_outputs(request).await?.into_inner();
        let mut fetched = Fetched::default();
        let mut current: Option<(String, u64)> = None;
        while let Some(message) = stream.message().await? {
            match message.part.expect("a part") {
                Part::File(file) => {
                    assert_whole(&fetched, current.take());
                    assert!(fetched.skipped.is_empty(), "a file follows a skipped entry");
                    let before = fetched.files.insert(file.path.clone(), (Vec::new(), file.mode));
                    assert!(before.is_none(), "{} was received twice", file.path);
                    current = Some((file.path, file.size));
                }
                Part::Data(data) => {
                    assert!(
                        (1..=64 << 10).contains(&data.len()),
                        "a chunk is {} bytes, expected 1 to 65536",
                        data.len()
                    );
                    let (path, _) = current.as_ref().expect("data belongs to a file");
                    fetched.files.get_mut(path).expect("the file was started").0.extend(data);
                }
                Part::Skipped(entry) => {
                    assert_whole(&fetched, current.take());
                    fetched.skipped.push((entry.path, entry.reason));
                }
            }
        }
        assert_whole(&fetched, current);
        Ok(fetched)
    })
}

fn assert_whole(fetched: &Fetched, current: Option<(String, u64)>) {
    if let Some((path, size)) = current {
        assert_eq!(fetched.files[&path].0.len() as u64, size, "{path}");
    }
}

/// Declares a directory as output.
pub fn directory(path: &str) -> Option<Outputs> {
    Some(Outputs { directory: path.into(), ..Outputs::default() })
}

/// Declares files as outputs.
pub fn files(paths: &[&str]) -> Option<Outputs> {
    Some(Outputs { files: paths.iter().map(|path| (*path).into()).collect(), ..Outputs::default() })
}
