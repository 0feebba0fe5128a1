//! Caches the sizes of stored layers. A layer never changes, so a launcher measures each layer once.

use std::collections::BTreeMap;

use executor_core::protocol::LayersMeasured;
use executor_layers::{DiffId, Store};
use executor_sys::tree_size::TreeSize;
use prost::Message;

/// Maximum number of trees that one process measures: their sizes fit into a report.
const TREES_MAX: usize = 256;

/// Sizes of measured directory trees, by the trees' names.
#[derive(Default)]
pub(super) struct LayerSizes(BTreeMap<String, TreeSize>);

/// Report of a process that has measured trees, in the order of its work.
#[derive(Clone, PartialEq, Message)]
pub(super) struct SizeReport {
    /// Bytes of each tree on the disk.
    #[prost(uint64, repeated, tag = "1")]
    pub(super) bytes: Vec<u64>,
    /// Number of inodes of each tree.
    #[prost(uint64, repeated, tag = "2")]
    pub(super) inodes: Vec<u64>,
}

impl LayerSizes {
    /// Returns the total size of the trees. If the size of a tree is not known yet, the error lists trees to measure
    /// first.
    pub(super) fn sum(&mut self, trees: Vec<String>) -> Result<LayersMeasured, Vec<String>> {
        self.0.retain(|tree, _| trees.contains(tree));
        let missing: Vec<String> =
            trees.into_iter().filter(|tree| !self.0.contains_key(tree)).take(TREES_MAX).collect();
        if !missing.is_empty() {
            return Err(missing);
        }
        Ok(LayersMeasured {
            bytes: self.0.values().map(|size| size.bytes).sum(),
            inodes: self.0.values().map(|size| size.inodes).sum(),
        })
    }

    /// Adds the sizes in a process's report.
    pub(super) fn extend(&mut self, trees: Vec<String>, report: SizeReport) {
        let sizes = report.bytes.into_iter().zip(report.inodes).map(|(bytes, inodes)| TreeSize { bytes, inodes });
        self.0.extend(trees.into_iter().zip(sizes));
    }

    /// Deletes the sizes of a removed layer.
    pub(super) fn remove(&mut self, layer: &DiffId) {
        let hex = layer.hex();
        self.0.retain(|tree, _| Store::layer_of(tree) != hex);
    }
}

impl From<Vec<TreeSize>> for SizeReport {
    fn from(sizes: Vec<TreeSize>) -> Self {
        let (bytes, inodes) = sizes.into_iter().map(|size| (size.bytes, size.inodes)).unzip();
        Self { bytes, inodes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_tree_is_measured_once() {
        let trees = |count: usize| (0..count).map(|index| format!("{index}.a")).collect::<Vec<_>>();
        let mut sizes = LayerSizes::default();
        assert_eq!(sizes.sum(Vec::new()), Ok(LayersMeasured::default()));
        let first = sizes.sum(trees(TREES_MAX + 1)).unwrap_err();
        assert_eq!(first.len(), TREES_MAX);
        let report = |count: usize| SizeReport::from(vec![TreeSize { bytes: u64::MAX >> 32, inodes: 2 }; count]);
        assert!(report(TREES_MAX).encoded_len() < super::super::ANSWER_MAX);
        sizes.extend(first, report(TREES_MAX));
        let rest = sizes.sum(trees(TREES_MAX + 1)).unwrap_err();
        assert_eq!(rest.len(), 1);
        sizes.extend(rest, report(1));
        assert_eq!(sizes.sum(trees(TREES_MAX + 1)).map(|sum| sum.inodes), Ok(514));
        assert_eq!(sizes.sum(trees(3)).map(|sum| sum.inodes), Ok(6), "removed layers are forgotten");
        assert_eq!(sizes.sum(trees(4)).unwrap_err().len(), 1);
    }
}
