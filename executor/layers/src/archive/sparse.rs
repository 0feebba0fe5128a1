//! Sparse files: the parts of them that the archive contains.

use super::header::{BLOCK, Header, number};
use super::pax::decimal;
use super::{Reader, Source};
use crate::{Limits, UnpackError};

/// A part of a file that the archive contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SparsePiece {
    /// Offset in the file.
    pub at: u64,
    /// Length in bytes.
    pub length: u64,
}

/// Bytes of a piece in GNU's list: two numbers of twelve bytes.
const GNU_PIECE: usize = 24;
/// Longest line of a map in the content, in bytes.
const LINE_MAX: usize = 21;

/// Checks that the pieces are in order, do not overlap, end within the file, and together have the stored length.
pub(super) fn check(pieces: &[SparsePiece], stored: u64, size: u64, path: &[u8]) -> Result<(), UnpackError> {
    let mut end = 0;
    let mut sum = 0_u64;
    for piece in pieces {
        let after = piece.at.checked_add(piece.length).filter(|after| *after <= size && piece.at >= end);
        end = after
            .ok_or_else(|| UnpackError::archive(path, "the pieces of the sparse file overlap or exceed its size"))?;
        sum = sum.saturating_add(piece.length);
    }
    if sum == stored {
        Ok(())
    } else {
        Err(UnpackError::archive(path, "the pieces of the sparse file do not add up to its content"))
    }
}

pub(super) fn from_pairs(numbers: &[u64], path: &[u8], limits: &Limits) -> Result<Vec<SparsePiece>, UnpackError> {
    if !numbers.len().is_multiple_of(2) {
        return Err(UnpackError::archive(path, "an invalid map of a sparse file"));
    }
    limit(numbers.len() / 2, path, limits)?;
    Ok(numbers.chunks_exact(2).map(|pair| SparsePiece { at: pair[0], length: pair[1] }).collect())
}

fn limit(pieces: usize, path: &[u8], limits: &Limits) -> Result<(), UnpackError> {
    if pieces as u64 > limits.pieces {
        return Err(UnpackError::limit(path, "pieces of a sparse file", pieces as u64, limits.pieces));
    }
    Ok(())
}

impl<S: Source> Reader<S> {
    /// Reads GNU's own format: some pieces in the header, more in the extension blocks after it, which do not count as content.
    pub(super) fn gnu_pieces(
        &mut self,
        header: &Header<'_>,
        path: &[u8],
    ) -> Result<(u64, Vec<SparsePiece>), UnpackError> {
        let damaged = || UnpackError::archive(path, "an invalid list of pieces of a sparse file");
        let limits = self.limits;
        let mut pieces = Vec::new();
        let mut take = |list: &[u8]| {
            for pair in list.chunks_exact(GNU_PIECE) {
                if pair[0] == 0 || pair[12] == 0 {
                    break;
                }
                let one = |field| number(field).and_then(|number| u64::try_from(number).ok()).ok_or_else(damaged);
                pieces.push(SparsePiece { at: one(&pair[..12])?, length: one(&pair[12..])? });
            }
            limit(pieces.len(), path, &limits)
        };
        let (list, mut more) = header.gnu_pieces();
        take(list)?;
        while more {
            let mut block = [0; BLOCK];
            self.fill(&mut block)?;
            take(&block[..21 * GNU_PIECE])?;
            more = block[504] != 0;
        }
        Ok((header.gnu_size()?, pieces))
    }

    /// Reads pax's format 1.0: a count, then one line per number, in whole blocks of the content.
    pub(super) fn pieces_in_content(&mut self, path: &[u8]) -> Result<Vec<SparsePiece>, UnpackError> {
        let damaged = || UnpackError::archive(path, "an invalid map of a sparse file");
        let (mut numbers, mut line, mut wanted) = (Vec::new(), Vec::new(), None);
        while wanted != Some(numbers.len()) {
            if self.left < BLOCK as u64 {
                return Err(damaged());
            }
            let mut block = [0; BLOCK];
            self.fill(&mut block)?;
            self.left -= BLOCK as u64;
            for byte in block {
                if wanted == Some(numbers.len()) {
                    break;
                }
                if byte != b'\n' {
                    line.push(byte);
                    if line.len() > LINE_MAX {
                        return Err(damaged());
                    }
                    continue;
                }
                let number = decimal(&line).ok_or_else(damaged)?;
                line.clear();
                if wanted.is_none() {
                    let pieces = usize::try_from(number).ok().and_then(|pieces| pieces.checked_mul(2));
                    let pieces = pieces.ok_or_else(damaged)?;
                    limit(pieces / 2, path, &self.limits)?;
                    wanted = Some(pieces);
                } else {
                    numbers.push(number);
                }
            }
        }
        from_pairs(&numbers, path, &self.limits)
    }
}
